#include "attention.h"
#include "matrix.h"
#include "sequences.h"

/* Attention for sequences of more than MAX_DECODE_ROWS rows.
 *
 * A tile is TILE_ROWS pairs (row, query head) of one sequence and one KV head, so that all heads
 * of a group share each load of K and V; tiles never cross sequences. Grid: at most rows * group
 * / TILE_ROWS + S tiles, KV heads; 128 threads. In steps of STEP positions the four SIMD groups
 * make 16 columns of scores each, then DIM / 4 dimensions of the values each; K and V fragments
 * come straight from the cache. Threadgroup memory: 32 DIM bytes of queries, 4.3 KiB of scores.
 *
 * A plan of at most SPLIT_ROWS rows, which are drafts, has too few tiles for a GPU: each is split
 * over the cache, and a second kernel merges. The parts lie at the end of the workspace, float
 * [SPLIT_ROWS, H, TILE_SPLITS, DIM] then as many float2 (m, sum). */

#define TILE_ROWS 16
#define STEP 64
#define SCORE_STRIDE 68 /* floats; 64 would put a column of rows in one bank */
#define SPLIT_ROWS 16
#define LEAST_STEPS 8 /* of a part: less is not worth its merge */

constant uint TILE_SPLITS [[function_constant(3)]]; /* 1: nothing to merge */

struct prefill_tile {
    uint sequence, first_pair, num_pairs;
};

/* The positions that rows of a tile see: its first row the first, its last row the last. */
inline visible_range visible_to_tile(constant mtlq_attention_args &args, prefill_tile tile,
                                     uint group_size, uint kv_valid, uint end_position)
{
    const uint last_pair = tile.first_pair + tile.num_pairs - 1;
    visible_range seen = visible_to(args, kv_valid + tile.first_pair / group_size, end_position);
    seen.end = visible_to(args, kv_valid + last_pair / group_size, end_position).end;
    return seen;
}

/* Of a range in steps. */
struct tile_parts {
    uint first, positions, count; /* of a part, but the last; that are not empty */
};

inline tile_parts parts_of(visible_range seen)
{
    tile_parts parts;
    parts.first = seen.begin / STEP * STEP;
    const uint num_steps = (seen.end - parts.first + STEP - 1) / STEP;
    const uint steps = max((num_steps + TILE_SPLITS - 1) / TILE_SPLITS, uint(LEAST_STEPS));
    parts.positions = steps * STEP;
    parts.count = (num_steps + steps - 1) / steps;
    return parts;
}

/* Offsets in floats of the parts of one head of one row: values, and (m, sum). */
struct part_places {
    ulong values, largest_and_sum;
};

template <int DIM>
inline part_places places_of(constant mtlq_attention_args &args, ulong at_head)
{
    const ulong num_parts = ulong(SPLIT_ROWS) * args.num_heads * TILE_SPLITS;
    const ulong values = args.num_workspace_bytes / 4 - num_parts * (DIM + 2);
    part_places places;
    places.values = values + at_head * TILE_SPLITS * DIM;
    places.largest_and_sum = values + num_parts * DIM + at_head * TILE_SPLITS * 2;
    return places;
}

inline bool find_tile(device const uint *header, device const int *query_start_loc, uint index,
                      uint group_size, thread prefill_tile &found)
{
    for (uint s = 0; s < header[MTLQ_SEQUENCES]; ++s) {
        const uint num_rows = uint(query_start_loc[s + 1] - query_start_loc[s]);
        const uint num_pairs = num_rows * group_size;
        const uint num_tiles =
            num_rows > MAX_DECODE_ROWS ? (num_pairs + TILE_ROWS - 1) / TILE_ROWS : 0;
        if (index < num_tiles) {
            found.sequence = s;
            found.first_pair = index * TILE_ROWS;
            found.num_pairs = min(uint(TILE_ROWS), num_pairs - found.first_pair);
            return true;
        }
        index -= num_tiles;
    }
    return false;
}

/* Heads [R, H] from a sequence's first row to the pair's. */
inline ulong pair_head(uint pair, uint group_size, uint num_heads)
{
    return ulong(pair / group_size) * num_heads + pair % group_size;
}

