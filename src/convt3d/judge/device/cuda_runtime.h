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
#include <math.h>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ __attribute__((used)) static thread_local  // used: where nobody writes it the compiler sees no zero
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __builtin_assume(condition)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000
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
CONVT3D_VECTORS(long, long)
CONVT3D_VECTORS(unsigned long, ulong)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
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
unsigned active(const void* site);  // the lanes of the warp that are at the same place
unsigned long long of_lane(unsigned mask, unsigned long long bits, unsigned long long (&all)[32], const void* site);
void wait_for_phase(const uint32_t* phase, uint32_t old, const void* site);
void next_phase(uint32_t* phase);
void too_early(const void* site);  // for a barrier in shared memory
void fenced();
void touched(const void* place, size_t bytes, bool writes, const void* site);  // in an order of lanes that is our own
void copy_later(void* to, const void* from, size_t bytes, size_t zeros, const void* site);
void commit_copies();
void wait_for_copies(size_t left);  // until no more batches than these are to be done
size_t committed_copies();
void atomic(const void* place, size_t bytes, const void* site);
void* dynamic_shared();
struct Dynamic {  // a pointer outside of functions, to dynamic shared memory: each launch sets it
    explicit Dynamic(void** place);
};
struct Launch;
void launch(const Launch& how, const char* name, const std::function<void()>& body);
uint32_t new_stream(bool apart);
uint32_t new_event();
void record_event(uint32_t event, uint32_t stream);
void wait_for_event(uint32_t stream, uint32_t event);
void host_waits_for_event(uint32_t event);
void host_waits(uint32_t stream);
void host_waits_for_all();
void moved(const char* name, void* to, const void* from, size_t bytes, uint32_t stream);  // by a copy that is a launch
void* allocate(size_t bytes, bool shared_with_host = false);
void release(void* place);
void largest_shared(size_t bytes);
[[noreturn]] void trap(const char* words);
void unplayed(const char* words);  // what a GPU can do and this cannot

struct Stream {
    uint32_t number = 0;
    Stream() = default;
    Stream(std::nullptr_t) {}
    explicit Stream(uint32_t number) : number(number) {}
    template <class Zero, class = std::enable_if_t<std::is_integral_v<Zero>>>
    Stream(Zero) {}
    friend bool operator==(Stream a, Stream b) { return a.number == b.number; }
    friend bool operator!=(Stream a, Stream b) { return a.number != b.number; }
};

