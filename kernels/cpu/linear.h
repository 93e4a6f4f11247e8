/* linear.h: y (+)= x W^T for quantised W, the frame that every weight type shares.
 *
 * Sixteen rows of W lie in sixteen 32-bit words. A block of 256 values of those rows is unpacked once into a
 * tile of codes (one byte each, four along a row in a word) and scales, then multiplied with the activation
 * records of LINEAR_TILE rows at a time. Sums inside a block are exact integers; docs/cpu-arithmetic.md
 * states the few float operations and their order.
 *
 * Each linear_<isa>.h defines
 *   words                     sixteen words, one of each row of W
 *   words_splat and or sub mul shl shr   on uint32;  sub8, table (16-entry look-up) on bytes
 *   words_transpose           16 bytes from each of 16 rows to four words
 *   words_scale               byte i, signed, in the form words_dot32 multiplies with
 *   words_even words_odd      signed bytes 0, 2 (1, 3) of a word as a pair of int16
 *   words_pair_dot            sum + pair . pair
 *   words_to_lanes words_f16_low words_f16_high   to float: by value, from the low or high half
 *   words_signed_codes        signed codes as words_dot32 wants them
 *   words_dot32               sums[t] += scale * (codes . 32 activations of row t) << shift; meanwhile it
 *                             prefetches num_lines cache lines at `ahead`
 *   LINEAR_TILE               rows of x multiplied at a time
 *   LINEAR_SIGNED_CODES       1: zero is subtracted from unsigned codes as they are unpacked; 0: words_dot32
 *                             needs codes in 0 .. max_code and the frame corrects the sum. */
#ifndef MTLQ_LINEAR_H
#define MTLQ_LINEAR_H

#include "isa.h"
#include "lanes.h"
#include "quantize.h"

#define CACHE_LINE 64u

/* Constants reach the words only through inlined, unrolled code. Not under AddressSanitizer, whose checks of it
 * would take minutes to compile. */
#ifdef __SANITIZE_ADDRESS__
#define ALWAYS_INLINE static inline
#define UNROLL(count)
#else
#define PRAGMA(text) _Pragma(#text)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNROLL(count) PRAGMA(GCC unroll count)
#endif

#if MTLQ_ISA_ID == MTLQ_ISA_IS_avx512
#include "linear_avx512.h"
#elif MTLQ_ISA_ID == MTLQ_ISA_IS_avx2
#include "linear_avx2.h"
#elif MTLQ_ISA_ID == MTLQ_ISA_IS_neon
#include "linear_neon.h"
#else
#include "linear_portable.h"
#endif

#if MTLQ_ISA_ID == MTLQ_ISA_IS_avx2
#include "linear_few.h"
#define FEW(name, max_rows) {name##_few_row, max_rows}
#else
typedef const void *few_row_fn; /* the tile is as quick for few rows of x */
#define FEW(name, max_rows) NO_FEW
#endif

#define LINEAR_ROWS 16u             /* of W in a tile */
#define MAX_BLOCK_BYTES 272u        /* of 256 values of one row */
#define SIGNED_CODE 128u            /* max_code of types whose codes are signed */

/* What the frame needs to know of a weight type. value = step * (scale * (code - zero)) - or + offset. */
typedef struct quant_type {
    uint32_t block_bytes; /* 256 values of one row */
    uint32_t num_scales;  /* integer scales per 32 values: 1 or 2; 0: a float step per 32 values */
    uint32_t max_code;    /* codes are 0 .. max_code, or signed bytes if SIGNED_CODE */
    uint32_t zero_shift;  /* zero = 1 << zero_shift; 0: none */
    uint32_t has_offset;
} quant_type;

/* 256 values of sixteen rows. */
typedef struct tile {
    words codes[64];   /* four values a word, ascending */
    words scales[16];  /* integer scales of each 32 or 16 values */
    words pairs[8];    /* scales of what multiplies the sums of the activations: the offsets, or zero */
    lanes steps[8];    /* float step: of the block in [0], or of each 32 values */
    lanes offsets[8];  /* float offset, likewise; negative for the super-block types */
} tile;

/* Reads a block of sixteen rows, `stride` bytes apart. */
typedef void (*unpack_fn)(const uint8_t *rows, uint64_t stride, tile *w);
/* y[t] += tile . x[t] for num_rows <= LINEAR_TILE rows of x; prefetches a tile of W at `ahead` meanwhile. */
typedef void (*multiply_fn)(const tile *w, const xblock *x, lanes *y, unsigned num_rows, const uint8_t *ahead);

/* What multiplies up to max_rows rows of x quicker than the tile does. */
typedef struct few_rows {
    few_row_fn row;
    uint32_t max_rows; /* 0: none */
} few_rows;

#define NO_FEW {NULL, 0}

/* A weight type as the loops of linear.c see it. */
typedef struct linear_type {
    quant_type quant;
    unpack_fn unpack;
    multiply_fn multiply;
    few_rows few;
} linear_type;

void MTLQ_NAME(linear_blocks)(const mtlq_call *call, const linear_type *type);

ALWAYS_INLINE void transpose_bytes(const uint8_t *rows, uint64_t stride, const unsigned num_bytes, words *out)
{
    UNROLL(17)
    for (unsigned i = 0; i + 16 <= num_bytes; i += 16) {
        words_transpose(rows + i, stride, out + i / 4);
    }
    if (num_bytes % 16 != 0) {
        words_transpose(rows + num_bytes - 16, stride, out + num_bytes / 4 - 4);
    }
}

/* Unsigned codes with a zero, as words_dot32 wants them. */
ALWAYS_INLINE words codes_of(words codes, const quant_type type)
{
    return LINEAR_SIGNED_CODES && type.zero_shift ? words_sub8(codes, (uint8_t)(1u << type.zero_shift)) : codes;
}