/* A tile's queries times the scale; zero where it has no pair. */
template <int DIM>
inline void load_queries(device const float *q, threadgroup half *queries,
                         constant mtlq_attention_args &args, prefill_tile tile, ulong first_head,
                         uint thread_index)
{
    const uint group_size = args.num_heads / args.num_kv_heads;
    for (uint i = thread_index; i < TILE_ROWS * DIM / 4; i += 128) {
        const uint row = i / (DIM / 4);
        float4 value = float4(0.0f);
        if (row < tile.num_pairs) {
            const ulong head =
                first_head + pair_head(tile.first_pair + row, group_size, args.num_heads);
            value = ((device const float4 *)q)[head * (DIM / 4) + i % (DIM / 4)] * args.scale;
        }
        ((threadgroup half4 *)queries)[i] = half4(value);
    }
}

/* Four rows of a tile that a SIMD group keeps the score of: equal in all lanes. A missing row sees
 * what the last one sees. */
struct tile_rows {
    float largest[4], sum[4]; /* m and the sum of e^(score - m), so far */
    visible_range seen[4];
};

/* Scores of STEP positions from first on become e^(score - m); factors: for what was summed before,
 * with another m. */
inline void weigh_scores(thread tile_rows &rows, threadgroup float *scores,
                         threadgroup float *factors, uint first, uint lane)
{
    UNROLL
    for (uint r = 0; r < 4; ++r) {
        const uint position = first + 2 * lane;
        threadgroup float2 *cell = (threadgroup float2 *)(scores + r * SCORE_STRIDE) + lane;
        const float2 s = *cell;
        const bool sees_x = is_within(position, rows.seen[r].begin, rows.seen[r].end);
        const bool sees_y = is_within(position + 1, rows.seen[r].begin, rows.seen[r].end);
        const float x = sees_x ? s.x : LOWEST_SCORE, y = sees_y ? s.y : LOWEST_SCORE;
        const float next = max(rows.largest[r], simd_max(max(x, y)));
        /* A row whose window begins further on has seen nothing yet: next is no score. */
        const float2 p = float2(sees_x ? exp(x - next) : 0.0f, sees_y ? exp(y - next) : 0.0f);
        const float correction = exp(rows.largest[r] - next);
        rows.sum[r] = rows.sum[r] * correction + simd_sum(p.x + p.y);
        rows.largest[r] = next;
        *cell = p;
        if (lane == 0)
            factors[r] = correction;
    }
}

/* scores[TILE_ROWS, 16 of STEP] of one SIMD group; k at its first position. */
template <int DIM>
inline void make_scores(threadgroup const half *queries, device const half *k,
                        threadgroup float *scores)
{
    simdgroup_float8x8 sum[2][2];
    UNROLL
    for (int i = 0; i < 2; ++i)
        UNROLL
        for (int j = 0; j < 2; ++j)
            sum[i][j] = zero_matrix();
    for (uint d = 0; d < DIM; d += 8) {
        simdgroup_half8x8 query[2], key[2];
        UNROLL
        for (int i = 0; i < 2; ++i)
            simdgroup_load(query[i], queries + 8 * i * DIM + d, DIM);
        UNROLL
        for (int j = 0; j < 2; ++j)
            simdgroup_load(key[j], k + d * BLOCK + 8 * j, BLOCK);
        UNROLL
        for (int i = 0; i < 2; ++i)
            UNROLL
            for (int j = 0; j < 2; ++j)
                simdgroup_multiply_accumulate(sum[i][j], query[i], key[j], sum[i][j]);
    }
    UNROLL
    for (int i = 0; i < 2; ++i)
        UNROLL
        for (int j = 0; j < 2; ++j)
            simdgroup_store(sum[i][j], scores + 8 * i * SCORE_STRIDE + 8 * j, SCORE_STRIDE);
}

/* out[TILE_ROWS, DIM / 4] += weights * V; v at its first dimension, num_valid positions may be
 * read. */
