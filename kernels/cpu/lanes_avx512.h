/* lanes_avx512.h: sixteen lanes in one zmm. See lanes.h. */
#ifndef MTLQ_LANES_AVX512_H
#define MTLQ_LANES_AVX512_H

#include <immintrin.h>

#define LANES_TILE_ROWS 8u

typedef __m512 lanes;
typedef __mmask16 lanes_mask;

static inline lanes lanes_zero(void) { return _mm512_setzero_ps(); }
static inline lanes lanes_splat(float x) { return _mm512_set1_ps(x); }
static inline lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void lanes_store(float *p, lanes x) { _mm512_storeu_ps(p, x); }
static inline void lanes_stream(float *p, lanes x) { _mm512_stream_ps(p, x); }
static inline void lanes_stream_end(void) { _mm_sfence(); }

static inline lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
static inline lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
static inline lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
static inline lanes lanes_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
static inline lanes lanes_min(lanes a, lanes b) { return _mm512_min_ps(a, b); }
static inline lanes lanes_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }

static inline lanes_mask lanes_lt(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline lanes_mask lanes_first(uint64_t n) { return (lanes_mask)((1u << n) - 1u); }
static inline lanes lanes_select(lanes_mask m, lanes a, lanes b) { return _mm512_mask_blend_ps(m, b, a); }

static inline lanes lanes_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

static inline void lanes_store_f16(uint16_t *p, lanes x)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline lanes lanes_pow2(lanes n)
{
    __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}

static inline float lanes_sum(lanes x)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float lanes_largest(lanes x)
{
    __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#endif
