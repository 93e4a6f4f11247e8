/* formats.h: GGUF tensor types, sixteen consecutive weights at a time.
 *
 * decode(row, chunk, w): weights 16 chunk .. 16 chunk + 15 of a row. `staged` is the type that
 * holds a weight in threadgroup memory. Rows start at a multiple of 4 bytes; blocks of Q4_0,
 * Q8_0 and Q6_K lie at any even address, those of Q4_K and Q5_K at multiples of 16 from the
 * row's start, of IQ4_XS at multiples of 8. bfloat is not used: M1 and M2 emulate it, and a
 * shift by 16 bits gives the float. */
#ifndef MTLQ_FORMATS_H
#define MTLQ_FORMATS_H

#include "common.h"

inline float4 affine(float4 v, float factor, float offset)
{
    return float4(fma(v.x, factor, offset), fma(v.y, factor, offset), fma(v.z, factor, offset),
                  fma(v.w, factor, offset));
}

/* 1024 + the bits FIELD of each byte of a word: n in the mantissa of the half 1024. Integers are not
 * converted, at a quarter of the rate of FMA; an FMA takes a half of a register as it is. */
template <uint FIELD>
inline float4 biased_fields(uint word)
{
    const half2 even = as_type<half2>((word & FIELD * 0x00010001) | 0x64006400);
    const half2 odd = as_type<half2>((word >> 8 & FIELD * 0x00010001) | 0x64006400);
    return float4(float(even.x), float(odd.x), float(even.y), float(odd.y));
}

/* FIELD of each byte plus offset, exactly. UNIT is the value of the lowest bit of FIELD. */
template <uint FIELD, uint UNIT>
inline float4 fields(uint word, float offset)
{
    return affine(biased_fields<FIELD>(word), 1.0f / UNIT, offset - 1024.0f / UNIT);
}

inline float4 low_nibbles(uint word, float offset)
{
    return fields<0x0F, 1>(word, offset);
}

inline float4 high_nibbles(uint word, float offset)
{
    return fields<0xF0, 16>(word, offset);
}

/* Bytes from 0 to 255. */
inline float4 bytes(uint word, float offset)
{
    return fields<0xFF, 1>(word, offset);
}

/* Two's complement bytes: flipping the sign bit adds 128. */
inline float4 signed_bytes(uint word)
{
    return bytes(word ^ 0x80808080, -128.0f);
}

/* Four bytes from an even address: a packed vector is aligned as its elements. */
inline uint load_word(device const uchar *p)
{
    const ushort2 halves = *(device const packed_ushort2 *)p;
    return as_type<uint>(halves);
}

inline float load_half(device const uchar *p)
{
    return float(*(device const half *)p);
}

/* Four values of a float type as it lies in memory; of BF16, two in a word. */
inline float4 widen(float4 values)
{
    return values;
}

inline float4 widen(half4 values)
{
    return float4(values);
}

inline float4 widen(uint2 words)
{
    return float4(as_type<float>(words.x << 16), as_type<float>(words.x & 0xFFFF0000),
                  as_type<float>(words.y << 16), as_type<float>(words.y & 0xFFFF0000));
}

/* The six-bit scales of sub-blocks 4 side .. 4 side + 3 of a Q4_K or Q5_K block as the bytes of a
 * word, then their minimums, from its first 16 bytes. The first four hold d and dmin. */
inline uint2 scale_bytes(uint4 head, uint side)
{
    const uint2 first = uint2(head.y, head.z);
    const uint2 second = uint2(head.w & 0x0F0F0F0F, head.w >> 4 & 0x0F0F0F0F);
    return side ? second | (first >> 2 & 0x30303030) : first & 0x3F3F3F3F;
}

/* Scale and minimum of sub-block j of such a block. */
inline float2 scale_and_minimum(uint4 head, uint j)
{
    const uint2 n = scale_bytes(head, j / 4) >> j % 4 * 8 & 0xFF;
    const half2 d = as_type<half2>(head.x);
    return float2(float(n.x) * float(d.x), float(n.y) * float(d.y));
}

/* d * (scale - 32) of sub-block j of an IQ4_XS block, from its first 8 bytes. */
inline float iq4_scale(uint2 head, uint j)
{
    const uint low = head.y >> 4 * j & 15, high = head.x >> (16 + 2 * j) & 3;
    return float(as_type<half>(ushort(head.x))) * (float(low | high << 4) - 32.0f);
}

constant float IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

template <typename Four, typename Staged>
struct Floats {
    typedef Staged staged;
    static inline void decode(device const uchar *row, uint chunk, thread float4 *w)
    {
        UNROLL
        for (uint i = 0; i < 4; ++i)
            w[i] = widen(((device const Four *)row)[4 * chunk + i]);
    }
};

typedef Floats<float4, float> F32;
typedef Floats<half4, half> F16;
typedef Floats<uint2, float> BF16;

