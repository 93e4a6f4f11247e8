/* quantize.h: activations as the integer matrix products read them (docs/cpu-arithmetic.md, "Activations"). */
#ifndef MTLQ_QUANTIZE_H
#define MTLQ_QUANTIZE_H

#include <stdint.h>

#include "half.h"

#define XBLOCK_VALUES 256u

/* 256 activations of one row; x[i] is q[i] * step * 2^shift[i / 32]. 384 bytes. `quantize` writes them as
 * [block][row], row-contiguous over the rows of the call. Sums are of q, times 2^shift. */
typedef struct xblock {
    int8_t q[XBLOCK_VALUES]; /* -127 .. 127 */
    int32_t shift[8];        /* 0 .. 3 */
    int32_t sum32[8];        /* of each 32 values */
    int16_t pairs16[16];     /* of each 16 values; every four in the order 0 2 1 3 */
    int16_t pairs32[8];      /* of each 32 values, same order: even and odd bytes of a word of four scales */
    float step;
    uint32_t reserved[3];
} xblock;

_Static_assert(sizeof(xblock) == 384, "num_bytes of a record is part of the contract with Python");

/* Position of sum i in pairs16 and pairs32. */
static inline unsigned xblock_pair_index(unsigned i)
{
    static const uint8_t order[4] = {0, 2, 1, 3};
    return (i & ~3u) + order[i & 3];
}

static inline uint32_t largest_magnitude_bits(const float *x, unsigned count)
{
    uint32_t largest = 0;
    for (unsigned i = 0; i < count; i++) {
        uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* 32 values to q = x * inverse, nearest even; returns the sums of both halves. */
static inline void quantize_32(const float *x, float inverse, int8_t *q, int32_t half_sums[2])
{
    int32_t wide[32];
    for (unsigned i = 0; i < 32; i++) { /* adding 1.5 * 2^23 leaves the nearest whole number in the low bits */
        wide[i] = (int32_t)(float_bits(x[i] * inverse + 0x1.8p23f) - 0x4b400000u);
    }
    for (unsigned half = 0; half < 2; half++) {
        int32_t sum = 0;
        for (unsigned i = 16 * half; i < 16 * half + 16; i++) {
            sum += wide[i];
        }
        half_sums[half] = sum;
    }
    for (unsigned i = 0; i < 32; i++) {
        q[i] = (int8_t)wide[i];
    }
}

/* The step of a group of 32 is the block's top / 127 halved up to three times while the group still fits.
 * A block below 2^-100 is zero; one with an infinity or a NaN has step NaN, so that its row shows it. */
static inline void quantize_block(const float x[XBLOCK_VALUES], xblock *out)
{
    uint32_t bits[8], block_bits = 0;
    for (unsigned j = 0; j < 8; j++) {
        bits[j] = largest_magnitude_bits(x + 32 * j, 32);
        block_bits = bits[j] > block_bits ? bits[j] : block_bits;
    }
    memset(out, 0, sizeof *out);
    if (block_bits >= 0x7f800000u) {
        out->step = float_from_bits(0x7fc00000u);
        return;
    }
    float block_top = float_from_bits(block_bits);
    if (block_top < 0x1p-100f) {
        return;
    }
    out->step = block_top / (127.0f * 8.0f);
    for (unsigned j = 0; j < 8; j++) {
        float top = block_top;
        int32_t shift = 3;
        for (; shift > 0 && float_from_bits(bits[j]) * 2.0f <= top; shift--) {
            top *= 0.5f;
        }
        int32_t sums[2];
        quantize_32(x + 32 * j, 127.0f / top, out->q + 32 * j, sums);
        out->shift[j] = shift;
        out->sum32[j] = (sums[0] + sums[1]) * (1 << shift);
        out->pairs32[xblock_pair_index(j)] = (int16_t)out->sum32[j];
        out->pairs16[xblock_pair_index(2 * j)] = (int16_t)(sums[0] * (1 << shift));
        out->pairs16[xblock_pair_index(2 * j + 1)] = (int16_t)(sums[1] * (1 << shift));
    }
}

/* Block b of a row of dim values, zeros beyond its end. */
static inline void quantize_row_block(const float *row, uint64_t dim, uint64_t b, xblock *out)
{
    uint64_t begin = b * XBLOCK_VALUES;
    if (dim - begin >= XBLOCK_VALUES) {
        quantize_block(row + begin, out);
        return;
    }
    float padded[XBLOCK_VALUES] = {0};
    memcpy(padded, row + begin, (dim - begin) * sizeof *row);
    quantize_block(padded, out);
}

#endif
