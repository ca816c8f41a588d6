// convt3d problem: conv-transpose-3d-asym-input-sq-kernel
// CUDA: a thread for each output voxel. The judge runs it on the CPU and looks for races.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real;
typedef CONVT3D_SUM sum_t;

struct Axis {
    size_t in, taps, stride, padding, dilation, out;
};

/* The input index that tap k carries to output o, or -1. */
__device__ ptrdiff_t source(const Axis& a, size_t o, size_t k)
{
    const ptrdiff_t step = (ptrdiff_t)(o + a.padding) - (ptrdiff_t)(k * a.dilation), stride = (ptrdiff_t)a.stride;
    return step < 0 || step % stride || step / stride >= (ptrdiff_t)a.in ? -1 : step / stride;
}

__global__ void conv_transpose(const real* x, const real* w, real* y, size_t voxels, size_t cin, size_t cout,
                               size_t groups, Axis d, Axis h, Axis v)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= voxels) return;
    const size_t ow = at % v.out, oh = at / v.out % h.out, od = at / (v.out * h.out) % d.out;
    const size_t co = at / (v.out * h.out * d.out) % cout, b = at / (v.out * h.out * d.out * cout);
    const size_t per_in = cin / groups, per_out = cout / groups, first = co / per_out * per_in;
    sum_t sum = 0;
    for (size_t i = 0; i < d.taps; ++i)
        for (size_t j = 0; j < h.taps; ++j)
            for (size_t k = 0; k < v.taps; ++k) {
                const ptrdiff_t id = source(d, od, i), ih = source(h, oh, j), iw = source(v, ow, k);
                if (id < 0 || ih < 0 || iw < 0) continue;
                for (size_t ci = first; ci < first + per_in; ++ci)
                    sum += (sum_t)x[(((b * cin + ci) * d.in + id) * h.in + ih) * v.in + iw]
                         * (sum_t)w[(((ci * per_out + co % per_out) * d.taps + i) * h.taps + j) * v.taps + k];
            }
    y[at] = (real)sum;
}

/* All pointers are of the device. */
extern "C" void solution(
    const real* input, const real* kernel, real* output, size_t batch_size, size_t in_channels, size_t out_channels,
    size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w, size_t stride_d,
    size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w, size_t output_padding_d,
    size_t output_padding_h, size_t output_padding_w, size_t dilation_d, size_t dilation_h, size_t dilation_w,
    size_t groups)
{
    const size_t in[] = {depth, height, width}, taps[] = {kernel_d, kernel_h, kernel_w};
    const size_t stride[] = {stride_d, stride_h, stride_w}, padding[] = {padding_d, padding_h, padding_w};
    const size_t extra[] = {output_padding_d, output_padding_h, output_padding_w};
    const size_t dilation[] = {dilation_d, dilation_h, dilation_w};
    Axis axes[3];
    for (int i = 0; i < 3; ++i) {
        const size_t out = (in[i] - 1) * stride[i] + dilation[i] * (taps[i] - 1) + extra[i] + 1 - 2 * padding[i];
        axes[i] = {in[i], taps[i], stride[i], padding[i], dilation[i], out};
    }
    const size_t voxels = batch_size * out_channels * axes[0].out * axes[1].out * axes[2].out;
    conv_transpose<<<(unsigned)((voxels + 255) / 256), 256>>>(input, kernel, output, voxels, in_channels, out_channels,
                                                              groups, axes[0], axes[1], axes[2]);
    cudaDeviceSynchronize();
}
