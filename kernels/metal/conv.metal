#include "sequences.h"

/* The raw rows of one sequence: those of this step, before them those to replay, before them the
 * tail. */
struct conv_rows {
    device const float *u, *tape, *tail;
    uint num_channels;
    int num_pending;
    ulong tape_stride;
    bool is_fresh; /* nothing is before row 0 */
};

/* Channels [channel, channel + 4) of row t, from -3 on. */
inline float4 raw_row(conv_rows rows, int t, uint channel)
{
    if (t >= 0)
        return *(device const float4 *)(rows.u + ulong(t) * rows.num_channels + channel);
    if (rows.is_fresh)
        return float4(0.0f);
    t += rows.num_pending;
    if (t >= 0)
        return *(device const float4 *)(rows.tape + t * rows.tape_stride + channel);
    return *(device const float4 *)(rows.tail + (t + 3) * rows.num_channels + channel);
}

/* Grid: heads / SIMD groups a threadgroup, sequences then rows. A SIMD group has head_dim channels
 * (at most 128, four a lane) of one row, or of the new tail of one sequence; what is left of the v
 * channels after whole heads makes the last one. */
kernel void conv(device const uint *header [[buffer(0)]],
                 device const int *query_start_loc [[buffer(1)]],
                 device const int *sequence_slots [[buffer(2)]],
                 device const int *batched_kv_valid [[buffer(3)]],
                 device const int *bank [[buffer(4)]],
                 device const float *u [[buffer(5)]],
                 device const float *w [[buffer(6)]],
                 device float *tails [[buffer(7)]],
                 device float *y [[buffer(8)]],
                 device const int *state [[buffer(9)]],
                 device const int *pending [[buffer(10)]],
                 device float *tape [[buffer(11)]],
                 constant mtlq_conv_args &args [[buffer(ARGS)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint num_simdgroups [[simdgroups_per_threadgroup]])
{
    const uint num_sequences = header[MTLQ_SEQUENCES], head = group.x * num_simdgroups + simdgroup;
    const uint channel = head * args.head_dim + 4 * lane;
    if (group.y >= num_sequences + header[MTLQ_ROWS] || head * args.head_dim >= args.num_channels)
        return;
    const bool makes_tail = group.y < num_sequences;
    const uint row = group.y - num_sequences; /* of y */
    const uint sequence = makes_tail ? group.y : sequence_of_row(query_start_loc, row);
    const uint first_row = uint(query_start_loc[sequence]), slot = uint(sequence_slots[sequence]);
    const uint old_bank = uint(bank[sequence]), new_bank = 1 - old_bank;
    const bool is_bound = state[sequence] != MTLQ_UNBOUND;
    const bool is_mine = 4 * lane < args.head_dim && channel < args.num_channels;
    conv_rows rows;
    rows.u = u + ulong(first_row) * args.num_channels;
    rows.tape = tape + bank_offset(old_bank, slot, args.tape_bank_stride, args.tape_slot_stride);
    rows.tail = tails + bank_offset(old_bank, slot, args.bank_stride, args.slot_stride);
    rows.num_channels = args.num_channels;
    rows.num_pending = pending[sequence];
    rows.tape_stride = args.tape_row_stride;
    rows.is_fresh = batched_kv_valid[sequence] == 0;

    if (makes_tail) { /* that of a draft ends before its rows */
        const int end = is_bound ? 0 : query_start_loc[sequence + 1] - int(first_row);
        device float *target =
            tails + bank_offset(new_bank, slot, args.bank_stride, args.slot_stride) + channel;
        for (int i = 0; i < 3 && is_mine; ++i)
            *(device float4 *)(target + i * args.num_channels) =
                raw_row(rows, end - 3 + i, channel);
        return;
    }
    const int t = int(row - first_row);
    float4 raw = float4(0.0f), sum = float4(0.0f);
    UNROLL
    for (int i = 0; i < 4; ++i) {
        if (!is_mine)
            continue;
        raw = raw_row(rows, t - 3 + i, channel);
        sum = sum + raw * *(device const float4 *)(w + i * args.num_channels + channel);
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
    *(device float4 *)(y + ulong(row) * args.num_channels + channel) = value * scale;
    if (is_bound) {
        device float *record = tape + bank_offset(new_bank, uint(state[sequence]),
                                                  args.tape_bank_stride, args.tape_slot_stride);
        *(device float4 *)(record + t * args.tape_row_stride + channel) = raw;
    }
}
