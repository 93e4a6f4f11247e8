/* linear_lone.h: super-block types times one row of x, a row of W at a time on AVX2. Inside a block sums are
 * exact integers, so that reading along a row instead of across sixteen gives the same bits; it needs no
 * transposition, and the processor's own prefetch follows it. */
#ifndef MTLQ_LINEAR_LONE_H
#define MTLQ_LINEAR_LONE_H

#include "lanes.h"
#include "quantize.h"

#define LONE_BLOCKS 16u           /* of a row, whose sums are kept before the float operations */
#define LONE_AHEAD_BYTES 2048u

/* What a block of x is multiplied with beside its codes. */
typedef struct lone_x {
    int16_t powers[16]; /* 2^shift of each 32 values, twice */
    int16_t sums32[8];  /* of each 32 values, times 2^shift */
    int16_t sums16[16]; /* of each 16 values: the even ones, then the odd ones */
} lone_x;

/* Sums of up to LONE_BLOCKS blocks of sixteen rows; steps and offsets are f16. */
typedef struct lone_sums {
    int32_t codes[LONE_BLOCKS][LANES];
    int32_t pairs[LONE_BLOCKS][LANES];
    uint16_t steps[LONE_BLOCKS][LANES];
    uint16_t offsets[LONE_BLOCKS][LANES];
} lone_sums;

/* Row r of a group: num_blocks <= LONE_BLOCKS blocks of W, x and out[..][r]. */
typedef void (*lone_row_fn)(const uint8_t *w, const xblock *x, const lone_x *lone, unsigned num_blocks, unsigned r,
                            lone_sums *out);

static inline void lone_prepare(const xblock *x, lone_x *lone)
{
    for (unsigned j = 0; j < 8; j++) {
        lone->powers[j] = lone->powers[8 + j] = (int16_t)(1 << x->shift[j]);
        lone->sums32[j] = x->pairs32[xblock_pair_index(j)];
        lone->sums16[j] = x->pairs16[xblock_pair_index(2 * j)];
        lone->sums16[8 + j] = x->pairs16[xblock_pair_index(2 * j + 1)];
    }
}

static inline __m256i lone_load(const void *p) { return _mm256_loadu_si256(p); }

/* int16 i of each half, everywhere in that half. */
static inline __m256i lone_scale(__m256i scales, unsigned i)
{
    return _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)(0x0100 + 0x0202 * i)));
}

static inline __m256i lone_dot(__m256i sum, __m256i codes, const int8_t *q, __m256i scale)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, lone_load(q)), scale));
}

static inline __m128i lone_halve(__m256i sum)
{
    return _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
}

/* The totals of both, in the low two words. */
static inline __m128i lone_totals(__m128i a, __m128i b)
{
    __m128i sums = _mm_hadd_epi32(a, b);
    return _mm_hadd_epi32(sums, sums);
}

static inline void lone_prefetch(const uint8_t *w, unsigned num_bytes)
{
    for (unsigned i = 0; i < num_bytes; i += 64) { /* an address only: it may lie past the end of W */
        __builtin_prefetch((const void *)((uintptr_t)w + LONE_AHEAD_BYTES + i));
    }
}

/* 6-bit scales, times 2^shift, in both halves; returns sum of minimum . sums32 in four words. */
static inline __m128i lone_q45_head(const uint8_t *w, const lone_x *x, __m256i *scales)
{
    uint32_t a, b, c;
    memcpy(&a, w + 4, 4);
    memcpy(&b, w + 8, 4);
    memcpy(&c, w + 12, 4);
    uint64_t high = (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
    uint64_t low = (c >> 4 & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
    __m128i scale_bytes = _mm_cvtsi64_si128((int64_t)((a & 0x3f3f3f3fu) | high << 32));
    __m128i minimum_bytes = _mm_cvtsi64_si128((int64_t)((b & 0x3f3f3f3fu) | low << 32));
    __m256i both = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(scale_bytes));
    *scales = _mm256_mullo_epi16(both, lone_load(x->powers));
    return _mm_madd_epi16(_mm_cvtepu8_epi16(minimum_bytes), _mm_loadu_si128((const void *)x->sums32));
}

static inline void lone_store(__m128i totals, const uint8_t *step, const uint8_t *offset, unsigned b, unsigned r,
                              lone_sums *out)
{
    out->codes[b][r] = _mm_cvtsi128_si32(totals);
    out->pairs[b][r] = _mm_extract_epi32(totals, 1);
    memcpy(&out->steps[b][r], step, 2);
    memcpy(&out->offsets[b][r], offset, 2);
}

static inline void q4_k_lone_row(const uint8_t *w, const xblock *x, const lone_x *lone, unsigned num_blocks,
                                 unsigned r, lone_sums *out)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    for (unsigned b = 0; b < num_blocks; b++, w += 144) {
        __m256i scales, sum = _mm256_setzero_si256();
        lone_prefetch(w, 144);
        __m128i pairs = lone_q45_head(w, lone + b, &scales);
        UNROLL(4)
        for (unsigned c = 0; c < 4; c++) {
            __m256i q = lone_load(w + 16 + 32 * c);
            __m256i low = _mm256_and_si256(q, nibble), high = _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble);
            sum = lone_dot(sum, low, x[b].q + 64 * c, lone_scale(scales, 2 * c));
            sum = lone_dot(sum, high, x[b].q + 64 * c + 32, lone_scale(scales, 2 * c + 1));
        }
        lone_store(lone_totals(lone_halve(sum), pairs), w, w + 2, b, r, out);
    }
}

