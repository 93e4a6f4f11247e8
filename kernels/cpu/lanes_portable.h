/* lanes_portable.h: sixteen lanes in plain C, for the machines that have nothing better and as the
 * readable twin of the others. See lanes.h. */
#ifndef MTLQ_LANES_PORTABLE_H
#define MTLQ_LANES_PORTABLE_H

#include <math.h>
#include <stdint.h>

#include "half.h"

#define LANES_TILE_ROWS 4u

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

static inline lanes lanes_splat(float x) { EACH(lanes, x); }
static inline lanes lanes_zero(void) { return lanes_splat(0.0f); }
static inline lanes lanes_load(const float *p) { EACH(lanes, p[i]); }

static inline void lanes_store(float *p, lanes x)
{
    for (unsigned i = 0; i < 16; i++) {
        p[i] = x.at[i];
    }
}

static inline void lanes_stream(float *p, lanes x) { lanes_store(p, x); }
static inline void lanes_stream_end(void) {}

static inline lanes lanes_add(lanes a, lanes b) { EACH(lanes, a.at[i] + b.at[i]); }
static inline lanes lanes_sub(lanes a, lanes b) { EACH(lanes, a.at[i] - b.at[i]); }
static inline lanes lanes_mul(lanes a, lanes b) { EACH(lanes, a.at[i] * b.at[i]); }
static inline lanes lanes_div(lanes a, lanes b) { EACH(lanes, a.at[i] / b.at[i]); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { EACH(lanes, fmaf(a.at[i], b.at[i], c.at[i])); }
static inline lanes lanes_min(lanes a, lanes b) { EACH(lanes, a.at[i] < b.at[i] ? a.at[i] : b.at[i]); }
static inline lanes lanes_max(lanes a, lanes b) { EACH(lanes, a.at[i] > b.at[i] ? a.at[i] : b.at[i]); }

static inline lanes_mask lanes_lt(lanes a, lanes b) { EACH(lanes_mask, a.at[i] < b.at[i]); }
static inline lanes_mask lanes_first(uint64_t n) { EACH(lanes_mask, i < n); }
static inline lanes lanes_select(lanes_mask m, lanes a, lanes b) { EACH(lanes, m.at[i] ? a.at[i] : b.at[i]); }

static inline lanes lanes_load_f16(const uint16_t *p) { EACH(lanes, f16_to_f32(p[i])); }
static inline lanes lanes_load_bf16(const uint16_t *p) { EACH(lanes, bf16_to_f32(p[i])); }

static inline void lanes_store_f16(uint16_t *p, lanes x)
{
    for (unsigned i = 0; i < 16; i++) {
        p[i] = f32_to_f16(x.at[i]);
    }
}

static inline lanes lanes_pow2(lanes n)
{
    EACH(lanes, float_from_bits((uint32_t)((int32_t)n.at[i] + 127) << 23));
}

static inline float lanes_sum(lanes x)
{
    for (unsigned half = 8; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            x.at[i] = x.at[i] + x.at[i + half];
        }
    }
    return x.at[0];
}

static inline float lanes_largest(lanes x)
{
    for (unsigned half = 8; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            x.at[i] = x.at[i] > x.at[i + half] ? x.at[i] : x.at[i + half];
        }
    }
    return x.at[0];
}

#undef EACH

#endif
