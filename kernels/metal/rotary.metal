#include "cache.h"

/* Grid: (H + 2 KV) / SIMD groups a threadgroup, rows. A SIMD group has one head of one row: the
 * H query heads come first (there may be none), then the KV key heads, then the KV value heads. */
kernel void rotary(device const uint *header [[buffer(0)]],
                   device const int *row_sequence [[buffer(1)]],
                   device const int *positions [[buffer(2)]],
                   device const int *sequence_slots [[buffer(3)]],
                   device const float *qg [[buffer(4)]],
                   device const float *k [[buffer(5)]],
                   device const float *v [[buffer(6)]],
                   device const float *q_norm [[buffer(7)]],
                   device const float *k_norm [[buffer(8)]],
                   device const float *rope [[buffer(9)]],
                   device half *k_cache [[buffer(10)]],
                   device half *v_cache [[buffer(11)]],
                   device float *q [[buffer(12)]],
                   constant mtlq_rotary_args &args [[buffer(ARGS)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    const uint row = group.y, num_heads = args.num_heads, num_kv = args.num_kv_heads;
    uint head = group.x * num_simdgroups + simdgroup;
    if (row >= header[MTLQ_ROWS] || head >= num_heads + 2 * num_kv)
        return;
    const uint dim = args.head_dim, half_turn = args.rotary_dim / 2, block = args.block_tokens;
    const uint position = uint(positions[row]);
    const ulong cell = ulong(sequence_slots[row_sequence[row]]) * args.max_context + position;
    const ulong tile = cell / block;
    const uint tile_halfs = num_kv * dim * block, place = uint(cell % block);

    if (head >= num_heads + num_kv) {
        head -= num_heads + num_kv;
        device const float *source = v + (ulong(row) * num_kv + head) * dim;
        device half *target =
            cache_tile(v_cache, tile, tile_halfs) + (ulong(head) * block + place) * dim;
        for (uint i = lane; i < dim; i += 32)
            target[i] = half(source[i]);
        return;
    }
    const bool is_query = head < num_heads;
    if (!is_query)
        head -= num_heads;
    const uint query_lanes = args.gated ? 2 * dim : dim;
    device const float *source = is_query ? qg + (ulong(row) * num_heads + head) * query_lanes
                                          : k + (ulong(row) * num_kv + head) * dim;
    device const float *weight = is_query ? q_norm : k_norm;
    float sum = 0.0f;
    for (uint i = lane; i < dim; i += 32)
        sum = fma(source[i], source[i], sum);
    const float scale = rsqrt(simd_sum(sum) / float(dim) + args.eps);

    device half *keys = cache_tile(k_cache, tile, tile_halfs);
    device const float *cosines = rope + ulong(position) * args.rotary_dim;
    device const float *sines = cosines + half_turn;
    for (uint i = lane; i < dim; i += 32) {
        float value = source[i] * scale * weight[i];
        if (i < args.rotary_dim) {
            const bool is_first = i < half_turn;
            const uint turn = is_first ? i : i - half_turn, other = is_first ? i + half_turn : turn;
            const float partner = source[other] * scale * weight[other];
            value = value * cosines[turn] + (is_first ? -partner : partner) * sines[turn];
        }
        if (is_query)
            q[(ulong(row) * num_heads + head) * dim + i] = value;
        else
            keys[(ulong(head) * dim + i) * block + place] = half(value);
    }
}
