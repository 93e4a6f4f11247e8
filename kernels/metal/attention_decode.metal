#include "attention.h"

/* Attention for few rows: the cached blocks of a sequence are split over threadgroups, a second
 * kernel merges.
 *
 * A split keeps, for each of its heads, the largest score m, the sum of e^(score - m) and the
 * values weighted by it. workspace: float [sequences * MAX_DECODE_ROWS, H, splits, head_dim]
 * then as many float2 (m, sum). A row's result depends on its own context and the number of
 * splits alone. */

constant uint NUM_SPLITS [[function_constant(1)]];

/* One row of one sequence, from the grid's z. The blocks are those with positions that it sees. */
struct decode_row {
    uint row, slot, first_block, num_blocks, blocks_per_split;
    visible_range seen;
};

inline bool find_row(device const uint *header, device const int *query_start_loc,
                     device const int *sequence_slots, device const int *batched_kv_valid,
                     constant mtlq_attention_args &args, uint z, thread decode_row &found)
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
    const uint kv_valid = uint(batched_kv_valid[sequence]);
    found.seen = visible_to(args, kv_valid + i, kv_valid + num_rows);
    found.first_block = found.seen.begin / BLOCK;
    found.num_blocks = (found.seen.end + BLOCK - 1) / BLOCK - found.first_block;
    found.blocks_per_split = (found.num_blocks + NUM_SPLITS - 1) / NUM_SPLITS;
    return true;
}

/* Grid: splits, H / HEADS, sequences * MAX_DECODE_ROWS; 64 threads. HEADS query heads of one KV
 * head share each load of K and V. Both SIMD groups make scores, two positions a lane, then
 * values, DIM / 64 dimensions a lane: K has positions innermost and V dimensions, so neither
 * product needs a sum across lanes. */