static inline void q5_k_lone_row(const uint8_t *w, const xblock *x, const lone_x *lone, unsigned num_blocks,
                                 unsigned r, lone_sums *out)
{
    const __m256i nibble = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    for (unsigned b = 0; b < num_blocks; b++, w += 176) {
        __m256i scales, sum = _mm256_setzero_si256(), bits = lone_load(w + 16);
        lone_prefetch(w, 176);
        __m128i pairs = lone_q45_head(w, lone + b, &scales);
        UNROLL(4)
        for (unsigned c = 0; c < 4; c++) { /* bit 2c of `bits` belongs to the low nibbles, 2c + 1 to the high */
            __m256i q = lone_load(w + 48 + 32 * c), pair = _mm256_srli_epi16(bits, (int)(2 * c));
            __m256i low = _mm256_and_si256(q, nibble), high = _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble);
            low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16(pair, 4), fifth));
            high = _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16(pair, 3), fifth));
            sum = lone_dot(sum, low, x[b].q + 64 * c, lone_scale(scales, 2 * c));
            sum = lone_dot(sum, high, x[b].q + 64 * c + 32, lone_scale(scales, 2 * c + 1));
        }
        lone_store(lone_totals(lone_halve(sum), pairs), w, w + 2, b, r, out);
    }
}

static inline void q6_k_lone_row(const uint8_t *w, const xblock *x, const lone_x *lone, unsigned num_blocks,
                                 unsigned r, lone_sums *out)
{
    const __m256i nibble = _mm256_set1_epi8(15), top = _mm256_set1_epi8(0x30);
    const __m128i evens_odds = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (unsigned b = 0; b < num_blocks; b++, w += 210) {
        lone_prefetch(w, 210);
        __m128i bytes = _mm_loadu_si128((const void *)(w + 192));
        __m256i plain = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, evens_odds));
        __m256i scales = _mm256_mullo_epi16(plain, lone_load(lone[b].powers));
        __m256i pairs = _mm256_madd_epi16(plain, lone_load(lone[b].sums16)), sum = _mm256_setzero_si256();
        UNROLL(2)
        for (unsigned a = 0; a < 2; a++) {
            __m256i l0 = lone_load(w + 64 * a), l1 = lone_load(w + 64 * a + 32), h = lone_load(w + 128 + 32 * a);
            __m256i g[4] = {
                _mm256_or_si256(_mm256_and_si256(l0, nibble), _mm256_and_si256(_mm256_slli_epi16(h, 4), top)),
                _mm256_or_si256(_mm256_and_si256(l1, nibble), _mm256_and_si256(_mm256_slli_epi16(h, 2), top)),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(l0, 4), nibble), _mm256_and_si256(h, top)),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(l1, 4), nibble),
                                _mm256_and_si256(_mm256_srli_epi16(h, 2), top)),
            };
            UNROLL(4)
            for (unsigned i = 0; i < 4; i++) {
                const unsigned j = 4 * a + i;
                sum = lone_dot(sum, g[i], x[b].q + 32 * j, lone_scale(scales, j));
            }
        }
        lone_store(lone_totals(lone_halve(sum), lone_halve(pairs)), w + 208, w + 208, b, r, out);
    }
}

#endif
