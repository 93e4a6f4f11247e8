/* lanes.h: sixteen float lanes, the one vector type of the kernels: 1 AVX-512 register, 2 of AVX2, 4 of NEON,
 * or float[16]. A kernel is written once over lanes and gives the same bits on each: every operation
 * below is exact per lane, and the horizontal ones have a fixed tree (docs/cpu-arithmetic.md).
 *
 * Each lanes_<isa>.h defines the types lanes and lanes_mask, LANES_TILE_ROWS, and
 *   zero splat load store add sub mul div fma(a, b, c) = a * b + c with one rounding
 *   min(a, b) = a < b ? a : b, max(a, b) = a > b ? a : b       (b when a lane is NaN)
 *   lt(a, b) = a < b, select(mask, a, b) = mask ? a : b, first(n) = lanes below n
 *   load_f16 store_f16 (nearest even) load_bf16, pow2(n) = 2^n for whole n in [-126, 127]
 *   sum and largest: halves folded 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + width/2
 *   stream: store past the caches to a 64-byte aligned address; stream_end orders such stores. */
#ifndef MTLQ_LANES_H
#define MTLQ_LANES_H

#include <stdint.h>
#include <string.h>

#include "isa.h"

#define LANES 16u

#define MTLQ_ISA_IS_portable 0
#define MTLQ_ISA_IS_avx2     1
#define MTLQ_ISA_IS_avx512   2
#define MTLQ_ISA_IS_neon     3
#define MTLQ_ISA_ID          MTLQ_JOIN(MTLQ_ISA_IS, MTLQ_ISA)

#if MTLQ_ISA_ID == MTLQ_ISA_IS_avx512
#include "lanes_avx512.h"
#elif MTLQ_ISA_ID == MTLQ_ISA_IS_avx2
#include "lanes_avx2.h"
#elif MTLQ_ISA_ID == MTLQ_ISA_IS_neon
#include "lanes_neon.h"
#else
#include "lanes_portable.h"
#endif

/* The first n lanes from memory, zero above: all of them when n >= LANES. A loop over a row of any
 * length loads with n = what is left. */
static inline lanes lanes_load_n(const float *p, uint64_t n)
{
    if (n >= LANES) {
        return lanes_load(p);
    }
    float buffer[LANES] = {0};
    memcpy(buffer, p, n * sizeof *p);
    return lanes_load(buffer);
}

static inline void lanes_store_n(float *p, lanes x, uint64_t n)
{
    if (n >= LANES) {
        lanes_store(p, x);
        return;
    }
    float buffer[LANES];
    lanes_store(buffer, x);
    memcpy(p, buffer, n * sizeof *p);
}

static inline lanes lanes_neg(lanes x) { return lanes_mul(x, lanes_splat(-1.0f)); }

#endif
