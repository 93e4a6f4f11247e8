/* half.h: IEEE binary16 to and from binary32, one value at a time, exact or to nearest even. */
#ifndef MTLQ_HALF_H
#define MTLQ_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) { /* infinity, or NaN made quiet */
        uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0;
        return float_from_bits(sign | 0x7f800000u | quiet | magnitude << 13);
    }
    if (magnitude < 0x0400u) { /* subnormal: an integer times 2^-24 */
        return float_from_bits(sign | float_bits((float)magnitude * 0x1p-24f));
    }
    return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
}

static inline uint16_t f32_to_f16(float x)
{
    uint32_t bits = float_bits(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 rounds at the last subnormal bit, 2^-24 */
        return (uint16_t)(sign | (float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u));
    }
    uint32_t odd = magnitude >> 13 & 1u;
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

static inline float bf16_to_f32(uint16_t half) { return float_from_bits((uint32_t)half << 16); }

#endif
