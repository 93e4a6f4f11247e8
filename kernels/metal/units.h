/* units.h: what one lane reads of a row of W in one step of a matrix-vector product.
 *
 * A unit is VALUES weights; consecutive lanes take consecutive units, so that the lanes of a SIMD
 * group read every byte of some hundreds of bytes once, and x in whole lines where the format
 * allows it. A row of W is a multiple of 256 weights. A unit is decoded in parts of eight:
 *   load(row, unit)         everything that memory has to give, at once: many bytes in flight;
 *   position(unit, part)    index in x of the part's first four values, HIGH before the other four;
 *   decode(part, table, w)  eight small integers, exactly (floats for the float types);
 *   add(part, dot, sum)     sum + scales * dot, of products with the first and the last four;
 *   minimum(part)           that scale * w is above the weight by, if HAS_MINIMUM;
 *   RUN                     parts in a row that have the same scales and minimum. */
#ifndef MTLQ_UNITS_H
#define MTLQ_UNITS_H

#include "formats.h"

/* Eight floats of 256: four of each half. Four: the type of four in memory. */
template <typename Four>
struct unit_floats {
    enum { VALUES = 8, RUN = 1, HIGH = 128, HAS_MINIMUM = 0, USES_TABLE = 0 };
    Four low, high;
    inline void load(device const uchar *row, uint unit)
    {
        device const Four *group = (device const Four *)row + unit / 32 * 64 + unit % 32;
        low = group[0];
        high = group[32];
    }
    static inline uint position(uint unit, uint) { return unit / 32 * 256 + unit % 32 * 4; }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = widen(low);
        w[1] = widen(high);
    }
    inline float add(uint, float2 dot, float sum) { return sum + (dot.x + dot.y); }
    inline float minimum(uint) { return 0.0f; }
};

typedef unit_floats<float4> unit_f32;
typedef unit_floats<half4> unit_f16;
typedef unit_floats<uint2> unit_bf16;

/* Four bytes of one block, four of the fourth block after it: 32 lanes read eight blocks. */
struct unit_q8_0 {
    enum { VALUES = 8, RUN = 1, HIGH = 128, HAS_MINIMUM = 0, USES_TABLE = 0 };
    uint low, high;
    float2 d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + (unit / 32 * 8 + unit % 32 / 8) * 34;
        device const uchar *other = block + 4 * 34;
        low = load_word(block + 2 + unit % 8 * 4);
        high = load_word(other + 2 + unit % 8 * 4);
        d = float2(load_half(block), load_half(other));
    }
    static inline uint position(uint unit, uint part) { return unit_f32::position(unit, part); }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = signed_bytes(low);
        w[1] = signed_bytes(high);
    }
    inline float add(uint, float2 dot, float sum) { return fma(d.y, dot.y, fma(d.x, dot.x, sum)); }
    inline float minimum(uint) { return 0.0f; }
};

/* Four bytes of a block: four values of its first half, four of its second. */
struct unit_q4_0 {
    enum { VALUES = 8, RUN = 1, HIGH = 16, HAS_MINIMUM = 0, USES_TABLE = 0 };
    uint q;
    float d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 4 * 18;
        q = load_word(block + 2 + unit % 4 * 4);
        d = load_half(block);
    }
    static inline uint position(uint unit, uint) { return unit / 4 * 32 + unit % 4 * 4; }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = low_nibbles(q, -8.0f);
        w[1] = high_nibbles(q, -8.0f);
    }
    inline float add(uint, float2 dot, float sum) { return fma(d, dot.x + dot.y, sum); }
    inline float minimum(uint) { return 0.0f; }
};

/* 16 bytes: the halves of two sub-blocks. Parts 0 and 1 are of the first, 2 and 3 of the second. */
struct unit_q4_k {
    enum { VALUES = 32, RUN = 2, HIGH = 4, HAS_MINIMUM = 1, USES_TABLE = 0 };
    uint4 q;
    float4 scales; /* of both sub-blocks, then their minimums */
    inline void load(device const uchar *row, uint unit)
    {
        device const uint4 *block = (device const uint4 *)(row + unit / 8 * 144);
        q = block[1 + unit % 8];
        scales = scales_and_minimums(block[0], unit % 8 / 2);
    }
    static inline uint position(uint unit, uint part)
    {
        return unit / 2 * 64 + part / 2 * 32 + unit % 2 * 16 + part % 2 * 8;
    }
    inline void decode(uint part, threadgroup const float *, thread float4 *w)
    {
        const uint low = part % 2 ? q.z : q.x, high = part % 2 ? q.w : q.y;
        w[0] = part / 2 ? high_nibbles(low, 0.0f) : low_nibbles(low, 0.0f);
        w[1] = part / 2 ? high_nibbles(high, 0.0f) : low_nibbles(high, 0.0f);
    }
    inline float add(uint part, float2 dot, float sum)
    {
        return fma(part / 2 ? scales.y : scales.x, dot.x + dot.y, sum);
    }
    inline float minimum(uint part) { return part / 2 ? scales.w : scales.z; }
};

