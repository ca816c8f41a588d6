// convt3d problem: conv-transpose3d-avgpool-clamp-softmax-multiply
// CUDA: a block for each channel of each sample, and a kernel before it that pools the input into a workspace. The block
// computes the convolution into a second workspace, keeps a running maximum and sum for each thread, and puts these
// together in shared memory, so that each number is computed once and read once more.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stddef.h>

#ifndef CONVT3D_REAL
#define CONVT3D_REAL float
#define CONVT3D_SUM float
#endif
typedef CONVT3D_REAL real;
typedef CONVT3D_SUM sum_t;

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

__global__ void pool(const real* __restrict__ x, sum_t* y, size_t count, int window, Axis d, Axis h, Axis v, int height,
                     int width, size_t volume)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const size_t channel = at / ((size_t)v.in * h.in * d.in);
    const int pw = at % v.in, ph = at / v.in % h.in, pd = at / ((size_t)v.in * h.in) % d.in;
    sum_t sum = 0;
    for (int i = 0; i < window; ++i)
        for (int j = 0; j < window; ++j)
            for (int k = 0; k < window; ++k)
                sum += (sum_t)x[channel * volume + ((size_t)(pd * window + i) * height + ph * window + j) * width
                                + pw * window + k];
    y[at] = sum / (window * window * window);
}

/* Numbers seen so far: their maximum, and the sum of exp(value - maximum), 0 if there were none. */
struct Seen {
    sum_t most, sum;

    __device__ void join(Seen other)
    {
        if (other.sum == 0) return;
        if (sum == 0) most = other.most;
        const sum_t larger = most > other.most || most != most ? most : other.most;  // NaN wins
        sum = sum * exp(most - larger) + other.sum * exp(other.most - larger);
        most = larger;
    }
};

__global__ void __launch_bounds__(THREADS) softmax(const sum_t* __restrict__ x, const real* __restrict__ w,
                                                   const real* scale, sum_t* room, real* y, size_t cin, size_t cout,
                                                   Axis d, Axis h, Axis v, sum_t low, sum_t high)
{
    __shared__ sum_t most[THREADS], sum[THREADS];
    const size_t c = blockIdx.x % cout, sample = blockIdx.x / cout;
    const size_t voxels = (size_t)d.out * h.out * v.out, volume = (size_t)d.in * h.in * v.in;
    const size_t taps = (size_t)d.taps * h.taps * v.taps, first = blockIdx.x * voxels;
    Seen own = {0, 0};
    for (size_t voxel = threadIdx.x; voxel < voxels; voxel += THREADS) {
        const int ow = voxel % v.out, oh = voxel / v.out % h.out, od = voxel / ((size_t)v.out * h.out);
        sum_t value = 0;
        for (size_t tap = 0; tap < taps; ++tap) {
            const int i = d.source(od, tap / (h.taps * v.taps)), j = h.source(oh, tap / v.taps % h.taps);
            const int k = v.source(ow, tap % v.taps);
            if (i < 0 || j < 0 || k < 0) continue;
            const sum_t* at = x + sample * cin * volume + ((size_t)i * h.in + j) * v.in + k;
            for (size_t ci = 0; ci < cin; ++ci) value += at[ci * volume] * (sum_t)w[(ci * cout + c) * taps + tap];
        }
        value = value < low ? low : value > high ? high : value;  // NaN passes
        room[first + voxel] = value;
        own.join({value, 1});
    }
    for (int half = THREADS / 2; half; half /= 2) {
        most[threadIdx.x] = own.most, sum[threadIdx.x] = own.sum;
        __syncthreads();
        if (threadIdx.x < half) own.join({most[threadIdx.x + half], sum[threadIdx.x + half]});
        __syncthreads();
    }
    if (threadIdx.x == 0) most[0] = own.most, sum[0] = own.sum;
    __syncthreads();
    const sum_t largest = most[0], factor = (sum_t)scale[c] / sum[0];
    for (size_t voxel = threadIdx.x; voxel < voxels; voxel += THREADS)  // what this thread wrote itself
        y[first + voxel] = (real)(factor * exp(room[first + voxel] - largest));
}

/* All pointers are of the device. */
extern "C" void solution(
    const real* input, const real* kernel, const real* scale, real* output, size_t batch_size, size_t in_channels,
    size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h, size_t kernel_w,
    size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d, size_t padding_h, size_t padding_w,
    size_t output_padding_d, size_t output_padding_h, size_t output_padding_w, size_t pool_kernel, double clamp_min,
    double clamp_max)
{
    const size_t in[] = {depth, height, width}, taps[] = {kernel_d, kernel_h, kernel_w};
    const size_t stride[] = {stride_d, stride_h, stride_w}, padding[] = {padding_d, padding_h, padding_w};
    const size_t extra[] = {output_padding_d, output_padding_h, output_padding_w};
    Axis axes[3];
    for (int i = 0; i < 3; ++i) {
        const size_t pooled = in[i] / pool_kernel, out = (pooled - 1) * stride[i] + taps[i] + extra[i] - 2 * padding[i];
        axes[i] = {(int)pooled, (int)taps[i], (int)stride[i], (int)padding[i], (int)out};
    }
    const size_t pooled = batch_size * in_channels * axes[0].in * axes[1].in * axes[2].in;
    const size_t voxels = (size_t)axes[0].out * axes[1].out * axes[2].out, channels = batch_size * out_channels;
    sum_t *averages, *room;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    if (cudaMallocAsync(&averages, pooled * sizeof(sum_t), stream) != cudaSuccess) return;
    if (cudaMallocAsync(&room, channels * voxels * sizeof(sum_t), stream) != cudaSuccess) return;
    pool<<<(unsigned)((pooled + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        input, averages, pooled, (int)pool_kernel, axes[0], axes[1], axes[2], (int)height, (int)width,
        depth * height * width);
    softmax<<<(unsigned)channels, THREADS, 0, stream>>>(averages, kernel, scale, room, output, in_channels, out_channels,
                                                        axes[0], axes[1], axes[2], (sum_t)clamp_min, (sum_t)clamp_max);
    cudaFreeAsync(averages, stream);
    cudaFreeAsync(room, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
}
