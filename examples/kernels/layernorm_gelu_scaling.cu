// convt3d problem: conv-transpose3d-layernorm-gelu-scaling
// CUDA: a block for each voxel. Its channels lie in dynamic shared memory; mean and variance are sums over the block, by
// shuffles within a warp and shared memory between warps.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real;
typedef CONVT3D_SUM sum_t;

constexpr int THREADS = 64;

struct Axis {
    int in, taps, stride, padding, out;

    /* The input index that tap k carries to output o, or -1. */
    __device__ int source(int o, int k) const
    {
        const int step = o + padding - k;
        return step < 0 || step % stride || step / stride >= in ? -1 : step / stride;
    }
};

/* The sum of the block's values, for each of its threads. */
__device__ sum_t block_sum(sum_t value)
{
    __shared__ sum_t of_warp[THREADS / 32];
    for (int distance = 16; distance; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    sum_t sum = 0;
    for (int warp = 0; warp < THREADS / 32; ++warp) sum += of_warp[warp];
    __syncthreads();  // the next call writes again what this one reads
    return sum;
}

__global__ void __launch_bounds__(THREADS) norm_gelu(const real* __restrict__ x, const real* __restrict__ w, real* y,
                                                     size_t cin, size_t cout, Axis d, Axis h, Axis v, sum_t factor)
{
    extern __shared__ sum_t column[];  // of this voxel, cout of them
    const size_t volume = (size_t)d.in * h.in * v.in, taps = (size_t)d.taps * h.taps * v.taps;
    const size_t voxels = (size_t)d.out * h.out * v.out, voxel = blockIdx.x % voxels, sample = blockIdx.x / voxels;
    const int ow = voxel % v.out, oh = voxel / v.out % h.out, od = voxel / ((size_t)v.out * h.out);
    sum_t sum = 0;
    for (size_t c = threadIdx.x; c < cout; c += THREADS) {
        sum_t value = 0;
        for (size_t tap = 0; tap < taps; ++tap) {
            const int i = d.source(od, tap / (h.taps * v.taps)), j = h.source(oh, tap / v.taps % h.taps);
            const int k = v.source(ow, tap % v.taps);
            if (i < 0 || j < 0 || k < 0) continue;
            const real* at = x + sample * cin * volume + ((size_t)i * h.in + j) * v.in + k;
            for (size_t ci = 0; ci < cin; ++ci)
                value += (sum_t)at[ci * volume] * (sum_t)w[(ci * cout + c) * taps + tap];
        }
        column[c] = value;  // read by this thread only, so no barrier
        sum += value;
    }
    const sum_t mean = block_sum(sum) / cout;
    sum_t squares = 0;
    for (size_t c = threadIdx.x; c < cout; c += THREADS) squares += (column[c] - mean) * (column[c] - mean);
    const sum_t scale = 1 / sqrt(block_sum(squares) / cout + (sum_t)1e-5);
    for (size_t c = threadIdx.x; c < cout; c += THREADS) {
        const sum_t normal = (column[c] - mean) * scale;
        y[(sample * cout + c) * voxels + voxel] = (real)(normal / 2 * erfc(-normal * (sum_t)0.70710678118654752) * factor);
    }
}

/* All pointers are of the device. */
extern "C" void solution(
    const real* input, const real* kernel, real* output, size_t batch_size, size_t in_channels, size_t out_channels,
    size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w, size_t stride_d,
    size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w, size_t output_padding_d,
    size_t output_padding_h, size_t output_padding_w, double scaling_factor)
{
    const size_t in[] = {depth, height, width}, taps[] = {kernel_d, kernel_h, kernel_w};
    const size_t stride[] = {stride_d, stride_h, stride_w}, padding[] = {padding_d, padding_h, padding_w};
    const size_t extra[] = {output_padding_d, output_padding_h, output_padding_w};
    Axis axes[3];
    for (int i = 0; i < 3; ++i) {
        const size_t out = (in[i] - 1) * stride[i] + taps[i] + extra[i] - 2 * padding[i];
        axes[i] = {(int)in[i], (int)taps[i], (int)stride[i], (int)padding[i], (int)out};
    }
    const size_t voxels = batch_size * axes[0].out * axes[1].out * axes[2].out;
    norm_gelu<<<(unsigned)voxels, THREADS, out_channels * sizeof(sum_t)>>>(
        input, kernel, output, in_channels, out_channels, axes[0], axes[1], axes[2], (sum_t)scaling_factor);
    cudaDeviceSynchronize();
}
