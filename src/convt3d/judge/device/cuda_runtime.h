// CUDA C++ on a CPU, as far as kernels for the problems need it: a block is run at a time, its threads are fibers of one
// thread, shared memory is thread-local memory. device.cpp schedules the fibers and looks for races.
#pragma once
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ static thread_local
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define CONVT3D_UNSEEN __attribute__((no_sanitize("thread"), noinline))

// --- vectors ---------------------------------------------------------------------------------------------------------

#define CONVT3D_VECTORS(T, name)                                                                                        \
    struct name##1 { T x; };                                                                                            \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                                  \
    struct name##3 { T x, y, z; };                                                                                      \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };                                  \
    inline name##1 make_##name##1(T x) { return {x}; }                                                                  \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                          \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                                  \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CONVT3D_VECTORS(float, float)
CONVT3D_VECTORS(double, double)
CONVT3D_VECTORS(int, int)
CONVT3D_VECTORS(unsigned, uint)
CONVT3D_VECTORS(short, short)
CONVT3D_VECTORS(unsigned short, ushort)
CONVT3D_VECTORS(signed char, char)
CONVT3D_VECTORS(unsigned char, uchar)
CONVT3D_VECTORS(long long, longlong)
CONVT3D_VECTORS(unsigned long long, ulonglong)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

// --- the device ------------------------------------------------------------------------------------------------------

