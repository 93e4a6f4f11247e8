// metal_cuda_simd.h: functions of the Metal library, barriers, SIMD operations and 8x8 matrices for
// nvcc.
#pragma once

namespace metal {

M_INLINE float4 fma(float4 a, float4 b, float4 c)
{
    return float4(::fma(a.x, b.x, c.x), ::fma(a.y, b.y, c.y), ::fma(a.z, b.z, c.z),
                  ::fma(a.w, b.w, c.w));
}
M_INLINE float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
template <class To, class From>
M_INLINE To as_type(From v)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &v, sizeof to);
    return to;
}

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
M_INLINE void threadgroup_barrier(mem_flags) { __syncthreads(); }
M_INLINE void simdgroup_barrier(mem_flags) { __syncwarp(); }

constexpr uint kAll = 0xFFFFFFFF;
M_INLINE uint lane_index() { return metal_emulator::index_in_group() % 32; }

template <class T>
M_INLINE T simd_sum(T v)
{
    for (int half = 16; half; half /= 2)
        v = v + __shfl_down_sync(kAll, v, half);
    return __shfl_sync(kAll, v, 0);
}
template <class T>
M_INLINE T simd_max(T v)
{
    for (int mask = 16; mask; mask /= 2)
        v = max(v, __shfl_xor_sync(kAll, v, mask));
    return v;
}
template <class T>
M_INLINE T simd_min(T v)
{
    for (int mask = 16; mask; mask /= 2)
        v = min(v, __shfl_xor_sync(kAll, v, mask));
    return v;
}
template <class T>
M_INLINE T simd_prefix_inclusive_sum(T v)
{
    for (int distance = 1; distance < 32; distance *= 2) {
        const T other = __shfl_up_sync(kAll, v, distance);
        if (lane_index() >= distance)
            v += other;
    }
    return v;
}
template <class T>
M_INLINE T simd_shuffle_xor(T v, ushort mask) { return __shfl_xor_sync(kAll, v, mask); }

// ---- simdgroup_matrix: two elements a lane, at Apple's places; products by shuffles, in f32 ----
M_INLINE int element_row(int lane) { return ((lane >> 2) & 4) + ((lane >> 1) & 3); }
M_INLINE int element_column(int lane) { return ((lane >> 1) & 4) + (lane & 1) * 2; }
M_INLINE int lane_of(int row, int column)
{
    return (row & 4) << 2 | (column & 4) << 1 | (row & 3) << 1 | (column & 2) >> 1;
}

template <class T, int R, int C>
struct simdgroup_matrix {
    static_assert(R == 8 && C == 8);
    metal_emulator::Vector<T, 2> elements;
    M_INLINE metal_emulator::Vector<T, 2> &thread_elements() { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <class T, int R, int C = R>
M_INLINE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v)
{
    simdgroup_matrix<T, R, C> m;
    m.elements.x = m.elements.y = v;
    return m;
}
template <class T, class P>
M_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, P p, ulong stride)
{
    const int lane = lane_index();
    p += element_row(lane) * stride + element_column(lane);
    m.elements.x = p[0];
    m.elements.y = p[1];
}
template <class T, class P>
M_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P p, ulong stride)
{
    const int lane = lane_index();
    p += element_row(lane) * stride + element_column(lane);
    p[0] = m.elements.x;
    p[1] = m.elements.y;
}
template <class D, class A, class B, class C>
M_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d,
                                            simdgroup_matrix<A, 8, 8> a,
                                            simdgroup_matrix<B, 8, 8> b,
                                            simdgroup_matrix<C, 8, 8> c)
{
    const int lane = lane_index(), row = element_row(lane), column = element_column(lane);
    const float a0 = a.elements.x, a1 = a.elements.y, b0 = b.elements.x, b1 = b.elements.y;
    float x = 0.0f, y = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const float left = __shfl_sync(kAll, k & 1 ? a1 : a0, lane_of(row, k));
        x += left * __shfl_sync(kAll, b0, lane_of(k, column));
        y += left * __shfl_sync(kAll, b1, lane_of(k, column));
    }
    d.elements.x = D(x + float(c.elements.x));
    d.elements.y = D(y + float(c.elements.y));
}
template <class D, class A, class B>
M_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                 simdgroup_matrix<B, 8, 8> b)
{
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8>(0.0f));
}
} // namespace metal
