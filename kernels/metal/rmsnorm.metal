#include "common.h"

/* One threadgroup a row. Threads: a multiple of 32, at most 1024; the sum's order depends on
 * their number. */
kernel void rmsnorm(device const uint *header [[buffer(0)]],
                    device const float *x [[buffer(1)]],
                    device const float *w [[buffer(2)]],
                    device float *y [[buffer(3)]],
                    constant mtlq_rmsnorm_args &args [[buffer(ARGS)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint num_threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float partial[32];
    if (row >= header[args.rows])
        return;
    device const float4 *source = (device const float4 *)(x + ulong(row) * args.dim);
    device float4 *target = (device float4 *)(y + ulong(row) * args.dim);
    device const float4 *weight = (device const float4 *)w;

    float sum = 0.0f;
    for (uint i = thread_index; i < args.dim / 4; i += num_threads)
        sum += square_sum(source[i]);
    sum = simd_sum(sum);
    if (lane == 0)
        partial[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = simd_sum(lane < num_simdgroups ? partial[lane] : 0.0f);

    const float scale = rsqrt(sum / float(args.dim) + args.eps);
    for (uint i = thread_index; i < args.dim / 4; i += num_threads)
        target[i] = source[i] * scale * weight[i];
}
