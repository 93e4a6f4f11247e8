#include "sequences.h"

/* Grid: heads / SIMD groups a threadgroup, rows. A SIMD group has head_dim channels (at most
 * 128, four a lane) of one row; what is left of the v channels after whole heads makes the last
 * one. */
kernel void conv(device const uint *header [[buffer(0)]],
                 device const int *query_start_loc [[buffer(1)]],
                 device const int *sequence_slots [[buffer(2)]],
                 device const int *batched_kv_valid [[buffer(3)]],
                 device const int *bank [[buffer(4)]],
                 device const float *u [[buffer(5)]],
                 device const float *w [[buffer(6)]],
                 device float *tails [[buffer(7)]],
                 device float *y [[buffer(8)]],
                 constant mtlq_conv_args &args [[buffer(ARGS)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    const uint row = group.y, head = group.x * num_simdgroups + simdgroup;
    const uint num_channels = args.num_channels;
    const uint channel = head * args.head_dim + 4 * lane;
    if (row >= header[MTLQ_ROWS] || head * args.head_dim >= num_channels)
        return;
    const uint sequence = sequence_of_row(query_start_loc, row);
    const uint first_row = uint(query_start_loc[sequence]);
    const uint last_row = uint(query_start_loc[sequence + 1]) - 1;
    const uint slot = uint(sequence_slots[sequence]), current = uint(bank[sequence]);
    const bool is_mine = 4 * lane < args.head_dim && channel < num_channels;

    /* window[i]: the raw values at row - 3 + i */
    float4 window[4], sum = float4(0.0f);
    UNROLL
    for (uint i = 0; i < 4; ++i) {
        window[i] = float4(0.0f);
        const uint age = 3 - i;
        if (!is_mine)
            continue;
        if (row >= first_row + age) {
            window[i] = *(device const float4 *)(u + ulong(row - age) * num_channels + channel);
        } else if (batched_kv_valid[sequence] > 0) {
            const uint tail_row = row - first_row + i;
            const ulong tail = bank_offset(current, slot, args.bank_stride, args.slot_stride);
            window[i] = *(device const float4 *)(tails + tail + tail_row * num_channels + channel);
        }
        sum = sum + window[i] * *(device const float4 *)(w + i * num_channels + channel);
    }
    const float4 value = is_mine ? silu(sum) : float4(0.0f);

    float scale = 1.0f;
    if (head < 2 * args.num_key_heads) {
        scale = rsqrt(simd_sum(square_sum(value)) + args.eps);
        if (head < args.num_key_heads)
            scale *= args.q_scale;
    }
    if (!is_mine)
        return;
    *(device float4 *)(y + ulong(row) * num_channels + channel) = value * scale;
    if (row == last_row) {
        const ulong tail = bank_offset(1 - current, slot, args.bank_stride, args.slot_stride);
        UNROLL
        for (uint i = 0; i < 3; ++i)
            *(device float4 *)(tails + tail + i * num_channels + channel) = window[i + 1];
    }
}
