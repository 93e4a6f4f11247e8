#include "order.h"

/* Bindings of both kernels: header, logits, ids, and a workspace of 8 bytes for each (row,
 * block). */

#define VALUES_PER_BLOCK 4096

/* One threadgroup of at most 1024 threads for each VALUES_PER_BLOCK logits of each row. */
kernel void argmax_blocks(device const uint *header [[buffer(0)]],
                          device const float *logits [[buffer(1)]],
                          device uint2 *best_of_block [[buffer(3)]],
                          constant mtlq_argmax_args &args [[buffer(ARGS)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint2 num_groups [[threadgroups_per_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint2 num_threads [[threads_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup uint2 partial[32];
    if (group.y >= header[args.rows])
        return;
    device const float *row = logits + ulong(group.y) * args.stride;
    const uint first = group.x * VALUES_PER_BLOCK;
    const uint end = min(first + VALUES_PER_BLOCK, args.num_valid);

    uint2 best = uint2(0, first);
    for (uint i = first + thread_index; i < end; i += num_threads.x) {
        const uint order = order_of(row[i]);
        if (order > best.x)
            best = uint2(order, i);
    }
    best = simd_best(best);
    if (lane == 0)
        partial[simdgroup] = best;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        const uint2 all = simd_best(lane < num_simdgroups ? partial[lane] : uint2(0, NO_INDEX));
        if (lane == 0)
            best_of_block[group.y * num_groups.x + group.x] = all;
    }
}

/* One SIMD group a row. */
kernel void argmax(device const uint *header [[buffer(0)]],
                   device int *ids [[buffer(2)]],
                   device const uint2 *best_of_block [[buffer(3)]],
                   constant mtlq_argmax_args &args [[buffer(ARGS)]],
                   uint row [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]])
{
    if (row >= header[args.rows])
        return;
    const uint num_blocks = (args.num_valid + VALUES_PER_BLOCK - 1) / VALUES_PER_BLOCK;
    uint2 best = uint2(0, NO_INDEX);
    for (uint i = lane; i < num_blocks; i += 32) {
        const uint2 candidate = best_of_block[row * num_blocks + i];
        if (is_better(candidate, best))
            best = candidate;
    }
    best = simd_best(best);
    if (lane == 0)
        ids[row] = int(best.y);
}
