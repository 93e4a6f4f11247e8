#include "sequences.h"

/* The recurrent form, for sequences of at most MAX_ROWS rows; delta_chunk takes the longer ones.
 *
 * Grid: value_dim / 32, value heads, sequences; 128 threads. A SIMD group has eight columns of
 * the state: lane = 8 * part + column holds rows [32 part, 32 part + 32) of one column, so a sum
 * over the key index takes two shuffles and nothing waits at a barrier. key_dim = 128. */

constant uint MAX_ROWS [[function_constant(0)]];

#define KEY_DIM 128
#define VECTORS 8 /* of four state rows that a lane holds */

/* Sum over the four parts of a column. */
inline float sum_of_parts(float value)
{
    value += simd_shuffle_xor(value, 8);
    return value + simd_shuffle_xor(value, 16);
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
    if (end_row - first_row > MAX_ROWS)
        return;
    const uint dv = args.value_dim, num_heads = args.num_value_heads, num_key = args.num_key_heads;
    const uint part = lane / 8, column = 32 * group.x + 8 * simdgroup + lane % 8;
    const uint slot = uint(sequence_slots[sequence]), current = uint(bank[sequence]);
    const ulong place = ulong(head) * KEY_DIM * dv + 32 * part * dv + column;
    device const float *old_state =
        states + bank_offset(current, slot, args.bank_stride, args.slot_stride) + place;
    device float *new_state =
        states + bank_offset(1 - current, slot, args.bank_stride, args.slot_stride) + place;

    float4 state[VECTORS];
    const bool is_fresh = batched_kv_valid[sequence] == 0;
    UNROLL
    for (uint i = 0; i < VECTORS; ++i) {
        device const float *s = old_state + 4 * i * dv;
        state[i] = is_fresh ? float4(0.0f) : float4(s[0], s[dv], s[2 * dv], s[3 * dv]);
    }
    const uint num_channels = 2 * num_key * KEY_DIM + num_heads * dv;
    const uint key_head = head % num_key;
    for (uint row = first_row; row < end_row; ++row) {
        device const float *channels = y + ulong(row) * num_channels;
        device const float4 *q = (device const float4 *)(channels + key_head * KEY_DIM + 32 * part);
        device const float4 *k = q + num_key * KEY_DIM / 4;
        const float v = channels[2 * num_key * KEY_DIM + head * dv + column];
        const uint gate = row * num_heads + head;
        const float decay = exp(ssm_a[head] * softplus(a[gate] + dt_bias[head]));

        float recalled = 0.0f;
        UNROLL
        for (uint i = 0; i < VECTORS; ++i) {
            state[i] = state[i] * decay;
            recalled += dot(state[i], k[i]);
        }
        const float d = sigmoid(b[gate]) * (v - sum_of_parts(recalled));
        float out = 0.0f;
        UNROLL
        for (uint i = 0; i < VECTORS; ++i) {
            state[i] = state[i] + k[i] * d;
            out += dot(state[i], q[i]);
        }
        out = sum_of_parts(out);
        if (part == 0)
            o[ulong(row) * num_heads * dv + head * dv + column] = out;
    }
    UNROLL
    for (uint i = 0; i < VECTORS; ++i) {
        device float *s = new_state + 4 * i * dv;
        s[0] = state[i].x;
        s[dv] = state[i].y;
        s[2 * dv] = state[i].z;
        s[3 * dv] = state[i].w;
    }
}