namespace convt3d_device {

struct Thread {
    uint3 thread, block;
};
extern Thread now;  // the one that runs
extern dim3 grid, block_size;

enum class Shuffle { index, up, down, exclusive };

void barrier(const void* site);
int barrier_with(int value, int how, const void* site);  // how: 0 counts, 1 and, 2 or
void warp_barrier(unsigned mask, const void* site);
unsigned long long shuffled(unsigned mask, unsigned long long bits, Shuffle how, int argument, int width, const void* site);
unsigned ballot(unsigned mask, int value, const void* site);
unsigned active();
void fenced();
void atomic(const void* place, size_t bytes, const void* site);
void* dynamic_shared();
void launch(dim3 grid, dim3 block, size_t shared, const char* name, const std::function<void()>& body);
void* allocate(size_t bytes);
void release(void* place);
void largest_shared(size_t bytes);
[[noreturn]] void trap(const char* words);

struct Launch {
    dim3 grid, block;
    size_t shared;
    template <class Stream = int>
    Launch(dim3 grid, dim3 block, size_t shared = 0, Stream = 0) : grid(grid), block(block), shared(shared) {}
    template <class Body>
    void run(const char* name, Body body) const { launch(grid, block, shared, name, body); }
};

// A conversion of types that the problems know: the bits of a value in the low end of 64.
template <class T>
CONVT3D_UNSEEN unsigned long long bits_of(T value)
{
    static_assert(sizeof(T) <= 8, "warps exchange values of at most 8 bytes");
    unsigned long long bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T>
CONVT3D_UNSEEN T of_bits(unsigned long long bits)
{
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T, class F>
CONVT3D_UNSEEN T changed(T* place, F change)
{
    atomic(place, sizeof(T), __builtin_return_address(0));
    const T old = *place;
    *place = change(old);
    return old;
}

}  // namespace convt3d_device

#define threadIdx (convt3d_device::now.thread)
#define blockIdx (convt3d_device::now.block)
#define blockDim (convt3d_device::block_size)
#define gridDim (convt3d_device::grid)
constexpr int warpSize = 32;

#define CONVT3D_SITE __builtin_return_address(0)
CONVT3D_UNSEEN inline void __syncthreads() { convt3d_device::barrier(CONVT3D_SITE); }
CONVT3D_UNSEEN inline int __syncthreads_count(int value) { return convt3d_device::barrier_with(value, 0, CONVT3D_SITE); }
CONVT3D_UNSEEN inline int __syncthreads_and(int value) { return convt3d_device::barrier_with(value, 1, CONVT3D_SITE); }
CONVT3D_UNSEEN inline int __syncthreads_or(int value) { return convt3d_device::barrier_with(value, 2, CONVT3D_SITE); }
CONVT3D_UNSEEN inline void __syncwarp(unsigned mask = 0xffffffffu) { convt3d_device::warp_barrier(mask, CONVT3D_SITE); }
inline void __threadfence() { convt3d_device::fenced(); }
inline void __threadfence_block() {}
inline void __threadfence_system() { convt3d_device::fenced(); }
inline unsigned __activemask() { return convt3d_device::active(); }
CONVT3D_UNSEEN inline unsigned __ballot_sync(unsigned mask, int value) { return convt3d_device::ballot(mask, value, CONVT3D_SITE); }
CONVT3D_UNSEEN inline int __any_sync(unsigned mask, int value) { return convt3d_device::ballot(mask, value, CONVT3D_SITE) != 0; }
CONVT3D_UNSEEN inline int __all_sync(unsigned mask, int value) { return convt3d_device::ballot(mask, !value, CONVT3D_SITE) == 0; }
#define CONVT3D_SHUFFLE(name, how, Argument)                                                                            \
    template <class T>                                                                                                  \
    CONVT3D_UNSEEN T name(unsigned mask, T value, Argument argument, int width = 32)                                    \
    {                                                                                                                   \
        using namespace convt3d_device;                                                                                 \
        return of_bits<T>(shuffled(mask, bits_of(value), Shuffle::how, (int)argument, width, CONVT3D_SITE));            \
    }
CONVT3D_SHUFFLE(__shfl_sync, index, int)
CONVT3D_SHUFFLE(__shfl_up_sync, up, unsigned)
CONVT3D_SHUFFLE(__shfl_down_sync, down, unsigned)
CONVT3D_SHUFFLE(__shfl_xor_sync, exclusive, int)
inline void __trap() { convt3d_device::trap("__trap() was called"); }
#undef assert
#define assert(condition) ((condition) ? (void)0 : convt3d_device::trap("assert(" #condition ") does not hold"))

// --- atomics ---------------------------------------------------------------------------------------------------------

#define CONVT3D_ATOMIC(name, expression)                                                                                \
    template <class T, class V>                                                                                         \
    CONVT3D_UNSEEN T name(T* place, V given)                                                                            \
    {                                                                                                                   \
        const T value = (T)given;                                                                                       \
        return convt3d_device::changed(place, [=](T old) -> T { return expression; });                                  \
    }
CONVT3D_ATOMIC(atomicAdd, (T)(old + value))
CONVT3D_ATOMIC(atomicSub, (T)(old - value))
CONVT3D_ATOMIC(atomicExch, ((void)old, value))
CONVT3D_ATOMIC(atomicMin, old < value ? old : value)
CONVT3D_ATOMIC(atomicMax, old > value ? old : value)
CONVT3D_ATOMIC(atomicAnd, (T)(old & value))
CONVT3D_ATOMIC(atomicOr, (T)(old | value))
CONVT3D_ATOMIC(atomicXor, (T)(old ^ value))
CONVT3D_ATOMIC(atomicInc, old >= value ? (T)0 : (T)(old + 1))
CONVT3D_ATOMIC(atomicDec, old == 0 || old > value ? value : (T)(old - 1))
template <class T, class U, class V>
CONVT3D_UNSEEN T atomicCAS(T* place, U expected, V given)
{
    return convt3d_device::changed(place, [=](T old) -> T { return old == (T)expected ? (T)given : old; });
}

// --- arithmetic ------------------------------------------------------------------------------------------------------

template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax((T)a, (T)b);
    else return (T)a > (T)b ? (T)a : (T)b;
}
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin((T)a, (T)b);
    else return (T)a < (T)b ? (T)a : (T)b;
}
template <class T>
inline T __ldg(const T* place) { return *place; }
template <class T>
inline T __ldcs(const T* place) { return *place; }
template <class T>
inline void __stcs(T* place, T value) { *place = value; }
inline float rsqrtf(float x) { return (float)(1.0 / std::sqrt((double)x)); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __int_as_float(int bits) { return convt3d_device::of_bits<float>((unsigned)bits); }
inline int __float_as_int(float x) { return (int)convt3d_device::bits_of(x); }
inline unsigned __float_as_uint(float x) { return (unsigned)convt3d_device::bits_of(x); }
inline float __uint_as_float(unsigned bits) { return convt3d_device::of_bits<float>(bits); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __mul24(int x, int y) { return x * y; }
inline int __umulhi(unsigned x, unsigned y) { return (int)((unsigned long long)x * y >> 32); }

// --- the host's side -------------------------------------------------------------------------------------------------

typedef enum {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2
} cudaError_t;
typedef enum {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
} cudaMemcpyKind;
typedef enum {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9
} cudaFuncAttribute;
typedef struct convt3d_stream* cudaStream_t;
typedef struct convt3d_event* cudaEvent_t;
template <class T>
inline cudaError_t cudaMalloc(T** place, size_t bytes) { *place = (T*)convt3d_device::allocate(bytes); return cudaSuccess; }
template <class T>
inline cudaError_t cudaMallocAsync(T** place, size_t bytes, cudaStream_t) { return cudaMalloc(place, bytes); }
inline cudaError_t cudaFree(void* place) { convt3d_device::release(place); return cudaSuccess; }
inline cudaError_t cudaFreeAsync(void* place, cudaStream_t) { return cudaFree(place); }
inline cudaError_t cudaMemset(void* place, int value, size_t bytes) { std::memset(place, value, bytes); return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* place, int value, size_t bytes, cudaStream_t = 0) { return cudaMemset(place, value, bytes); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind)
{
    std::memmove(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t = 0)
{
    return cudaMemcpy(to, from, bytes, kind);
}
template <class T>
inline cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice)
{
    std::memcpy((char*)&symbol + offset, from, bytes);
    return cudaSuccess;
}
template <class F>
inline cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute which, int value)
{
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) convt3d_device::largest_shared((size_t)value);
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { *stream = nullptr; return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "error"; }
inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
