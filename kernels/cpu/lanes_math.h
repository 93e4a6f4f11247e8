/* lanes_math.h: exp and its relatives over lanes, in operations that every instruction set rounds alike.
 * Errors against exact values are in docs/cpu-arithmetic.md; tests/cross/kernel_bits.c checks them. */
#ifndef MTLQ_LANES_MATH_H
#define MTLQ_LANES_MATH_H

#include "lanes.h"

/* e^x: x = n ln 2 + r, e^r by a polynomial in |r| <= ln 2 / 2. Below -87 it is 0. */
static inline lanes lanes_exp(lanes x)
{
    lanes to_whole = lanes_splat(0x1.8p23f); /* adding it rounds to the nearest whole number */
    lanes n = lanes_sub(lanes_fma(x, lanes_splat(0x1.715476p0f), to_whole), to_whole);
    n = lanes_min(lanes_max(n, lanes_splat(-126.0f)), lanes_splat(127.0f)); /* NaN becomes -126 */
    lanes r = lanes_fma(n, lanes_splat(-0x1.62e4p-1f), x);                  /* ln 2 in two parts */
    r = lanes_fma(n, lanes_splat(-0x1.7f7d1cp-20f), r);
    lanes p = lanes_splat(0x1.6dbc68p-10f);
    p = lanes_fma(p, r, lanes_splat(0x1.124148p-7f));
    p = lanes_fma(p, r, lanes_splat(0x1.555454p-5f));
    p = lanes_fma(p, r, lanes_splat(0x1.555486p-3f));
    p = lanes_fma(p, r, lanes_splat(0.5f));
    p = lanes_fma(p, lanes_mul(r, r), r);
    lanes y = lanes_mul(lanes_add(p, lanes_splat(1.0f)), lanes_pow2(n));
    return lanes_select(lanes_lt(x, lanes_splat(-87.0f)), lanes_zero(), y);
}

/* 1 / (1 + e^-x) */
static inline lanes lanes_sigmoid(lanes x)
{
    lanes one = lanes_splat(1.0f);
    return lanes_div(one, lanes_add(one, lanes_exp(lanes_neg(x))));
}

/* x / (1 + e^-x) */
static inline lanes lanes_silu(lanes x)
{
    return lanes_div(x, lanes_add(lanes_splat(1.0f), lanes_exp(lanes_neg(x))));
}

/* ln(1 + u) for 0 <= u <= 1: 2 artanh(s) with s = u / (2 + u). */
static inline lanes lanes_log1p(lanes u)
{
    lanes s = lanes_div(u, lanes_add(lanes_splat(2.0f), u));
    lanes z = lanes_mul(s, s);
    lanes p = lanes_splat(0x1.1ef876p-2f);
    p = lanes_fma(p, z, lanes_splat(0x1.1eb61p-2f));
    p = lanes_fma(p, z, lanes_splat(0x1.99d27ap-2f));
    p = lanes_fma(p, z, lanes_splat(0x1.5555p-1f));
    lanes twice = lanes_add(s, s);
    return lanes_fma(lanes_mul(s, z), p, twice);
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|) */
static inline lanes lanes_softplus(lanes x)
{
    lanes minus_magnitude = lanes_min(x, lanes_neg(x));
    return lanes_add(lanes_max(x, lanes_zero()), lanes_log1p(lanes_exp(minus_magnitude)));
}

#endif
