// convt3d problem: conv-transpose3d-max-max-sum
// CUDA: a block for each result voxel, a warp for each channel. The lanes of a warp share the window's 6 x 6 x 6 voxels,
// a shuffle finds the largest, and the warps' sums meet in shared memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real;
typedef CONVT3D_SUM sum_t;

constexpr int WARPS = 4, WINDOW = 6;  // max-pool 3 of max-pool 2 is max-pool 6

struct Axis {
    int in, taps, stride, padding, out;

    /* The input index that tap k carries to output o of the convolution, or -1. */
    __device__ int source(int o, int k) const
    {
        const int step = o + padding - k;
        return step < 0 || step % stride || step / stride >= in ? -1 : step / stride;
    }
};

__device__ sum_t larger(sum_t a, sum_t b) { return a > b || a != a ? a : b; }  // NaN wins

/* One voxel of the convolution's result, of one sample x and the weights w of one channel. */
__device__ sum_t convolved(const real* __restrict__ x, const real* __restrict__ w, size_t cin, size_t cout, Axis d, Axis h,
                           Axis v, int od, int oh, int ow)
{
    sum_t sum = 0;
    for (int i = 0; i < d.taps; ++i)
        for (int j = 0; j < h.taps; ++j)
            for (int k = 0; k < v.taps; ++k) {
                const int id = d.source(od, i), ih = h.source(oh, j), iw = v.source(ow, k);
                if (id < 0 || ih < 0 || iw < 0) continue;
                for (size_t ci = 0; ci < cin; ++ci)
                    sum += (sum_t)__ldg(&x[((ci * d.in + id) * h.in + ih) * v.in + iw])
                         * (sum_t)__ldg(&w[((ci * cout * d.taps + i) * h.taps + j) * v.taps + k]);
            }
    return sum;
}

__global__ void __launch_bounds__(32 * WARPS) pooled_sums(const real* x, const real* w, const real* bias, real* y,
                                                          size_t cin, size_t cout, Axis d, Axis h, Axis v)
{
    __shared__ sum_t of_warp[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int pw = blockIdx.x % v.out, ph = blockIdx.x / v.out % h.out, pd = blockIdx.x / (v.out * h.out) % d.out;
    const size_t sample = blockIdx.x / (v.out * h.out * d.out);
    const size_t volume = (size_t)d.in * h.in * v.in, taps = (size_t)d.taps * h.taps * v.taps;
    sum_t total = 0;
    for (size_t c = warp; c < cout; c += WARPS) {
        sum_t most = -INFINITY;
        for (int at = lane; at < WINDOW * WINDOW * WINDOW; at += 32) {
            const int od = pd * WINDOW + at / (WINDOW * WINDOW), oh = ph * WINDOW + at / WINDOW % WINDOW;
            const int ow = pw * WINDOW + at % WINDOW;
            most = larger(most, convolved(x + sample * cin * volume, w + c * taps, cin, cout, d, h, v, od, oh, ow));
        }
        for (int distance = 16; distance; distance /= 2)
            most = larger(most, __shfl_xor_sync(0xffffffffu, most, distance));
        total += most + (sum_t)bias[c];
    }
    if (lane == 0) of_warp[warp] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int other = 1; other < WARPS; ++other) total += of_warp[other];
        y[blockIdx.x] = (real)total;
    }
}

/* All pointers are of the device. */
extern "C" void solution(
    const real* input, const real* kernel, const real* conv_bias, real* output, size_t batch_size, size_t in_channels,
    size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w,
    size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w)
{
    const size_t in[] = {depth, height, width}, taps[] = {kernel_d, kernel_h, kernel_w};
    const size_t stride[] = {stride_d, stride_h, stride_w}, padding[] = {padding_d, padding_h, padding_w};
    Axis axes[3];
    for (int i = 0; i < 3; ++i) {
        const size_t out = ((in[i] - 1) * stride[i] + taps[i] - 2 * padding[i]) / WINDOW;
        axes[i] = {(int)in[i], (int)taps[i], (int)stride[i], (int)padding[i], (int)out};
    }
    const size_t voxels = batch_size * axes[0].out * axes[1].out * axes[2].out;
    pooled_sums<<<(unsigned)voxels, 32 * WARPS>>>(input, kernel, conv_bias, output, in_channels, out_channels, axes[0],
                                                  axes[1], axes[2]);
    cudaDeviceSynchronize();
}
