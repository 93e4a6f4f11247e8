#include "attention.h"

/* Attention for few rows: the cached blocks of a sequence are split over threadgroups, a second
 * kernel merges.
 *
 * A split keeps, for each of its heads, the largest score m, the sum of e^(score - m) and the
 * values weighted by it. workspace: float [sequences * MAX_DECODE_ROWS, H, splits, HEAD_DIM]
 * then as many float2 (m, sum). A row's result depends on its own context and the number of
 * splits alone. */

constant uint NUM_SPLITS [[function_constant(1)]];

/* One row of one sequence, from the grid's z. */
struct decode_row {
    uint row, slot, num_positions, num_blocks, blocks_per_split;
};

inline bool find_row(device const uint *header, device const int *query_start_loc,
                     device const int *sequence_slots, device const int *batched_kv_valid, uint z,
                     thread decode_row &found)
{
    const uint sequence = z / MAX_DECODE_ROWS, i = z % MAX_DECODE_ROWS;
    if (sequence >= header[MTLQ_SEQUENCES])
        return false;
    const uint first_row = uint(query_start_loc[sequence]);
    const uint num_rows = uint(query_start_loc[sequence + 1]) - first_row;
    if (i >= num_rows || num_rows > MAX_DECODE_ROWS)
        return false;
    found.row = first_row + i;
    found.slot = uint(sequence_slots[sequence]);
    found.num_positions = uint(batched_kv_valid[sequence]) + i + 1;
    found.num_blocks = (found.num_positions + BLOCK - 1) / BLOCK;
    found.blocks_per_split = (found.num_blocks + NUM_SPLITS - 1) / NUM_SPLITS;
    return true;
}

/* Grid: splits, H / HEADS, sequences * MAX_DECODE_ROWS; 64 threads. HEADS query heads of one KV
 * head share each load of K and V. Both SIMD groups make scores, two positions a lane, then
 * values, four dimensions a lane: K has positions innermost and V dimensions, so neither product
 * needs a sum across lanes. */
