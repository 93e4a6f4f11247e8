/* lanes_math.h: exp and its relatives over lanes, in operations that every instruction set rounds alike.
 * Errors against exact values are in docs/cpu-arithmetic.md; tests/kernels/test_math.py holds them. */
#ifndef MTLQ_LANES_MATH_H
#define MTLQ_LANES_MATH_H

#include <math.h>

#include "lanes.h"

/* e^x: x = n ln 2 + r, e^r by a polynomial in |r| <= ln 2 / 2. Below -87 it is 0, above 88 infinity. */
static inline lanes lanes_exp(lanes x)
{
    lanes clamped = lanes_min(lanes_splat(88.0f), lanes_max(lanes_splat(-87.0f), x));
    lanes to_whole = lanes_splat(0x1.8p23f); /* adding it rounds to the nearest whole number */
    lanes n = lanes_sub(lanes_add(lanes_mul(clamped, lanes_splat(0x1.715476p0f)), to_whole), to_whole);
    lanes r = lanes_fma(n, lanes_splat(-0x1.62e4p-1f), clamped); /* ln 2 in two parts */
    r = lanes_fma(n, lanes_splat(-0x1.7f7d1cp-20f), r);
    lanes p = lanes_splat(0x1.6dbc68p-10f);
    p = lanes_fma(p, r, lanes_splat(0x1.124148p-7f));
    p = lanes_fma(p, r, lanes_splat(0x1.555454p-5f));
    p = lanes_fma(p, r, lanes_splat(0x1.555486p-3f));
    p = lanes_fma(p, r, lanes_splat(0.5f));
    p = lanes_fma(p, lanes_mul(r, r), r);
    /* A NaN reaches y through p; pow2 may not see it. */
    lanes y = lanes_mul(lanes_add(p, lanes_splat(1.0f)), lanes_pow2(lanes_max(n, lanes_splat(-126.0f))));
    y = lanes_select(lanes_lt(x, lanes_splat(-87.0f)), lanes_zero(), y);
    return lanes_select(lanes_lt(lanes_splat(88.0f), x), lanes_splat(INFINITY), y);
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
