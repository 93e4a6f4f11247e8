/* linear_avx512.h: the words of linear.h in one zmm; vpdpbusd sums unsigned codes times signed activations. */
#ifndef MTLQ_LINEAR_AVX512_H
#define MTLQ_LINEAR_AVX512_H

#include "lanes.h"
#include "quantize.h"

#define LINEAR_TILE 8u
#define LINEAR_SIGNED_CODES 0

typedef __m512i words;

static inline words words_splat(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline words words_and(words a, uint32_t mask) { return _mm512_and_si512(a, words_splat(mask)); }
static inline words words_or(words a, words b) { return _mm512_or_si512(a, b); }
static inline words words_sub(words a, words b) { return _mm512_sub_epi32(a, b); }
static inline words words_mul(words a, uint32_t b) { return _mm512_mullo_epi32(a, words_splat(b)); }
static inline words words_shl(words a, unsigned n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128((int)n)); }
static inline words words_shr(words a, unsigned n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128((int)n)); }
static inline words words_sub8(words a, uint8_t b) { return _mm512_sub_epi8(a, _mm512_set1_epi8((char)b)); }

static inline words words_table(words indices, const int8_t table[16])
{
    __m128i one = _mm_loadu_si128((const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(one), indices);
}

/* The blends take their operand from memory, so only the eight unpacks need the shuffle port. */
static inline void words_transpose(const uint8_t *rows, uint64_t stride, words out[4])
{
    words a[4];
    UNROLL(4)
    for (unsigned r = 0; r < 4; r++) {
        const uint8_t *p = rows + r * stride;
        a[r] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
        a[r] = _mm512_mask_broadcast_i32x4(a[r], 0x00f0, _mm_loadu_si128((const void *)(p + 4 * stride)));
        a[r] = _mm512_mask_broadcast_i32x4(a[r], 0x0f00, _mm_loadu_si128((const void *)(p + 8 * stride)));
        a[r] = _mm512_mask_broadcast_i32x4(a[r], 0xf000, _mm_loadu_si128((const void *)(p + 12 * stride)));
    }
    words t0 = _mm512_unpacklo_epi32(a[0], a[1]), t1 = _mm512_unpackhi_epi32(a[0], a[1]);
    words t2 = _mm512_unpacklo_epi32(a[2], a[3]), t3 = _mm512_unpackhi_epi32(a[2], a[3]);
    out[0] = _mm512_unpacklo_epi64(t0, t2);
    out[1] = _mm512_unpackhi_epi64(t0, t2);
    out[2] = _mm512_unpacklo_epi64(t1, t3);
    out[3] = _mm512_unpackhi_epi64(t1, t3);
}

/* To unsigned: words_dot32 takes 128 times the sum of the activations off again. */
static inline words words_signed_codes(words codes) { return _mm512_xor_si512(codes, words_splat(0x80808080)); }

static inline words words_scale(words bytes, unsigned i)
{
    return _mm512_srai_epi32(words_shl(bytes, 24 - 8 * i), 24);
}

static inline words words_odd(words bytes) { return _mm512_srai_epi16(bytes, 8); }
static inline words words_even(words bytes) { return words_odd(_mm512_slli_epi16(bytes, 8)); }

static inline words words_pair_dot(words sum, words pairs, const int16_t x[2])
{
    int32_t both;
    memcpy(&both, x, sizeof both);
    return _mm512_dpwssd_epi32(sum, pairs, _mm512_set1_epi32(both));
}

static inline lanes words_to_lanes(words a) { return _mm512_cvtepi32_ps(a); }
static inline lanes words_f16_low(words a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
static inline lanes words_f16_high(words a) { return words_f16_low(_mm512_srli_epi32(a, 16)); }

/* sum += code . activations; gcc 12 does not fold the broadcast of the four activations by itself. */
static inline words dot_word(words sum, words code, const xblock *x, unsigned k)
{
#ifdef __clang__
    int32_t four;
    memcpy(&four, x->q + 4 * k, sizeof four);
    return _mm512_dpbusd_epi32(sum, code, _mm512_set1_epi32(four));
#else
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(code), "m"(*(const int8_t(*)[4])(x->q + 4 * k)));
    return sum;
#endif
}

/* Step k of eight prefetches its share of num_lines: single lines between dots, since bursts cost bandwidth. */
ALWAYS_INLINE void read_ahead(const uint8_t *lines, const unsigned k,
                                                             const unsigned num_lines)
{
    UNROLL(4)
    for (unsigned i = k; i < num_lines; i += 8) {
        __builtin_prefetch(lines + CACHE_LINE * i, 0, 2);
    }
}

ALWAYS_INLINE void
words_dot32(words *sums, const words codes[8], const words *scales, const unsigned num_scales,
            const unsigned max_code, const xblock *x, unsigned group, const unsigned num_rows, const uint8_t *ahead,
            const unsigned num_lines)
{
    const unsigned run = num_scales == 2 ? 4 : 8;
    UNROLL(2)
    for (unsigned k0 = 0; k0 < 8; k0 += run) {
        words dots[LINEAR_TILE];
        UNROLL(8)
        for (unsigned t = 0; t < num_rows; t++) {
            dots[t] = words_splat(0);
        }
        UNROLL(8)
        for (unsigned k = k0; k < k0 + run; k++) {
            words code = codes[k];
            read_ahead(ahead, k, num_lines);
            UNROLL(8)
            for (unsigned t = 0; t < num_rows; t++) {
                dots[t] = dot_word(dots[t], code, x + t, 8 * group + k);
            }
        }
        UNROLL(8)
        for (unsigned t = 0; t < num_rows; t++) {
            words dot = _mm512_sllv_epi32(dots[t], _mm512_set1_epi32(x[t].shift[group]));
            if (max_code == 128) {
                dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(x[t].sum32[group] * 128));
            }
            if (num_scales != 0) {
                dot = _mm512_mullo_epi32(dot, scales[k0 * num_scales / 8]);
            }
            sums[t] = _mm512_add_epi32(sums[t], dot);
        }
    }
}

#endif
