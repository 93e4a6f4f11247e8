/* linear_32.c: weight types of 32-value blocks, each with a float step. Eight blocks make a tile. */
#include "linear.h"

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* Twice E2M1, plus 16. */
static const int8_t mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

/* A half at an even byte offset. */
ALWAYS_INLINE lanes half_at(const words *block, const unsigned offset)
{
    return offset % 4 == 0 ? words_f16_low(block[offset / 4]) : words_f16_high(block[offset / 4]);
}

/* Bits 4i .. 4i+3 of each word, one to a byte, at its bit 4. */
ALWAYS_INLINE words fifth_bits(words bits, const unsigned i)
{
    words four = words_and(words_shr(bits, 4 * i), 15);
    return words_and(words_mul(four, 0x00204081u << 4), 0x10101010);
}

typedef enum nibble_meaning { PLAIN, FIFTH_BIT, IQ4, MXFP4 } nibble_meaning;

/* 16 bytes at `offset`: low nibbles are values 0-15, high ones 16-31. `bits` are the fifth bits. */
ALWAYS_INLINE void unpack_nibbles(const words *block, const unsigned offset, words bits, words codes[8],
                                  const nibble_meaning meaning, const quant_type type)
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        words q = words_and(words_shr(word_at(block, offset + 4 * (i % 4)), 4 * (i / 4)), 0x0f0f0f0f);
        switch (meaning) {
        case PLAIN: codes[i] = codes_of(q, type); break;
        case FIFTH_BIT: codes[i] = codes_of(words_or(q, fifth_bits(bits, i)), type); break;
        case IQ4: codes[i] = words_signed_codes(words_table(q, iq4_values)); break;
        case MXFP4: codes[i] = codes_of(words_table(q, mxfp4_codes), type); break;
        }
    }
}

/* 32-value blocks of a half step (and a half offset), fifth bits, and nibbles, in that order. */
ALWAYS_INLINE void unpack_nibble_blocks(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                                        const nibble_meaning meaning, const quant_type type)
{
    const unsigned bytes = type.block_bytes / 8, nibbles = bytes - 16;
    words block[48];
    transpose_bytes(rows, stride, type.block_bytes, block, ahead);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++) {
        words bits = meaning == FIFTH_BIT ? word_at(block, bytes * j + nibbles - 4) : words_splat(0);
        unpack_nibbles(block, bytes * j + nibbles, bits, w->codes + 8 * j, meaning, type);
        w->steps[j] = half_at(block, bytes * j);
        if (type.has_offset) {
            w->offsets[j] = half_at(block, bytes * j + 2);
        }
    }
}

ALWAYS_INLINE void unpack_q4_0(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                               const quant_type type)
{
    unpack_nibble_blocks(rows, stride, w, ahead, PLAIN, type);
}

ALWAYS_INLINE void unpack_q4_1(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                               const quant_type type)
{
    unpack_nibble_blocks(rows, stride, w, ahead, PLAIN, type);
}

ALWAYS_INLINE void unpack_q5_0(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                               const quant_type type)
{
    unpack_nibble_blocks(rows, stride, w, ahead, FIFTH_BIT, type);
}

ALWAYS_INLINE void unpack_q5_1(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                               const quant_type type)
{
    unpack_nibble_blocks(rows, stride, w, ahead, FIFTH_BIT, type);
}

ALWAYS_INLINE void unpack_iq4_nl(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                                 const quant_type type)
{
    unpack_nibble_blocks(rows, stride, w, ahead, IQ4, type);
}

ALWAYS_INLINE void unpack_q8_0(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                               const quant_type type)
{
    words block[68];
    transpose_bytes(rows, stride, type.block_bytes, block, ahead);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++) {
        w->steps[j] = half_at(block, 34 * j);
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++) {
            w->codes[8 * j + i] = words_signed_codes(word_at(block, 34 * j + 2 + 4 * i));
        }
    }
}

/* 2^(e - 128) as the exact product of two powers of two within the normal range. */
static inline lanes mxfp4_step(words e)
{
    words half = words_shr(e, 1);
    words rest = words_sub(e, half);
    words bias = words_splat(-63u);
    return lanes_mul(words_as_lanes(words_shl(words_sub(half, bias), 23)),
                     words_as_lanes(words_shl(words_sub(rest, bias), 23)));
}

ALWAYS_INLINE void unpack_mxfp4(const uint8_t *rows, uint64_t stride, tile *w, const uint8_t *ahead,
                                const quant_type type)
{
    words block[34];
    transpose_bytes(rows, stride, type.block_bytes, block, ahead);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++) {
        words e = words_and(words_shr(block[17 * j / 4], 8 * (17 * j % 4)), 0xff);
        w->steps[j] = mxfp4_step(e);
        unpack_nibbles(block, 17 * j + 1, words_splat(0), w->codes + 8 * j, MXFP4, type);
    }
}

/*            type    bytes    scales  max_code     zero  offset */
LINEAR_KERNEL(q8_0,   8 * 34,  0,      SIGNED_CODE, 0,    0)
LINEAR_KERNEL(q4_0,   8 * 18,  0,      15,          3,    0)
LINEAR_KERNEL(q4_1,   8 * 20,  0,      15,          0,    1)
LINEAR_KERNEL(q5_0,   8 * 22,  0,      31,          4,    0)
LINEAR_KERNEL(q5_1,   8 * 24,  0,      31,          0,    1)
LINEAR_KERNEL(iq4_nl, 8 * 18,  0,      SIGNED_CODE, 0,    0)
LINEAR_KERNEL(mxfp4,  8 * 17,  0,      31,          4,    0)