/* A tile's cache lines, divided among its eight groups. */
ALWAYS_INLINE unsigned lines_per_group(const quant_type type)
{
    return (LINEAR_ROWS * type.block_bytes + 8 * CACHE_LINE - 1) / (8 * CACHE_LINE);
}

/* Super-block types: v = step * isum (- offset * msum), y = fma(v, x.step, y). */
ALWAYS_INLINE void multiply_super(const tile *w, const xblock *x, lanes *y, const unsigned num_rows,
                                  const uint8_t *ahead, const quant_type type)
{
    const unsigned num_lines = lines_per_group(type);
    const int corrects_zero = type.zero_shift && !LINEAR_SIGNED_CODES;
    words sums[LINEAR_TILE];
    UNROLL(8)
    for (unsigned t = 0; t < num_rows; t++) {
        sums[t] = words_splat(0);
    }
    UNROLL(1)
    for (unsigned j = 0; j < 8; j++) {
        words_dot32(sums, w->codes + 8 * j, w->scales + type.num_scales * j, type.num_scales, type.max_code, x, j,
                    num_rows, ahead + CACHE_LINE * num_lines * j, num_lines);
    }
    UNROLL(8)
    for (unsigned t = 0; t < num_rows; t++) {
        words pair_sum = words_splat(0);
        if (corrects_zero || type.has_offset) {
            const int16_t *pairs = type.num_scales == 2 ? x[t].pairs16 : x[t].pairs32;
            UNROLL(8)
            for (unsigned i = 0; i < 4 * type.num_scales; i++) {
                pair_sum = words_pair_dot(pair_sum, w->pairs[i], pairs + 2 * i);
            }
        }
        words sum = corrects_zero ? words_sub(sums[t], words_shl(pair_sum, type.zero_shift)) : sums[t];
        lanes v = lanes_mul(w->steps[0], words_to_lanes(sum));
        if (type.has_offset) {
            v = lanes_fma(w->offsets[0], words_to_lanes(pair_sum), v);
        }
        y[t] = lanes_fma(v, lanes_splat(x[t].step), y[t]);
    }
}

/* Types of 32 values: s = fma(step_j, isum_j, s) (then fma(offset_j, xsum_j, s)), y = fma(s, x.step, y). */
ALWAYS_INLINE void multiply_32(const tile *w, const xblock *x, lanes *y, const unsigned num_rows,
                               const uint8_t *ahead, const quant_type type)
{
    const unsigned num_lines = lines_per_group(type);
    lanes s[LINEAR_TILE];
    UNROLL(8)
    for (unsigned t = 0; t < num_rows; t++) {
        s[t] = lanes_zero();
    }
    UNROLL(1)
    for (unsigned j = 0; j < 8; j++) {
        words sums[LINEAR_TILE];
        UNROLL(8)
        for (unsigned t = 0; t < num_rows; t++) {
            sums[t] = words_splat(0);
        }
        words_dot32(sums, w->codes + 8 * j, NULL, 0, type.max_code, x, j, num_rows,
                    ahead + CACHE_LINE * num_lines * j, num_lines);
        UNROLL(8)
        for (unsigned t = 0; t < num_rows; t++) {
            words x_sum = words_splat((uint32_t)x[t].sum32[j]);
            if (type.zero_shift && !LINEAR_SIGNED_CODES) {
                sums[t] = words_sub(sums[t], words_shl(x_sum, type.zero_shift));
            }
            s[t] = lanes_fma(w->steps[j], words_to_lanes(sums[t]), s[t]);
            if (type.has_offset) {
                s[t] = lanes_fma(w->offsets[j], words_to_lanes(x_sum), s[t]);
            }
        }
    }
    UNROLL(8)
    for (unsigned t = 0; t < num_rows; t++) {
        y[t] = lanes_fma(s[t], lanes_splat(x[t].step), y[t]);
    }
}

ALWAYS_INLINE void multiply(const tile *w, const xblock *x, lanes *y, const unsigned num_rows, const uint8_t *ahead,
                            const quant_type type)
{
    if (type.num_scales == 0) {
        multiply_32(w, x, y, num_rows, ahead, type);
    } else {
        multiply_super(w, x, y, num_rows, ahead, type);
    }
}

#if LINEAR_TILE == 8
#define EACH_TILE(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#elif LINEAR_TILE == 4
#define EACH_TILE(CASE) CASE(1) CASE(2) CASE(3) CASE(4)
#else
#define EACH_TILE(CASE) CASE(1) CASE(2)
#endif

#define MULTIPLY_CASE(n) case n: multiply(w, x, y, n, ahead, type); break;

/* The kernel of a weight type, from its quant_type, its unpack function and what multiplies few rows. */
#define LINEAR_KERNEL(name, few, ...)                                                                          \
    static void name##_multiply(const tile *w, const xblock *x, lanes *y, unsigned num_rows,                   \
                                const uint8_t *ahead)                                                          \
    {                                                                                                          \
        const quant_type type = {__VA_ARGS__};                                                                 \
        switch (num_rows) {                                                                                    \
            EACH_TILE(MULTIPLY_CASE)                                                                           \
        }                                                                                                      \
    }                                                                                                          \
    static void name##_unpack(const uint8_t *rows, uint64_t stride, tile *w)                                   \
    {                                                                                                          \
        unpack_##name(rows, stride, w, (quant_type){__VA_ARGS__});                                             \
    }                                                                                                          \
    void MTLQ_NAME(linear_##name)(const mtlq_call *call)                                                       \
    {                                                                                                          \
        const linear_type type = {{__VA_ARGS__}, name##_unpack, name##_multiply, few};                         \
        MTLQ_NAME(linear_blocks)(call, &type);                                                                 \
    }

#endif