struct Q8_0 {
    typedef half staged;
    static inline void decode(device const uchar *row, uint chunk, thread float4 *w)
    {
        device const uchar *block = row + chunk / 2 * 34;
        const float d = load_half(block);
        UNROLL
        for (uint i = 0; i < 4; ++i)
            w[i] = signed_bytes(load_word(block + 2 + chunk % 2 * 16 + 4 * i)) * d;
    }
};

struct Q4_0 {
    typedef half staged;
    static inline void decode(device const uchar *row, uint chunk, thread float4 *w)
    {
        device const uchar *block = row + chunk / 2 * 18;
        const float d = load_half(block);
        UNROLL
        for (uint i = 0; i < 4; ++i)
            w[i] = low_nibbles(load_word(block + 2 + 4 * i) >> chunk % 2 * 4, -8.0f) * d;
    }
};

struct Q4_K {
    typedef half staged;
    static inline void decode(device const uchar *row, uint chunk, thread float4 *w)
    {
        device const uint4 *block = (device const uint4 *)(row + chunk / 16 * 144);
        const uint j = chunk % 16 / 2;
        const float2 scale = scale_and_minimum(block[0], j);
        const uint4 q = block[1 + j / 2 * 2 + chunk % 2];
        const uint4 nibbles = q >> j % 2 * 4;
        w[0] = low_nibbles(nibbles.x, 0.0f) * scale.x - scale.y;
        w[1] = low_nibbles(nibbles.y, 0.0f) * scale.x - scale.y;
        w[2] = low_nibbles(nibbles.z, 0.0f) * scale.x - scale.y;
        w[3] = low_nibbles(nibbles.w, 0.0f) * scale.x - scale.y;
    }
};

struct Q5_K {
    typedef half staged;
    static inline void decode(device const uchar *row, uint chunk, thread float4 *w)
    {
        device const uint4 *block = (device const uint4 *)(row + chunk / 16 * 176);
        const uint j = chunk % 16 / 2;
        const float2 scale = scale_and_minimum(block[0], j);
        const uint4 high = (block[1 + chunk % 2] >> j & 0x01010101) << 4;
        const uint4 q = (block[3 + j / 2 * 2 + chunk % 2] >> j % 2 * 4 & 0x0F0F0F0F) | high;
        w[0] = bytes(q.x, 0.0f) * scale.x - scale.y;
        w[1] = bytes(q.y, 0.0f) * scale.x - scale.y;
        w[2] = bytes(q.z, 0.0f) * scale.x - scale.y;
        w[3] = bytes(q.w, 0.0f) * scale.x - scale.y;
    }
};

struct Q6_K {
    typedef half staged;
    static inline void decode(device const uchar *row, uint chunk, thread float4 *w)
    {
        device const uchar *block = row + chunk / 16 * 210;
        const uint side = chunk % 16 / 8, group = chunk % 8 / 2, first = chunk % 2 * 16;
        const float scale = load_half(block + 208) * float(as_type<char>(block[192 + chunk % 16]));
        UNROLL
        for (uint i = 0; i < 4; ++i) {
            const uint at = first + 4 * i;
            const uint low = load_word(block + 64 * side + group % 2 * 32 + at) >> group / 2 * 4;
            const uint high = load_word(block + 128 + 32 * side + at) >> 2 * group;
            w[i] = bytes((low & 0x0F0F0F0F) | (high & 0x03030303) << 4, -32.0f) * scale;
        }
    }
};

struct IQ4_XS {
    typedef half staged;
    static inline void decode(device const uchar *row, uint chunk, thread float4 *w)
    {
        device const uint2 *block = (device const uint2 *)(row + chunk / 16 * 136);
        const uint j = chunk % 16 / 2;
        const float scale = iq4_scale(block[0], j);
        UNROLL
        for (uint i = 0; i < 4; ++i) {
            const uint2 pair = block[1 + 2 * j + i / 2];
            const uint q = (i % 2 ? pair.y : pair.x) >> chunk % 2 * 4;
            w[i] = float4(IQ4_VALUES[q & 15], IQ4_VALUES[q >> 8 & 15], IQ4_VALUES[q >> 16 & 15],
                          IQ4_VALUES[q >> 24 & 15]) *
                   scale;
        }
    }
};

/* INSTANCE(type, Struct) for every type. */
#define FOR_EACH_FORMAT(INSTANCE) \
    INSTANCE(f32, F32)            \
    INSTANCE(f16, F16)            \
    INSTANCE(bf16, BF16)          \
    INSTANCE(q8_0, Q8_0)          \
    INSTANCE(q4_0, Q4_0)          \
    INSTANCE(q4_k, Q4_K)          \
    INSTANCE(q5_k, Q5_K)          \
    INSTANCE(q6_k, Q6_K)          \
    INSTANCE(iq4_xs, IQ4_XS)

#endif
