/* rows.h: sums over one row, in the order of docs/cpu-arithmetic.md: element i goes to lane i mod 16,
 * ascending, then the tree of lanes_sum. */
#ifndef MTLQ_ROWS_H
#define MTLQ_ROWS_H

#include <math.h>

#include "lanes.h"

static inline float row_sum_of_squares(const float *x, uint32_t dim)
{
    lanes sum = lanes_zero();
    for (uint32_t i = 0; i < dim; i += LANES) {
        lanes v = lanes_load_n(x + i, dim - i);
        sum = lanes_fma(v, v, sum);
    }
    return lanes_sum(sum);
}

/* 1 / sqrt(mean(x^2) + eps) */
static inline float row_inverse_rms(const float *x, uint32_t dim, float eps)
{
    return 1.0f / sqrtf(row_sum_of_squares(x, dim) / (float)dim + eps);
}

/* y = x * factor * w */
static inline void row_scale(const float *x, float factor, const float *w, uint32_t dim, float *y)
{
    lanes f = lanes_splat(factor);
    for (uint32_t i = 0; i < dim; i += LANES) {
        lanes v = lanes_mul(lanes_load_n(x + i, dim - i), f);
        lanes_store_n(y + i, lanes_mul(v, lanes_load_n(w + i, dim - i)), dim - i);
    }
}

#endif
