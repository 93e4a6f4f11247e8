/* linear_32.c: weight types of 32-value blocks, each with a float step. Eight blocks make a tile. */
#include "code_tables.h"
#include "linear.h"

/* Blocks that are transposed together. */
#define NUM_TOGETHER 4u

/* The values of mxfp4_values plus 16. */
static const int8_t mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

typedef enum code_kind { BYTES, NIBBLES, FIVE_BITS, IQ4, MXFP4 } code_kind;

/* A half at an even byte offset. */
ALWAYS_INLINE lanes half_at(const words *bytes, const unsigned offset)
{
    return offset % 4 == 0 ? words_f16_low(bytes[offset / 4]) : words_f16_high(bytes[offset / 4]);
}

/* 2^(e - 128) as the exact product of two powers of two within the normal range. */
ALWAYS_INLINE lanes mxfp4_step(words e)
{
    words half = words_shr(e, 1);
    words rest = words_sub(e, half);
    words minus_bias = words_splat(-63u);
    return lanes_mul(words_as_lanes(words_shl(words_sub(half, minus_bias), 23)),
                     words_as_lanes(words_shl(words_sub(rest, minus_bias), 23)));
}

/* Bits 4i .. 4i+3 of each word, one to a byte, at its bit 4. */
ALWAYS_INLINE words fifth_bits(words bits, const unsigned i)
{
    words four = words_and(words_shr(bits, 4 * i), 15);
    return words_and(words_mul(four, 0x00204081u << 4), 0x10101010);
}

/* Word i of eight of a block's codes, whose last 16 or 32 bytes start at `offset`; nibbles hold values 0-15 low
 * and 16-31 high; fifth bits are the four bytes before them. */
ALWAYS_INLINE words code_word(const words *bytes, const unsigned offset, const unsigned i, const code_kind kind,
                              const quant_type type)
{
    if (kind == BYTES) {
        return words_signed_codes(word_at(bytes, offset + 4 * i));
    }
    words q = words_and(words_shr(word_at(bytes, offset + 4 * (i % 4)), 4 * (i / 4)), 0x0f0f0f0f);
    switch (kind) {
    case FIVE_BITS: return codes_of(words_or(q, fifth_bits(word_at(bytes, offset - 4), i)), type);
    case IQ4: return words_signed_codes(words_table(q, iq4_values));
    case MXFP4: return codes_of(words_table(q, mxfp4_codes), type);
    default: return codes_of(q, type);
    }
}

/* A block is its step, an offset if it has one, fifth bits if it has them, then codes. */
ALWAYS_INLINE void unpack(const uint8_t *rows, uint64_t stride, tile *w, const quant_type type, const code_kind kind)
{
    const unsigned block_bytes = type.block_bytes / 8, codes = block_bytes - (kind == BYTES ? 32 : 16);
#pragma GCC unroll 1
    for (unsigned first = 0; first < 8; first += NUM_TOGETHER) {
        words bytes[NUM_TOGETHER * 34 / 4];
        transpose_bytes(rows + first * block_bytes, stride, NUM_TOGETHER * block_bytes, bytes);
#pragma GCC unroll 4
        for (unsigned j = 0; j < NUM_TOGETHER; j++) {
            const unsigned start = block_bytes * j;
            w->steps[first + j] = kind == MXFP4 ? mxfp4_step(words_and(word_at(bytes, start), 0xff)) : half_at(bytes, start);
            if (type.has_offset) {
                w->offsets[first + j] = half_at(bytes, start + 2);
            }
#pragma GCC unroll 8
            for (unsigned i = 0; i < 8; i++) {
                w->codes[8 * (first + j) + i] = code_word(bytes, start + codes, i, kind, type);
            }
        }
    }
}

#define UNPACK(name, kind)                                                                                     \
    ALWAYS_INLINE void unpack_##name(const uint8_t *rows, uint64_t stride, tile *w, const quant_type type)     \
    {                                                                                                          \
        unpack(rows, stride, w, type, kind);                                                                   \
    }

UNPACK(q8_0, BYTES)
UNPACK(q4_0, NIBBLES)
UNPACK(q4_1, NIBBLES)
UNPACK(q5_0, FIVE_BITS)
UNPACK(q5_1, FIVE_BITS)
UNPACK(iq4_nl, IQ4)
UNPACK(mxfp4, MXFP4)

/*            type    bytes    scales  max_code     zero  offset */
LINEAR_KERNEL(q8_0,   8 * 34,  0,      SIGNED_CODE, 0,    0)
LINEAR_KERNEL(q4_0,   8 * 18,  0,      15,          3,    0)
LINEAR_KERNEL(q4_1,   8 * 20,  0,      15,          0,    1)
LINEAR_KERNEL(q5_0,   8 * 22,  0,      31,          4,    0)
LINEAR_KERNEL(q5_1,   8 * 24,  0,      31,          0,    1)
LINEAR_KERNEL(iq4_nl, 8 * 18,  0,      SIGNED_CODE, 0,    0)
LINEAR_KERNEL(mxfp4,  8 * 17,  0,      31,          4,    0)
