/* linear_portable.h: the words of linear.h in plain C, the readable twin of the others. */
#ifndef MTLQ_LINEAR_PORTABLE_H
#define MTLQ_LINEAR_PORTABLE_H

#include "lanes.h"
#include "quantize.h"

#define LINEAR_TILE 2u
#define LINEAR_SIGNED_CODES 1

typedef struct words {
    uint32_t at[16];
} words;

/* Calls, not copies: unrolled sixteen times each, the unpack functions would take minutes to compile. */
#define OPERATION static __attribute__((noinline, unused))

#define EACH(expression)                                                                                       \
    words result;                                                                                              \
    for (unsigned r = 0; r < 16; r++) result.at[r] = (uint32_t)(expression);                                   \
    return result
#define EACH_LANE(expression)                                                                                  \
    float result[16];                                                                                          \
    for (unsigned r = 0; r < 16; r++) result[r] = (expression);                                                \
    return lanes_load(result)

OPERATION words words_splat(uint32_t x) { EACH(x); }
OPERATION words words_and(words a, uint32_t mask) { EACH(a.at[r] & mask); }
OPERATION words words_or(words a, words b) { EACH(a.at[r] | b.at[r]); }
OPERATION words words_sub(words a, words b) { EACH(a.at[r] - b.at[r]); }
OPERATION words words_mul(words a, uint32_t b) { EACH(a.at[r] * b); }
OPERATION words words_shl(words a, unsigned n) { EACH(a.at[r] << n); }
OPERATION words words_shr(words a, unsigned n) { EACH(a.at[r] >> n); }

OPERATION words words_sub8(words a, uint8_t b)
{
    const uint32_t high = 0x80808080u, each = b * 0x01010101u; /* borrows stop at the set top bits */
    EACH(((a.at[r] | high) - (each & ~high)) ^ ((a.at[r] ^ ~each) & high));
}

OPERATION int32_t word_byte(uint32_t word, unsigned i) { return (int8_t)(word >> (8 * i)); }

OPERATION words words_table(words indices, const int8_t table[16])
{
    words result;
    for (unsigned r = 0; r < 16; r++) {
        uint32_t word = 0;
        for (unsigned i = 0; i < 4; i++) {
            word |= (uint32_t)(uint8_t)table[indices.at[r] >> (8 * i) & 15] << (8 * i);
        }
        result.at[r] = word;
    }
    return result;
}

OPERATION void words_transpose(const uint8_t *rows, uint64_t stride, words out[4])
{
    for (unsigned r = 0; r < 16; r++) {
        for (unsigned i = 0; i < 4; i++) {
            const uint8_t *p = rows + r * stride + 4 * i;
            out[i].at[r] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        }
    }
}

OPERATION words words_signed_codes(words codes) { return codes; }
OPERATION words words_scale(words bytes, unsigned i) { EACH(word_byte(bytes.at[r], i)); }
OPERATION words words_even(words bytes)
{
    EACH((word_byte(bytes.at[r], 0) & 0xffff) | word_byte(bytes.at[r], 2) * 65536);
}

OPERATION words words_odd(words bytes) { return words_even(words_shr(bytes, 8)); }

OPERATION words words_pair_dot(words sum, words pairs, const int16_t x[2])
{
    EACH((int32_t)sum.at[r] + (int16_t)pairs.at[r] * x[0] + (int16_t)(pairs.at[r] >> 16) * x[1]);
}

OPERATION lanes words_to_lanes(words a) { EACH_LANE((float)(int32_t)a.at[r]); }
OPERATION lanes words_f16_low(words a) { EACH_LANE(f16_to_f32((uint16_t)a.at[r])); }
OPERATION lanes words_f16_high(words a) { EACH_LANE(f16_to_f32((uint16_t)(a.at[r] >> 16))); }

OPERATION void words_dot32(words *sums, const words codes[8], const words *scales, unsigned num_scales,
                               unsigned max_code, const xblock *x, unsigned group, unsigned num_rows,
                               const uint8_t *ahead, unsigned num_lines)
{
    (void)max_code, (void)ahead, (void)num_lines;
    for (unsigned t = 0; t < num_rows; t++) {
        int32_t parts[2][16] = {{0}};
        for (unsigned k = 0; k < 32; k++) {
            int16_t activation = x[t].q[32 * group + k];
            int32_t *part = parts[num_scales == 2 ? k / 16 : 0];
            for (unsigned r = 0; r < 16; r++) {
                part[r] += (int16_t)word_byte(codes[k / 4].at[r], k % 4) * activation;
            }
        }
        for (unsigned r = 0; r < 16; r++) {
            int32_t sum = parts[0][r] * (num_scales ? (int32_t)scales[0].at[r] : 1);
            sum += num_scales == 2 ? parts[1][r] * (int32_t)scales[1].at[r] : 0;
            sums[t].at[r] += (uint32_t)(sum * (1 << x[t].shift[group]));
        }
    }
}

#undef OPERATION
#undef EACH
#undef EACH_LANE

#endif
