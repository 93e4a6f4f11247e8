/* lanes_avx2.h: sixteen lanes in two ymm (AVX2, FMA, F16C). See lanes.h. */
#ifndef MTLQ_LANES_AVX2_H
#define MTLQ_LANES_AVX2_H

#include <immintrin.h>

#define LANES_TILE_ROWS 6u

typedef struct lanes {
    __m256 lo, hi;
} lanes;

typedef lanes lanes_mask; /* all bits of a lane, or none */

#define EACH2(op, a, b) ((lanes){op((a).lo, (b).lo), op((a).hi, (b).hi)})

static inline lanes lanes_zero(void) { return (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline lanes lanes_splat(float x) { return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline lanes lanes_load(const float *p) { return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }

static inline void lanes_store(float *p, lanes x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}

static inline void lanes_stream(float *p, lanes x)
{
    _mm256_stream_ps(p, x.lo);
    _mm256_stream_ps(p + 8, x.hi);
}

static inline void lanes_stream_end(void) { _mm_sfence(); }

static inline lanes lanes_add(lanes a, lanes b) { return EACH2(_mm256_add_ps, a, b); }
static inline lanes lanes_sub(lanes a, lanes b) { return EACH2(_mm256_sub_ps, a, b); }
static inline lanes lanes_mul(lanes a, lanes b) { return EACH2(_mm256_mul_ps, a, b); }
static inline lanes lanes_div(lanes a, lanes b) { return EACH2(_mm256_div_ps, a, b); }
static inline lanes lanes_min(lanes a, lanes b) { return EACH2(_mm256_min_ps, a, b); }
static inline lanes lanes_max(lanes a, lanes b) { return EACH2(_mm256_max_ps, a, b); }

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static inline lanes_mask lanes_lt(lanes a, lanes b)
{
    return (lanes){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}

static inline lanes_mask lanes_first(uint64_t n)
{
    __m256 index = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    lanes all = {index, _mm256_add_ps(index, _mm256_set1_ps(8))};
    return lanes_lt(all, lanes_splat((float)n));
}

static inline lanes lanes_select(lanes_mask m, lanes a, lanes b)
{
    return (lanes){_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

static inline lanes lanes_load_f16(const uint16_t *p)
{
    return (lanes){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}

static inline void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p + 8)));
    return (lanes){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                   _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

static inline lanes lanes_pow2(lanes n)
{
    __m256i bias = _mm256_set1_epi32(127);
    __m256i lo = _mm256_add_epi32(_mm256_cvtps_epi32(n.lo), bias);
    __m256i hi = _mm256_add_epi32(_mm256_cvtps_epi32(n.hi), bias);
    return (lanes){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 23)),
                   _mm256_castsi256_ps(_mm256_slli_epi32(hi, 23))};
}

static inline float lanes_sum(lanes x)
{
    __m256 eight = _mm256_add_ps(x.lo, x.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float lanes_largest(lanes x)
{
    __m256 eight = _mm256_max_ps(x.lo, x.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#undef EACH2

#endif