struct Launch {
    dim3 grid, block;
    size_t shared;
    uint32_t stream;
    uint64_t bound = 0;  // of threads, by __launch_bounds__; 0: none
    Launch(dim3 grid, dim3 block, size_t shared = 0, Stream stream = {})
        : grid(grid), block(block), shared(shared), stream(stream.number) {}
    template <class Body>
    void run(const char* name, Body body, uint64_t most = 0)
    {
        bound = most;
        launch(*this, name, body);
    }
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
CONVT3D_UNSEEN inline unsigned __activemask() { return convt3d_device::active(CONVT3D_SITE); }
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
#define CONVT3D_REDUCE(name, expression)                                                                                \
    template <class T>                                                                                                  \
    CONVT3D_UNSEEN T name(unsigned mask, T value)                                                                       \
    {                                                                                                                   \
        unsigned long long all[32];                                                                                     \
        convt3d_device::of_lane(mask, convt3d_device::bits_of(value), all, CONVT3D_SITE);                               \
        T a = value;                                                                                                    \
        bool first = true;                                                                                              \
        for (int lane = 0; lane < 32; ++lane) {                                                                         \
            if (!(mask >> lane & 1)) continue;                                                                          \
            const T b = convt3d_device::of_bits<T>(all[lane]);                                                          \
            a = first ? b : (T)(expression), first = false;                                                             \
        }                                                                                                               \
        return a;                                                                                                       \
    }
CONVT3D_REDUCE(__reduce_add_sync, a + b)
CONVT3D_REDUCE(__reduce_min_sync, a < b ? a : b)
CONVT3D_REDUCE(__reduce_max_sync, a > b ? a : b)
CONVT3D_REDUCE(__reduce_and_sync, a & b)
CONVT3D_REDUCE(__reduce_or_sync, a | b)
CONVT3D_REDUCE(__reduce_xor_sync, a ^ b)
template <class T>
CONVT3D_UNSEEN unsigned __match_any_sync(unsigned mask, T value)
{
    unsigned long long all[32];
    const unsigned long long own = convt3d_device::of_lane(mask, convt3d_device::bits_of(value), all, CONVT3D_SITE);
    unsigned same = 0;
    for (int lane = 0; lane < 32; ++lane) same |= (mask >> lane & 1 && all[lane] == own) ? 1u << lane : 0u;
    return same;
}
template <class T>
CONVT3D_UNSEEN unsigned __match_all_sync(unsigned mask, T value, int* all_same)
{
    unsigned long long all[32];
    const unsigned long long own = convt3d_device::of_lane(mask, convt3d_device::bits_of(value), all, CONVT3D_SITE);
    *all_same = 1;
    for (int lane = 0; lane < 32; ++lane) *all_same &= !(mask >> lane & 1) || all[lane] == own;
    return *all_same ? mask : 0u;
}
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
// A device in software has one scope for all threads.
#define CONVT3D_SCOPES(name)                                                                                            \
    template <class... A>                                                                                               \
    inline auto name##_block(A... given) { return name(given...); }                                                     \
    template <class... A>                                                                                               \
    inline auto name##_system(A... given) { return name(given...); }
CONVT3D_SCOPES(atomicAdd)
CONVT3D_SCOPES(atomicExch)
CONVT3D_SCOPES(atomicMin)
CONVT3D_SCOPES(atomicMax)
CONVT3D_SCOPES(atomicAnd)
CONVT3D_SCOPES(atomicOr)
CONVT3D_SCOPES(atomicCAS)

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
#define CONVT3D_LOAD(name)                                                                                              \
    template <class T>                                                                                                  \
    inline T name(const T* place) { return *place; }
#define CONVT3D_STORE(name)                                                                                             \
    template <class T>                                                                                                  \
    inline void name(T* place, T value) { *place = value; }
CONVT3D_LOAD(__ldg)
CONVT3D_LOAD(__ldca)
CONVT3D_LOAD(__ldcg)
CONVT3D_LOAD(__ldcs)
CONVT3D_LOAD(__ldlu)
CONVT3D_LOAD(__ldcv)
CONVT3D_STORE(__stwb)
CONVT3D_STORE(__stcg)
CONVT3D_STORE(__stcs)
CONVT3D_STORE(__stwt)
inline float rsqrtf(float x) { return (float)(1.0 / std::sqrt((double)x)); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rcbrtf(float x) { return 1.0f / std::cbrt(x); }
inline float normcdff(float x) { return 0.5f * std::erfc(-0.70710678f * x); }
inline double normcdf(double x) { return 0.5 * std::erfc(-0.70710678118654752 * x); }
inline float erfcxf(float x) { return (float)(std::exp((double)x * x) * std::erfc((double)x)); }
inline float exp10f(float x) { return (float)std::pow(10.0, (double)x); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline void __sincosf(float x, float* sine, float* cosine) { *sine = std::sin(x), *cosine = std::cos(x); }
inline float sinpif(float x) { return (float)std::sin(3.14159265358979323846 * std::fmod((double)x, 2.0)); }
inline float cospif(float x) { return (float)std::cos(3.14159265358979323846 * std::fmod((double)x, 2.0)); }
inline void sincospif(float x, float* sine, float* cosine) { *sine = sinpif(x), *cosine = cospif(x); }
inline float norm3df(float a, float b, float c) { return (float)std::sqrt((double)a * a + (double)b * b + (double)c * c); }
inline float norm4df(float a, float b, float c, float d) { return std::hypot(norm3df(a, b, c), d); }
inline float rhypotf(float a, float b) { return 1.0f / std::hypot(a, b); }
inline float rnorm3df(float a, float b, float c) { return 1.0f / norm3df(a, b, c); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __int_as_float(int bits) { return convt3d_device::of_bits<float>((unsigned)bits); }
inline int __float_as_int(float x) { return (int)convt3d_device::bits_of(x); }
inline unsigned __float_as_uint(float x) { return (unsigned)convt3d_device::bits_of(x); }
inline float __uint_as_float(unsigned bits) { return convt3d_device::of_bits<float>(bits); }
inline long long __double_as_longlong(double x) { return (long long)convt3d_device::bits_of(x); }
inline double __longlong_as_double(long long bits) { return convt3d_device::of_bits<double>((unsigned long long)bits); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __double2float_rn(double x) { return (float)x; }
inline int __float2int_rn(float x) { return (int)std::nearbyint(x); }
inline int __float2int_rd(float x) { return (int)std::floor(x); }
inline int __float2int_ru(float x) { return (int)std::ceil(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline unsigned __float2uint_rn(float x) { return (unsigned)std::nearbyint(x); }
inline unsigned __float2uint_rd(float x) { return (unsigned)std::floor(x); }
inline unsigned __float2uint_ru(float x) { return (unsigned)std::ceil(x); }
inline unsigned __float2uint_rz(float x) { return (unsigned)x; }
inline long long __float2ll_rn(float x) { return (long long)std::nearbyint(x); }
inline long long __float2ll_rz(float x) { return (long long)x; }
inline unsigned long long __float2ull_rn(float x) { return (unsigned long long)std::nearbyint(x); }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __ull2float_rn(unsigned long long x) { return (float)x; }
inline int __double2int_rn(double x) { return (int)std::nearbyint(x); }
inline int __double2int_rz(double x) { return (int)x; }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline int __double2hiint(double x) { return (int)(convt3d_device::bits_of(x) >> 32); }
inline int __double2loint(double x) { return (int)convt3d_device::bits_of(x); }
inline double __hiloint2double(int high, int low)
{
    return convt3d_device::of_bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}
inline unsigned __brev(unsigned x)
{
    unsigned found = 0;
    for (int bit = 0; bit < 32; ++bit) found |= (x >> bit & 1u) << (31 - bit);
    return found;
}
inline unsigned long long __brevll(unsigned long long x) { return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32)); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    const unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned found = 0;
    for (int at = 0; at < 4; ++at) {
        const unsigned which = selector >> 4 * at & 15u, byte = (unsigned)(both >> 8 * (which & 7u)) & 255u;
        found |= (which & 8u ? (byte & 128u ? 255u : 0u) : byte) << 8 * at;
    }
    return found;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31)); }
template <class A, class B, class S>
inline S convt3d_products_of_bytes(unsigned a, unsigned b, S sum)
{
    for (int at = 0; at < 32; at += 8) sum += (S)(A)(a >> at) * (S)(B)(b >> at);
    return sum;
}
inline int __dp4a(int a, int b, int sum) { return convt3d_products_of_bytes<signed char, signed char>((unsigned)a, (unsigned)b, sum); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) { return convt3d_products_of_bytes<unsigned char, unsigned char>(a, b, sum); }
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __mul24(int x, int y) { return x * y; }
inline unsigned __umul24(unsigned x, unsigned y) { return x * y; }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) { return (unsigned long long)((unsigned __int128)x * y >> 64); }
inline long long clock64() { return 0; }
inline void __nanosleep(unsigned) {}

// --- the host's side -------------------------------------------------------------------------------------------------

typedef enum cudaError {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9,
    cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700, cudaErrorLaunchFailure = 719, cudaErrorNotSupported = 801
} cudaError_t;
typedef enum {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
} cudaMemcpyKind;
typedef enum {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9
} cudaFuncAttribute;
typedef enum { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual } cudaFuncCache;
typedef enum {
    cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxSharedMemoryPerBlock = 8, cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16, cudaDevAttrMaxThreadsPerMultiProcessor = 39, cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
} cudaDeviceAttr;
typedef convt3d_device::Stream cudaStream_t;
typedef struct { uint32_t number; } cudaEvent_t;
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
inline cudaStream_t cudaStreamLegacy, cudaStreamPerThread;
struct cudaDeviceProp {  // of an H100
    char name[32] = "a GPU played on the CPU";
    size_t totalGlobalMem = 80ull << 30, sharedMemPerBlock = 48 << 10, sharedMemPerBlockOptin = 227 << 10;
    size_t sharedMemPerMultiprocessor = 228 << 10, totalConstMem = 64 << 10;
    int regsPerBlock = 65536, warpSize = 32, maxThreadsPerBlock = 1024, maxThreadsDim[3] = {1024, 1024, 64};
    int maxGridSize[3] = {0x7fffffff, 65535, 65535}, major = 9, minor = 0, multiProcessorCount = 132;
    int maxThreadsPerMultiProcessor = 2048, l2CacheSize = 50 << 20, concurrentKernels = 1, cooperativeLaunch = 0;
};

inline cudaError_t convt3d_last_error = cudaSuccess;
template <class T>
inline cudaError_t convt3d_allocated(T** place, size_t bytes, bool shared_with_host)
{
    void* const found = convt3d_device::allocate(bytes, shared_with_host);
    if (!found) return convt3d_last_error = cudaErrorMemoryAllocation;
    *place = (T*)found;
    return cudaSuccess;
}
template <class T>
inline cudaError_t cudaMalloc(T** place, size_t bytes) { return convt3d_allocated(place, bytes, false); }
template <class T>
inline cudaError_t cudaMallocAsync(T** place, size_t bytes, cudaStream_t) { return cudaMalloc(place, bytes); }
template <class T>
inline cudaError_t cudaMallocManaged(T** place, size_t bytes, unsigned = 1) { return convt3d_allocated(place, bytes, true); }
template <class T>
inline cudaError_t cudaMallocHost(T** place, size_t bytes, unsigned = 0) { return cudaMallocManaged(place, bytes); }
template <class T>
inline cudaError_t cudaHostAlloc(T** place, size_t bytes, unsigned = 0) { return cudaMallocManaged(place, bytes); }
inline cudaError_t cudaMemGetInfo(size_t* left, size_t* all) { *left = 79ull << 30, *all = 80ull << 30; return cudaSuccess; }
inline cudaError_t cudaFree(void* place)
{
    convt3d_device::host_waits_for_all();
    convt3d_device::release(place);
    return cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void* place, cudaStream_t) { convt3d_device::release(place); return cudaSuccess; }
inline cudaError_t cudaFreeHost(void* place) { return cudaFree(place); }
inline cudaError_t cudaMemsetAsync(void* place, int value, size_t bytes, cudaStream_t stream = {})
{
    convt3d_device::moved("cudaMemsetAsync", place, nullptr, bytes, stream.number);
    std::memset(place, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void* place, int value, size_t bytes) { return cudaMemsetAsync(place, value, bytes); }
inline cudaError_t cudaMemset2DAsync(void* place, size_t pitch, int value, size_t bytes, size_t rows, cudaStream_t stream = {})
{
    for (size_t row = 0; row < rows; ++row) cudaMemsetAsync((char*)place + row * pitch, value, bytes, stream);
    return cudaSuccess;
}
inline cudaError_t cudaMemset2D(void* place, size_t pitch, int value, size_t bytes, size_t rows) { return cudaMemset2DAsync(place, pitch, value, bytes, rows); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream = {})
{
    convt3d_device::moved("cudaMemcpyAsync", to, from, bytes, stream.number);
    std::memmove(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind)
{
    cudaMemcpyAsync(to, from, bytes, kind);
    convt3d_device::host_waits(0);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows,
                                     cudaMemcpyKind kind, cudaStream_t stream = {})
{
    for (size_t row = 0; row < rows; ++row)
        cudaMemcpyAsync((char*)to + row * pitch, (const char*)from + row * from_pitch, bytes, kind, stream);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy2D(void* to, size_t pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows, cudaMemcpyKind kind)
{
    cudaMemcpy2DAsync(to, pitch, from, from_pitch, bytes, rows, kind);
    convt3d_device::host_waits(0);
    return cudaSuccess;
}
template <class T>
inline cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream = {})
{
    if (offset + bytes > sizeof(T)) convt3d_device::trap("cudaMemcpyToSymbol of more than the symbol holds");
    return cudaMemcpyAsync((char*)&symbol + offset, from, bytes, kind, stream);
}
template <class T>
inline cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice)
{
    return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind);
}
template <class T>
inline cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyDeviceToHost)
{
    return cudaMemcpy(to, (const char*)&symbol + offset, bytes, kind);
}
template <class T>
inline cudaError_t cudaGetSymbolAddress(void** place, const T& symbol) { *place = (void*)&symbol; return cudaSuccess; }
template <class F>
inline cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute which, int value)
{
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) convt3d_device::largest_shared((size_t)value);
    return cudaSuccess;
}
template <class F>
inline cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
template <class F>
inline cudaError_t cudaLaunchCooperativeKernel(F, dim3, dim3, void**, size_t = 0, cudaStream_t = {})
{
    convt3d_device::unplayed("a cooperative launch needs all blocks at once, and here they run one after the other");
    return cudaSuccess;
}
template <class... P, size_t... at>
inline void convt3d_call(void (*kernel)(P...), void** given, std::index_sequence<at...>) { kernel(*(std::remove_reference_t<P>*)given[at]...); }
template <class... P>
inline cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** given, size_t shared = 0, cudaStream_t stream = {})
{
    convt3d_device::Launch(grid, block, shared, stream).run("cudaLaunchKernel", [&]() CONVT3D_UNSEEN {
        convt3d_call(kernel, given, std::index_sequence_for<P...>());
    });
    return cudaSuccess;
}
inline cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t = 0, cudaStream_t = {})
{
    convt3d_device::unplayed("cudaLaunchKernel of a kernel without its type: give it the kernel itself, not a void*");
    return cudaSuccess;
}
template <class F>
inline cudaError_t cudaOccupancyMaxPotentialBlockSize(int* blocks, int* threads, F, size_t = 0, int most = 0)
{
    *threads = most ? std::min(most, 1024) : 1024, *blocks = 132;
    return cudaSuccess;
}
template <class F>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F, int threads, size_t)
{
    *blocks = std::max(1, 2048 / std::max(1, threads));
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { convt3d_device::host_waits_for_all(); return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) { convt3d_device::host_waits(stream.number); return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags)
{
    *stream = cudaStream_t((uint32_t)convt3d_device::new_stream(flags == cudaStreamNonBlocking));
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) { return cudaStreamCreateWithFlags(stream, flags); }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0)
{
    convt3d_device::wait_for_event(stream.number, event.number);
    return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { event->number = convt3d_device::new_event(); return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = {})
{
    convt3d_device::record_event(event.number, stream.number);
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) { convt3d_device::host_waits_for_event(event.number); return cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { *milliseconds = 1.0f; return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return std::exchange(convt3d_last_error, cudaSuccess); }
inline cudaError_t cudaPeekAtLastError() { return convt3d_last_error; }
inline const char* cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : "error";
}
inline const char* cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
inline cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }
inline cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) { *of = cudaDeviceProp{}; return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int)
{
    const cudaDeviceProp own;
    switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: *value = own.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)own.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = own.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = own.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = own.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = own.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = own.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)own.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)own.sharedMemPerBlockOptin; break;
    default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
