/* order.h: floats compared as integers of the same order, because fast math may assume that there
 * is no NaN. A candidate is (order, index): the larger order is better, the lower index among
 * equals. */
#ifndef MTLQ_ORDER_H
#define MTLQ_ORDER_H

#include "common.h"

#define NO_INDEX 0xFFFFFFFF

/* 0 for NaN, else larger for a larger value; both zeros are equal. */
inline uint order_of(float value)
{
    uint bits = as_type<uint>(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return 0;
    if ((bits & 0x7FFFFFFF) == 0)
        bits = 0;
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

inline bool is_better(uint2 a, uint2 b)
{
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

/* The best candidate of a SIMD group. */
inline uint2 simd_best(uint2 candidate)
{
    const uint top = simd_max(candidate.x);
    return uint2(top, simd_min(candidate.x == top ? candidate.y : NO_INDEX));
}

#endif
