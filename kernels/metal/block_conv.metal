#include "common.h"

/* A thread has four channels of one row, which are of one group. */
kernel void block_conv(device const uint *header [[buffer(0)]],
                       device const int *row_sequence [[buffer(1)]],
                       device const float *x [[buffer(2)]],
                       device const float *dyn [[buffer(3)]],
                       device const float *base [[buffer(4)]],
                       device float *y [[buffer(5)]],
                       constant mtlq_block_conv_args &args [[buffer(ARGS)]],
                       uint2 position [[thread_position_in_grid]])
{
    const uint channel = 4 * position.x, row = position.y, dim = args.dim;
    if (row >= header[MTLQ_ROWS] || channel >= dim)
        return;
    const uint num_groups = dim / args.group;
    device const float *taps =
        dyn + (ulong(row) * 4 + 2 * args.side) * num_groups + channel / args.group;
    device const float *now = x + ulong(row) * dim + channel;
    device const float *base_now = base + 2 * args.side * dim + channel;
    float4 sum = (*(device const float4 *)base_now + taps[0]) * *(device const float4 *)now;
    if (row > 0 && row_sequence[row] == row_sequence[row - 1])
        sum = sum + (*(device const float4 *)(base_now + dim) + taps[num_groups]) *
                        *(device const float4 *)(now - dim);
    device float4 *target = (device float4 *)(y + ulong(row) * dim + channel);
    *target = args.accumulate ? *target + sum : sum;
}
