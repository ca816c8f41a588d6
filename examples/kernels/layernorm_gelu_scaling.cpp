// convt3d problem: conv-transpose3d-layernorm-gelu-scaling
// C++: one voxel at a time, all its channels in a small vector that never leaves the cache.
#include <cmath>
#include <cstddef>
#include <vector>

#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
using real = CONVT3D_REAL;
using sum_t = CONVT3D_SUM;

namespace {

struct Axis {
    std::ptrdiff_t in, taps, stride, padding, out;

    Axis(std::size_t in, std::size_t taps, std::size_t stride, std::size_t padding, std::size_t extra)
        : in(in), taps(taps), stride(stride), padding(padding), out((in - 1) * stride + taps + extra - 2 * padding) {}

    /* The input index that tap k carries to output o, or -1. */
    std::ptrdiff_t source(std::ptrdiff_t o, std::ptrdiff_t k) const
    {
        const std::ptrdiff_t step = o + padding - k;
        return step < 0 || step % stride || step / stride >= in ? -1 : step / stride;
    }
};

void norm_gelu(std::vector<sum_t>& column, sum_t factor)
{
    const sum_t count = static_cast<sum_t>(column.size());
    sum_t mean = 0, variance = 0;
    for (sum_t value : column) mean += value / count;
    for (sum_t value : column) variance += (value - mean) * (value - mean) / count;
    const sum_t scale = 1 / std::sqrt(variance + sum_t(1e-5));
    for (sum_t& value : column) {
        const sum_t normal = (value - mean) * scale;
        value = normal / 2 * std::erfc(-normal * sum_t(0.70710678118654752)) * factor;
    }
}

}  // namespace

extern "C" void solution(
    const real* input, const real* kernel, real* output, std::size_t batch_size, std::size_t in_channels,
    std::size_t out_channels, std::size_t depth, std::size_t height, std::size_t width, std::size_t kernel_d,
    std::size_t kernel_h, std::size_t kernel_w, std::size_t stride_d, std::size_t stride_h, std::size_t stride_w,
    std::size_t padding_d, std::size_t padding_h, std::size_t padding_w, std::size_t output_padding_d,
    std::size_t output_padding_h, std::size_t output_padding_w, double scaling_factor)
{
    const Axis d(depth, kernel_d, stride_d, padding_d, output_padding_d);
    const Axis h(height, kernel_h, stride_h, padding_h, output_padding_h);
    const Axis w(width, kernel_w, stride_w, padding_w, output_padding_w);
    const std::size_t volume = depth * height * width, taps = kernel_d * kernel_h * kernel_w;
    const std::ptrdiff_t voxels = d.out * h.out * w.out, all = static_cast<std::ptrdiff_t>(batch_size) * voxels;
#pragma omp parallel for
    for (std::ptrdiff_t at = 0; at < all; ++at) {
        const std::ptrdiff_t sample = at / voxels, voxel = at % voxels;
        const std::ptrdiff_t od = voxel / (h.out * w.out), oh = voxel / w.out % h.out, ow = voxel % w.out;
        std::vector<sum_t> column(out_channels, sum_t(0));
        for (std::ptrdiff_t tap = 0; tap < static_cast<std::ptrdiff_t>(taps); ++tap) {
            const std::ptrdiff_t i = d.source(od, tap / (h.taps * w.taps)), j = h.source(oh, tap / w.taps % h.taps);
            const std::ptrdiff_t k = w.source(ow, tap % w.taps);
            if (i < 0 || j < 0 || k < 0) continue;
            const real* x = input + sample * in_channels * volume + (i * height + j) * width + k;
            for (std::size_t ci = 0; ci < in_channels; ++ci)
                for (std::size_t c = 0; c < out_channels; ++c)
                    column[c] += static_cast<sum_t>(x[ci * volume])
                               * static_cast<sum_t>(kernel[(ci * out_channels + c) * taps + tap]);
        }
        norm_gelu(column, static_cast<sum_t>(scaling_factor));
        for (std::size_t c = 0; c < out_channels; ++c)
            output[(sample * out_channels + c) * voxels + voxel] = static_cast<real>(column[c]);
    }
}
