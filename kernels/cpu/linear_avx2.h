/* linear_avx2.h: the words of linear.h in two ymm. Products of unsigned codes and signed activations are
 * summed in int16 as far as they fit, then vpmaddwd widens them and applies the scale at once. */
#ifndef MTLQ_LINEAR_AVX2_H
#define MTLQ_LINEAR_AVX2_H

#include "lanes.h"
#include "quantize.h"

#define LINEAR_TILE 4u
#define LINEAR_SIGNED_CODES 0
#define FURTHER_BYTES 8192u

typedef struct words {
    __m256i lo, hi;
} words;

#define EACH1(op, a) ((words){op((a).lo), op((a).hi)})
#define EACH2(op, a, b) ((words){op((a).lo, (b).lo), op((a).hi, (b).hi)})
#define WITH(op, a, b) ((words){op((a).lo, b), op((a).hi, b)})

static inline words words_splat(uint32_t x) { return (words){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
static inline words words_load(const int32_t x[16])
{
    return (words){_mm256_loadu_si256((const void *)x), _mm256_loadu_si256((const void *)(x + 8))};
}
static inline words words_and(words a, uint32_t mask) { return WITH(_mm256_and_si256, a, _mm256_set1_epi32((int)mask)); }
static inline words words_or(words a, words b) { return EACH2(_mm256_or_si256, a, b); }
static inline words words_sub(words a, words b) { return EACH2(_mm256_sub_epi32, a, b); }
static inline words words_mul(words a, uint32_t b) { return WITH(_mm256_mullo_epi32, a, _mm256_set1_epi32((int)b)); }
static inline words words_shl(words a, unsigned n) { return WITH(_mm256_slli_epi32, a, (int)n); }
static inline words words_shr(words a, unsigned n) { return WITH(_mm256_srli_epi32, a, (int)n); }
static inline words words_sub8(words a, uint8_t b) { return WITH(_mm256_sub_epi8, a, _mm256_set1_epi8((char)b)); }

static inline words words_table(words indices, const int8_t table[16])
{
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    return (words){_mm256_shuffle_epi8(both, indices.lo), _mm256_shuffle_epi8(both, indices.hi)};
}

/* 16 bytes of rows 0-3 and 4-7, in the two halves of four registers, to words of eight rows. */
static inline void transpose_eight(const uint8_t *rows, uint64_t stride, __m256i out[4])
{
    __m256i a[4];
    UNROLL(4)
    for (unsigned r = 0; r < 4; r++) {
        const uint8_t *p = rows + r * stride;
        a[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)p)),
                                       _mm_loadu_si128((const void *)(p + 4 * stride)), 1);
    }
    __m256i t0 = _mm256_unpacklo_epi32(a[0], a[1]), t1 = _mm256_unpackhi_epi32(a[0], a[1]);
    __m256i t2 = _mm256_unpacklo_epi32(a[2], a[3]), t3 = _mm256_unpackhi_epi32(a[2], a[3]);
    out[0] = _mm256_unpacklo_epi64(t0, t2);
    out[1] = _mm256_unpackhi_epi64(t0, t2);
    out[2] = _mm256_unpacklo_epi64(t1, t3);
    out[3] = _mm256_unpackhi_epi64(t1, t3);
}

static inline void words_transpose(const uint8_t *rows, uint64_t stride, words out[4])
{
    __m256i lo[4], hi[4];
    transpose_eight(rows, stride, lo);
    transpose_eight(rows + 8 * stride, stride, hi);
    UNROLL(4)
    for (unsigned i = 0; i < 4; i++) {
        out[i] = (words){lo[i], hi[i]};
    }
}

static inline words words_signed_codes(words codes) { return codes; }

/* Byte i as an int16 twice in each word, the form vpmaddwd wants. */
static inline words words_scale(words bytes, unsigned i)
{
    const __m256i twice = _mm256_add_epi8(
        _mm256_setr_epi8(-128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12,
                         -128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12),
        _mm256_set1_epi8((char)i));
    words high = WITH(_mm256_shuffle_epi8, bytes, twice);
    return WITH(_mm256_srai_epi16, high, 8);
}

static inline words words_odd(words bytes) { return WITH(_mm256_srai_epi16, bytes, 8); }
static inline words words_even(words bytes) { return words_odd(WITH(_mm256_slli_epi16, bytes, 8)); }

