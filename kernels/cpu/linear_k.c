/* linear_k.c: weight types of 256-value super-blocks with integer scales. */
#include "code_tables.h"
#include "linear.h"

static inline void set_scales(tile *w, unsigned i, words bytes)
{
    UNROLL(4)
    for (unsigned b = 0; b < 4; b++) {
        w->scales[4 * i + b] = words_scale(bytes, b);
    }
}

static inline void set_pairs(tile *w, unsigned i, words bytes)
{
    w->pairs[2 * i] = words_even(bytes);
    w->pairs[2 * i + 1] = words_odd(bytes);
}

/* d, dmin, then eight 6-bit scales and eight 6-bit minimums in 12 bytes. */
ALWAYS_INLINE void unpack_q45_head(const uint8_t *rows, uint64_t stride, tile *w)
{
    words h[4];
    words_transpose(rows, stride, h);
    w->steps[0] = words_f16_low(h[0]);
    w->offsets[0] = lanes_neg(words_f16_high(h[0]));
    set_scales(w, 0, words_and(h[1], 0x3f3f3f3f));
    set_pairs(w, 0, words_and(h[2], 0x3f3f3f3f));
    words scales = words_or(words_and(h[3], 0x0f0f0f0f), words_and(words_shr(h[1], 2), 0x30303030));
    words minimums = words_or(words_and(words_shr(h[3], 4), 0x0f0f0f0f), words_and(words_shr(h[2], 2), 0x30303030));
    set_scales(w, 1, scales);
    set_pairs(w, 1, minimums);
}

ALWAYS_INLINE void unpack_q4_k(const uint8_t *rows, uint64_t stride, tile *w,
                               const quant_type type)
{
    (void)type;
    unpack_q45_head(rows, stride, w);
    UNROLL(8)
    for (unsigned c = 0; c < 8; c++) { /* 16 bytes: low nibbles of one group of 32, high ones of the next */
        words q[4];
        words_transpose(rows + 16 + 16 * c, stride, q);
        words *codes = w->codes + 16 * (c / 2) + 4 * (c % 2);
        UNROLL(4)
        for (unsigned i = 0; i < 4; i++) {
            codes[i] = words_and(q[i], 0x0f0f0f0f);
            codes[8 + i] = words_and(words_shr(q[i], 4), 0x0f0f0f0f);
        }
    }
}

/* Bit `bit` of every byte, moved to bit `to`. */
ALWAYS_INLINE words bit_of(words bytes, const unsigned bit, const unsigned to)
{
    words moved = bit > to ? words_shr(bytes, bit - to) : words_shl(bytes, to - bit);
    return words_and(moved, 0x01010101u << to);
}

ALWAYS_INLINE void unpack_q5_k(const uint8_t *rows, uint64_t stride, tile *w,
                               const quant_type type)
{
    (void)type;
    words high[8];
    unpack_q45_head(rows, stride, w);
    transpose_bytes(rows + 16, stride, 32, high);
    UNROLL(8)
    for (unsigned c = 0; c < 8; c++) {
        words q[4];
        words_transpose(rows + 48 + 16 * c, stride, q);
        words *codes = w->codes + 16 * (c / 2) + 4 * (c % 2);
        const words *h = high + 4 * (c % 2);
        UNROLL(4)
        for (unsigned i = 0; i < 4; i++) {
            codes[i] = words_or(words_and(q[i], 0x0f0f0f0f), bit_of(h[i], c / 2 * 2, 4));
            codes[8 + i] = words_or(words_and(words_shr(q[i], 4), 0x0f0f0f0f), bit_of(h[i], c / 2 * 2 + 1, 4));
        }
    }
}

ALWAYS_INLINE void unpack_q6_k(const uint8_t *rows, uint64_t stride, tile *w,
                               const quant_type type)
{
    UNROLL(4)
    for (unsigned c = 0; c < 4; c++) { /* 16 positions of four groups: half c / 2 of the block, half c % 2 of a group */
        words low0[4], low1[4], high[4];
        const uint8_t *low = rows + 64 * (c / 2) + 16 * (c % 2);
        words_transpose(low, stride, low0);
        words_transpose(low + 32, stride, low1);
        words_transpose(rows + 128 + 16 * c, stride, high);
        words *codes = w->codes + 32 * (c / 2) + 4 * (c % 2);
        UNROLL(4)
        for (unsigned i = 0; i < 4; i++) {
            words g0 = words_or(words_and(low0[i], 0x0f0f0f0f), words_and(words_shl(high[i], 4), 0x30303030));
            words g1 = words_or(words_and(low1[i], 0x0f0f0f0f), words_and(words_shl(high[i], 2), 0x30303030));
            words g2 = words_or(words_and(words_shr(low0[i], 4), 0x0f0f0f0f), words_and(high[i], 0x30303030));
            words g3 = words_or(words_and(words_shr(low1[i], 4), 0x0f0f0f0f),
                                words_and(words_shr(high[i], 2), 0x30303030));
            codes[i] = codes_of(g0, type);
            codes[8 + i] = codes_of(g1, type);
            codes[16 + i] = codes_of(g2, type);
            codes[24 + i] = codes_of(g3, type);
        }
    }
    words scales[4], tail[4];
    words_transpose(rows + 192, stride, scales);
    words_transpose(rows + 194, stride, tail);
    UNROLL(4)
    for (unsigned i = 0; i < 4; i++) {
        set_scales(w, i, scales[i]);
        set_pairs(w, i, scales[i]);
    }
    w->steps[0] = words_f16_high(tail[3]);
}

