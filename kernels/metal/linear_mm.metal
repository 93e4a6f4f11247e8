#include <metal_simdgroup_matrix>

#include "formats.h"

/* y (+)= x W^T for five rows and more: matrix tiles of a SIMD group.
 *
 * A threadgroup of 128 threads makes TOKENS rows of x by 64 rows of W, K in steps of 32: W is
 * decoded to threadgroup memory (half; float where half would lose bits), x is staged as it is.
 * A SIMD group has 16 of the 64 columns. Each element of y is summed over K in steps of eight,
 * in order, whatever TOKENS is. Grid: row tiles of x innermost, so that those that read the same
 * W run together. */

#define TILE_OUT 64
#define STEP 32
#define TOKEN_STRIDE 36 /* floats; 32 would put a column of rows in one bank */

/* 16 weights of one row of W into 8x8 tiles [k / 8][row / 8], each [k % 8][row % 8]. */
template <typename T>
inline void store_weights(threadgroup T *tiles, thread const float4 *w, uint row, uint first_k)
{
    threadgroup T *target = tiles + (first_k / 8 * (TILE_OUT / 8) + row / 8) * 64 + row % 8;
    UNROLL
    for (uint i = 0; i < 4; ++i) {
        threadgroup T *column = target + i / 2 * (TILE_OUT / 8) * 64 + i % 2 * 32;
        column[0] = T(w[i].x);
        column[8] = T(w[i].y);
        column[16] = T(w[i].z);
        column[24] = T(w[i].w);
    }
}

template <typename Format, int TOKENS>
kernel void linear_mm(device const uint *header [[buffer(0)]],
                      device const uchar *weights [[buffer(1)]],
                      device const float *x [[buffer(2)]],
                      device float *y [[buffer(3)]],
                      constant mtlq_linear_args &args [[buffer(ARGS)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    typedef typename Format::staged T;
    enum {
        WEIGHT_FLOATS = TILE_OUT * STEP * sizeof(T) / sizeof(float),
        INPUT_FLOATS = WEIGHT_FLOATS + TOKENS * TOKEN_STRIDE,
        OUTPUT_FLOATS = TOKENS * TILE_OUT,
        MEMORY_FLOATS = INPUT_FLOATS > OUTPUT_FLOATS ? INPUT_FLOATS : OUTPUT_FLOATS
    };
    threadgroup float memory[MEMORY_FLOATS]; /* the tiles of W and x; at the end the tile of y */
    threadgroup T *weight_tiles = (threadgroup T *)memory;
    threadgroup float *tokens = memory + WEIGHT_FLOATS;

    const uint num_tokens = header[args.rows];
    const uint first_token = group.x * TOKENS, first_out = group.y * TILE_OUT;
    if (first_token >= num_tokens)
        return;
    const uint row = thread_index / 2, half_step = thread_index % 2;
    device const uchar *w = weights + min(first_out + row, args.out_dim - 1) * args.row_bytes;

    simdgroup_float8x8 sum[TOKENS / 8][2];
    UNROLL
    for (int t = 0; t < TOKENS / 8; ++t) {
        sum[t][0] = make_filled_simdgroup_matrix<float, 8>(0.0f);
        sum[t][1] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    }
    for (uint k = 0; k < args.in_dim; k += STEP) {
        float4 decoded[4];
        Format::decode(w, k / 16 + half_step, decoded);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        store_weights(weight_tiles, decoded, row, 16 * half_step);
        for (uint i = thread_index; i < TOKENS * STEP / 4; i += 128) {
            const uint token = i / (STEP / 4), column = i % (STEP / 4);
            device const float4 *source =
                (device const float4 *)(x + ulong(first_token + token) * args.in_dim + k);
            *(threadgroup float4 *)(tokens + token * TOKEN_STRIDE + 4 * column) =
                first_token + token < num_tokens ? source[column] : float4(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL
        for (uint kk = 0; kk < STEP / 8; ++kk) {
            simdgroup_matrix<T, 8, 8> right[2];
            threadgroup const T *tile = weight_tiles + (kk * (TILE_OUT / 8) + 2 * simdgroup) * 64;
            simdgroup_load(right[0], tile, 8);
            simdgroup_load(right[1], tile + 64, 8);
            UNROLL
            for (int t = 0; t < TOKENS / 8; ++t) {
                simdgroup_float8x8 left;
                simdgroup_load(left, tokens + 8 * t * TOKEN_STRIDE + 8 * kk, TOKEN_STRIDE);
                simdgroup_multiply_accumulate(sum[t][0], left, right[0], sum[t][0]);
                simdgroup_multiply_accumulate(sum[t][1], left, right[1], sum[t][1]);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL
    for (int t = 0; t < TOKENS / 8; ++t)
        UNROLL
        for (int j = 0; j < 2; ++j)
            simdgroup_store(sum[t][j], memory + 8 * t * TILE_OUT + 16 * simdgroup + 8 * j,
                            TILE_OUT);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < TOKENS * TILE_OUT; i += 128) {
        const uint token = first_token + i / TILE_OUT, out = first_out + i % TILE_OUT;
        if (token >= num_tokens || out >= args.out_dim)
            continue;
        device float *target = y + ulong(token) * args.out_dim + out;
        *target = args.accumulate ? *target + memory[i] : memory[i];
    }
}

#define INSTANCE(type, Format)                                       \
    INSTANTIATE("linear_" #type "_mm8", linear_mm<Format, 8>)   \
    INSTANTIATE("linear_" #type "_mm16", linear_mm<Format, 16>) \
    INSTANTIATE("linear_" #type "_mm32", linear_mm<Format, 32>) \
    INSTANTIATE("linear_" #type "_mm64", linear_mm<Format, 64>)
FOR_EACH_FORMAT(INSTANCE)
