// metal_cuda.h: the Metal language as CUDA through nvcc. A SIMD group is a warp, threadgroup memory
// is __shared__, address spaces are erased. What it leans on are rules of the house: helpers are
// inline, all 32 lanes take part in SIMD operations, vectors are used by component and as a whole.
#pragma once
#include "../emulator/runtime.h"

#include <cuda_fp16.h>

#include <cstring>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define M_INLINE __device__ __forceinline__
#define M_DEVICE
#define M_CONSTANT const
#define M_THREADGROUP
#define M_THREAD
#define M_TABLE static __constant__ const
#define M_KERNEL static __device__
#define M_THREADGROUP_VARIABLE(type, name, dims) __shared__ type name dims;
#define M_FUNCTION_CONSTANT(type, name, index)                     \
    static __constant__ type name;                                 \
    extern "C" METAL_EXPORT void metal_constant_##index(const void *p) \
    {                                                              \
        cudaMemcpyToSymbol(name, p, sizeof(type));                 \
    }
#define M_UNWRAP(...) __VA_ARGS__
// What the driver passes around as an entry launches the kernel (see launch.cu).
#define M_ENTRY(name, function, ...)                                                   \
    static __global__ void kernel_##name(metal_emulator::Buffers buffers)              \
    {                                                                                  \
        metal_emulator::call(&M_UNWRAP function, buffers, metal_emulator::List<__VA_ARGS__>{}); \
    }                                                                                  \
    extern "C" METAL_EXPORT void metal_entry_##name(const metal_launch *l)             \
    {                                                                                  \
        metal_emulator::Buffers buffers;                                               \
        memcpy(&buffers, l->buffers, sizeof buffers);                                  \
        kernel_##name<<<dim3(l->groups[0], l->groups[1], l->groups[2]),                \
                        dim3(l->threads[0], l->threads[1], l->threads[2]), 0,          \
                        metal_emulator::stream>>>(buffers);                            \
    }

namespace metal_emulator {

extern cudaStream_t stream;

// ---- vectors ----
template <class T, int N>
struct Fields;
template <class T>
struct alignas(2 * sizeof(T)) Fields<T, 2> {
    T x, y;
};
template <class T>
struct alignas(4 * sizeof(T)) Fields<T, 3> {
    T x, y, z;
};
template <class T>
struct alignas(4 * sizeof(T)) Fields<T, 4> {
    T x, y, z, w;
};
template <class T, int N>
struct Vector;
template <class A>
struct Parts {
    static constexpr int count = 1;
};
template <class T, int N>
struct Parts<Vector<T, N>> {
    static constexpr int count = N;
};
template <class To, class From>
M_INLINE To convert(From v)
{
    if constexpr (__is_same(To, half) || __is_same(From, half))
        return (To)(float)v;
    else
        return (To)v;
}
template <class T, int N>
struct Vector : Fields<T, N> {
    Vector() = default;
    template <class... A>
    M_INLINE explicit Vector(A... a)
    {
        if constexpr (sizeof...(A) == 1 && (Parts<A>::count + ...) == 1) {
            for (int k = 0; k < N; ++k)
                (*this)[k] = convert<T>((a, ...));
        } else {
            static_assert((Parts<A>::count + ...) == N, "wrong number of vector components");
            int i = 0;
            (append(i, a), ...);
        }
    }
    M_INLINE T &operator[](int i) { return (&this->x)[i]; }
    M_INLINE const T &operator[](int i) const { return (&this->x)[i]; }

private:
    template <class A>
    M_INLINE void append(int &i, A a)
    {
        if constexpr (Parts<A>::count > 1)
            for (int k = 0; k < Parts<A>::count; ++k)
                (*this)[i++] = convert<T>(a[k]);
        else
            (*this)[i++] = convert<T>(a);
    }
};
template <class T>
struct Same {
    typedef T type;
};
#define M_OPERATOR(op)                                                           \
    template <class T, int N>                                                    \
    M_INLINE Vector<T, N> operator op(Vector<T, N> a, Vector<T, N> b)            \
    {                                                                            \
        Vector<T, N> r;                                                          \
        for (int i = 0; i < N; ++i)                                              \
            r[i] = T(a[i] op b[i]);                                              \
        return r;                                                                \
    }                                                                            \
    template <class T, int N>                                                    \
    M_INLINE Vector<T, N> operator op(Vector<T, N> a, typename Same<T>::type b)  \
    {                                                                            \
        return a op Vector<T, N>(b);                                             \
    }
M_OPERATOR(+) M_OPERATOR(-) M_OPERATOR(*) M_OPERATOR(&) M_OPERATOR(|) M_OPERATOR(>>) M_OPERATOR(<<)

// ---- parameters of a kernel ----
struct Buffers {
    void *pointers[31];
};
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
    static M_INLINE P get(const Buffers &b)
    {
        if constexpr (Bare<P>::is_reference)
            return *(typename Bare<P>::type *)b.pointers[I];
        else
            return (P)b.pointers[I];
    }
};
template <class P>
M_INLINE P position(uint x, uint y, uint z)
{
    if constexpr (Parts<P>::count == 3)
        return P(x, y, z);
    else if constexpr (Parts<P>::count == 2)
        return P(x, y);
    else
        return P(x);
}
#define M_POSITION(Name, X, Y, Z) \
    struct Name {                 \
        template <class P>        \
        static M_INLINE P get(const Buffers &) { return position<P>(X, Y, Z); } \
    };
