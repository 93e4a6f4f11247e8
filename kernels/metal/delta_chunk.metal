#include "delta.h"
#include "matrix.h"

/* The chunked form of the gated delta rule, for long sequences that verify no draft.
 *
 * With G the running sum of g in a chunk of 32 tokens, D_ij = exp(G_i - G_j) for i >= j, and S
 * the state:
 *   A = strictly lower part of diag(beta) (K K^T) * D,    P = (Q K^T) * D,
 *   N = (I + A)^-1 diag(beta) (V - diag(exp G) K S),
 *   O = diag(exp G) Q S + P N,    S' = exp(G_n) S + (diag(exp(G_n - G)) K)^T N.
 * Rows of a short last chunk are zero with g = 0, which leaves S as it is.
 *
 * Grid: value_dim / (8 SIMD groups), value heads, sequences. A SIMD group keeps eight columns of
 * S in registers; A, P and the inverses of the 8x8 blocks on the diagonal of I + A are made
 * together. */

#define CHUNK 32
#define TILES 4 /* of eight tokens in a chunk */
#define NUM_PAIRS 10 /* of tiles (i, j) with i >= j */

/* The part of a chunk that its SIMD groups share. */
struct delta_chunk_gates {
    float running[CHUNK]; /* G */
    float beta[CHUNK];
};

/* One value head's rows of q, k and v in a chunk. */
struct delta_chunk_rows {
    device const float *q, *k, *v;
    uint stride, num_rows;
};

/* Rows of the chunk from tile i on. */
inline uint rows_from(delta_chunk_rows rows, uint i)
{
    return rows.num_rows > 8 * i ? rows.num_rows - 8 * i : 0;
}

/* A (pair < NUM_PAIRS) or P at the pair's tile; index counts the tiles of the lower triangle row
 * by row. */
inline void make_pair(delta_chunk_rows rows, threadgroup const delta_chunk_gates &gates, uint index,
                      threadgroup float *target, uint lane)
{
    const bool is_keys = index < NUM_PAIRS;
    const uint pair = index % NUM_PAIRS, i = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3;
    const uint j = pair - i * (i + 1) / 2;
    device const float *left = (is_keys ? rows.k : rows.q) + 8 * i * rows.stride;
    device const float *right = rows.k + 8 * j * rows.stride;
    simdgroup_float8x8 sum = zero_matrix();
    for (uint d = 0; d < KEY_DIM; d += 8) {
        simdgroup_float8x8 x, y;
        load_rows(x, left + d, rows.stride, rows_from(rows, i), lane);
        load_rows_transposed(y, right + d, rows.stride, rows_from(rows, j), lane);
        simdgroup_multiply_accumulate(sum, x, y, sum);
    }
    const uint row = 8 * i + matrix_row(lane), column = 8 * j + matrix_column(lane);
    const float scale = is_keys ? gates.beta[row] : 1.0f;
    const uint first_end = is_keys ? row : row + 1; /* columns from here on are zero */
    const float near = column < first_end ? exp(gates.running[row] - gates.running[column]) : 0.0f;
    const float far =
        column + 1 < first_end ? exp(gates.running[row] - gates.running[column + 1]) : 0.0f;
    sum.thread_elements()[0] *= scale * near;
    sum.thread_elements()[1] *= scale * far;
    simdgroup_store(sum, target + 8 * i * CHUNK + 8 * j, CHUNK);
}

/* (I + A)^-1 of an 8x8 tile: A^8 = 0, so it is (I - A)(I + A^2)(I + A^4). */
inline void invert_tile(threadgroup const float *a, threadgroup float *inverse, uint lane)
{
    simdgroup_float8x8 power, result;
    simdgroup_load(power, a, CHUNK);
    simdgroup_load(result, a, CHUNK);
    const uint row = matrix_row(lane), column = matrix_column(lane);
    const float first = result.thread_elements()[0], second = result.thread_elements()[1];
    result.thread_elements()[0] = (row == column ? 1.0f : 0.0f) - first;
    result.thread_elements()[1] = (row == column + 1 ? 1.0f : 0.0f) - second;
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const simdgroup_float8x8 half_power = power, partial = result;
        simdgroup_multiply(power, half_power, half_power);
        simdgroup_multiply_accumulate(result, partial, power, partial);
    }
    simdgroup_store(result, inverse, 8);
}

