/* linear_32.c: weight types of 32-value blocks, each with a float step. Eight blocks make a tile. */
#include "code_tables.h"
#include "linear.h"

/* The values of mxfp4_values plus 16. */
static const int8_t mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

typedef enum code_kind { BYTES, NIBBLES, FIVE_BITS, IQ4, MXFP4 } code_kind;

/* The half at the start of each of sixteen rows. */
ALWAYS_INLINE lanes halves_of(const uint8_t *rows, uint64_t stride)
{
    uint16_t halves[LINEAR_ROWS];
    UNROLL(16)
    for (unsigned r = 0; r < LINEAR_ROWS; r++) {
        memcpy(&halves[r], rows + r * stride, sizeof halves[r]);
    }
    return lanes_load_f16(halves);
}

/* 2^(e - 128) for the byte at the start of each row; e < 2 is subnormal. */
ALWAYS_INLINE lanes powers_of(const uint8_t *rows, uint64_t stride)
{
    float powers[LINEAR_ROWS];
    for (unsigned r = 0; r < LINEAR_ROWS; r++) {
        uint32_t e = rows[r * stride];
        powers[r] = float_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
    return lanes_load(powers);
}

/* Bits 4i .. 4i+3 of each word, one to a byte, at its bit 4. */
ALWAYS_INLINE words fifth_bits(words bits, const unsigned i)
{
    words four = words_and(words_shr(bits, 4 * i), 15);
    return words_and(words_mul(four, 0x00204081u << 4), 0x10101010);
}

/* Word i of eight of a block's codes; 16 bytes of nibbles hold values 0-15 low and 16-31 high. */
ALWAYS_INLINE words code_word(const words *bytes, words fifths, const unsigned i, const code_kind kind,
                              const quant_type type)
{
    words q = words_and(words_shr(bytes[i % 4], 4 * (i / 4)), 0x0f0f0f0f);
    switch (kind) {
    case BYTES: return words_signed_codes(bytes[i]);
    case FIVE_BITS: return codes_of(words_or(q, fifth_bits(fifths, i)), type);
    case IQ4: return words_signed_codes(words_table(q, iq4_values));
    case MXFP4: return codes_of(words_table(q, mxfp4_codes), type);
    default: return codes_of(q, type);
    }
}

/* A block is its step, an offset if it has one, fifth bits if it has them, then codes. */
ALWAYS_INLINE void unpack(const uint8_t *rows, uint64_t stride, tile *w, const quant_type type, const code_kind kind)
{
    const unsigned block_bytes = type.block_bytes / 8, code_bytes = kind == BYTES ? 32 : 16;
    UNROLL(1)
    for (unsigned j = 0; j < 8; j++) {
        const uint8_t *block = rows + block_bytes * j, *codes = block + block_bytes - code_bytes;
        words bytes[8], before[4] = {words_splat(0)};
        if (kind == FIVE_BITS) {
            words_transpose(codes - 4, stride, before);
        }
        transpose_bytes(codes, stride, code_bytes, bytes);
        UNROLL(8)
        for (unsigned i = 0; i < 8; i++) {
            w->codes[8 * j + i] = code_word(bytes, before[0], i, kind, type);
        }
        w->steps[j] = kind == MXFP4 ? powers_of(block, stride) : halves_of(block, stride);
        if (type.has_offset) {
            w->offsets[j] = halves_of(block + 2, stride);
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

/*            type    few rows  bytes    scales  max_code     zero  offset */
LINEAR_KERNEL(q8_0,   NO_FEW,   8 * 34,  0,      SIGNED_CODE, 0,    0)
LINEAR_KERNEL(q4_0,   NO_FEW,   8 * 18,  0,      15,          3,    0)
LINEAR_KERNEL(q4_1,   NO_FEW,   8 * 20,  0,      15,          0,    1)
LINEAR_KERNEL(q5_0,   NO_FEW,   8 * 22,  0,      31,          4,    0)
LINEAR_KERNEL(q5_1,   NO_FEW,   8 * 24,  0,      31,          0,    1)
LINEAR_KERNEL(iq4_nl, NO_FEW,   8 * 18,  0,      SIGNED_CODE, 0,    0)
LINEAR_KERNEL(mxfp4,  NO_FEW,   8 * 17,  0,      31,          4,    0)
