/* matrix.h: 8x8 matrices of a SIMD group by element.
 *
 * A lane holds two neighbours of a row: (matrix_row, matrix_column) and the one to its right.
 * Apple does not document this map, but MLX relies on it on every chip; the self-test on a Mac
 * fails at once if it changes. thread_elements() is called by all lanes together. */
#ifndef MTLQ_MATRIX_H
#define MTLQ_MATRIX_H

#include <metal_simdgroup_matrix>

#include "common.h"

inline uint matrix_row(uint lane)
{
    return ((lane >> 2) & 4) + ((lane >> 1) & 3);
}

inline uint matrix_column(uint lane)
{
    return ((lane >> 1) & 4) + 2 * (lane & 1);
}

inline simdgroup_float8x8 zero_matrix()
{
    return make_filled_simdgroup_matrix<float, 8>(0.0f);
}

inline void scale_rows(thread simdgroup_float8x8 &m, float factor)
{
    m.thread_elements()[0] *= factor;
    m.thread_elements()[1] *= factor;
}

/* The transposed of eight rows of source, zero from num_rows on. */
inline void load_rows_transposed(thread simdgroup_float8x8 &m, device const float *source,
                                 ulong stride, uint num_rows, uint lane)
{
    const uint row = matrix_column(lane);
    device const float *p = source + row * stride + matrix_row(lane);
    m.thread_elements()[0] = row < num_rows ? p[0] : 0.0f;
    m.thread_elements()[1] = row + 1 < num_rows ? p[stride] : 0.0f;
}

/* Eight rows, zero from num_rows on: what lies behind a sequence is not ours to read. */
inline void load_rows(thread simdgroup_float8x8 &m, device const float *source, ulong stride,
                      uint num_rows, uint lane)
{
    const uint row = matrix_row(lane);
    device const float *p = source + row * stride + matrix_column(lane);
    const bool is_row = row < num_rows;
    m.thread_elements()[0] = is_row ? p[0] : 0.0f;
    m.thread_elements()[1] = is_row ? p[1] : 0.0f;
}

inline void load_rows(thread simdgroup_half8x8 &m, device const half *source, ulong stride,
                      uint num_rows, uint lane)
{
    const uint row = matrix_row(lane);
    device const half *p = source + row * stride + matrix_column(lane);
    const bool is_row = row < num_rows;
    m.thread_elements()[0] = is_row ? p[0] : half(0.0f);
    m.thread_elements()[1] = is_row ? p[1] : half(0.0f);
}

#endif
