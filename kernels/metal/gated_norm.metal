#include "common.h"

/* One SIMD group for each head of each row. */
kernel void gated_norm(device const uint *header [[buffer(0)]],
                       device const float *o [[buffer(1)]],
                       device const float *z [[buffer(2)]],
                       device const float *w [[buffer(3)]],
                       device float *y [[buffer(4)]],
                       constant mtlq_gated_norm_args &args [[buffer(ARGS)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    const uint head = group.x * num_simdgroups + simdgroup, row = group.y;
    if (row >= header[args.rows] || head >= args.num_heads)
        return;
    const uint num_vectors = args.dim / 4;
    const ulong first = (ulong(row) * args.num_heads + head) * num_vectors;
    device const float4 *source = (device const float4 *)o + first;
    device const float4 *gate = (device const float4 *)z + first;
    device const float4 *weight = (device const float4 *)w;
    device float4 *target = (device float4 *)y + first;

    float sum = 0.0f;
    for (uint i = lane; i < num_vectors; i += 32)
        sum += square_sum(source[i]);
    const float scale = rsqrt(simd_sum(sum) / float(args.dim) + args.eps);
    for (uint i = lane; i < num_vectors; i += 32)
        target[i] = source[i] * scale * weight[i] * silu(gate[i]);
}