static inline words words_pair_dot(words sum, words pairs, const int16_t x[2])
{
    int32_t both;
    memcpy(&both, x, sizeof both);
    words products = WITH(_mm256_madd_epi16, pairs, _mm256_set1_epi32(both));
    return EACH2(_mm256_add_epi32, sum, products);
}

static inline lanes words_to_lanes(words a) { return (lanes){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

static inline __m256 low_halves(__m256i a)
{
    const __m256i gather = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,
                                            0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(a, gather), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

static inline lanes words_f16_low(words a) { return (lanes){low_halves(a.lo), low_halves(a.hi)}; }
static inline lanes words_f16_high(words a) { return words_f16_low(words_shr(a, 16)); }

static inline __m256i activations(const xblock *x, unsigned k)
{
    int32_t four;
    memcpy(&four, x->q + 4 * k, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Leaves a running sum where it stands: compilers turn the chain of additions into a tree that spills. */
#define PIN(sum) __asm__("" : "+x"((sum).lo), "+x"((sum).hi))

/* Step k of eight prefetches its share of num_lines. AMD processors drop prefetches when many are under way, so
 * each line is asked for twice, first from further away. */
ALWAYS_INLINE void read_ahead(const uint8_t *lines, const unsigned k,
                                                             const unsigned num_lines)
{
    UNROLL(4)
    for (unsigned i = k; i < num_lines; i += 8) {
        __builtin_prefetch(lines + CACHE_LINE * i + FURTHER_BYTES, 0, 3);
        __builtin_prefetch(lines + CACHE_LINE * i, 0, 3);
    }
}

/* Adds word k of a group to int16 sums, or starts them. Signed codes are multiplied as magnitude times
 * activation with the sign of the code: |-128| fits an unsigned byte. */
ALWAYS_INLINE words multiply_word(words sums, const int starts, words code,
                                                                 const unsigned max_code, const xblock *x, unsigned k)
{
    __m256i a = activations(x, k);
    words product;
    if (max_code == 128) {
        words magnitude = EACH1(_mm256_abs_epi8, code);
        product.lo = _mm256_maddubs_epi16(magnitude.lo, _mm256_sign_epi8(a, code.lo));
        product.hi = _mm256_maddubs_epi16(magnitude.hi, _mm256_sign_epi8(a, code.hi));
    } else {
        product = WITH(_mm256_maddubs_epi16, code, a);
    }
    sums = starts ? product : EACH2(_mm256_add_epi16, sums, product);
    PIN(sums);
    return sums;
}

ALWAYS_INLINE void
words_dot32(words *sums, const words codes[8], const words *scales, const unsigned num_scales,
            const unsigned max_code, const xblock *x, unsigned group, const unsigned num_rows, const uint8_t *ahead,
            const unsigned num_lines)
{
    /* A sum of `run` words is at most run * 2 * 127 * max_code < 2^15. */
    const unsigned fits = max_code <= 15 ? 8 : max_code <= 31 ? 4 : max_code <= 63 ? 2 : 1;
    const unsigned run = num_scales == 2 && fits > 4 ? 4 : fits;
    words parts[LINEAR_TILE];
    UNROLL(8)
    for (unsigned k0 = 0; k0 < 8; k0 += run) {
        words scale = num_scales == 0 ? words_splat(0x00010001) : scales[k0 * num_scales / 8];
        words products[LINEAR_TILE];
        /* Long runs keep a sum per row in registers; short ones keep the codes there. */
        UNROLL(32)
        for (unsigned i = 0; i < run * num_rows; i++) {
            const unsigned k = k0 + (run > 2 ? i / num_rows : i % run), t = run > 2 ? i % num_rows : i / run;
            if (t == 0) {
                read_ahead(ahead, k, num_lines);
            }
            products[t] = multiply_word(products[t], k == k0, codes[k], max_code, x + t, 8 * group + k);
            if (k == k0 + run - 1) {
                words widened = {_mm256_madd_epi16(products[t].lo, scale.lo), _mm256_madd_epi16(products[t].hi, scale.hi)};
                parts[t] = k0 == 0 ? widened : EACH2(_mm256_add_epi32, parts[t], widened);
                PIN(parts[t]);
            }
        }
    }
    UNROLL(8)
    for (unsigned t = 0; t < num_rows; t++) {
        words shifted = WITH(_mm256_sllv_epi32, parts[t], _mm256_set1_epi32(x[t].shift[group]));
        sums[t] = EACH2(_mm256_add_epi32, sums[t], shifted);
    }
}

#undef EACH1
#undef EACH2
#undef WITH
#undef PIN

#endif
