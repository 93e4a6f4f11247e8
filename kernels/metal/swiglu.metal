#include "common.h"

/* A thread makes four values. */
kernel void swiglu(device const uint *header [[buffer(0)]],
                   device const float *gate [[buffer(1)]],
                   device const float *up [[buffer(2)]],
                   device float *y [[buffer(3)]],
                   constant mtlq_swiglu_args &args [[buffer(ARGS)]],
                   uint2 position [[thread_position_in_grid]])
{
    const uint num_vectors = args.dim / 4;
    if (position.y >= header[args.rows] || position.x >= num_vectors)
        return;
    const ulong i = ulong(position.y) * num_vectors + position.x;
    const float4 factor = ((device const float4 *)up)[i];
    ((device float4 *)y)[i] = silu(((device const float4 *)gate)[i]) * factor;
}
