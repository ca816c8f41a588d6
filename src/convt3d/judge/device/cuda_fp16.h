// The 16-bit types of CUDA: stored in 16 bits, computed in float, rounded to the nearest even after each operation.
#pragma once
#include "cuda_runtime.h"

namespace convt3d_device {

inline float float_of_half(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) return of_bits<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x400u) return of_bits<float>(sign | ((rest << 13) + 0x38000000u));
    const float small = (float)rest * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -small : small;
}

inline uint16_t half_of_float(float value)
{
    const uint32_t bits = (uint32_t)bits_of(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x38800000u) {  // below the smallest normal number: a multiple of 2^-24
        const float scaled = of_bits<float>(rest) * 16777216.0f;
        return (uint16_t)(sign | (uint32_t)std::nearbyint(scaled));
    }
    return (uint16_t)(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13));
}

inline float float_of_bfloat(uint16_t bits) { return of_bits<float>((uint32_t)bits << 16); }

inline uint16_t bfloat_of_float(float value)
{
    const uint32_t bits = (uint32_t)bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace convt3d_device

#define CONVT3D_NARROW(name, pair, widen, narrow)                                                                       \
    struct name {                                                                                                       \
        uint16_t bits;                                                                                                  \
        name() = default;                                                                                               \
        template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                                           \
        name(T value) : bits(convt3d_device::narrow((float)value)) {}                                                   \
        operator float() const { return convt3d_device::widen(bits); }                                                  \
        name& operator+=(name b) { return *this = name((float)*this + (float)b); }                                      \
        name& operator-=(name b) { return *this = name((float)*this - (float)b); }                                      \
        name& operator*=(name b) { return *this = name((float)*this * (float)b); }                                      \
        name& operator/=(name b) { return *this = name((float)*this / (float)b); }                                      \
    };                                                                                                                  \
    inline name operator-(name a) { return convt3d_device::of_bits<name>(a.bits ^ 0x8000u); }                           \
    inline name operator+(name a, name b) { return name((float)a + (float)b); }                                         \
    inline name operator-(name a, name b) { return name((float)a - (float)b); }                                         \
    inline name operator*(name a, name b) { return name((float)a * (float)b); }                                         \
    inline name operator/(name a, name b) { return name((float)a / (float)b); }                                         \
    inline name __hadd(name a, name b) { return a + b; }                                                                \
    inline name __hsub(name a, name b) { return a - b; }                                                                \
    inline name __hmul(name a, name b) { return a * b; }                                                                \
    inline name __hdiv(name a, name b) { return a / b; }                                                                \
    inline name __hfma(name a, name b, name c) { return name(std::fma((float)a, (float)b, (float)c)); }                 \
    inline name __hmax(name a, name b) { return name(std::fmax((float)a, (float)b)); }                                  \
    inline name __hmin(name a, name b) { return name(std::fmin((float)a, (float)b)); }                                  \
    inline name __hneg(name a) { return -a; }                                                                           \
    inline name __habs(name a) { return name(std::fabs((float)a)); }                                                    \
    inline bool __hisnan(name a) { return std::isnan((float)a); }                                                       \
    inline bool __hgt(name a, name b) { return (float)a > (float)b; }                                                   \
    inline bool __hge(name a, name b) { return (float)a >= (float)b; }                                                  \
    inline bool __hlt(name a, name b) { return (float)a < (float)b; }                                                   \
    inline bool __hle(name a, name b) { return (float)a <= (float)b; }                                                  \
    inline bool __heq(name a, name b) { return (float)a == (float)b; }                                                  \
    inline bool __hne(name a, name b) { return (float)a != (float)b; }                                                  \
    inline name hexp(name a) { return name(std::exp((float)a)); }                                                       \
    inline name hlog(name a) { return name(std::log((float)a)); }                                                       \
    inline name hsqrt(name a) { return name(std::sqrt((float)a)); }                                                     \
    inline name hrsqrt(name a) { return name(rsqrtf((float)a)); }                                                       \
    inline name hrcp(name a) { return name(1.0f / (float)a); }                                                          \
    inline name hexp2(name a) { return name(std::exp2((float)a)); }                                                     \
    inline name hexp10(name a) { return name(exp10f((float)a)); }                                                       \
    inline name hlog2(name a) { return name(std::log2((float)a)); }                                                     \
    inline name hlog10(name a) { return name(std::log10((float)a)); }                                                   \
    inline name hsin(name a) { return name(std::sin((float)a)); }                                                       \
    inline name hcos(name a) { return name(std::cos((float)a)); }                                                       \
    inline name htanh(name a) { return name(std::tanh((float)a)); }                                                     \
    inline name hfloor(name a) { return name(std::floor((float)a)); }                                                   \
    inline name hceil(name a) { return name(std::ceil((float)a)); }                                                     \
    inline name htrunc(name a) { return name(std::trunc((float)a)); }                                                   \
    inline name hrint(name a) { return name(std::nearbyint((float)a)); }                                                \
    inline name __hadd_rn(name a, name b) { return a + b; }                                                             \
    inline name __hsub_rn(name a, name b) { return a - b; }                                                             \
    inline name __hmul_rn(name a, name b) { return a * b; }                                                             \
    inline name __hadd_sat(name a, name b) { return name(__saturatef((float)a + (float)b)); }                           \
    inline name __hsub_sat(name a, name b) { return name(__saturatef((float)a - (float)b)); }                           \
    inline name __hmul_sat(name a, name b) { return name(__saturatef((float)a * (float)b)); }                           \
    inline name __hmax_nan(name a, name b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmax(a, b); }                 \
    inline name __hmin_nan(name a, name b) { return __hisnan(a) ? a : __hisnan(b) ? b : __hmin(a, b); }                 \
    inline name __hfma_relu(name a, name b, name c)                                                                     \
    {                                                                                                                   \
        const name sum = __hfma(a, b, c);                                                                               \
        return (float)sum < 0.0f ? name(0.0f) : sum;                                                                    \
    }                                                                                                                   \
    inline int __hisinf(name a) { return std::isinf((float)a) ? ((float)a > 0.0f ? 1 : -1) : 0; }                       \
    inline name& operator++(name& a) { return a = name((float)a + 1.0f); }                                              \
    inline name& operator--(name& a) { return a = name((float)a - 1.0f); }                                              \
    struct alignas(4) pair {                                                                                            \
        name x, y;                                                                                                      \
        pair& operator+=(pair b) { return x += b.x, y += b.y, *this; }                                                  \
        pair& operator-=(pair b) { return x -= b.x, y -= b.y, *this; }                                                  \
        pair& operator*=(pair b) { return x *= b.x, y *= b.y, *this; }                                                  \
        pair& operator/=(pair b) { return x /= b.x, y /= b.y, *this; }                                                  \
    };                                                                                                                  \
    inline pair operator+(pair a, pair b) { return {a.x + b.x, a.y + b.y}; }                                            \
    inline pair operator-(pair a, pair b) { return {a.x - b.x, a.y - b.y}; }                                            \
    inline pair operator*(pair a, pair b) { return {a.x * b.x, a.y * b.y}; }                                            \
    inline pair operator/(pair a, pair b) { return {a.x / b.x, a.y / b.y}; }                                            \
    inline pair __hadd2(pair a, pair b) { return a + b; }                                                               \
    inline pair __hsub2(pair a, pair b) { return a - b; }                                                               \
    inline pair __hmul2(pair a, pair b) { return a * b; }                                                               \
    inline pair __h2div(pair a, pair b) { return a / b; }                                                               \
    inline pair __hmax2(pair a, pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                                \
    inline pair __hmin2(pair a, pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                                \
    inline pair __hfma2(pair a, pair b, pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }              \
    inline float __low2float(pair a) { return (float)a.x; }                                                             \
    inline float __high2float(pair a) { return (float)a.y; }

CONVT3D_NARROW(__half, __half2, float_of_half, half_of_float)
CONVT3D_NARROW(__nv_bfloat16, __nv_bfloat162, float_of_bfloat, bfloat_of_float)

// The same for each of a pair.
#define CONVT3D_EACH(pairs, single)                                                                                     \
    inline __half2 pairs(__half2 a) { return {single(a.x), single(a.y)}; }                                              \
    inline __nv_bfloat162 pairs(__nv_bfloat162 a) { return {single(a.x), single(a.y)}; }
CONVT3D_EACH(__hneg2, -)
CONVT3D_EACH(operator-, -)
CONVT3D_EACH(__habs2, __habs)
CONVT3D_EACH(h2exp, hexp)
CONVT3D_EACH(h2exp2, hexp2)
CONVT3D_EACH(h2exp10, hexp10)
CONVT3D_EACH(h2log, hlog)
CONVT3D_EACH(h2log2, hlog2)
CONVT3D_EACH(h2sqrt, hsqrt)
CONVT3D_EACH(h2rsqrt, hrsqrt)
CONVT3D_EACH(h2rcp, hrcp)
CONVT3D_EACH(h2sin, hsin)
CONVT3D_EACH(h2cos, hcos)
CONVT3D_EACH(h2tanh, htanh)
CONVT3D_EACH(h2floor, hfloor)
CONVT3D_EACH(h2ceil, hceil)
CONVT3D_EACH(h2rint, hrint)
CONVT3D_EACH(__hisnan2, (float)__hisnan)
#define CONVT3D_COMPARED(name)                                                                                          \
    inline __half2 __h##name##2(__half2 a, __half2 b) { return {(float)__h##name(a.x, b.x), (float)__h##name(a.y, b.y)}; } \
    inline __nv_bfloat162 __h##name##2(__nv_bfloat162 a, __nv_bfloat162 b) { return {(float)__h##name(a.x, b.x), (float)__h##name(a.y, b.y)}; } \
    inline bool __hb##name##2(__half2 a, __half2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }              \
    inline bool __hb##name##2(__nv_bfloat162 a, __nv_bfloat162 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }
CONVT3D_COMPARED(eq)
CONVT3D_COMPARED(ne)
CONVT3D_COMPARED(gt)
CONVT3D_COMPARED(ge)
CONVT3D_COMPARED(lt)
CONVT3D_COMPARED(le)
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
typedef __half2 half2;
typedef __nv_bfloat162 nv_bfloat162;
inline float __half2float(__half x) { return (float)x; }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half((float)x); }
inline __half __int2half_rn(int x) { return __half((float)x); }
inline __half __uint2half_rn(unsigned x) { return __half((float)x); }
inline __half __short2half_rn(short x) { return __half((float)x); }
inline __half __ushort2half_rn(unsigned short x) { return __half((float)x); }
inline int __half2int_rn(__half x) { return (int)std::nearbyint((float)x); }
inline int __half2int_rz(__half x) { return (int)(float)x; }
inline unsigned __half2uint_rn(__half x) { return (unsigned)std::nearbyint((float)x); }
inline __half __ushort_as_half(unsigned short bits) { return convt3d_device::of_bits<__half>(bits); }
inline __half __short_as_half(short bits) { return __ushort_as_half((unsigned short)bits); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline short __half_as_short(__half x) { return (short)x.bits; }
inline float __bfloat162float(__nv_bfloat16 x) { return (float)x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16((float)x); }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
inline float2 __half22float2(__half2 x) { return {(float)x.x, (float)x.y}; }
inline __half __low2half(__half2 x) { return x.x; }
inline __half __high2half(__half2 x) { return x.y; }
inline __half2 __low2half2(__half2 x) { return {x.x, x.x}; }
inline __half2 __high2half2(__half2 x) { return {x.y, x.y}; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
inline __half2 __lowhigh2highlow(__half2 x) { return {x.y, x.x}; }
inline __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16((float)x); }
inline int __bfloat162int_rn(__nv_bfloat16 x) { return (int)std::nearbyint((float)x); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return convt3d_device::of_bits<__nv_bfloat16>(bits); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 x) { return {x.x, x.x}; }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 x) { return {x.y, x.y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) { return {__nv_bfloat16(x.x), __nv_bfloat16(x.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {(float)x.x, (float)x.y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) { return x.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) { return x.y; }
