/* units.h: what one lane reads of a row of W in one step of a matrix-vector product.
 *
 * A unit is VALUES weights; consecutive lanes take consecutive units, so that the lanes of a
 * SIMD group read every byte of some hundreds of bytes once. It is decoded in parts of eight:
 *   load(row, unit)         everything that memory has to give, at once, for many bytes in flight;
 *   position(unit, part)    index in x of the part's eight values, which are consecutive;
 *   decode(part, table, w)  eight small integers, exactly (floats for the float types);
 *   scale(part), minimum(part)   weight = scale * w - minimum; minimum counts if HAS_MINIMUM. */
#ifndef MTLQ_UNITS_H
#define MTLQ_UNITS_H

#include "formats.h"

struct unit_f32 {
    enum { VALUES = 8, HAS_MINIMUM = 0, USES_TABLE = 0 };
    float4 low, high;
    inline void load(device const uchar *row, uint unit)
    {
        low = ((device const float4 *)row)[2 * unit];
        high = ((device const float4 *)row)[2 * unit + 1];
    }
    static inline uint position(uint unit, uint) { return 8 * unit; }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = low;
        w[1] = high;
    }
    inline float scale(uint) { return 1.0f; }
    inline float minimum(uint) { return 0.0f; }
};

struct unit_f16 {
    enum { VALUES = 8, HAS_MINIMUM = 0, USES_TABLE = 0 };
    half4 low, high;
    inline void load(device const uchar *row, uint unit)
    {
        low = ((device const half4 *)row)[2 * unit];
        high = ((device const half4 *)row)[2 * unit + 1];
    }
    static inline uint position(uint unit, uint) { return 8 * unit; }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = float4(low);
        w[1] = float4(high);
    }
    inline float scale(uint) { return 1.0f; }
    inline float minimum(uint) { return 0.0f; }
};

struct unit_bf16 {
    enum { VALUES = 8, HAS_MINIMUM = 0, USES_TABLE = 0 };
    uint2 low, high;
    inline void load(device const uchar *row, uint unit)
    {
        low = ((device const uint2 *)row)[2 * unit];
        high = ((device const uint2 *)row)[2 * unit + 1];
    }
    static inline uint position(uint unit, uint) { return 8 * unit; }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = load_bf16(low);
        w[1] = load_bf16(high);
    }
    inline float scale(uint) { return 1.0f; }
    inline float minimum(uint) { return 0.0f; }
};

/* A quarter of a block. */
struct unit_q8_0 {
    enum { VALUES = 8, HAS_MINIMUM = 0, USES_TABLE = 0 };
    uint low, high;
    float d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 4 * 34;
        low = load_word(block + 2 + unit % 4 * 8);
        high = load_word(block + 6 + unit % 4 * 8);
        d = load_half(block);
    }
    static inline uint position(uint unit, uint) { return 8 * unit; }
    inline void decode(uint, threadgroup const float *, thread float4 *w)
    {
        w[0] = signed_bytes(low);
        w[1] = signed_bytes(high);
    }
    inline float scale(uint) { return d; }
    inline float minimum(uint) { return 0.0f; }
};

/* Half of a block's bytes: eight values of its first half, eight of its second. */
struct unit_q4_0 {
    enum { VALUES = 16, HAS_MINIMUM = 0, USES_TABLE = 0 };
    uint low, high;
    float d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 2 * 18;
        low = load_word(block + 2 + unit % 2 * 8);
        high = load_word(block + 6 + unit % 2 * 8);
        d = load_half(block);
    }
    static inline uint position(uint unit, uint part)
    {
        return unit / 2 * 32 + part * 16 + unit % 2 * 8;
    }
    inline void decode(uint part, threadgroup const float *, thread float4 *w)
    {
        w[0] = part ? high_nibbles(low, -8.0f) : low_nibbles(low, -8.0f);
        w[1] = part ? high_nibbles(high, -8.0f) : low_nibbles(high, -8.0f);
    }
    inline float scale(uint) { return d; }
    inline float minimum(uint) { return 0.0f; }
};

