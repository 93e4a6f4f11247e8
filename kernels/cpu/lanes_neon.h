/* lanes_neon.h: sixteen lanes in four q registers. See lanes.h. */
#ifndef MTLQ_LANES_NEON_H
#define MTLQ_LANES_NEON_H

#include <arm_neon.h>

#define LANES_TILE_ROWS 6u

typedef struct lanes {
    float32x4_t q[4];
} lanes;

typedef struct lanes_mask {
    uint32x4_t q[4];
} lanes_mask;

#define EACH1(type, op, x) ((type){{op((x).q[0]), op((x).q[1]), op((x).q[2]), op((x).q[3])}})
#define EACH2(type, op, a, b)                                                                                \
    ((type){{op((a).q[0], (b).q[0]), op((a).q[1], (b).q[1]), op((a).q[2], (b).q[2]), op((a).q[3], (b).q[3])}})
#define EACH3(type, op, a, b, c)                                                                             \
    ((type){{op((a).q[0], (b).q[0], (c).q[0]), op((a).q[1], (b).q[1], (c).q[1]),                             \
             op((a).q[2], (b).q[2], (c).q[2]), op((a).q[3], (b).q[3], (c).q[3])}})

static inline lanes lanes_splat(float x)
{
    float32x4_t q = vdupq_n_f32(x);
    return (lanes){{q, q, q, q}};
}

static inline lanes lanes_zero(void) { return lanes_splat(0.0f); }

static inline lanes lanes_load(const float *p)
{
    return (lanes){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

static inline void lanes_store(float *p, lanes x)
{
    vst1q_f32(p, x.q[0]);
    vst1q_f32(p + 4, x.q[1]);
    vst1q_f32(p + 8, x.q[2]);
    vst1q_f32(p + 12, x.q[3]);
}

static inline void lanes_stream(float *p, lanes x) { lanes_store(p, x); }
static inline void lanes_stream_end(void) {}

static inline lanes lanes_add(lanes a, lanes b) { return EACH2(lanes, vaddq_f32, a, b); }
static inline lanes lanes_sub(lanes a, lanes b) { return EACH2(lanes, vsubq_f32, a, b); }
static inline lanes lanes_mul(lanes a, lanes b) { return EACH2(lanes, vmulq_f32, a, b); }
static inline lanes lanes_div(lanes a, lanes b) { return EACH2(lanes, vdivq_f32, a, b); }
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { return EACH3(lanes, vfmaq_f32, c, a, b); }

static inline lanes_mask lanes_lt(lanes a, lanes b) { return EACH2(lanes_mask, vcltq_f32, a, b); }
static inline lanes lanes_select(lanes_mask m, lanes a, lanes b) { return EACH3(lanes, vbslq_f32, m, a, b); }

/* Not vminq and vmaxq: they return NaN where x86 returns b. */
static inline lanes lanes_min(lanes a, lanes b) { return lanes_select(lanes_lt(a, b), a, b); }
static inline lanes lanes_max(lanes a, lanes b) { return lanes_select(lanes_lt(b, a), a, b); }

static inline lanes_mask lanes_first(uint64_t n)
{
    static const float index[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lanes_lt(lanes_load(index), lanes_splat((float)n));
}

static inline lanes lanes_load_f16(const uint16_t *p)
{
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
    return (lanes){{vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(lo))),
                    vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(lo))),
                    vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(hi))),
                    vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(hi)))}};
}

static inline void lanes_store_f16(uint16_t *p, lanes x)
{
    for (int i = 0; i < 4; i++) {
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.q[i])));
    }
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
    return (lanes){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(lo), 16)),
                    vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(lo), 16)),
                    vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(hi), 16)),
                    vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(hi), 16))}};
}

static inline float32x4_t pow2_q(float32x4_t n)
{
    int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
}

static inline lanes lanes_pow2(lanes n) { return EACH1(lanes, pow2_q, n); }

static inline float lanes_sum(lanes x)
{
    float32x4_t four = vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline float32x4_t larger_q(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }

static inline float lanes_largest(lanes x)
{
    float four[4];
    vst1q_f32(four, larger_q(larger_q(x.q[0], x.q[2]), larger_q(x.q[1], x.q[3])));
    float even = four[0] > four[2] ? four[0] : four[2];
    float odd = four[1] > four[3] ? four[1] : four[3];
    return even > odd ? even : odd;
}

#undef EACH1
#undef EACH2
#undef EACH3

#endif
