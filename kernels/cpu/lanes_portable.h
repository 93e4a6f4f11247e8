/* lanes_portable.h: sixteen lanes in plain C, for the machines that have nothing better and as the
 * readable twin of the others. See lanes.h. */
#ifndef MTLQ_LANES_PORTABLE_H
#define MTLQ_LANES_PORTABLE_H

#include <math.h>
#include <stdint.h>

#include "half.h"

#define LANES_TILE_ROWS 4u

/* With its checks inlined everywhere, AddressSanitizer takes gcc minutes for a kernel. */
#ifdef __SANITIZE_ADDRESS__
#define LANES_INLINE static __attribute__((noinline, unused))
#else
#define LANES_INLINE static inline
#endif

typedef struct lanes {
    float at[16];
} lanes;

typedef struct lanes_mask {
    uint8_t at[16];
} lanes_mask;

#define EACH(type, expression)                                                                               \
    type result;                                                                                             \
    for (unsigned i = 0; i < 16; i++)                                                                        \
        result.at[i] = (expression);                                                                         \
    return result

LANES_INLINE lanes lanes_splat(float x) { EACH(lanes, x); }
LANES_INLINE lanes lanes_zero(void) { return lanes_splat(0.0f); }
LANES_INLINE lanes lanes_load(const float *p) { EACH(lanes, p[i]); }

LANES_INLINE void lanes_store(float *p, lanes x)
{
    for (unsigned i = 0; i < 16; i++) {
        p[i] = x.at[i];
    }
}

LANES_INLINE void lanes_stream(float *p, lanes x) { lanes_store(p, x); }
LANES_INLINE void lanes_stream_end(void) {}

LANES_INLINE lanes lanes_add(lanes a, lanes b) { EACH(lanes, a.at[i] + b.at[i]); }
LANES_INLINE lanes lanes_sub(lanes a, lanes b) { EACH(lanes, a.at[i] - b.at[i]); }
LANES_INLINE lanes lanes_mul(lanes a, lanes b) { EACH(lanes, a.at[i] * b.at[i]); }
LANES_INLINE lanes lanes_div(lanes a, lanes b) { EACH(lanes, a.at[i] / b.at[i]); }
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { EACH(lanes, fmaf(a.at[i], b.at[i], c.at[i])); }
LANES_INLINE lanes lanes_min(lanes a, lanes b) { EACH(lanes, a.at[i] < b.at[i] ? a.at[i] : b.at[i]); }
LANES_INLINE lanes lanes_max(lanes a, lanes b) { EACH(lanes, a.at[i] > b.at[i] ? a.at[i] : b.at[i]); }

LANES_INLINE lanes_mask lanes_lt(lanes a, lanes b) { EACH(lanes_mask, a.at[i] < b.at[i]); }
LANES_INLINE lanes_mask lanes_first(uint64_t n) { EACH(lanes_mask, i < n); }
LANES_INLINE lanes lanes_select(lanes_mask m, lanes a, lanes b) { EACH(lanes, m.at[i] ? a.at[i] : b.at[i]); }

LANES_INLINE lanes lanes_load_f16(const uint16_t *p) { EACH(lanes, f16_to_f32(p[i])); }
LANES_INLINE lanes lanes_load_bf16(const uint16_t *p) { EACH(lanes, bf16_to_f32(p[i])); }

LANES_INLINE void lanes_store_f16(uint16_t *p, lanes x)
{
    for (unsigned i = 0; i < 16; i++) {
        p[i] = f32_to_f16(x.at[i]);
    }
}

LANES_INLINE lanes lanes_pow2(lanes n)
{
    EACH(lanes, float_from_bits((uint32_t)((int32_t)n.at[i] + 127) << 23));
}

LANES_INLINE float lanes_sum(lanes x)
{
    for (unsigned half = 8; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            x.at[i] = x.at[i] + x.at[i + half];
        }
    }
    return x.at[0];
}

LANES_INLINE float lanes_largest(lanes x)
{
    for (unsigned half = 8; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            x.at[i] = x.at[i] > x.at[i + half] ? x.at[i] : x.at[i + half];
        }
    }
    return x.at[0];
}

#undef EACH
#undef LANES_INLINE

#endif
