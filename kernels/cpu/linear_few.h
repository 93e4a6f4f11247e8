/* linear_few.h: super-block types times up to FEW_ROWS rows of x, a row of W at a time on AVX2. Inside a block sums
 * are exact integers, so that reading along a row instead of across sixteen gives the same bits; it needs no
 * transposition, and the processor's own prefetch follows it. */
#ifndef MTLQ_LINEAR_FEW_H
#define MTLQ_LINEAR_FEW_H

#include "lanes.h"
#include "quantize.h"

#define FEW_ROWS 3u              /* of x, at most: beyond, the codes that a tile keeps pay */
#define FEW_BLOCKS 72u           /* of a row, at most: 18,432 values. Rows in parts would end the stream of W */
#define FEW_AHEAD_BYTES 2048u

/* What a block of x is multiplied with beside its codes. */
typedef struct few_x {
    int16_t powers[16]; /* 2^shift of each 32 values, twice */
    int16_t sums32[8];  /* of each 32 values, times 2^shift */
    int16_t sums16[16]; /* of each 16 values: the even ones, then the odd ones */
} few_x;

/* Sums of the blocks of sixteen rows with each row of x; steps and offsets are f16. */
typedef struct few_sums {
    int32_t codes[FEW_ROWS][FEW_BLOCKS][LANES];
    int32_t pairs[FEW_ROWS][FEW_BLOCKS][LANES];
    uint16_t steps[FEW_BLOCKS][LANES];
    uint16_t offsets[FEW_BLOCKS][LANES];
} few_sums;

/* Row r of a group: num_blocks blocks of W, of num_rows rows of x, and out[..][..][r]. */
typedef void (*few_row_fn)(const uint8_t *w, const xblock *x, const few_x *few, unsigned num_rows,
                           unsigned num_blocks, unsigned r, few_sums *out);

static inline void few_prepare(const xblock *x, few_x *few)
{
    for (unsigned j = 0; j < 8; j++) {
        few->powers[j] = few->powers[8 + j] = (int16_t)(1 << x->shift[j]);
        few->sums32[j] = x->pairs32[xblock_pair_index(j)];
        few->sums16[j] = x->pairs16[xblock_pair_index(2 * j)];
        few->sums16[8 + j] = x->pairs16[xblock_pair_index(2 * j + 1)];
    }
}

static inline __m256i few_load(const void *p) { return _mm256_loadu_si256(p); }

/* int16 i of each half, everywhere in that half. */
static inline __m256i few_scale(__m256i scales, unsigned i)
{
    return _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)(0x0100 + 0x0202 * i)));
}

static inline __m256i few_dot(__m256i sum, __m256i codes, const int8_t *q, __m256i scale)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, few_load(q)), scale));
}

static inline __m128i few_halve(__m256i sum)
{
    return _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
}

/* The totals of both, in the low two words. */
static inline __m128i few_totals(__m128i a, __m128i b)
{
    __m128i sums = _mm_hadd_epi32(a, b);
    return _mm_hadd_epi32(sums, sums);
}

static inline void few_prefetch(const uint8_t *w, unsigned num_bytes)
{
    for (unsigned i = 0; i < num_bytes; i += 64) { /* an address only: it may lie past the end of W */
        __builtin_prefetch((const void *)((uintptr_t)w + FEW_AHEAD_BYTES + i));
    }
}

/* 6-bit scales in both halves, and minimums. */
static inline __m256i few_q45_head(const uint8_t *w, __m128i *minimums)
{
    uint32_t a, b, c;
    memcpy(&a, w + 4, 4);
    memcpy(&b, w + 8, 4);
    memcpy(&c, w + 12, 4);
    uint64_t high = (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
    uint64_t low = (c >> 4 & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
    __m128i scale_bytes = _mm_cvtsi64_si128((int64_t)((a & 0x3f3f3f3fu) | high << 32));
    __m128i minimum_bytes = _mm_cvtsi64_si128((int64_t)((b & 0x3f3f3f3fu) | low << 32));
    *minimums = _mm_cvtepu8_epi16(minimum_bytes);
    return _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(scale_bytes));
}

/* Scales times 2^shift. */
static inline __m256i few_shifted(__m256i scales, const few_x *x)
{
    return _mm256_mullo_epi16(scales, few_load(x->powers));
}

static inline void few_store(__m128i totals, unsigned t, unsigned b, unsigned r, few_sums *out)
{
    out->codes[t][b][r] = _mm_cvtsi128_si32(totals);
    out->pairs[t][b][r] = _mm_extract_epi32(totals, 1);
}

static inline void few_store_steps(const uint8_t *step, const uint8_t *offset, unsigned b, unsigned r, few_sums *out)
{
    memcpy(&out->steps[b][r], step, 2);
    memcpy(&out->offsets[b][r], offset, 2);
}

/* The scales, sums and minimums of each row of x for one block of Q4_K or Q5_K. */
ALWAYS_INLINE void q45_few_begin(const uint8_t *w, const few_x *few, const unsigned num_rows, __m256i *scales,
                                 __m256i *sums, __m128i *pairs)
{
    __m128i minimums;
    __m256i plain = few_q45_head(w, &minimums);
    UNROLL(3)
    for (unsigned t = 0; t < num_rows; t++) {
        scales[t] = few_shifted(plain, few + t);
        sums[t] = _mm256_setzero_si256();
        pairs[t] = _mm_madd_epi16(minimums, _mm_loadu_si128((const void *)few[t].sums32));
    }
}

/* Adds group j, 32 codes, times each row of x. */
ALWAYS_INLINE void few_add(__m256i *sums, __m256i codes, const xblock *x, const __m256i *scales, const unsigned j,
                           const unsigned num_rows)
{
    UNROLL(3)
    for (unsigned t = 0; t < num_rows; t++) {
        sums[t] = few_dot(sums[t], codes, x[t].q + 32 * j, few_scale(scales[t], j));
    }
}

ALWAYS_INLINE void q4_k_few(const uint8_t *w, const xblock *x, const few_x *few, const unsigned num_rows,
                            unsigned num_blocks, unsigned r, few_sums *out)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    for (unsigned b = 0; b < num_blocks; b++, w += 144, x += num_rows, few += num_rows) {
        __m256i scales[FEW_ROWS], sums[FEW_ROWS];
        __m128i pairs[FEW_ROWS];
        few_prefetch(w, 144);
        q45_few_begin(w, few, num_rows, scales, sums, pairs);
        UNROLL(4)
        for (unsigned c = 0; c < 4; c++) {
            __m256i q = few_load(w + 16 + 32 * c);
            few_add(sums, _mm256_and_si256(q, nibble), x, scales, 2 * c, num_rows);
            few_add(sums, _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble), x, scales, 2 * c + 1, num_rows);
        }
        few_store_steps(w, w + 2, b, r, out);
        UNROLL(3)
        for (unsigned t = 0; t < num_rows; t++) {
            few_store(few_totals(few_halve(sums[t]), pairs[t]), t, b, r, out);
        }
    }
}

