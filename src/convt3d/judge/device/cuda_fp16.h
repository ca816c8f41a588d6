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

#define CONVT3D_NARROW(name, widen, narrow)                                                                             \
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
    inline bool __hgt(name a, name b) { return (float)a > (float)b; }                                                   \
    inline bool __hlt(name a, name b) { return (float)a < (float)b; }

CONVT3D_NARROW(__half, float_of_half, half_of_float)
CONVT3D_NARROW(__nv_bfloat16, float_of_bfloat, bfloat_of_float)
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __half2 half2;
typedef __nv_bfloat162 nv_bfloat162;
inline float __half2float(__half x) { return (float)x; }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half((float)x); }
inline float __bfloat162float(__nv_bfloat16 x) { return (float)x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline float2 __half22float2(__half2 x) { return {(float)x.x, (float)x.y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {(float)x.x, (float)x.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