ALWAYS_INLINE void unpack_q2_k(const uint8_t *rows, uint64_t stride, tile *w,
                               const quant_type type)
{
    (void)type;
    words q[21];
    transpose_bytes(rows, stride, 84, q);
    UNROLL(4)
    for (unsigned i = 0; i < 4; i++) {
        set_scales(w, i, words_and(q[i], 0x0f0f0f0f));
        set_pairs(w, i, words_and(words_shr(q[i], 4), 0x0f0f0f0f));
    }
    UNROLL(8)
    for (unsigned j = 0; j < 8; j++) {
        UNROLL(8)
        for (unsigned i = 0; i < 8; i++) {
            w->codes[8 * j + i] = words_and(words_shr(q[4 + 8 * (j / 4) + i], 2 * (j % 4)), 0x03030303);
        }
    }
    w->steps[0] = words_f16_low(q[20]);
    w->offsets[0] = lanes_neg(words_f16_high(q[20]));
}

/* The word at a byte offset of words that were transposed from consecutive bytes. */
ALWAYS_INLINE words word_at(const words *transposed, const unsigned offset)
{
    const unsigned shift = 8 * (offset % 4);
    words low = transposed[offset / 4];
    return shift == 0 ? low : words_or(words_shr(low, shift), words_shl(transposed[offset / 4 + 1], 32 - shift));
}

/* Sixteen 6-bit scales minus 32: twelve bytes a, b (low nibbles of scales 0-7, then of 8-15), c (high bits). */
ALWAYS_INLINE void unpack_q3_scales(tile *w, words a, words b, words c)
{
    UNROLL(4)
    for (unsigned i = 0; i < 4; i++) {
        words low = words_and(words_shr(i % 2 ? b : a, 4 * (i / 2)), 0x0f0f0f0f);
        words high = words_shl(words_and(words_shr(c, 2 * i), 0x03030303), 4);
        words scales = words_sub8(words_or(low, high), 32);
        set_scales(w, i, scales);
        set_pairs(w, i, scales);
    }
}

ALWAYS_INLINE void unpack_q3_k(const uint8_t *rows, uint64_t stride, tile *w,
                               const quant_type type)
{
    words q[24], tail[4];
    transpose_bytes(rows, stride, 96, q);
    words_transpose(rows + 94, stride, tail);
    UNROLL(8)
    for (unsigned j = 0; j < 8; j++) {
        UNROLL(8)
        for (unsigned i = 0; i < 8; i++) {
            words low = words_and(words_shr(q[8 + 8 * (j / 4) + i], 2 * (j % 4)), 0x03030303);
            w->codes[8 * j + i] = codes_of(words_or(low, bit_of(q[i], j, 2)), type);
        }
    }
    unpack_q3_scales(w, word_at(tail, 2), word_at(tail, 6), word_at(tail, 10));
    w->steps[0] = words_f16_high(tail[3]);
}

ALWAYS_INLINE void unpack_iq4_xs(const uint8_t *rows, uint64_t stride, tile *w,
                                 const quant_type type)
{
    (void)type;
    words q[34];
    transpose_bytes(rows, stride, 136, q);
    w->steps[0] = words_f16_low(q[0]);
    words high = words_shr(q[0], 16); /* two bits of each scale; q[1] has the low four */
    UNROLL(2)
    for (unsigned i = 0; i < 2; i++) {
        words scales = words_splat(0);
        UNROLL(4)
        for (unsigned b = 0; b < 4; b++) {
            const unsigned j = 4 * i + b;
            words scale = words_or(words_and(words_shr(q[1], 4 * j), 15),
                                   words_shl(words_and(words_shr(high, 2 * j), 3), 4));
            scales = words_or(scales, words_shl(scale, 8 * b));
        }
        set_scales(w, i, words_sub8(scales, 32));
    }
    UNROLL(32)
    for (unsigned i = 0; i < 32; i++) {
        words *codes = w->codes + 8 * (i / 4) + i % 4;
        codes[0] = words_signed_codes(words_table(words_and(q[2 + i], 0x0f0f0f0f), iq4_values));
        codes[4] = words_signed_codes(words_table(words_and(words_shr(q[2 + i], 4), 0x0f0f0f0f), iq4_values));
    }
}

/*            type    few rows       bytes  scales  max_code     zero  offset */
LINEAR_KERNEL(q4_k,   FEW(q4_k, 1),  144,   1,      15,          0,    1)
LINEAR_KERNEL(q5_k,   FEW(q5_k, 2),  176,   1,      31,          0,    1)
LINEAR_KERNEL(q6_k,   FEW(q6_k, 3),  210,   2,      63,          5,    0)
LINEAR_KERNEL(q2_k,   NO_FEW,        84,    2,      3,           0,    1)
LINEAR_KERNEL(q3_k,   NO_FEW,        110,   2,      7,           2,    0)
LINEAR_KERNEL(iq4_xs, NO_FEW,        136,   1,      SIGNED_CODE, 0,    0)