ALWAYS_INLINE void q5_k_few(const uint8_t *w, const xblock *x, const few_x *few, const unsigned num_rows,
                            unsigned num_blocks, unsigned r, few_sums *out)
{
    const __m256i nibble = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    for (unsigned b = 0; b < num_blocks; b++, w += 176, x += num_rows, few += num_rows) {
        __m256i scales[FEW_ROWS], sums[FEW_ROWS], bits = few_load(w + 16);
        __m128i pairs[FEW_ROWS];
        few_prefetch(w, 176);
        q45_few_begin(w, few, num_rows, scales, sums, pairs);
        UNROLL(4)
        for (unsigned c = 0; c < 4; c++) { /* bit 2c of `bits` belongs to the low nibbles, 2c + 1 to the high */
            __m256i q = few_load(w + 48 + 32 * c), pair = _mm256_srli_epi16(bits, (int)(2 * c));
            __m256i low = _mm256_and_si256(q, nibble), high = _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble);
            low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16(pair, 4), fifth));
            high = _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16(pair, 3), fifth));
            few_add(sums, low, x, scales, 2 * c, num_rows);
            few_add(sums, high, x, scales, 2 * c + 1, num_rows);
        }
        few_store_steps(w, w + 2, b, r, out);
        UNROLL(3)
        for (unsigned t = 0; t < num_rows; t++) {
            few_store(few_totals(few_halve(sums[t]), pairs[t]), t, b, r, out);
        }
    }
}

ALWAYS_INLINE void q6_k_few(const uint8_t *w, const xblock *x, const few_x *few, const unsigned num_rows,
                            unsigned num_blocks, unsigned r, few_sums *out)
{
    const __m256i nibble = _mm256_set1_epi8(15), top = _mm256_set1_epi8(0x30);
    const __m128i evens_odds = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (unsigned b = 0; b < num_blocks; b++, w += 210, x += num_rows, few += num_rows) {
        few_prefetch(w, 210);
        __m128i bytes = _mm_loadu_si128((const void *)(w + 192));
        __m256i plain = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, evens_odds));
        __m256i scales[FEW_ROWS], sums[FEW_ROWS];
        UNROLL(3)
        for (unsigned t = 0; t < num_rows; t++) {
            scales[t] = few_shifted(plain, few + t);
            sums[t] = _mm256_setzero_si256();
        }
        UNROLL(2)
        for (unsigned a = 0; a < 2; a++) {
            __m256i l0 = few_load(w + 64 * a), l1 = few_load(w + 64 * a + 32), h = few_load(w + 128 + 32 * a);
            __m256i g[4] = {
                _mm256_or_si256(_mm256_and_si256(l0, nibble), _mm256_and_si256(_mm256_slli_epi16(h, 4), top)),
                _mm256_or_si256(_mm256_and_si256(l1, nibble), _mm256_and_si256(_mm256_slli_epi16(h, 2), top)),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(l0, 4), nibble), _mm256_and_si256(h, top)),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(l1, 4), nibble),
                                _mm256_and_si256(_mm256_srli_epi16(h, 2), top)),
            };
            UNROLL(4)
            for (unsigned i = 0; i < 4; i++) {
                few_add(sums, g[i], x, scales, 4 * a + i, num_rows);
            }
        }
        few_store_steps(w + 208, w + 208, b, r, out);
        UNROLL(3)
        for (unsigned t = 0; t < num_rows; t++) {
            __m256i pairs = _mm256_madd_epi16(plain, few_load(few[t].sums16));
            few_store(few_totals(few_halve(sums[t]), few_halve(pairs)), t, b, r, out);
        }
    }
}

#define FEW_CASE(name, n) case n: name##_few(w, x, few, n, num_blocks, r, out); break;
#define FEW_KERNEL(name)                                                                                       \
    static inline void name##_few_row(const uint8_t *w, const xblock *x, const few_x *few, unsigned num_rows,  \
                                      unsigned num_blocks, unsigned r, few_sums *out)                          \
    {                                                                                                          \
        switch (num_rows) {                                                                                    \
            FEW_CASE(name, 1) FEW_CASE(name, 2) FEW_CASE(name, 3)                                              \
        }                                                                                                      \
    }
FEW_KERNEL(q4_k)
FEW_KERNEL(q5_k)
FEW_KERNEL(q6_k)

#endif
