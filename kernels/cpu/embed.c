/* embed.c: rows of the token table to float, in the plain order of the format (each product and sum rounded). */
#include <math.h>

#include "code_tables.h"
#include "half.h"
#include "isa.h"

#define ITEM_VALUES 256u /* a worker takes whole pieces of this size */

/* One block of a type to floats. */
typedef void (*decode_fn)(const uint8_t *block, float *x);

static uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static float f16_at(const uint8_t *p) { return f16_to_f32(u16_at(p)); }

/* Value i of 32 in 16 bytes: low nibbles first, then high ones. */
static int32_t nibble(const uint8_t *q, unsigned i) { return q[i % 16] >> (4 * (i / 16)) & 15; }
static int32_t fifth_bit(const uint8_t *h, unsigned i) { return (h[i / 8] >> (i % 8) & 1) << 4; }

static void decode_f32(const uint8_t *block, float *x) { memcpy(x, block, sizeof *x); }
static void decode_f16(const uint8_t *block, float *x) { *x = f16_at(block); }
static void decode_bf16(const uint8_t *block, float *x) { *x = bf16_to_f32(u16_at(block)); }

#define DECODE_32(type, expression)                                                                            \
    static void decode_##type(const uint8_t *block, float *x)                                                  \
    {                                                                                                          \
        for (unsigned i = 0; i < 32; i++) {                                                                    \
            x[i] = (expression);                                                                               \
        }                                                                                                      \
    }

