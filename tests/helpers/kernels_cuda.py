"""CUDA kernels that are right, and some with one mistake each."""

# Kernels of one array x of 256 numbers and a result y of 256; `which` chooses.
SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float total; // <<<of all>>>
__constant__ float factor;

__global__ void sums(const float* x, float* y, int without)
{
    __shared__ float part[128];
    const int at = threadIdx.x;
    part[at] = x[blockIdx.x * blockDim.x + at];
    if (without != 1) __syncthreads();
    for (int half = 64; half; half /= 2) {
        if (at < half) part[at] += part[at + half];
        if (without != 2) __syncthreads();
    }
    if (at == 0) y[blockIdx.x] = part[0];
}

template <class T, int WIDTH>
__global__ void warps(const T* x, T* y)
{
    extern __shared__ float room[];
    T value = x[threadIdx.x];
    for (int mask = WIDTH / 2; mask; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask, WIDTH);
    if (threadIdx.x % WIDTH == 0) room[threadIdx.x / WIDTH] = (float)value;
    __syncthreads();
    if (threadIdx.x < blockDim.x / WIDTH) y[threadIdx.x] = (T)room[threadIdx.x];
}

__global__ void neighbours(const float* x, float* y)
{
    const unsigned all = 0xffffffffu;
    const int at = threadIdx.x;
    y[at] = __shfl_up_sync(all, x[at], 1);
    y[32 + at] = __shfl_down_sync(all, x[at], 1, 16);
    y[64 + at] = __shfl_sync(all, x[at], 3);
    y[96 + at] = (float)__popc(__ballot_sync(all, at < 5)) + 100 * __any_sync(all, at == 7) + 1000 * __all_sync(all, at < 31);
    y[128 + at] = (float)__syncthreads_count(at % 3 == 0);
}

__global__ void added(const float* x, float* y)
{
    atomicAdd(&y[0], x[blockIdx.x * blockDim.x + threadIdx.x]);
    atomicMax((int*)&y[1], (int)threadIdx.x);
}

__global__ void narrow(const float* x, float* y)
{
    const int at = threadIdx.x;
    y[at] = (float)(__half)(x[at] * 1e-3f) + __half2float(__float2half(x[at]) * __half(2.0f));
    y[128 + at] = __bfloat162float(__float2bfloat16(x[at]));
}

__global__ void scaled(const float* x, float* y) { y[threadIdx.x] = factor * x[threadIdx.x]; }

__global__ void everyone_writes(float* y) { y[0] = (float)threadIdx.x; }
__global__ void blocks_meet(float* y) { if (threadIdx.x == 0) y[7] += 1.0f; }
__global__ void two_barriers(float* y) { if (threadIdx.x < 32) { __syncthreads(); y[threadIdx.x] = 1.0f; } else __syncthreads(); }
__global__ void half_a_warp(float* y) { if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0); else __syncthreads(); }
__global__ void too_far(float* y, int at) { __shared__ float few[32]; few[threadIdx.x + at] = 1.0f; __syncthreads(); y[threadIdx.x] = few[threadIdx.x]; }
__global__ void behind(float* room, int count) { room[threadIdx.x] = 1.0f; (void)count; }
__global__ void dynamic(float* y) { extern __shared__ float room[]; room[threadIdx.x] = 1.0f; y[threadIdx.x] = room[threadIdx.x]; }
__global__ void stops(const float* x) { assert(x[threadIdx.x] < 0.0f); }
__global__ void leaves_early(const float* x, float* y)
{
    __shared__ float value;
    if (threadIdx.x >= 100) return;
    if (threadIdx.x == 0) value = x[0];
    __syncthreads();
    y[threadIdx.x] = value;
}

extern "C" void solution(const float* x, float* y, int which)
{
    float* room;
    const float three = 3.0f;
    if (which == 0) sums<<<2, 128>>>(x, y, 0);
    if (which == 1) warps<float, 32><<<1, 256, 8 * sizeof(float)>>>(x, y);
    if (which == 2) neighbours<<<1, dim3(32)>>>(x, y);
    if (which == 3) { cudaMemset(y, 0, 8); added<<<2, 128>>>(x, y); }
    if (which == 4) narrow<<<1, 128>>>(x, y);
    if (which == 5) { cudaMemcpyToSymbol(factor, &three, sizeof three); scaled<<<1, 256>>>(x, y); }
    if (which == 6) leaves_early<<<1, 128>>>(x, y);
    if (which == 10) sums<<<2, 128>>>(x, y, 1);
    if (which == 11) sums<<<2, 128>>>(x, y, 2);
    if (which == 12) everyone_writes<<<1, 32>>>(y);
    if (which == 13) blocks_meet<<<2, 32>>>(y);
    if (which == 14) two_barriers<<<1, 64>>>(y);
    if (which == 15) half_a_warp<<<1, 32>>>(y);
    if (which == 16) too_far<<<1, 32>>>(y, 1);
    if (which == 17) { cudaMalloc(&room, 100); behind<<<1, 32>>>(room, 25); cudaFree(room); }
    if (which == 18) dynamic<<<1, 32, 31 * sizeof(float)>>>(y);
    if (which == 19) stops<<<1, 32>>>(x);
    if (which == 20) scaled<<<1, 1025>>>(x, y);
    if (which == 21) scaled<<<0, 32>>>(x, y);
    if (which == 22) dynamic<<<1, 32, 50000>>>(y);
    cudaDeviceSynchronize();
}
"""