M_INLINE uint index_in_group()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
M_POSITION(ThreadPositionInGrid, blockIdx.x *blockDim.x + threadIdx.x,
           blockIdx.y *blockDim.y + threadIdx.y, blockIdx.z *blockDim.z + threadIdx.z)
M_POSITION(ThreadPositionInGroup, threadIdx.x, threadIdx.y, threadIdx.z)
M_POSITION(GroupPosition, blockIdx.x, blockIdx.y, blockIdx.z)
M_POSITION(ThreadsPerGrid, gridDim.x *blockDim.x, gridDim.y *blockDim.y, gridDim.z *blockDim.z)
M_POSITION(ThreadsPerGroup, blockDim.x, blockDim.y, blockDim.z)
M_POSITION(GroupsPerGrid, gridDim.x, gridDim.y, gridDim.z)
M_POSITION(IndexInGroup, index_in_group(), 0, 0)
M_POSITION(Lane, index_in_group() % 32, 0, 0)
M_POSITION(SimdgroupIndex, index_in_group() / 32, 0, 0)
M_POSITION(NumSimdgroups, (blockDim.x * blockDim.y * blockDim.z + 31) / 32, 0, 0)
template <class... S>
struct List {
};
template <class... P, class... S>
M_INLINE void call(void (*f)(P...), const Buffers &b, List<S...>)
{
    f(S::template get<P>(b)...);
}
} // namespace metal_emulator

// CUDA has vectors of these names: the kernels' are ours.
typedef metal_emulator::Vector<float, 2> m_float2;
typedef metal_emulator::Vector<float, 4> m_float4;
typedef metal_emulator::Vector<half, 2> m_half2;
typedef metal_emulator::Vector<half, 4> m_half4;
typedef metal_emulator::Vector<ushort, 2> m_ushort2;
typedef metal_emulator::Vector<uint, 2> m_uint2;
typedef metal_emulator::Vector<uint, 3> m_uint3;
typedef metal_emulator::Vector<uint, 4> m_uint4;
#define float2 m_float2
#define float4 m_float4
#define half2 m_half2
#define half4 m_half4
#define ushort2 m_ushort2
#define uint2 m_uint2
#define uint3 m_uint3
#define uint4 m_uint4

struct packed_ushort2 {
    ushort x, y;
    M_INLINE operator ushort2() const { return ushort2(x, y); }
};

#include "metal_cuda_simd.h"