/* 2^(e - 128) */
static float mxfp4_step(uint8_t e)
{
    return float_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

DECODE_32(q4_0, f16_at(block) * (float)(nibble(block + 2, i) - 8))
DECODE_32(q4_1, f16_at(block) * (float)nibble(block + 4, i) + f16_at(block + 2))
DECODE_32(q5_0, f16_at(block) * (float)((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16))
DECODE_32(q5_1, f16_at(block) * (float)(nibble(block + 8, i) | fifth_bit(block + 4, i)) + f16_at(block + 2))
DECODE_32(q8_0, f16_at(block) * (float)(int8_t)block[2 + i])
DECODE_32(iq4_nl, f16_at(block) * (float)iq4_values[nibble(block + 2, i)])
DECODE_32(mxfp4, mxfp4_step(block[0]) * (float)mxfp4_values[nibble(block + 1, i)])

/* Six-bit scale and minimum j of eight, in twelve bytes. */
static void scale_min(const uint8_t *s, unsigned j, float *scale, float *minimum)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *minimum = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *minimum = (float)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

static void decode_q45_k(const uint8_t *block, const uint8_t *high, const uint8_t *q, float *x)
{
    for (unsigned j = 0; j < 8; j++) {
        float scale, minimum;
        scale_min(block + 4, j, &scale, &minimum);
        scale = f16_at(block) * scale;
        minimum = f16_at(block + 2) * minimum;
        for (unsigned i = 0; i < 32; i++) {
            int32_t code = q[32 * (j / 2) + i] >> (4 * (j % 2)) & 15;
            code |= high ? (high[i] >> j & 1) << 4 : 0;
            x[32 * j + i] = scale * (float)code - minimum;
        }
    }
}

static void decode_q4_k(const uint8_t *block, float *x) { decode_q45_k(block, NULL, block + 16, x); }
static void decode_q5_k(const uint8_t *block, float *x) { decode_q45_k(block, block + 16, block + 48, x); }

static void decode_q6_k(const uint8_t *block, float *x)
{
    const uint8_t *low = block, *high = block + 128;
    const int8_t *scales = (const int8_t *)block + 192;
    float d = f16_at(block + 208);
    for (unsigned i = 0; i < 256; i++) {
        unsigned half = i / 128, g = i % 128 / 32, l = i % 32;
        int32_t code = low[64 * half + 32 * (g % 2) + l] >> (4 * (g / 2)) & 15;
        code |= (high[32 * half + l] >> (2 * g) & 3) << 4;
        x[i] = d * (float)scales[i / 16] * (float)(code - 32);
    }
}

static int32_t two_bits(const uint8_t *q, unsigned i) { return q[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3; }

static void decode_q2_k(const uint8_t *block, float *x)
{
    float d = f16_at(block + 80), m = f16_at(block + 82);
    for (unsigned i = 0; i < 256; i++) {
        uint8_t s = block[i / 16];
        x[i] = d * (float)(s & 15) * (float)two_bits(block + 16, i) - m * (float)(s >> 4);
    }
}

static void decode_q3_k(const uint8_t *block, float *x)
{
    const uint8_t *s = block + 96;
    float d = f16_at(block + 108);
    for (unsigned i = 0; i < 256; i++) {
        unsigned j = i / 16;
        int32_t scale = (s[j % 8] >> (4 * (j / 8)) & 15) | (s[8 + j % 4] >> (2 * (j / 4)) & 3) << 4;
        int32_t code = two_bits(block + 32, i) - (block[i % 32] >> (i / 32) & 1 ? 0 : 4);
        x[i] = d * (float)(scale - 32) * (float)code;
    }
}

static void decode_iq4_xs(const uint8_t *block, float *x)
{
    for (unsigned j = 0; j < 8; j++) {
        int32_t scale = (block[4 + j / 2] >> (4 * (j % 2)) & 15) | (u16_at(block + 2) >> (2 * j) & 3) << 4;
        float step = f16_at(block) * (float)(scale - 32);
        for (unsigned i = 0; i < 32; i++) {
            x[32 * j + i] = step * (float)iq4_values[nibble(block + 8 + 16 * j, i)];
        }
    }
}

/* An id outside the table gives a row of NaN: nothing beyond the table is read. */
static void embed(const mtlq_call *call, uint32_t block_values, uint32_t block_bytes, decode_fn decode)
{
    const mtlq_embed_args *args = call->args;
    const int32_t *ids = call->buffers[1];
    const uint8_t *table = call->buffers[2];
    float *x = call->buffers[3];
    uint64_t items_per_row = (args->dim + ITEM_VALUES - 1u) / ITEM_VALUES;
    uint64_t begin, end;
    mtlq_share(call, mtlq_rows(call, MTLQ_ROWS) * items_per_row, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t row = item / items_per_row, first = item % items_per_row * ITEM_VALUES;
        uint64_t last = first + ITEM_VALUES < args->dim ? first + ITEM_VALUES : args->dim;
        uint32_t id = (uint32_t)ids[row];
        if (id >= args->num_table_rows) {
            for (uint64_t i = first; i < last; i++) {
                x[row * args->dim + i] = NAN;
            }
            continue;
        }
        const uint8_t *block = table + id * args->row_bytes + first / block_values * block_bytes;
        for (uint64_t i = first; i < last; i += block_values, block += block_bytes) {
            decode(block, x + row * args->dim + i);
        }
    }
}

#define EMBED_KERNEL(type, block_values, block_bytes)                                                          \
    void MTLQ_NAME(embed_##type)(const mtlq_call *call) { embed(call, block_values, block_bytes, decode_##type); }

EMBED_KERNEL(f32, 1, 4)
EMBED_KERNEL(f16, 1, 2)
EMBED_KERNEL(bf16, 1, 2)
EMBED_KERNEL(q8_0, 32, 34)
EMBED_KERNEL(q4_0, 32, 18)
EMBED_KERNEL(q4_1, 32, 20)
EMBED_KERNEL(q5_0, 32, 22)
EMBED_KERNEL(q5_1, 32, 24)
EMBED_KERNEL(iq4_nl, 32, 18)
EMBED_KERNEL(mxfp4, 32, 17)
EMBED_KERNEL(q2_k, 256, 84)
EMBED_KERNEL(q3_k, 256, 110)
EMBED_KERNEL(q4_k, 256, 144)
EMBED_KERNEL(q5_k, 256, 176)
EMBED_KERNEL(q6_k, 256, 210)
EMBED_KERNEL(iq4_xs, 256, 136)