/* Values N and outputs O of tile i, for eight columns of the state. */
inline void solve_tile(delta_chunk_rows rows, threadgroup const delta_chunk_gates &gates,
                       threadgroup const float *a, threadgroup const float *p,
                       threadgroup const float *inverses, uint i,
                       thread const simdgroup_float8x8 (&state)[KEY_DIM / 8],
                       thread simdgroup_float8x8 (&n)[TILES], device float *o, uint o_stride,
                       uint lane)
{
    const uint num_rows = rows_from(rows, i), token = 8 * i + matrix_row(lane);
    simdgroup_float8x8 recalled = zero_matrix(), out = zero_matrix(), earlier = zero_matrix();
    UNROLL
    for (uint d = 0; d < KEY_DIM / 8; ++d) {
        simdgroup_float8x8 k, q;
        load_rows(k, rows.k + 8 * i * rows.stride + 8 * d, rows.stride, num_rows, lane);
        load_rows(q, rows.q + 8 * i * rows.stride + 8 * d, rows.stride, num_rows, lane);
        simdgroup_multiply_accumulate(recalled, k, state[d], recalled);
        simdgroup_multiply_accumulate(out, q, state[d], out);
    }
    UNROLL
    for (uint j = 0; j < i; ++j) {
        simdgroup_float8x8 tile;
        simdgroup_load(tile, a + 8 * i * CHUNK + 8 * j, CHUNK);
        simdgroup_multiply_accumulate(earlier, tile, n[j], earlier);
    }
    simdgroup_float8x8 rest, inverse, tile;
    const float decay = exp(gates.running[token]), beta = gates.beta[token];
    load_rows(rest, rows.v + 8 * i * rows.stride, rows.stride, num_rows, lane);
    UNROLL
    for (int e = 0; e < 2; ++e)
        rest.thread_elements()[e] = beta * (float(rest.thread_elements()[e]) -
                                            decay * float(recalled.thread_elements()[e])) -
                                    float(earlier.thread_elements()[e]);
    simdgroup_load(inverse, inverses + 64 * i, 8);
    simdgroup_multiply(n[i], inverse, rest);

    scale_rows(out, decay);
    UNROLL
    for (uint j = 0; j <= i; ++j) {
        simdgroup_load(tile, p + 8 * i * CHUNK + 8 * j, CHUNK);
        simdgroup_multiply_accumulate(out, tile, n[j], out);
    }
    const float first = out.thread_elements()[0], second = out.thread_elements()[1];
    if (matrix_row(lane) < num_rows) {
        device float *target = o + token * o_stride + matrix_column(lane);
        target[0] = first;
        target[1] = second;
    }
}

/* S' from S and N. */
inline void update_state(delta_chunk_rows rows, threadgroup const delta_chunk_gates &gates,
                         thread simdgroup_float8x8 (&state)[KEY_DIM / 8],
                         thread simdgroup_float8x8 (&n)[TILES], uint lane)
{
    const float last = gates.running[CHUNK - 1], decay = exp(last);
    UNROLL
    for (uint i = 0; i < TILES; ++i)
        scale_rows(n[i], exp(last - gates.running[8 * i + matrix_row(lane)]));
    UNROLL
    for (uint d = 0; d < KEY_DIM / 8; ++d) {
        scale_rows(state[d], decay);
        UNROLL
        for (uint i = 0; i < TILES; ++i) {
            simdgroup_float8x8 k;
            load_rows_transposed(k, rows.k + 8 * i * rows.stride + 8 * d, rows.stride,
                                 rows_from(rows, i), lane);
            simdgroup_multiply_accumulate(state[d], k, n[i], state[d]);
        }
    }
}

/* S = decay S + k d^T, as the recurrent form does it. */
inline void replay_row(thread simdgroup_float8x8 (&state)[KEY_DIM / 8], device const float *k,
                       device const float *d, float decay, uint lane)
{
    const float near = d[matrix_column(lane)], far = d[matrix_column(lane) + 1];
    UNROLL
    for (uint i = 0; i < KEY_DIM / 8; ++i) {
        const float key = k[8 * i + matrix_row(lane)];
        state[i].thread_elements()[0] = fma(key, near, state[i].thread_elements()[0] * decay);
        state[i].thread_elements()[1] = fma(key, far, state[i].thread_elements()[1] * decay);
    }
}

