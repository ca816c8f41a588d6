// convt3d problem: conv-transpose3d-sum-layernorm-avgpool-gelu
// CUDA: two kernels and a workspace. The first leaves the convolution, channels last, with a thread for each number; of
// the second, a tile of 32 threads (cooperative groups) normalises the eight voxels of one window, channel by channel.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real;
typedef CONVT3D_SUM sum_t;
namespace cg = cooperative_groups;

constexpr int THREADS = 128;

struct Axis {
    int in, taps, stride, padding, out;

    /* The input index that tap k carries to output o, or -1. */
    __device__ int source(int o, int k) const
    {
        const int step = o + padding - k;
        return step < 0 || step % stride || step / stride >= in ? -1 : step / stride;
    }
};

__global__ void convolve(const real* __restrict__ x, const real* __restrict__ w, sum_t* y, size_t count, size_t cin,
                         size_t cout, Axis d, Axis h, Axis v, sum_t added)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const size_t c = at % cout, voxel = at / cout, sample = voxel / ((size_t)v.out * h.out * d.out);
    const int ow = voxel % v.out, oh = voxel / v.out % h.out, od = voxel / ((size_t)v.out * h.out) % d.out;
    sum_t sum = 0;
    for (int i = 0; i < d.taps; ++i)
        for (int j = 0; j < h.taps; ++j)
            for (int k = 0; k < v.taps; ++k) {
                const int id = d.source(od, i), ih = h.source(oh, j), iw = v.source(ow, k);
                if (id < 0 || ih < 0 || iw < 0) continue;
                for (size_t ci = 0; ci < cin; ++ci)
                    sum += (sum_t)x[(((sample * cin + ci) * d.in + id) * h.in + ih) * v.in + iw]
                         * (sum_t)w[(((ci * cout + c) * d.taps + i) * h.taps + j) * v.taps + k];
            }
    y[at] = sum + added;
}

__global__ void norm_pool_gelu(const sum_t* __restrict__ x, real* y, size_t windows, size_t cout, Axis d, Axis h, Axis v)
{
    const auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    const size_t window = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (window >= windows) return;  // the whole tile
    const int pw = v.out / 2, ph = h.out / 2, pd = d.out / 2;
    const size_t per_sample = (size_t)pw * ph * pd, sample = window / per_sample, place = window % per_sample;
    const size_t first = ((sample * d.out + place / ((size_t)pw * ph) * 2) * h.out + place / pw % ph * 2) * v.out + place % pw * 2;
    sum_t mean[8], scale[8];
    for (int part = 0; part < 8; ++part) {
        const sum_t* column = x + (first + (part / 4 * (size_t)h.out + part / 2 % 2) * v.out + part % 2) * cout;
        sum_t sum = 0, squares = 0;
        for (size_t c = tile.thread_rank(); c < cout; c += 32) sum += column[c];
        mean[part] = cg::reduce(tile, sum, cg::plus<sum_t>()) / cout;
        for (size_t c = tile.thread_rank(); c < cout; c += 32) squares += (column[c] - mean[part]) * (column[c] - mean[part]);
        scale[part] = 1 / sqrt(cg::reduce(tile, squares, cg::plus<sum_t>()) / cout + (sum_t)1e-5);
    }
    for (size_t c = tile.thread_rank(); c < cout; c += 32) {
        sum_t average = 0;
        for (int part = 0; part < 8; ++part) {
            const size_t voxel = first + (part / 4 * (size_t)h.out + part / 2 % 2) * v.out + part % 2;
            average += (x[voxel * cout + c] - mean[part]) * scale[part] / 8;
        }
        y[(sample * cout + c) * per_sample + place] = (real)(average / 2 * erfc(-average * (sum_t)0.70710678118654752));
    }
}

/* All pointers are of the device. */
extern "C" void solution(
    const real* input, const real* kernel, real* output, size_t batch_size, size_t in_channels, size_t out_channels,
    size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w, size_t stride_d,
    size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w, size_t output_padding_d,
    size_t output_padding_h, size_t output_padding_w, double sum_weight)
{
    const size_t in[] = {depth, height, width}, taps[] = {kernel_d, kernel_h, kernel_w};
    const size_t stride[] = {stride_d, stride_h, stride_w}, padding[] = {padding_d, padding_h, padding_w};
    const size_t extra[] = {output_padding_d, output_padding_h, output_padding_w};
    Axis axes[3];
    for (int i = 0; i < 3; ++i) {
        const size_t out = (in[i] - 1) * stride[i] + taps[i] + extra[i] - 2 * padding[i];
        axes[i] = {(int)in[i], (int)taps[i], (int)stride[i], (int)padding[i], (int)out};
    }
    const size_t count = batch_size * out_channels * axes[0].out * axes[1].out * axes[2].out;
    const size_t windows = batch_size * (axes[0].out / 2) * (axes[1].out / 2) * (axes[2].out / 2), tiles = THREADS / 32;
    sum_t* workspace;
    if (cudaMalloc(&workspace, count * sizeof(sum_t)) != cudaSuccess) return;
    convolve<<<(unsigned)((count + THREADS - 1) / THREADS), THREADS>>>(
        input, kernel, workspace, count, in_channels, out_channels, axes[0], axes[1], axes[2], (sum_t)sum_weight);
    norm_pool_gelu<<<(unsigned)((windows + tiles - 1) / tiles), THREADS>>>(workspace, output, windows, out_channels,
                                                                           axes[0], axes[1], axes[2]);
    cudaDeviceSynchronize();
    cudaFree(workspace);
}