template <int HEADS>
kernel void attention_decode(device const uint *header [[buffer(0)]],
                             device const int *query_start_loc [[buffer(1)]],
                             device const int *sequence_slots [[buffer(2)]],
                             device const int *batched_kv_valid [[buffer(3)]],
                             device const float *q [[buffer(4)]],
                             device const half *k_cache [[buffer(5)]],
                             device const half *v_cache [[buffer(6)]],
                             device float *workspace [[buffer(9)]],
                             constant mtlq_attention_args &args [[buffer(ARGS)]],
                             uint3 group [[threadgroup_position_in_grid]],
                             uint3 num_groups [[threadgroups_per_grid]],
                             uint thread_index [[thread_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float4 queries[HEADS * HEAD_DIM / 4];
    threadgroup float4 weights[HEADS * BLOCK / 4]; /* scores, then e^(score - m) */
    threadgroup float corrections[HEADS];

    decode_row at;
    if (!find_row(header, query_start_loc, sequence_slots, batched_kv_valid, group.z, at))
        return;
    const uint split = group.x, first_block = split * at.blocks_per_split;
    const uint end_block = min(first_block + at.blocks_per_split, at.num_blocks);
    if (first_block >= end_block)
        return;
    const uint first_head = group.y * HEADS;
    const uint kv_head = first_head / (args.num_heads / args.num_kv_heads);
    device const float4 *source =
        (device const float4 *)(q + (ulong(at.row) * args.num_heads + first_head) * HEAD_DIM);
    for (uint i = thread_index; i < HEADS * HEAD_DIM / 4; i += 64)
        queries[i] = source[i] * args.scale;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    /* Of the heads simdgroup, simdgroup + 2, ...: equal in all lanes. */
    float largest[(HEADS + 1) / 2], sum[(HEADS + 1) / 2];
    float4 out[HEADS];
    UNROLL
    for (int j = 0; j < (HEADS + 1) / 2; ++j) {
        largest[j] = LOWEST_SCORE;
        sum[j] = 0.0f;
    }
    UNROLL
    for (int h = 0; h < HEADS; ++h)
        out[h] = float4(0.0f);

    for (uint block = first_block; block < end_block; ++block) {
        const ulong tile =
            head_tile(at.slot, block * BLOCK, args.max_context, args.num_kv_heads, kv_head);
        const uint count = min(uint(BLOCK), at.num_positions - block * BLOCK);

        device const half *k = k_cache + tile + 64 * simdgroup + 2 * lane;
        float2 score[HEADS];
        UNROLL
        for (int h = 0; h < HEADS; ++h)
            score[h] = float2(0.0f);
        for (uint d = 0; d < HEAD_DIM; d += 4) {
            float2 key[4];
            UNROLL
            for (uint i = 0; i < 4; ++i)
                key[i] = float2(*(device const half2 *)(k + (d + i) * BLOCK));
            UNROLL
            for (int h = 0; h < HEADS; ++h) {
                const float4 query = queries[(h * HEAD_DIM + d) / 4];
                score[h] = score[h] + key[0] * query.x + key[1] * query.y + key[2] * query.z +
                           key[3] * query.w;
            }
        }
        UNROLL
        for (int h = 0; h < HEADS; ++h)
            ((threadgroup float2 *)weights)[h * BLOCK / 2 + 32 * simdgroup + lane] = score[h];
        threadgroup_barrier(mem_flags::mem_threadgroup);

        UNROLL
        for (int j = 0; j < (HEADS + 1) / 2; ++j) {
            const int h = 2 * j + int(simdgroup);
            if (h >= HEADS)
                continue;
            const float4 s = weights[h * BLOCK / 4 + lane];
            const uint position = 4 * lane;
            const float4 masked = float4(position < count ? s.x : LOWEST_SCORE,
                                         position + 1 < count ? s.y : LOWEST_SCORE,
                                         position + 2 < count ? s.z : LOWEST_SCORE,
                                         position + 3 < count ? s.w : LOWEST_SCORE);
            const float top = simd_max(max(max(masked.x, masked.y), max(masked.z, masked.w)));
            const float next = max(largest[j], top);
            const float correction = exp(largest[j] - next);
            const float4 p = float4(exp(masked.x - next), exp(masked.y - next),
                                    exp(masked.z - next), exp(masked.w - next));
            sum[j] = sum[j] * correction + simd_sum((p.x + p.y) + (p.z + p.w));
            largest[j] = next;
            weights[h * BLOCK / 4 + lane] = p;
            if (lane == 0)
                corrections[h] = correction;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        device const half *v = v_cache + tile + 128 * simdgroup + 4 * lane;
        UNROLL
        for (int h = 0; h < HEADS; ++h)
            out[h] = out[h] * corrections[h];
        uint place = 0;
        for (; place + 4 <= count; place += 4) {
            float4 value[4];
            UNROLL
            for (uint i = 0; i < 4; ++i)
                value[i] = float4(*(device const half4 *)(v + (place + i) * HEAD_DIM));
            UNROLL
            for (int h = 0; h < HEADS; ++h) {
                const float4 p = weights[(h * BLOCK + place) / 4];
                out[h] = out[h] + value[0] * p.x + value[1] * p.y + value[2] * p.z + value[3] * p.w;
            }
        }
        /* One by one: what lies behind the last position is not ours to read. */
        for (; place < count; ++place) {
            const float4 value = float4(*(device const half4 *)(v + place * HEAD_DIM));
            UNROLL
            for (int h = 0; h < HEADS; ++h)
                out[h] = out[h] + value * ((threadgroup float *)weights)[h * BLOCK + place];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    device float4 *partial = (device float4 *)workspace;
    const ulong num_partials = ulong(num_groups.z) * args.num_heads * NUM_SPLITS;
    device float2 *largest_and_sum = (device float2 *)(workspace + num_partials * HEAD_DIM);
    UNROLL
    for (int h = 0; h < HEADS; ++h) {
        const ulong i = (ulong(group.z) * args.num_heads + first_head + h) * NUM_SPLITS + split;
        partial[i * (HEAD_DIM / 4) + 32 * simdgroup + lane] = out[h];
        if (lane == 0 && simdgroup == uint(h % 2))
            largest_and_sum[i] = float2(largest[h / 2], sum[h / 2]);
    }
}

INSTANTIATE("attention_decode_1", attention_decode<1>)
INSTANTIATE("attention_decode_2", attention_decode<2>)
INSTANTIATE("attention_decode_4", attention_decode<4>)
INSTANTIATE("attention_decode_6", attention_decode<6>)

/* Grid: H, 1, sequences * MAX_DECODE_ROWS; 64 threads, four dimensions each. */
kernel void attention_merge(device const uint *header [[buffer(0)]],
                            device const int *query_start_loc [[buffer(1)]],
                            device const int *sequence_slots [[buffer(2)]],
                            device const int *batched_kv_valid [[buffer(3)]],
                            device const float4 *qg [[buffer(7)]],
                            device float4 *o [[buffer(8)]],
                            device const float *workspace [[buffer(9)]],
                            constant mtlq_attention_args &args [[buffer(ARGS)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint3 num_groups [[threadgroups_per_grid]],
                            uint thread_index [[thread_index_in_threadgroup]])
{
    decode_row at;
    if (!find_row(header, query_start_loc, sequence_slots, batched_kv_valid, group.z, at))
        return;
    const uint head = group.x;
    const uint num_used = (at.num_blocks + at.blocks_per_split - 1) / at.blocks_per_split;
    const ulong num_partials = ulong(num_groups.z) * args.num_heads * NUM_SPLITS;
    const ulong first = (ulong(group.z) * args.num_heads + head) * NUM_SPLITS;
    device const float4 *partial =
        (device const float4 *)workspace + first * (HEAD_DIM / 4) + thread_index;
    device const float2 *largest_and_sum =
        (device const float2 *)(workspace + num_partials * HEAD_DIM) + first;

    float largest = LOWEST_SCORE, sum = 0.0f;
    for (uint i = 0; i < num_used; ++i)
        largest = max(largest, largest_and_sum[i].x);
    float4 out = float4(0.0f);
    for (uint i = 0; i < num_used; ++i) {
        const float weight = exp(largest_and_sum[i].x - largest);
        sum = fma(weight, largest_and_sum[i].y, sum);
        out = out + partial[i * (HEAD_DIM / 4)] * weight;
    }
    const ulong at_head = ulong(at.row) * args.num_heads + head;
    const float4 gate = qg[(2 * at_head + 1) * (HEAD_DIM / 4) + thread_index];
    const float4 open = float4(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
    o[at_head * (HEAD_DIM / 4) + thread_index] = out * (1.0f / sum) * open;
}