kernel void delta_chunk(device const uint *header [[buffer(0)]],
                        device const int *query_start_loc [[buffer(1)]],
                        device const int *sequence_slots [[buffer(2)]],
                        device const int *batched_kv_valid [[buffer(3)]],
                        device const int *bank [[buffer(4)]],
                        device const float *y [[buffer(5)]],
                        device const float *a [[buffer(6)]],
                        device const float *b [[buffer(7)]],
                        device const float *ssm_a [[buffer(8)]],
                        device const float *dt_bias [[buffer(9)]],
                        device float *states [[buffer(10)]],
                        device float *o [[buffer(11)]],
                        device const int *bound [[buffer(12)]],
                        device const int *pending [[buffer(13)]],
                        device const float *tape [[buffer(14)]],
                        constant mtlq_delta_args &args [[buffer(ARGS)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float tiles_a[CHUNK * CHUNK];
    threadgroup float tiles_p[CHUNK * CHUNK];
    threadgroup float inverses[TILES * 64];
    threadgroup delta_chunk_gates gates;

    const uint sequence = group.z, head = group.y;
    if (sequence >= header[MTLQ_SEQUENCES])
        return;
    const uint first_row = uint(query_start_loc[sequence]);
    const uint num_rows = uint(query_start_loc[sequence + 1]) - first_row;
    if (!is_chunked(num_rows, bound[sequence]))
        return;
    const uint dv = args.value_dim, num_heads = args.num_value_heads, num_key = args.num_key_heads;
    const uint column = 8 * (group.x * num_simdgroups + simdgroup);
    const uint slot = uint(sequence_slots[sequence]), old_bank = uint(bank[sequence]);
    const ulong place = ulong(head) * KEY_DIM * dv + column;
    device const float *old_state =
        states + bank_offset(old_bank, slot, args.bank_stride, args.slot_stride) + place;
    device float *new_state =
        states + bank_offset(1 - old_bank, slot, args.bank_stride, args.slot_stride) + place;

    simdgroup_float8x8 state[KEY_DIM / 8], n[TILES];
    UNROLL
    for (uint d = 0; d < KEY_DIM / 8; ++d) {
        state[d] = zero_matrix();
        if (batched_kv_valid[sequence] > 0)
            simdgroup_load(state[d], old_state + 8 * d * dv, dv);
    }
    if (batched_kv_valid[sequence] > 0) {
        const tape_row at = tape_row_of(args, head);
        device const float *replayed =
            tape + bank_offset(old_bank, slot, args.tape_bank_stride, args.tape_slot_stride);
        for (int t = 0; t < pending[sequence]; ++t, replayed += args.tape_row_stride)
            replay_row(state, replayed + at.k, replayed + at.d + column, replayed[at.decay], lane);
    }
    delta_chunk_rows rows;
    rows.stride = 2 * num_key * KEY_DIM + num_heads * dv;
    for (uint done = 0; done < num_rows; done += CHUNK) {
        const uint first = first_row + done;
        rows.num_rows = min(uint(CHUNK), num_rows - done);
        rows.q = y + ulong(first) * rows.stride + head % num_key * KEY_DIM;
        rows.k = rows.q + num_key * KEY_DIM;
        rows.v = y + ulong(first) * rows.stride + 2 * num_key * KEY_DIM + head * dv + column;

        if (simdgroup == 0) {
            const uint gate = (first + lane) * num_heads + head;
            const bool is_row = lane < rows.num_rows;
            const float g = is_row ? ssm_a[head] * softplus(a[gate] + dt_bias[head]) : 0.0f;
            gates.running[lane] = simd_prefix_inclusive_sum(g);
            gates.beta[lane] = is_row ? sigmoid(b[gate]) : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = simdgroup; i < 2 * NUM_PAIRS; i += num_simdgroups)
            make_pair(rows, gates, i, i < NUM_PAIRS ? tiles_a : tiles_p, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = simdgroup; i < TILES; i += num_simdgroups)
            invert_tile(tiles_a + 8 * i * (CHUNK + 1), inverses + 64 * i, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        device float *out = o + (ulong(first) * num_heads + head) * dv + column;
        UNROLL
        for (uint i = 0; i < TILES; ++i)
            solve_tile(rows, gates, tiles_a, tiles_p, inverses, i, state, n, out, num_heads * dv,
                       lane);
        update_state(rows, gates, state, n, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    UNROLL
    for (uint d = 0; d < KEY_DIM / 8; ++d)
        simdgroup_store(state[d], new_state + 8 * d * dv, dv);
}
