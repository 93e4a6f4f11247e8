/* units.h: what one lane reads of a row of W in one step of a matrix-vector product.
 *
 * A unit is VALUES weights; consecutive lanes take consecutive units, so that the lanes of a SIMD
 * group read every byte of some hundreds of bytes once; of x, the two loads of a part take whole
 * lines of 128 bytes. A row of W is a multiple of 256 weights. A unit is decoded in parts of eight:
 *   load(row, unit)         everything that memory has to give, at once: many bytes in flight;
 *   position(unit, part)    index in x of the part's first four values, HIGH before the other four;
 *                           signed, so that compilers may add the part's share in the load;
 *   decode(part, table, w)  the weights, or small integers that add() scales;
 *   add(part, dot, sum)     sum + scales * dot, of products with the first and the last four;
 *   RUN                     parts in a row that have the same scales. */
#ifndef MTLQ_UNITS_H
#define MTLQ_UNITS_H

#include "formats.h"

/* Eight floats of 256: four of each half. Four: the type of four in memory. */
template <typename Four>
struct unit_floats {
    enum { VALUES = 8, RUN = 1, HIGH = 128, USES_TABLE = 0 };
    Four low, high;
    inline void load(device const uchar *row, uint unit)
    {
        device const Four *group = (device const Four *)row + unit / 32 * 64 + unit % 32;
        low = group[0];
        high = group[32];
    }
    static inline int position(uint unit, uint) { return int(unit / 32 * 256 + unit % 32 * 4); }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = widen(low);
        w[1] = widen(high);
    }
    inline float add(uint, float2 dot, float sum) { return sum + (dot.x + dot.y); }
};

typedef unit_floats<float4> unit_f32;
typedef unit_floats<half4> unit_f16;
typedef unit_floats<uint2> unit_bf16;

/* Four bytes of one block, four of the fourth block after it: 32 lanes read eight blocks. */
struct unit_q8_0 {
    enum { VALUES = 8, RUN = 1, HIGH = 128, USES_TABLE = 0 };
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
    static inline int position(uint unit, uint part) { return unit_f32::position(unit, part); }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = signed_bytes(low);
        w[1] = signed_bytes(high);
    }
    inline float add(uint, float2 dot, float sum) { return fma(d.y, dot.y, fma(d.x, dot.x, sum)); }
};

/* Four bytes of a block: four values of its first half, four of its second. */
struct unit_q4_0 {
    enum { VALUES = 8, RUN = 1, HIGH = 16, USES_TABLE = 0 };
    uint q;
    float d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 4 * 18;
        q = load_word(block + 2 + unit % 4 * 4);
        d = load_half(block);
    }
    static inline int position(uint unit, uint) { return int(unit / 4 * 32 + unit % 4 * 4); }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = low_nibbles(q, -8.0f);
        w[1] = high_nibbles(q, -8.0f);
    }
    inline float add(uint, float2 dot, float sum) { return fma(d, dot.x + dot.y, sum); }
};

/* Weights of sub-blocks 4 side .. 4 side + 3 of a Q4_K or Q5_K block are factor * field + offset of
 * biased fields, whose lowest bit is worth 1, or 1 / odd_unit in odd sub-blocks. Rounding of an
 * offset moves weights by 2^-14 of their scale at most. */
inline void biased_scales(device const uchar *block, uint side, float odd_unit,
                          thread float4 &factors, thread float4 &offsets)
{
    const uint4 head = *(device const uint4 *)block;
    const uint2 n = scale_bytes(head, side);
    const half2 d = as_type<half2>(head.x);
    factors = bytes(n.x, 0.0f) * float(d.x) * float4(1.0f, odd_unit, 1.0f, odd_unit);
    offsets = factors * -1024.0f - bytes(n.y, 0.0f) * float(d.y);
}

/* Eight values of each of four sub-blocks; a part is of one. Scale and minimum are applied to the
 * weights, which is cheaper than to the dots from two rows of x on. */
