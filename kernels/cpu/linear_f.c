/* linear_f.c: y (+)= x W^T for float weights: sixteen interleaved sums over k by fma, then lanes_sum. */
#include "lanes.h"

#define TILE_ROWS 8u      /* of W, converted to float in L1, times TILE_VALUES */
#define TILE_VALUES 512u
#define CHUNK_ROWS 64u    /* of x that share a conversion */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef lanes (*load_fn)(const void *values);

static inline lanes load_f32(const void *values) { return lanes_load(values); }
static inline lanes load_f16(const void *values) { return lanes_load_f16(values); }
static inline lanes load_bf16(const void *values) { return lanes_load_bf16(values); }

/* count values of one row to floats, zeros up to a multiple of sixteen. Reads `ahead` bytes further ahead. */
ALWAYS_INLINE void convert(const uint8_t *row, uint64_t count, float *out, const unsigned value_bytes, load_fn load,
                           uint64_t ahead)
{
    uint64_t k = 0;
    for (; k + LANES <= count; k += LANES) {
        __builtin_prefetch((const void *)((uintptr_t)row + k * value_bytes + ahead), 0, 2);
        lanes_store(out + k, load(row + k * value_bytes));
    }
    if (k < count) {
        uint8_t rest[LANES * sizeof(float)] = {0};
        memcpy(rest, row + k * value_bytes, (count - k) * value_bytes);
        lanes_store(out + k, load(rest));
    }
}

/* sums[w][t] += w_row . x_row over count values, for pairs of rows. A lone row is its own partner. */
static void multiply_tile(const float w[TILE_ROWS][TILE_VALUES], uint64_t num_w, const float *x, uint64_t x_stride,
                          uint64_t num_x, uint64_t count, lanes sums[TILE_ROWS][CHUNK_ROWS])
{
    for (uint64_t t = 0; t < num_x; t += 2) {
        uint64_t t1 = t + 1 < num_x ? t + 1 : t;
        const float *x0 = x + t * x_stride, *x1 = x + t1 * x_stride;
        for (uint64_t r = 0; r < num_w; r += 2) {
            const float *w0 = w[r], *w1 = w[r + 1];
            lanes s00 = sums[r][t], s01 = sums[r][t1], s10 = sums[r + 1][t], s11 = sums[r + 1][t1];
            uint64_t k = 0;
            for (; k + LANES <= count; k += LANES) {
                lanes a0 = lanes_load(w0 + k), a1 = lanes_load(w1 + k);
                lanes b0 = lanes_load(x0 + k), b1 = lanes_load(x1 + k);
                s00 = lanes_fma(a0, b0, s00);
                s01 = lanes_fma(a0, b1, s01);
                s10 = lanes_fma(a1, b0, s10);
                s11 = lanes_fma(a1, b1, s11);
            }
            if (k < count) {
                lanes a0 = lanes_load(w0 + k), a1 = lanes_load(w1 + k);
                lanes b0 = lanes_load_n(x0 + k, count - k), b1 = lanes_load_n(x1 + k, count - k);
                s00 = lanes_fma(a0, b0, s00);
                s01 = lanes_fma(a0, b1, s01);
                s10 = lanes_fma(a1, b0, s10);
                s11 = lanes_fma(a1, b1, s11);
            }
            sums[r][t] = s00;
            sums[r][t1] = s01;
            sums[r + 1][t] = s10;
            sums[r + 1][t1] = s11;
        }
    }
}

ALWAYS_INLINE void multiply_rows(const mtlq_call *call, uint64_t first_row, uint64_t num_w, uint64_t x_begin,
                                 uint64_t num_x, const unsigned value_bytes, load_fn load)
{
    const mtlq_linear_args *args = call->args;
    const uint8_t *rows = (const uint8_t *)call->buffers[1] + first_row * args->row_bytes;
    const float *x = (const float *)call->buffers[2] + x_begin * args->in_dim;
    float w[TILE_ROWS][TILE_VALUES];
    lanes sums[TILE_ROWS][CHUNK_ROWS];
    for (uint64_t r = 0; r < TILE_ROWS; r++) {
        for (uint64_t t = 0; t < num_x; t++) {
            sums[r][t] = lanes_zero();
        }
    }
    for (uint64_t k = 0; k < args->in_dim; k += TILE_VALUES) {
        uint64_t count = args->in_dim - k < TILE_VALUES ? args->in_dim - k : TILE_VALUES;
        for (uint64_t r = 0; r < TILE_ROWS; r++) { /* rows that are missing repeat the last one */
            const uint8_t *row = rows + (r < num_w ? r : num_w - 1) * args->row_bytes;
            convert(row + k * value_bytes, count, w[r], value_bytes, load, TILE_ROWS * args->row_bytes);
        }
        multiply_tile(w, num_w, x + k, args->in_dim, num_x, count, sums);
    }
    for (uint64_t t = 0; t < num_x; t++) {
        float *y = (float *)call->buffers[3] + (x_begin + t) * args->out_dim + first_row;
        for (uint64_t r = 0; r < num_w; r++) {
            float sum = lanes_sum(sums[r][t]);
            y[r] = args->accumulate ? y[r] + sum : sum;
        }
    }
}

ALWAYS_INLINE void linear_float(const mtlq_call *call, const unsigned value_bytes, load_fn load)
{
    const mtlq_linear_args *args = call->args;
    uint64_t num_rows = mtlq_rows(call, args->rows);
    uint64_t num_tiles = (args->out_dim + TILE_ROWS - 1u) / TILE_ROWS;
    uint64_t num_chunks = (num_rows + CHUNK_ROWS - 1u) / CHUNK_ROWS;
    uint64_t begin, end;
    mtlq_share(call, num_chunks * num_tiles, &begin, &end);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t first_row = item % num_tiles * TILE_ROWS, chunk = item / num_tiles;
        uint64_t num_w = args->out_dim - first_row < TILE_ROWS ? args->out_dim - first_row : TILE_ROWS;
        uint64_t x_begin = num_rows * chunk / num_chunks, x_end = num_rows * (chunk + 1) / num_chunks;
        multiply_rows(call, first_row, num_w, x_begin, x_end - x_begin, value_bytes, load);
    }
}

void MTLQ_NAME(linear_f32)(const mtlq_call *call) { linear_float(call, 4, load_f32); }
void MTLQ_NAME(linear_f16)(const mtlq_call *call) { linear_float(call, 2, load_f16); }
void MTLQ_NAME(linear_bf16)(const mtlq_call *call) { linear_float(call, 2, load_bf16); }
