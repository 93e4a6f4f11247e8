/* tile.h: c[rows][LANES] (+)= a[rows][n] b[n][LANES], each value one fma chain over n ascending from c or
 * zero. The register tile of the float kernels: LANES_TILE_ROWS rows of c stay in registers. */
#ifndef MTLQ_TILE_H
#define MTLQ_TILE_H

#include <stdbool.h>

#include "lanes.h"

typedef struct tile_operands {
    const float *a;
    uint64_t a_stride;
    const float *b;
    const uint16_t *b_f16; /* where b is NULL */
    const uint16_t *ahead; /* with b_f16: n * LANES values that will be wanted soon */
    uint64_t b_stride;
    uint32_t n;
    bool accumulate; /* start from c, not zero */
    float *c;
    uint64_t c_stride;
} tile_operands;

#define TILE_INLINE static inline __attribute__((always_inline))

TILE_INLINE void tile_of_rows(const tile_operands *o, const uint32_t rows, const bool is_f16)
{
    lanes c[LANES_TILE_ROWS];
    for (uint32_t r = 0; r < rows; r++) {
        c[r] = o->accumulate ? lanes_load(o->c + r * o->c_stride) : lanes_zero();
    }
    const float *a = o->a, *b = o->b;
    const uint16_t *b_f16 = o->b_f16, *ahead = o->ahead;
    uint64_t a_stride = o->a_stride, b_stride = o->b_stride;
    for (uint32_t i = 0, n = o->n; i < n; i++) {
        if (is_f16) {
            __builtin_prefetch(ahead + i * LANES, 0, 2);
        }
        lanes v = is_f16 ? lanes_load_f16(b_f16 + i * b_stride) : lanes_load(b + i * b_stride);
        for (uint32_t r = 0; r < rows; r++) {
            c[r] = lanes_fma(lanes_splat(a[r * a_stride + i]), v, c[r]);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        lanes_store(o->c + r * o->c_stride, c[r]);
    }
}

/* rows <= LANES_TILE_ROWS */
static inline void tile_multiply(const tile_operands *o, uint32_t rows)
{
#define TILE_CASE(count)                                                                                     \
    case count:                                                                                              \
        if (o->b) {                                                                                          \
            tile_of_rows(o, count, false);                                                                   \
        } else {                                                                                             \
            tile_of_rows(o, count, true);                                                                    \
        }                                                                                                    \
        break
    switch (rows) {
        TILE_CASE(1);
        TILE_CASE(2);
        TILE_CASE(3);
        TILE_CASE(4);
#if LANES_TILE_ROWS >= 6
        TILE_CASE(5);
        TILE_CASE(6);
#endif
#if LANES_TILE_ROWS >= 8
        TILE_CASE(7);
        TILE_CASE(8);
#endif
    }
#undef TILE_CASE
}

#endif