struct unit_q4_k {
    enum { VALUES = 32, RUN = 4, HIGH = 4, USES_TABLE = 0 };
    uint2 q[2];
    float4 factors, offsets; /* of 1024 + q; of 1024 + 16 q in odd parts */
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 8 * 144;
        const uint side = unit % 8 / 4;
        device const uint2 *words = (device const uint2 *)(block + 16 + 64 * side) + unit % 4;
        q[0] = words[0];
        q[1] = words[4];
        biased_scales(block, side, 1.0f / 16, factors, offsets);
    }
    static inline int position(uint unit, uint part)
    {
        return int(unit / 4 * 128 + unit % 4 * 8) + int(part * 32);
    }
    inline void decode(uint part, threadgroup const float *, thread float4 *w)
    {
        const uint2 words = q[part / 2];
        const float factor = factors[part], offset = offsets[part];
        w[0] = part % 2 ? biased_fields<0xF0>(words.x) : biased_fields<0x0F>(words.x);
        w[1] = part % 2 ? biased_fields<0xF0>(words.y) : biased_fields<0x0F>(words.y);
        w[0] = affine(w[0], factor, offset);
        w[1] = affine(w[1], factor, offset);
    }
    inline float add(uint, float2 dot, float sum) { return sum + (dot.x + dot.y); }
};

/* As Q4_K, with a fifth bit from another eight bytes. */
struct unit_q5_k {
    enum { VALUES = 32, RUN = 4, HIGH = 4, USES_TABLE = 0 };
    uint2 q[2], fifth;       /* bit `part` of each byte of fifth is of that part */
    float4 factors, offsets; /* of 1024 + q */
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 8 * 176;
        const uint side = unit % 8 / 4;
        device const uint2 *words = (device const uint2 *)(block + 48 + 64 * side) + unit % 4;
        fifth = ((device const uint2 *)(block + 16))[unit % 4] >> 4 * side;
        q[0] = words[0];
        q[1] = words[4];
        biased_scales(block, side, 1.0f, factors, offsets);
    }
    static inline int position(uint unit, uint part) { return unit_q4_k::position(unit, part); }
    inline void decode(uint part, threadgroup const float *, thread float4 *w)
    {
        const uint2 words = (q[part / 2] >> part % 2 * 4 & 0x0F0F0F0F) |
                            (fifth << (4 - part) & 0x10101010);
        w[0] = affine(biased_fields<0xFF>(words.x), factors[part], offsets[part]);
        w[1] = affine(biased_fields<0xFF>(words.y), factors[part], offsets[part]);
    }
    inline float add(uint, float2 dot, float sum) { return sum + (dot.x + dot.y); }
};

/* Eight values of each quarter of half a block, four of each half of the quarter. */
struct unit_q6_k {
    enum { VALUES = 32, RUN = 1, HIGH = 16, USES_TABLE = 0 };
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
    static inline int position(uint unit, uint part)
    {
        return int(unit / 4 * 128 + unit % 4 * 4) + int(part * 32);
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
};

/* Four bytes of a sub-block: four values of its first half, four of its second. */
struct unit_iq4_xs {
    enum { VALUES = 8, RUN = 1, HIGH = 16, USES_TABLE = 1 };
    uint q;
    float d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uint *block = (device const uint *)(row + unit / 32 * 136);
        q = block[2 + unit % 32];
        d = iq4_scale(uint2(block[0], block[1]), unit % 32 / 4);
    }
    static inline int position(uint unit, uint) { return int(unit / 4 * 32 + unit % 4 * 4); }
    inline void decode(uint, threadgroup const float *table, thread float4 *w)
    {
        w[0] = float4(table[q & 15], table[q >> 8 & 15], table[q >> 16 & 15], table[q >> 24 & 15]);
        w[1] = float4(table[q >> 4 & 15], table[q >> 12 & 15], table[q >> 20 & 15], table[q >> 28]);
    }
    inline float add(uint, float2 dot, float sum) { return fma(d, dot.x + dot.y, sum); }
};

#endif
