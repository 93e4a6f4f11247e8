/* linear_neon.h: the words of linear.h in four q registers. sdot adds, to the sums of four rows, the
 * products of four signed codes of each with the four activations in one lane of a register of sixteen. */
#ifndef MTLQ_LINEAR_NEON_H
#define MTLQ_LINEAR_NEON_H

#include <arm_neon.h>

#include "lanes.h"
#include "quantize.h"

#define LINEAR_TILE 4u
#define LINEAR_SIGNED_CODES 1

typedef struct words {
    uint32x4_t q[4]; /* rows 0-3, 4-7, 8-11, 12-15 of W */
} words;

#define EACH1(type, op, a) ((type){{op((a).q[0]), op((a).q[1]), op((a).q[2]), op((a).q[3])}})
#define EACH2(op, a, b)                                                                                        \
    ((words){{op((a).q[0], (b).q[0]), op((a).q[1], (b).q[1]), op((a).q[2], (b).q[2]), op((a).q[3], (b).q[3])}})
#define WITH(op, a, b) ((words){{op((a).q[0], b), op((a).q[1], b), op((a).q[2], b), op((a).q[3], b)}})

/* Shifts written as operators become immediate ones where the count is known. */
static inline uint32x4_t shl_q(uint32x4_t a, unsigned n) { return a << vdupq_n_u32(n); }
static inline uint32x4_t shr_q(uint32x4_t a, unsigned n) { return a >> vdupq_n_u32(n); }

static inline uint32x4_t sub8_q(uint32x4_t a, uint8_t b)
{
    return vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(a), vdupq_n_u8(b)));
}

static inline words words_splat(uint32_t x)
{
    uint32x4_t q = vdupq_n_u32(x);
    return (words){{q, q, q, q}};
}

static inline words words_and(words a, uint32_t mask) { return WITH(vandq_u32, a, vdupq_n_u32(mask)); }
static inline words words_or(words a, words b) { return EACH2(vorrq_u32, a, b); }
static inline words words_sub(words a, words b) { return EACH2(vsubq_u32, a, b); }
static inline words words_mul(words a, uint32_t b) { return WITH(vmulq_n_u32, a, b); }
static inline words words_shl(words a, unsigned n) { return WITH(shl_q, a, n); }
static inline words words_shr(words a, unsigned n) { return WITH(shr_q, a, n); }
static inline words words_sub8(words a, uint8_t b) { return WITH(sub8_q, a, b); }

static inline uint32x4_t table_q(uint32x4_t indices, int8x16_t table)
{
    return vreinterpretq_u32_s8(vqtbl1q_s8(table, vreinterpretq_u8_u32(indices)));
}

static inline words words_table(words indices, const int8_t table[16])
{
    int8x16_t values = vld1q_s8(table);
    return WITH(table_q, indices, values);
}

static inline uint32x4_t low_pairs(uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}

static inline uint32x4_t high_pairs(uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}

static inline void words_transpose(const uint8_t *rows, uint64_t stride, words out[4])
{
    UNROLL(4)
    for (unsigned i = 0; i < 4; i++) {
        const uint8_t *p = rows + 4 * i * stride;
        uint32x4_t a0 = vreinterpretq_u32_u8(vld1q_u8(p)), a1 = vreinterpretq_u32_u8(vld1q_u8(p + stride));
        uint32x4_t a2 = vreinterpretq_u32_u8(vld1q_u8(p + 2 * stride));
        uint32x4_t a3 = vreinterpretq_u32_u8(vld1q_u8(p + 3 * stride));
        uint32x4_t even01 = vtrn1q_u32(a0, a1), odd01 = vtrn2q_u32(a0, a1);
        uint32x4_t even23 = vtrn1q_u32(a2, a3), odd23 = vtrn2q_u32(a2, a3);
        out[0].q[i] = low_pairs(even01, even23);
        out[1].q[i] = low_pairs(odd01, odd23);
        out[2].q[i] = high_pairs(even01, even23);
        out[3].q[i] = high_pairs(odd01, odd23);
    }
}

static inline words words_signed_codes(words codes) { return codes; }

static inline uint32x4_t scale_q(uint32x4_t bytes, unsigned i)
{
    return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(shl_q(bytes, 24 - 8 * i)), 24));
}

static inline words words_scale(words bytes, unsigned i) { return WITH(scale_q, bytes, i); }

/* The pairs of eight rows are apart, first and second ones, as smlal wants them. */
static inline words split_pairs(int16x8_t rows0, int16x8_t rows4, int16x8_t rows8, int16x8_t rows12)
{
    return (words){{vreinterpretq_u32_s16(vuzp1q_s16(rows0, rows4)),
                    vreinterpretq_u32_s16(vuzp2q_s16(rows0, rows4)),
                    vreinterpretq_u32_s16(vuzp1q_s16(rows8, rows12)),
                    vreinterpretq_u32_s16(vuzp2q_s16(rows8, rows12))}};
}

static inline int16x8_t odd_q(uint32x4_t bytes) { return vshrq_n_s16(vreinterpretq_s16_u32(bytes), 8); }
static inline int16x8_t even_q(uint32x4_t bytes)
{
    return vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_u32(bytes), 8), 8);
}