/* 16 bytes: the halves of two sub-blocks. Parts 0 and 1 are of the first, 2 and 3 of the second. */
struct unit_q4_k {
    enum { VALUES = 32, HAS_MINIMUM = 1, USES_TABLE = 0 };
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
    inline float scale(uint part) { return part / 2 ? scales.y : scales.x; }
    inline float minimum(uint part) { return part / 2 ? scales.w : scales.z; }
};

/* As Q4_K, with a fifth bit from another 16 bytes. */
struct unit_q5_k {
    enum { VALUES = 32, HAS_MINIMUM = 1, USES_TABLE = 0 };
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
    inline float scale(uint part) { return part / 2 ? scales.y : scales.x; }
    inline float minimum(uint part) { return part / 2 ? scales.w : scales.z; }
};

/* Eight values of each quarter of half a block: eight bytes of three streams. */
struct unit_q6_k {
    enum { VALUES = 32, HAS_MINIMUM = 0, USES_TABLE = 0 };
    uint4 q; /* low nibbles of quarters 0 and 2 in x and y, of 1 and 3 in z and w */
    uint2 high;
    float4 scales;
    inline void load(device const uchar *row, uint unit)
    {
        device const uchar *block = row + unit / 8 * 210;
        const uint side = unit % 8 / 4, at = unit % 4 * 8;
        device const uchar *low = block + 64 * side + at;
        q = uint4(load_word(low), load_word(low + 4), load_word(low + 32), load_word(low + 36));
        device const uchar *top = block + 128 + 32 * side + at;
        high = uint2(load_word(top), load_word(top + 4));
        device const char *s = (device const char *)(block + 192 + 8 * side + at / 16);
        const float d = load_half(block + 208);
        scales = float4(float(s[0]) * d, float(s[2]) * d, float(s[4]) * d, float(s[6]) * d);
    }
    static inline uint position(uint unit, uint part)
    {
        return unit / 4 * 128 + part * 32 + unit % 4 * 8;
    }
    inline void decode(uint part, threadgroup const float *, thread float4 *w)
    {
        const uint a = (part % 2 ? q.z : q.x) >> part / 2 * 4 & 0x0F0F0F0F;
        const uint b = (part % 2 ? q.w : q.y) >> part / 2 * 4 & 0x0F0F0F0F;
        w[0] = bytes(a | (high.x >> 2 * part & 0x03030303) << 4, -32.0f);
        w[1] = bytes(b | (high.y >> 2 * part & 0x03030303) << 4, -32.0f);
    }
    inline float scale(uint part)
    {
        return part == 0 ? scales.x : part == 1 ? scales.y : part == 2 ? scales.z : scales.w;
    }
    inline float minimum(uint) { return 0.0f; }
};

/* A sub-block. Parts 0 and 1 are its first 16 values. */
struct unit_iq4_xs {
    enum { VALUES = 32, HAS_MINIMUM = 0, USES_TABLE = 1 };
    uint2 q[2];
    float d;
    inline void load(device const uchar *row, uint unit)
    {
        device const uint2 *block = (device const uint2 *)(row + unit / 8 * 136);
        q[0] = block[1 + unit % 8 * 2];
        q[1] = block[2 + unit % 8 * 2];
        d = iq4_scale(block[0], unit % 8);
    }
    static inline uint position(uint unit, uint part) { return unit * 32 + part * 8; }
    inline void decode(uint part, threadgroup const float *table, thread float4 *w)
    {
        const uint2 pair = q[part % 2];
        const uint low = pair.x >> part / 2 * 4, high = pair.y >> part / 2 * 4;
        w[0] = float4(table[low & 15], table[low >> 8 & 15], table[low >> 16 & 15],
                      table[low >> 24 & 15]);
        w[1] = float4(table[high & 15], table[high >> 8 & 15], table[high >> 16 & 15],
                      table[high >> 24 & 15]);
    }
    inline float scale(uint) { return d; }
    inline float minimum(uint) { return 0.0f; }
};

#endif