template <int DIM, int HEADS>
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
    threadgroup float4 queries[HEADS * DIM / 4];
    threadgroup float4 weights[HEADS * BLOCK / 4]; /* scores, then e^(score - m) */
    threadgroup float corrections[HEADS];

    decode_row at;
    if (!find_row(header, query_start_loc, sequence_slots, batched_kv_valid, args, group.z,
                  at))
        return;
    typedef typename thread_values<DIM>::type values;
    const uint split = group.x, skipped = split * at.blocks_per_split;
    if (skipped >= at.num_blocks)
        return;
    const uint first_block = at.first_block + skipped;
    const uint end_block = first_block + min(at.blocks_per_split, at.num_blocks - skipped);
    const uint first_head = group.y * HEADS;
    const uint kv_head = first_head / (args.num_heads / args.num_kv_heads);
    device const float4 *source =
        (device const float4 *)(q + (ulong(at.row) * args.num_heads + first_head) * DIM);
    for (uint i = thread_index; i < HEADS * DIM / 4; i += 64)
        queries[i] = source[i] * args.scale;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    /* Of the heads simdgroup, simdgroup + 2, ...: equal in all lanes. */
    float largest[(HEADS + 1) / 2], sum[(HEADS + 1) / 2];
    values out[HEADS];
    UNROLL
    for (int j = 0; j < (HEADS + 1) / 2; ++j) {
        largest[j] = LOWEST_SCORE;
        sum[j] = 0.0f;
    }
    UNROLL
    for (int h = 0; h < HEADS; ++h)
        out[h] = values(0.0f);

    for (uint block = first_block; block < end_block; ++block) {
        /* The places [begin, count) of this block are seen. */
        const uint begin = max(at.seen.begin, block * BLOCK) - block * BLOCK;
        const uint count = min(uint(BLOCK), at.seen.end - block * BLOCK);

        device const half *k = head_tile<DIM>(k_cache, at.slot, block * BLOCK, args, kv_head) +
                               64 * simdgroup + 2 * lane;
        float2 score[HEADS];
        UNROLL
        for (int h = 0; h < HEADS; ++h)
            score[h] = float2(0.0f);
        for (uint d = 0; d < DIM; d += 4) {
            float2 key[4];
            UNROLL
            for (uint i = 0; i < 4; ++i)
                key[i] = float2(*(device const half2 *)(k + (d + i) * BLOCK));
            UNROLL
            for (int h = 0; h < HEADS; ++h) {
                const float4 query = queries[(h * DIM + d) / 4];
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
            const uint place = 4 * lane;
            const float4 masked = float4(is_within(place, begin, count) ? s.x : LOWEST_SCORE,
                                         is_within(place + 1, begin, count) ? s.y : LOWEST_SCORE,
                                         is_within(place + 2, begin, count) ? s.z : LOWEST_SCORE,
                                         is_within(place + 3, begin, count) ? s.w : LOWEST_SCORE);
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

        device const half *v = head_tile<DIM>(v_cache, at.slot, block * BLOCK, args, kv_head) +
                               DIM / 64 * thread_index;
        UNROLL
        for (int h = 0; h < HEADS; ++h)
            out[h] = out[h] * corrections[h];
        uint place = begin / 4 * 4;
        for (; place + 4 <= count; place += 4) {
            values value[4];
            UNROLL
            for (uint i = 0; i < 4; ++i)
                value[i] = thread_values<DIM>::load(v + (place + i) * DIM);
            UNROLL
            for (int h = 0; h < HEADS; ++h) {
                const float4 p = weights[(h * BLOCK + place) / 4];
                out[h] = out[h] + value[0] * p.x + value[1] * p.y + value[2] * p.z + value[3] * p.w;
            }
        }
        /* One by one: what lies behind the last position is not ours to read. */
        for (; place < count; ++place) {
            const values value = thread_values<DIM>::load(v + place * DIM);
            UNROLL
            for (int h = 0; h < HEADS; ++h)
                out[h] = out[h] + value * ((threadgroup float *)weights)[h * BLOCK + place];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    device values *partial = (device values *)workspace;
    const ulong num_partials = ulong(num_groups.z) * args.num_heads * NUM_SPLITS;
    device float2 *largest_and_sum = (device float2 *)(workspace + num_partials * DIM);
    UNROLL
    for (int h = 0; h < HEADS; ++h) {
        const ulong i = (ulong(group.z) * args.num_heads + first_head + h) * NUM_SPLITS + split;
        partial[i * 64 + thread_index] = out[h];
        if (lane == 0 && simdgroup == uint(h % 2))
            largest_and_sum[i] = float2(largest[h / 2], sum[h / 2]);
    }
}

#define INSTANCE(DIM, HEADS) \
    INSTANTIATE("attention_decode_" #DIM "_" #HEADS, attention_decode<DIM, HEADS>)
INSTANCE(128, 1)
INSTANCE(128, 2)
INSTANCE(128, 4)
INSTANCE(128, 6)
INSTANCE(256, 1)
INSTANCE(256, 2)
INSTANCE(256, 4)
INSTANCE(256, 6)

/* Grid: H, 1, sequences * MAX_DECODE_ROWS; 64 threads, DIM / 64 dimensions each. */
template <int DIM>
kernel void attention_merge(device const uint *header [[buffer(0)]],
                            device const int *query_start_loc [[buffer(1)]],
                            device const int *sequence_slots [[buffer(2)]],
                            device const int *batched_kv_valid [[buffer(3)]],
                            device const float *qg [[buffer(7)]],
                            device float *o [[buffer(8)]],
                            device const float *workspace [[buffer(9)]],
                            constant mtlq_attention_args &args [[buffer(ARGS)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint3 num_groups [[threadgroups_per_grid]],
                            uint thread_index [[thread_index_in_threadgroup]])
{
    decode_row at;
    if (!find_row(header, query_start_loc, sequence_slots, batched_kv_valid, args, group.z,
                  at))
        return;
    const ulong num_partials = ulong(num_groups.z) * args.num_heads * NUM_SPLITS;
    const ulong first = (ulong(group.z) * args.num_heads + group.x) * NUM_SPLITS;
    merge_parts<DIM>(workspace + first * DIM,
                     (device const float2 *)(workspace + num_partials * DIM) + first,
                     (at.num_blocks + at.blocks_per_split - 1) / at.blocks_per_split, qg, o,
                     ulong(at.row) * args.num_heads + group.x, args, thread_index);
}

INSTANTIATE("attention_merge_128", attention_merge<128>)
INSTANTIATE("attention_merge_256", attention_merge<256>)
