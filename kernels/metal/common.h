/* common.h: what every Metal kernel starts with.
 *
 * Bindings are buffers 0, 1, ... in the order of args.h; the argument struct is buffer ARGS. A
 * grid covers the most rows that a plan can hold: kernels read the real number from the batch
 * header and return early. */
#ifndef MTLQ_COMMON_H
#define MTLQ_COMMON_H

#include <metal_stdlib>

#include "../args.h"

using namespace metal;

#define ARGS 30 /* the last buffer index that Metal has */

#ifndef UNROLL
#define UNROLL _Pragma("unroll")
#endif

/* An instance of a kernel template under a name that the host can look up. */
#define INSTANTIATE(name, ...) \
    template [[host_name(name)]] kernel decltype(__VA_ARGS__) __VA_ARGS__;

/* Finite, because fast math may assume that there are no infinities. */
#define LOWEST_SCORE -1e30f

inline float sigmoid(float x)
{
    return 1.0f / (1.0f + exp(-x));
}

inline float2 sigmoid(float2 x)
{
    return float2(sigmoid(x.x), sigmoid(x.y));
}

inline float4 sigmoid(float4 x)
{
    return float4(sigmoid(x.x), sigmoid(x.y), sigmoid(x.z), sigmoid(x.w));
}

inline float silu(float x)
{
    return x / (1.0f + exp(-x));
}

/* log(1 + e^x); for x > 20 the 1 is below half a unit of the last place. */
inline float softplus(float x)
{
    return x > 20.0f ? x : log(1.0f + exp(x));
}

inline float4 silu(float4 x)
{
    return float4(silu(x.x), silu(x.y), silu(x.z), silu(x.w));
}

inline float square_sum(float4 x)
{
    return fma(x.x, x.x, x.y * x.y) + fma(x.z, x.z, x.w * x.w);
}

#endif
