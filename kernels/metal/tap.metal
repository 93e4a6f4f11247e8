#include "common.h"

/* A thread moves four values. */
kernel void tap(device const uint *header [[buffer(0)]],
                device const float *x [[buffer(1)]],
                device float *features [[buffer(2)]],
                constant mtlq_tap_args &args [[buffer(ARGS)]],
                uint2 position [[thread_position_in_grid]])
{
    const uint i = position.x, row = position.y;
    if (row >= header[args.rows] || i >= args.dim / 4)
        return;
    device float *target = features + (ulong(header[MTLQ_FEATURE_ROW]) + row) * args.stride;
    ((device float4 *)(target + args.column))[i] =
        ((device const float4 *)x)[ulong(row) * (args.dim / 4) + i];
}
