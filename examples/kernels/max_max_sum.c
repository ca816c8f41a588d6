// convt3d problem: conv-transpose3d-max-max-sum
// C: max-pool 2 of max-pool 3 is max-pool 6, so each output voxel is a sum over channels of a maximum over 6 x 6 x 6
// voxels of the convolution, each gathered from the taps that reach it. Nothing is stored in between.
#include <math.h>
#include <stddef.h>

#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real;
typedef CONVT3D_SUM sum_t;

/* The input index that tap k carries to output o along one axis, or -1. */
static ptrdiff_t source(size_t o, size_t k, size_t in, size_t stride, size_t padding)
{
    const ptrdiff_t step = (ptrdiff_t)(o + padding) - (ptrdiff_t)k;
    if (step < 0 || step % (ptrdiff_t)stride) return -1;
    return step / (ptrdiff_t)stride < (ptrdiff_t)in ? step / (ptrdiff_t)stride : -1;
}

void solution(
    const real* input, const real* kernel, const real* conv_bias, real* output, size_t batch_size, size_t in_channels,
    size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w,
    size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w)
{
    const size_t out_depth = ((depth - 1) * stride_d + kernel_d - 2 * padding_d) / 6;
    const size_t out_height = ((height - 1) * stride_h + kernel_h - 2 * padding_h) / 6;
    const size_t out_width = ((width - 1) * stride_w + kernel_w - 2 * padding_w) / 6;
    const size_t volume = depth * height * width, taps = kernel_d * kernel_h * kernel_w;
    const size_t voxels = batch_size * out_depth * out_height * out_width;
#pragma omp parallel for
    for (size_t at = 0; at < voxels; ++at) {
        const size_t w0 = at % out_width * 6, h0 = at / out_width % out_height * 6;
        const size_t d0 = at / (out_width * out_height) % out_depth * 6;
        const real* sample = input + at / (out_width * out_height * out_depth) * in_channels * volume;
        sum_t total = 0;
        for (size_t c = 0; c < out_channels; ++c) {
            sum_t most = (sum_t)-INFINITY;
            for (size_t window = 0; window < 216; ++window) {
                sum_t sum = (sum_t)conv_bias[c];
                for (size_t tap = 0; tap < taps; ++tap) {
                    const ptrdiff_t i = source(d0 + window / 36, tap / (kernel_h * kernel_w), depth, stride_d, padding_d);
                    const ptrdiff_t j = source(h0 + window / 6 % 6, tap / kernel_w % kernel_h, height, stride_h, padding_h);
                    const ptrdiff_t k = source(w0 + window % 6, tap % kernel_w, width, stride_w, padding_w);
                    if (i < 0 || j < 0 || k < 0) continue;
                    const real* x = sample + (i * height + j) * width + k;
                    for (size_t ci = 0; ci < in_channels; ++ci)
                        sum += (sum_t)x[ci * volume] * (sum_t)kernel[(ci * out_channels + c) * taps + tap];
                }
                most = sum > most || sum != sum ? sum : most; /* NaN travels */
            }
            total += most;
        }
        output[at] = (real)total;
    }
}