/* As Q4_K, with a fifth bit from another 16 bytes. */
struct unit_q5_k {
    enum { VALUES = 32, RUN = 2, HIGH = 4, HAS_MINIMUM = 1, USES_TABLE = 0 };
    uint4 q, fifth; /* bits 0 and 1 of each byte of fifth: first and second sub-block */
    float4 scales;
    inline void load(device const uchar *row, uint unit)
    {
        device const uint4 *block = (device const uint4 *)(row + unit / 8 * 176);
        fifth = block[1 + unit % 2] >> unit % 8 / 2 * 2;
        q = block[3 + unit % 8];
        scales = scales_and_minimums(block[0], unit % 8 / 2);
    }
    static inline uint position(uint unit, uint part) { return unit_q4_k::position(unit, part); }
    inline void decode(uint part, threadgroup const float *, thread float4 *w)
    {
        const uint low = part % 2 ? q.z : q.x, high = part % 2 ? q.w : q.y;
        const uint low_bit = part % 2 ? fifth.z : fifth.x, high_bit = part % 2 ? fifth.w : fifth.y;
        w[0] = part / 2 ? bytes((low >> 4 & 0x0F0F0F0F) | (low_bit & 0x02020202) << 3, 0.0f)
                        : bytes((low & 0x0F0F0F0F) | (low_bit & 0x01010101) << 4, 0.0f);
        w[1] = part / 2 ? bytes((high >> 4 & 0x0F0F0F0F) | (high_bit & 0x02020202) << 3, 0.0f)
                        : bytes((high & 0x0F0F0F0F) | (high_bit & 0x01010101) << 4, 0.0f);
    }
    inline float add(uint part, float2 dot, float sum)
    {
        return fma(part / 2 ? scales.y : scales.x, dot.x + dot.y, sum);
    }
    inline float minimum(uint part) { return part / 2 ? scales.w : scales.z; }
};

/* Eight values of each quarter of half a block, four of each half of the quarter. */
struct unit_q6_k {
    enum { VALUES = 32, RUN = 1, HIGH = 16, HAS_MINIMUM = 0, USES_TABLE = 0 };
    uint4 q; /* low nibbles of quarters 0 and 2 in x and y, of 1 and 3 in z and w */
    uint2 top;
    float4 low_scales, high_scales; /* of quarters 0 and 1, of 2 and 3 */
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 8 * 210;
        const uint side = unit % 8 / 4, at = unit % 4 * 4;
        device const uchar *low = block + 64 * side + at;
        device const uchar *high = block + 128 + 32 * side + at;
        device const uchar *scales = block + 192 + 8 * side;
        q = uint4(load_word(low), load_word(low + 16), load_word(low + 32), load_word(low + 48));
        top = uint2(load_word(high), load_word(high + 16));
        const float d = load_half(block + 208);
        low_scales = signed_bytes(load_word(scales)) * d;
        high_scales = signed_bytes(load_word(scales + 4)) * d;
    }
    static inline uint position(uint unit, uint part)
    {
        return unit / 4 * 128 + part * 32 + unit % 4 * 4;
    }
    inline void decode(uint part, threadgroup const float *, thread float4 *w)
    {
        const uint a = (part % 2 ? q.z : q.x) >> part / 2 * 4 & 0x0F0F0F0F;
        const uint b = (part % 2 ? q.w : q.y) >> part / 2 * 4 & 0x0F0F0F0F;
        w[0] = bytes(a | (top.x >> 2 * part & 0x03030303) << 4, -32.0f);
        w[1] = bytes(b | (top.y >> 2 * part & 0x03030303) << 4, -32.0f);
    }
    inline float add(uint part, float2 dot, float sum)
    {
        const float4 scales = part / 2 ? high_scales : low_scales;
        const float2 pair = part % 2 ? float2(scales.z, scales.w) : float2(scales.x, scales.y);
        return fma(pair.y, dot.y, fma(pair.x, dot.x, sum));
    }
    inline float minimum(uint) { return 0.0f; }
};

/* Four bytes of a sub-block: four values of its first half, four of its second. */
struct unit_iq4_xs {
    enum { VALUES = 8, RUN = 1, HIGH = 16, HAS_MINIMUM = 0, USES_TABLE = 1 };
    uint q;
    float d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uint *block = (device const uint *)(row + unit / 32 * 136);
        q = block[2 + unit % 32];
        d = iq4_scale(uint2(block[0], block[1]), unit % 32 / 4);
    }
    static inline uint position(uint unit, uint) { return unit / 4 * 32 + unit % 4 * 4; }
    inline void decode(uint, threadgroup const float *table, thread float4 *w)
    {
        w[0] = float4(table[q & 15], table[q >> 8 & 15], table[q >> 16 & 15], table[q >> 24 & 15]);
        w[1] = float4(table[q >> 4 & 15], table[q >> 12 & 15], table[q >> 20 & 15], table[q >> 28]);
    }
    inline float add(uint, float2 dot, float sum) { return fma(d, dot.x + dot.y, sum); }
    inline float minimum(uint) { return 0.0f; }
};

#endif
