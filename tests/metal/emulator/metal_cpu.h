// metal_cpu.h: the Metal language on the CPU through clang. Vectors are ext_vector_type; half is
// _Float16 with each operation rounded; address spaces are erased, except under METAL_LINT, where
// they are clang's own and a pointer that lost its qualifier is an error, as in Metal.
#pragma once
#include "runtime.h"

#include <stddef.h>
#include <stdint.h>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;

#define M_INLINE inline
#if defined(METAL_LINT)
#define M_DEVICE __attribute__((address_space(1)))
#define M_CONSTANT const __attribute__((address_space(2)))
#define M_THREADGROUP __attribute__((address_space(3)))
#else
#define M_DEVICE
#define M_CONSTANT const
#define M_THREADGROUP
#endif
#define M_THREAD
#define M_TABLE static M_CONSTANT
#define M_KERNEL static __attribute__((noinline))

#define M_THREADGROUP_VARIABLE(type, name, dims)            \
    static const char name##_key = 0;                       \
    typedef M_THREADGROUP type name##_type dims;            \
    name##_type &name = *(name##_type *)metal_threadgroup_memory(&name##_key, sizeof(name##_type));

#define M_EXPORT extern "C" __attribute__((visibility("default")))
#define M_FUNCTION_CONSTANT(type, name, index)     \
    static type name;                              \
    M_EXPORT void metal_constant_##index(const void *p) \
    {                                              \
        name = *(const type *)p;                   \
    }
#define M_UNWRAP(...) __VA_ARGS__
#define M_ENTRY(name, function, ...)                                                      \
    M_EXPORT void metal_entry_##name(const metal_thread *t)                               \
    {                                                                                     \
        metal_emulator::call(&M_UNWRAP function, t, metal_emulator::List<__VA_ARGS__>{}); \
    }

namespace metal {
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
}
#define M_VECTORS(T)               \
    typedef metal::vec<T, 2> T##2; \
    typedef metal::vec<T, 3> T##3; \
    typedef metal::vec<T, 4> T##4;
M_VECTORS(float) M_VECTORS(half) M_VECTORS(uchar) M_VECTORS(ushort) M_VECTORS(int) M_VECTORS(uint)
typedef ushort packed_ushort2 __attribute__((ext_vector_type(2), aligned(2)));

namespace metal_emulator {

// ---- parameters of a kernel ----
template <class P>
struct Bare {
    static constexpr bool is_reference = false;
};
template <class T>
struct Bare<T &> {
    static constexpr bool is_reference = true;
    typedef T type;
};
template <int I>
struct Buffer {
    template <class P>
    static P get(const metal_thread *t)
    {
        if constexpr (Bare<P>::is_reference)
            return *(typename Bare<P>::type *)t->buffers[I];
        else
            return (P)t->buffers[I];
    }
};
template <class P>
P position(const uint32_t *v)
{
    if constexpr (requires(P p) { p.z; })
        return P{v[0], v[1], v[2]};
    else if constexpr (requires(P p) { p.y; })
        return P{v[0], v[1]};
    else
        return (P)v[0];
}
#define M_POSITION(Name, field) \
    struct Name {               \
        template <class P>      \
        static P get(const metal_thread *t) { return position<P>(t->field); } \
    };
#define M_INDEX(Name, field) \
    struct Name {            \
        template <class P>   \
        static P get(const metal_thread *t) { return (P)t->field; } \
    };
M_POSITION(ThreadPositionInGrid, position_in_grid)
M_POSITION(ThreadPositionInGroup, position_in_group)
M_POSITION(GroupPosition, group_position)
M_POSITION(ThreadsPerGrid, threads_per_grid)
M_POSITION(ThreadsPerGroup, threads_per_group)
M_POSITION(GroupsPerGrid, groups_per_grid)
M_INDEX(IndexInGroup, index_in_group)
M_INDEX(Lane, lane)
M_INDEX(SimdgroupIndex, simdgroup)
M_INDEX(NumSimdgroups, num_simdgroups)
template <class... S>
struct List {
};
template <class... P, class... S>
inline void call(void (*f)(P...), const metal_thread *t, List<S...>)
{
    static_assert(sizeof...(P) == sizeof...(S));
    f(S::template get<P>(t)...);
}

// ---- vector constructors: float4(s), float4(v), float4(x, y, z, w), ... ----
template <class A>
constexpr int num_parts()
{
    if constexpr (requires(A a) { a.w; })
        return 4;
    else if constexpr (requires(A a) { a.z; })
        return 3;
    else if constexpr (requires(A a) { a.y; })
        return 2;
    else
        return 1;
}
template <class V, class E, class A>
inline void append(V &r, int &i, A a)
{
    if constexpr (num_parts<A>() > 1)
        for (int k = 0; k < num_parts<A>(); ++k)
            r[i++] = (E)a[k];
    else
        r[i++] = (E)a;
}
template <class E, int N, class... A>
inline metal::vec<E, N> make(A... a)
{
    constexpr int total = (num_parts<A>() + ...);
    metal::vec<E, N> r;
    if constexpr (sizeof...(A) == 1 && total == 1) {
        r = (metal::vec<E, N>)(E)(a, ...);
    } else {
        static_assert(total == N, "wrong number of vector components");
        int i = 0;
        (append<metal::vec<E, N>, E>(r, i, a), ...);
    }
    return r;
}
} // namespace metal_emulator
#define float2(...) metal_emulator::make<float, 2>(__VA_ARGS__)
#define float4(...) metal_emulator::make<float, 4>(__VA_ARGS__)
#define half4(...) metal_emulator::make<half, 4>(__VA_ARGS__)
#define uint2(...) metal_emulator::make<uint, 2>(__VA_ARGS__)
#define uint4(...) metal_emulator::make<uint, 4>(__VA_ARGS__)

namespace metal {
template <class T>
inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
inline T max(T a, T b) { return a < b ? b : a; }
inline float exp(float x) { return __builtin_expf(x); }
inline float log(float x) { return __builtin_logf(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float4 fma(float4 a, float4 b, float4 c) { return __builtin_elementwise_fma(a, b, c); }
inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
template <class To, class From>
inline To as_type(From v)
{
    return __builtin_bit_cast(To, v);
}
} // namespace metal

#include "metal_cpu_simd.h"
