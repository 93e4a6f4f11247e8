#include "common.h"

/* A thread moves four values. */
kernel void gather(device const uint *header [[buffer(0)]],
                   device const int *indices [[buffer(1)]],
                   device const float *x [[buffer(2)]],
                   device float *y [[buffer(3)]],
                   constant mtlq_gather_args &args [[buffer(ARGS)]],
                   uint2 position [[thread_position_in_grid]])
{
    const uint num_vectors = args.dim / 4, i = position.x, row = position.y;
    if (row >= header[args.rows] || i >= num_vectors)
        return;
    device const float4 *source = (device const float4 *)x;
    device float4 *target = (device float4 *)y;
    target[ulong(row) * num_vectors + i] = source[ulong(indices[row]) * num_vectors + i];
}