static inline words words_even(words bytes)
{
    return split_pairs(even_q(bytes.q[0]), even_q(bytes.q[1]), even_q(bytes.q[2]), even_q(bytes.q[3]));
}

static inline words words_odd(words bytes)
{
    return split_pairs(odd_q(bytes.q[0]), odd_q(bytes.q[1]), odd_q(bytes.q[2]), odd_q(bytes.q[3]));
}

static inline words words_pair_dot(words sum, words pairs, const int16_t x[2])
{
    int32_t both;
    memcpy(&both, x, sizeof both);
    int16x4_t pair = vreinterpret_s16_s32(vdup_n_s32(both));
    UNROLL(4)
    for (unsigned i = 0; i < 4; i += 2) {
        int16x8_t first = vreinterpretq_s16_u32(pairs.q[i]), second = vreinterpretq_s16_u32(pairs.q[i + 1]);
        int32x4_t low = vreinterpretq_s32_u32(sum.q[i]), high = vreinterpretq_s32_u32(sum.q[i + 1]);
        low = vmlal_lane_s16(vmlal_lane_s16(low, vget_low_s16(first), pair, 0), vget_low_s16(second), pair, 1);
        high = vmlal_high_lane_s16(vmlal_high_lane_s16(high, first, pair, 0), second, pair, 1);
        sum.q[i] = vreinterpretq_u32_s32(low);
        sum.q[i + 1] = vreinterpretq_u32_s32(high);
    }
    return sum;
}

static inline float32x4_t to_float_q(uint32x4_t a) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a)); }
static inline float32x4_t f16_low_q(uint32x4_t a) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(a))); }
static inline float32x4_t f16_high_q(uint32x4_t a) { return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(a, 16))); }

static inline lanes words_to_lanes(words a) { return EACH1(lanes, to_float_q, a); }
static inline lanes words_f16_low(words a) { return EACH1(lanes, f16_low_q, a); }
static inline lanes words_f16_high(words a) { return EACH1(lanes, f16_high_q, a); }

/* Step k of eight prefetches its share of num_lines: single lines between dots. */
ALWAYS_INLINE void read_ahead(const uint8_t *lines, const unsigned k, const unsigned num_lines)
{
    UNROLL(4)
    for (unsigned i = k; i < num_lines; i += 8) {
        __builtin_prefetch(lines + CACHE_LINE * i, 0, 2);
    }
}

/* sdot with lane i of the activations: the instruction holds the lane. */
ALWAYS_INLINE int32x4_t dot_lane(int32x4_t sum, uint32x4_t codes, int8x16_t x, const unsigned i)
{
    int8x16_t c = vreinterpretq_s8_u32(codes);
    switch (i) {
    case 0: return vdotq_laneq_s32(sum, c, x, 0);
    case 1: return vdotq_laneq_s32(sum, c, x, 1);
    case 2: return vdotq_laneq_s32(sum, c, x, 2);
    default: return vdotq_laneq_s32(sum, c, x, 3);
    }
}

/* dots[t] = `run` words of codes, from word k0 of a group, . the activations of row t */
ALWAYS_INLINE void dot_run(int32x4_t dots[LINEAR_TILE][4], const words codes[8], const xblock *x, unsigned group,
                           const unsigned k0, const unsigned run, const unsigned num_rows, const uint8_t *ahead,
                           const unsigned num_lines)
{
    UNROLL(16)
    for (unsigned n = 0; n < 4 * num_rows; n++) {
        dots[n / 4][n % 4] = vdupq_n_s32(0);
    }
    int8x16_t activations[LINEAR_TILE];
    UNROLL(8)
    for (unsigned k = k0; k < k0 + run; k++) {
        read_ahead(ahead, k, num_lines);
        words code = codes[k];
        UNROLL(16)
        for (unsigned n = 0; n < 4 * num_rows; n++) {
            const unsigned t = n / 4, q = n % 4;
            if (k % 4 == 0 && q == 0) {
                activations[t] = vld1q_s8(x[t].q + 32 * group + 4 * k);
            }
            dots[t][q] = dot_lane(dots[t][q], code.q[q], activations[t], k % 4);
        }
    }
}

ALWAYS_INLINE void words_dot32(words *sums, const words codes[8], const words *scales, const unsigned num_scales,
                               const unsigned max_code, const xblock *x, unsigned group, const unsigned num_rows,
                               const uint8_t *ahead, const unsigned num_lines)
{
    (void)max_code;
    const unsigned run = num_scales == 2 ? 4 : 8;
    UNROLL(2)
    for (unsigned k0 = 0; k0 < 8; k0 += run) {
        int32x4_t dots[LINEAR_TILE][4];
        dot_run(dots, codes, x, group, k0, run, num_rows, ahead, num_lines);
        UNROLL(16)
        for (unsigned n = 0; n < 4 * num_rows; n++) {
            const unsigned t = n / 4, q = n % 4;
            uint32x4_t dot = vreinterpretq_u32_s32(vshlq_s32(dots[t][q], vdupq_n_s32(x[t].shift[group])));
            dot = num_scales == 0 ? dot : vmulq_u32(dot, scales[k0 * num_scales / 8].q[q]);
            sums[t].q[q] = vaddq_u32(sums[t].q[q], dot);
        }
    }
}

#undef EACH1
#undef EACH2
#undef WITH

#endif