template <int DIM>
inline void add_values(thread simdgroup_float8x8 (&out)[2][DIM / 32],
                       threadgroup const float *weights, device const half *v, uint num_valid,
                       uint lane)
{
    for (uint p = 0; p < num_valid; p += 8) {
        simdgroup_float8x8 weight[2];
        UNROLL
        for (int i = 0; i < 2; ++i)
            simdgroup_load(weight[i], weights + 8 * i * SCORE_STRIDE + p, SCORE_STRIDE);
        UNROLL
        for (int j = 0; j < DIM / 32; ++j) {
            simdgroup_half8x8 value;
            if (p + 8 <= num_valid)
                simdgroup_load(value, v + p * DIM + 8 * j, DIM);
            else
                load_rows(value, v + p * DIM + 8 * j, DIM, num_valid - p, lane);
            UNROLL
            for (int i = 0; i < 2; ++i)
                simdgroup_multiply_accumulate(out[i][j], weight[i], value, out[i][j]);
        }
    }
}

template <int DIM>
kernel void attention_prefill(device const uint *header [[buffer(0)]],
                              device const int *query_start_loc [[buffer(1)]],
                              device const int *sequence_slots [[buffer(2)]],
                              device const int *batched_kv_valid [[buffer(3)]],
                              device const float *q [[buffer(4)]],
                              device const half *k_cache [[buffer(5)]],
                              device const half *v_cache [[buffer(6)]],
                              device const float *qg [[buffer(7)]],
                              device float *o [[buffer(8)]],
                              device float *workspace [[buffer(9)]],
                              constant mtlq_attention_args &args [[buffer(ARGS)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]],
                              uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup half queries[TILE_ROWS * DIM];
    threadgroup float scores[TILE_ROWS * SCORE_STRIDE]; /* then e^(score - m) */
    threadgroup float factors[TILE_ROWS]; /* corrections of a step, at the end 1 / sum */

    const uint kv_head = group.y, num_heads = args.num_heads;
    const uint group_size = num_heads / args.num_kv_heads;
    prefill_tile tile;
    if (!find_tile(header, query_start_loc, group.x, group_size, tile))
        return;
    const uint first_row = uint(query_start_loc[tile.sequence]);
    const uint slot = uint(sequence_slots[tile.sequence]);
    const uint kv_valid = uint(batched_kv_valid[tile.sequence]);
    const uint end_position = kv_valid + uint(query_start_loc[tile.sequence + 1]) - first_row;
    const visible_range tile_seen =
        visible_to_tile(args, tile, group_size, kv_valid, end_position);
    const tile_parts parts = parts_of(tile_seen);
    if (group.z >= parts.count)
        return;
    const uint begin = parts.first + group.z * parts.positions;
    const uint end = min(begin + parts.positions, tile_seen.end);
    const ulong first_head = ulong(first_row) * num_heads + kv_head * group_size;
    load_queries<DIM>(q, queries, args, tile, first_head, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    tile_rows rows;
    UNROLL
    for (uint r = 0; r < 4; ++r) {
        const uint pair = tile.first_pair + min(4 * simdgroup + r, tile.num_pairs - 1);
        rows.largest[r] = LOWEST_SCORE;
        rows.sum[r] = 0.0f;
        rows.seen[r] = visible_to(args, kv_valid + pair / group_size, end_position);
    }
    simdgroup_float8x8 out[2][DIM / 32];
    UNROLL
    for (int i = 0; i < 2; ++i)
        UNROLL
        for (int j = 0; j < DIM / 32; ++j)
            out[i][j] = zero_matrix();

    for (uint first = begin; first < end; first += STEP) {
        device const half *k = head_tile<DIM>(k_cache, slot, first, args, kv_head);
        device const half *v = head_tile<DIM>(v_cache, slot, first, args, kv_head);
        make_scores<DIM>(queries, k + first % BLOCK + 16 * simdgroup, scores + 16 * simdgroup);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        weigh_scores(rows, scores + 4 * simdgroup * SCORE_STRIDE, factors + 4 * simdgroup, first,
                     lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        UNROLL
        for (int i = 0; i < 2; ++i)
            UNROLL
            for (int j = 0; j < DIM / 32; ++j)
                scale_rows(out[i][j], factors[8 * i + matrix_row(lane)]);
        add_values<DIM>(out, scores, v + (first % BLOCK) * DIM + DIM / 4 * simdgroup,
                        min(uint(STEP), end - first), lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    const bool is_split = TILE_SPLITS > 1;
    UNROLL
    for (uint r = 0; r < 4; ++r) {
        const uint row = 4 * simdgroup + r, pair = tile.first_pair + row;
        if (lane == 0)
            factors[row] = is_split ? 1.0f : 1.0f / rows.sum[r];
        if (lane == 0 && is_split && row < tile.num_pairs) {
            const ulong head = first_head + pair_head(pair, group_size, num_heads);
            device float *place = workspace + places_of<DIM>(args, head).largest_and_sum;
            ((device float2 *)place)[group.z] = float2(rows.largest[r], rows.sum[r]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL
    for (uint i = 0; i < 2; ++i) {
        const uint row = 8 * i + matrix_row(lane), pair = tile.first_pair + row;
        const ulong head = first_head + pair_head(pair, group_size, num_heads);
        UNROLL
        for (uint j = 0; j < DIM / 32; ++j) {
            const uint d = DIM / 4 * simdgroup + 8 * j + matrix_column(lane);
            const float x = out[i][j].thread_elements()[0], y = out[i][j].thread_elements()[1];
            if (row >= tile.num_pairs)
                continue;
            float2 value = float2(x, y) * factors[row];
            if (is_split) {
                device float *part = workspace + places_of<DIM>(args, head).values;
                *(device float2 *)(part + group.z * DIM + d) = value;
                continue;
            }
            const ulong gate = (2 * head + 1) * DIM + d;
            if (args.gated)
                value = value * sigmoid(float2(qg[gate], qg[gate + 1]));
            *(device float2 *)(o + head * DIM + d) = value;
        }
    }
}

INSTANTIATE("attention_prefill_128", attention_prefill<128>)
INSTANTIATE("attention_prefill_256", attention_prefill<256>)

/* Grid: H, rows; 64 threads, DIM / 64 dimensions each. */
template <int DIM>
kernel void attention_merge_tiles(device const uint *header [[buffer(0)]],
                                  device const int *query_start_loc [[buffer(1)]],
                                  device const int *batched_kv_valid [[buffer(3)]],
                                  device const float *qg [[buffer(7)]],
                                  device float *o [[buffer(8)]],
                                  device const float *workspace [[buffer(9)]],
                                  constant mtlq_attention_args &args [[buffer(ARGS)]],
                                  uint2 group [[threadgroup_position_in_grid]],
                                  uint thread_index [[thread_index_in_threadgroup]])
{
    const uint head = group.x, row = group.y, group_size = args.num_heads / args.num_kv_heads;
    if (row >= header[MTLQ_ROWS])
        return;
    prefill_tile tile;
    tile.sequence = sequence_of_row(query_start_loc, row);
    const uint first_row = uint(query_start_loc[tile.sequence]);
    const uint num_rows = uint(query_start_loc[tile.sequence + 1]) - first_row;
    if (num_rows <= MAX_DECODE_ROWS)
        return;
    const uint pair = (row - first_row) * group_size + head % group_size;
    tile.first_pair = pair / TILE_ROWS * TILE_ROWS;
    tile.num_pairs = min(uint(TILE_ROWS), num_rows * group_size - tile.first_pair);
    const uint kv_valid = uint(batched_kv_valid[tile.sequence]);
    const visible_range seen =
        visible_to_tile(args, tile, group_size, kv_valid, kv_valid + num_rows);
    const ulong at_head = ulong(row) * args.num_heads + head;
    const part_places places = places_of<DIM>(args, at_head);
    merge_parts<DIM>(workspace + places.values,
                     (device const float2 *)(workspace + places.largest_and_sum),
                     parts_of(seen).count, qg, o, at_head, args, thread_index);
}

INSTANTIATE("attention_merge_tiles_128", attention_merge_tiles<128>)
INSTANTIATE("attention_merge_tiles_256", attention_merge_tiles<256>)
