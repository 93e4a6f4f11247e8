// metal_cpu_simd.h: barriers, SIMD operations and 8x8 matrices on the fibre runtime.
#pragma once

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

inline void threadgroup_barrier(mem_flags, int line = __builtin_LINE())
{
    metal_threadgroup_barrier(line);
}
inline void simdgroup_barrier(mem_flags, int line = __builtin_LINE())
{
    metal_simdgroup_barrier(line);
}

enum { OP_SUM, OP_MAX, OP_MIN, OP_PREFIX, OP_SHUFFLE, OP_SHUFFLE_XOR, OP_MULTIPLY };

template <class T>
inline const T &slot(const void *slots, int lane)
{
    return *(const T *)((const char *)slots + METAL_SLOT_BYTES * lane);
}

// What the last lane computes from all slots must not look like an access of that lane to TSan.
#define M_RUNTIME __attribute__((no_sanitize("thread")))

// A pairwise tree, as hardware does it.
template <class T, class F>
M_RUNTIME inline void reduce_tree(const void *slots, void *result, F join)
{
    T t[32];
    for (int lane = 0; lane < 32; ++lane)
        t[lane] = slot<T>(slots, lane);
    for (int half = 16; half; half /= 2)
        for (int lane = 0; lane < half; ++lane)
            t[lane] = join(t[lane], t[lane + half]);
    *(T *)result = t[0];
}
#define M_REDUCTION(name, operation, expression)                                               \
    template <class T>                                                                         \
    M_RUNTIME inline void name##_slots(const void *slots, void *result)                        \
    {                                                                                          \
        reduce_tree<T>(slots, result, [](T a, T b) { return expression; });                    \
    }                                                                                          \
    template <class T>                                                                         \
    inline T name(T v, int line = __builtin_LINE())                                            \
    {                                                                                          \
        return *(const T *)metal_collect(&v, sizeof v, line, operation, name##_slots<T>);      \
    }
M_REDUCTION(simd_sum, OP_SUM, a + b)
M_REDUCTION(simd_max, OP_MAX, b > a ? b : a)
M_REDUCTION(simd_min, OP_MIN, b < a ? b : a)

template <class T>
M_RUNTIME inline T simd_prefix_inclusive_sum(T v, int line = __builtin_LINE())
{
    const void *slots = metal_exchange(&v, sizeof v, line, OP_PREFIX);
    T sum(0);
    for (int lane = 0; lane <= int(metal_lane()); ++lane)
        sum += slot<T>(slots, lane);
    return sum;
}
template <class T>
M_RUNTIME inline T simd_shuffle_xor(T v, ushort mask, int line = __builtin_LINE())
{
    const void *slots = metal_exchange(&v, sizeof v, line, OP_SHUFFLE_XOR);
    return slot<T>(slots, (metal_lane() ^ mask) & 31);
}

// ---- simdgroup_matrix: two elements a lane, at Apple's places ----
inline int element_row(int lane) { return ((lane >> 2) & 4) + ((lane >> 1) & 3); }
inline int element_column(int lane) { return ((lane >> 1) & 4) + (lane & 1) * 2; }

template <class T, int R, int C>
struct simdgroup_matrix {
    static_assert(R == 8 && C == 8);
    vec<T, 2> elements;
    vec<T, 2> &thread_elements() { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <class T, int R, int C = R>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v)
{
    return {{v, v}};
}
template <class T, class P>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, P p, ulong stride)
{
    const int lane = metal_lane();
    p += element_row(lane) * stride + element_column(lane);
    m.elements = {p[0], p[1]};
}
template <class T, class P>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P p, ulong stride)
{
    const int lane = metal_lane();
    p += element_row(lane) * stride + element_column(lane);
    p[0] = m.elements.x;
    p[1] = m.elements.y;
}

template <class A, class B>
struct Operands {
    vec<A, 2> a;
    vec<B, 2> b;
};
template <class A, class B>
M_RUNTIME inline void multiply_slots(const void *slots, void *result)
{
    float a[8][8];
    vec<float, 8> b[8], *product = (vec<float, 8> *)result;
    for (int lane = 0; lane < 32; ++lane) {
        const auto &in = slot<Operands<A, B>>(slots, lane);
        const int row = element_row(lane), column = element_column(lane);
        a[row][column] = in.a.x;
        a[row][column + 1] = in.a.y;
        b[row][column] = in.b.x;
        b[row][column + 1] = in.b.y;
    }
    for (int row = 0; row < 8; ++row) {
        product[row] = a[row][0] * b[0];
        for (int k = 1; k < 8; ++k)
            product[row] += a[row][k] * b[k];
    }
}
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c,
                                          int line = __builtin_LINE())
{
    const Operands<A, B> in = {a.elements, b.elements};
    const float *product =
        (const float *)metal_collect(&in, sizeof in, line, OP_MULTIPLY, multiply_slots<A, B>);
    const int lane = metal_lane(), at = element_row(lane) * 8 + element_column(lane);
    d.elements = {D(product[at] + float(c.elements.x)), D(product[at + 1] + float(c.elements.y))};
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                               simdgroup_matrix<B, 8, 8> b, int line = __builtin_LINE())
{
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8>(0.0f), line);
}
} // namespace metal
