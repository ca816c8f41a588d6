// Tensor cores by fragments (nvcuda::wmma): a lane has as many elements of a matrix as any other, in an order that nobody
// may count on. Products are summed in double and rounded once; TensorFloat32 cuts the last 13 bits of its factors.
#pragma once
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}
template <class T>
struct stored { using type = T; };
template <>
struct stored<precision::tf32> { using type = float; };

template <class Use, int M, int N, int K>
struct shape { static constexpr int rows = M, columns = N; };
template <int M, int N, int K>
struct shape<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K>
struct shape<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment : shape<Use, M, N, K> {
    static_assert((M == 16 && N == 16 && (K == 16 || K == 8)) || (M == 32 && N == 8) || (M == 8 && N == 32) || (M == 8 && N == 8 && K == 4),
                  "no such shape of tensor cores");
    using element_type = typename stored<T>::type;
    using storage_element_type = element_type;
    static constexpr int num_elements = shape<Use, M, N, K>::rows * shape<Use, M, N, K>::columns / 32;
    static constexpr int num_storage_elements = num_elements;
    element_type x[num_elements];
};

inline float __float_to_tf32(float x)
{
    const unsigned bits = (unsigned)convt3d_device::bits_of(x);
    return convt3d_device::of_bits<float>((bits + 0x1000u) & 0xffffe000u);
}
template <class T>
double factor(typename stored<T>::type x) { return (double)(float)x; }
template <>
inline double factor<double>(double x) { return x; }
template <>
inline double factor<precision::tf32>(float x)
{
    return (double)convt3d_device::of_bits<float>((unsigned)convt3d_device::bits_of(x) & 0xffffe000u);
}

inline int lane() { return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32); }

template <class F, class V>
void fill_fragment(F& to, const V& value)
{
    for (auto& x : to.x) x = (typename F::element_type)value;
}

template <class F>
CONVT3D_UNSEEN void moved(F* fragment, typename F::element_type* memory, unsigned stride, bool rows, bool writes, const void* site)
{
    using T = typename F::element_type;
    unsigned long long all[32];
    convt3d_device::of_lane(~0u, 0, all, site);  // the warp is together
    if ((uintptr_t)memory % 32) convt3d_device::trap("wmma of a matrix whose address is no multiple of 32 bytes");
    if (stride * sizeof(T) % 16) convt3d_device::trap("wmma of a matrix whose rows are no multiple of 16 bytes apart");
    for (int at = 0; at < F::num_elements; ++at) {
        const int number = lane() * F::num_elements + at, row = number / F::columns, column = number % F::columns;
        T* place = memory + (rows ? (size_t)row * stride + column : (size_t)column * stride + row);
        convt3d_device::touched(place, sizeof(T), writes, site);
        if (writes) *place = fragment->x[at];
        else fragment->x[at] = *place;
    }
}
template <class Use, int M, int N, int K, class T, class Layout>
CONVT3D_UNSEEN void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const typename stored<T>::type* from, unsigned stride)
{
    moved(&to, const_cast<typename stored<T>::type*>(from), stride, std::is_same_v<Layout, row_major>, false, CONVT3D_SITE);
}
template <int M, int N, int K, class T>
CONVT3D_UNSEEN void load_matrix_sync(fragment<accumulator, M, N, K, T>& to, const T* from, unsigned stride, layout_t layout)
{
    moved(&to, const_cast<T*>(from), stride, layout == mem_row_major, false, CONVT3D_SITE);
}
template <int M, int N, int K, class T>
CONVT3D_UNSEEN void store_matrix_sync(T* to, const fragment<accumulator, M, N, K, T>& from, unsigned stride, layout_t layout)
{
    moved(const_cast<fragment<accumulator, M, N, K, T>*>(&from), to, stride, layout == mem_row_major, true, CONVT3D_SITE);
}

template <int M, int N, int K, class D, class T, class LayoutA, class LayoutB, class C>
CONVT3D_UNSEEN void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, T, LayoutA>& a,
                             const fragment<matrix_b, M, N, K, T, LayoutB>& b, const fragment<accumulator, M, N, K, C>& c)
{
    using A = fragment<matrix_a, M, N, K, T, LayoutA>;
    using B = fragment<matrix_b, M, N, K, T, LayoutB>;
    unsigned long long as[32], bs[32];
    convt3d_device::of_lane(~0u, (uintptr_t)&a, as, CONVT3D_SITE);
    convt3d_device::of_lane(~0u, (uintptr_t)&b, bs, CONVT3D_SITE);
    for (int at = 0; at < d.num_elements; ++at) {
        const int number = lane() * d.num_elements + at, row = number / N, column = number % N;
        double sum = (double)c.x[at];
        for (int k = 0; k < K; ++k) {
            const int in_a = row * K + k, in_b = k * N + column;
            sum += factor<T>(((const A*)as[in_a / A::num_elements])->x[in_a % A::num_elements])
                 * factor<T>(((const B*)bs[in_b / B::num_elements])->x[in_b % B::num_elements]);
        }
        d.x[at] = (D)sum;
    }
    convt3d_device::of_lane(~0u, 0, as, CONVT3D_SITE);  // nobody changes a factor before all have read it
}

}  // namespace wmma
}  // namespace nvcuda
