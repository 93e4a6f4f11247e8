#include "delta.h"

/* The recurrent form; delta_chunk takes the long sequences.
 *
 * Grid: value_dim / 32, value heads, sequences; 128 threads. A SIMD group has eight columns of
 * the state: lane = 8 * part + column holds rows [32 part, 32 part + 32) of one column, so a sum
 * over the key index takes two shuffles and nothing waits at a barrier. key_dim = 128.
 *
 * S = decay S + k d^T is a product and an fma, in a replay as well: the same bits, whatever else a
 * compiler may fuse. */

#define VECTORS 8 /* of four state rows that a lane holds */

/* Sum over the four parts of a column. */
inline float sum_of_parts(float value)
{
    value += simd_shuffle_xor(value, 8);
    return value + simd_shuffle_xor(value, 16);
}

/* A lane's part of a column; stride from one row of the state to the next. */
struct delta_state {
    float4 rows[VECTORS];
};

inline void load_state(thread delta_state &state, device const float *source, uint stride)
{
    UNROLL
    for (uint i = 0; i < VECTORS; ++i, source += 4 * stride)
        state.rows[i] = float4(source[0], source[stride], source[2 * stride], source[3 * stride]);
}

inline void store_state(thread const delta_state &state, device float *target, uint stride)
{
    UNROLL
    for (uint i = 0; i < VECTORS; ++i, target += 4 * stride) {
        target[0] = state.rows[i].x;
        target[stride] = state.rows[i].y;
        target[2 * stride] = state.rows[i].z;
        target[3 * stride] = state.rows[i].w;
    }
}

kernel void delta(device const uint *header [[buffer(0)]],
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
                  device float *tape [[buffer(14)]],
                  constant mtlq_delta_args &args [[buffer(ARGS)]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    const uint sequence = group.z, head = group.y;
    if (sequence >= header[MTLQ_SEQUENCES])
        return;
    const uint first_row = uint(query_start_loc[sequence]);
    const uint end_row = uint(query_start_loc[sequence + 1]);
    const bool records = bound[sequence] != MTLQ_UNBOUND;
    if (is_chunked(end_row - first_row, bound[sequence]))
        return;
    const uint dv = args.value_dim, num_heads = args.num_value_heads, num_key = args.num_key_heads;
    const uint part = lane / 8, column = 32 * group.x + 8 * simdgroup + lane % 8;
    const uint slot = uint(sequence_slots[sequence]), old_bank = uint(bank[sequence]);
    const ulong place = ulong(head) * KEY_DIM * dv + 32 * part * dv + column;
    device float *new_state =
        states + bank_offset(1 - old_bank, slot, args.bank_stride, args.slot_stride) + place;
    const tape_row at = tape_row_of(args, head);

    delta_state state;
    UNROLL
    for (uint i = 0; i < VECTORS; ++i)
        state.rows[i] = float4(0.0f);
    if (batched_kv_valid[sequence] > 0) {
        load_state(state,
                   states + bank_offset(old_bank, slot, args.bank_stride, args.slot_stride) + place,
                   dv);
        device const float *replayed =
            tape + bank_offset(old_bank, slot, args.tape_bank_stride, args.tape_slot_stride);
        for (int t = 0; t < pending[sequence]; ++t, replayed += args.tape_row_stride) {
            device const float4 *k = (device const float4 *)(replayed + at.k + 32 * part);
            const float decay = replayed[at.decay], d = replayed[at.d + column];
            UNROLL
            for (uint i = 0; i < VECTORS; ++i)
                state.rows[i] = fma(k[i], float4(d), state.rows[i] * decay);
        }
    }
    if (records)
        store_state(state, new_state, dv);

    const uint num_channels = 2 * num_key * KEY_DIM + num_heads * dv;
    const uint key_head = head % num_key;
    device float *record = tape + bank_offset(1 - old_bank, records ? uint(bound[sequence]) : 0,
                                              args.tape_bank_stride, args.tape_slot_stride);
    for (uint row = first_row; row < end_row; ++row, record += args.tape_row_stride) {
        device const float *channels = y + ulong(row) * num_channels;
        device const float4 *q = (device const float4 *)(channels + key_head * KEY_DIM + 32 * part);
        device const float4 *k = q + num_key * KEY_DIM / 4;
        const float v = channels[2 * num_key * KEY_DIM + head * dv + column];
        const uint gate = row * num_heads + head;
        const float decay = exp(ssm_a[head] * softplus(a[gate] + dt_bias[head]));

        float recalled = 0.0f;
        UNROLL
        for (uint i = 0; i < VECTORS; ++i) {
            state.rows[i] = state.rows[i] * decay;
            recalled += dot(state.rows[i], k[i]);
        }
        const float d = sigmoid(b[gate]) * (v - sum_of_parts(recalled));
        float out = 0.0f;
        UNROLL
        for (uint i = 0; i < VECTORS; ++i) {
            state.rows[i] = fma(k[i], float4(d), state.rows[i]);
            out += dot(state.rows[i], q[i]);
        }
        out = sum_of_parts(out);
        if (part == 0)
            o[ulong(row) * num_heads * dv + head * dv + column] = out;
        if (records && part == 0)
            record[at.d + column] = d;
        /* k and the decay are the same for all columns, k for all value heads of a key head. */
        if (records && group.x == 0 && simdgroup == 0) {
            if (lane == 0)
                record[at.decay] = decay;
            if (head < num_key)
                ((device float4 *)(record + at.k))[lane] = k[lane % 8];
        }
    }
    if (!records)
        store_state(state, new_state, dv);
}
