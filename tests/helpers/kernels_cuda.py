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

# What larger kernels are made of, in the same way: x of 256 numbers, y of 256.
STYLES = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
namespace cg = cooperative_groups;
using namespace nvcuda;
constexpr int THREADS = 64;
#define MANY 32

extern __shared__ __align__(16) float outside[];  // of all functions

__global__ void groups(const float* x, float* y)
{
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    const unsigned at = block.thread_rank();
    outside[at] = x[at];
    block.sync();
    y[at] = cg::reduce(tile, outside[at], cg::plus<float>());
    y[64 + at] = tile.shfl_down(outside[at], 1) + 100.0f * tile.meta_group_rank() + 1000.0f * tile.any(at == 9);
    y[128 + at] = cg::inclusive_scan(tile, 1.0f);
    if (at % 3 == 0) {
        cg::coalesced_group together = cg::coalesced_threads();
        y[192 + at] = (float)(together.size() * 100 + together.thread_rank());
    } else y[192 + at] = (float)__popc(__activemask());
}

__global__ void copies(const float* x, float* y, int waits)
{
    __shared__ __align__(16) float room[2][64];
    const int at = threadIdx.x;
    __pipeline_memcpy_async(&room[0][at], &x[at], 4);
    __pipeline_commit();
    __pipeline_memcpy_async(&room[1][at], &x[64 + at], 4, at % 2 * 4);  // zeros in every second place
    __pipeline_commit();
    if (waits) __pipeline_wait_prior(1);
    const float first = room[0][at];
    if (waits) __pipeline_wait_prior(0);
    __syncthreads();
    y[at] = first + room[1][63 - at];
}

__global__ void staged(const float* x, float* y, int waits)
{
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ float room[2][64];
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    float sum = 0.0f;
    for (int stage = 0; stage < 3; ++stage) {
        if (stage < 2) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, room[stage], x + 64 * stage, sizeof room[0], pipe);
            pipe.producer_commit();
        }
        if (stage > 0) {
            if (waits) pipe.consumer_wait();
            sum += room[stage - 1][63 - block.thread_rank()];
            pipe.consumer_release();
        }
    }
    y[block.thread_rank()] = sum;
}

__global__ void phases(const float* x, float* y, int synced, int expected)
{
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ float room[64];
    auto block = cg::this_thread_block();
    if (threadIdx.x == 0) init(&bar, expected);
    if (synced) block.sync();
    cuda::memcpy_async(block, room, x, sizeof room, bar);
    bar.arrive_and_wait();
    const float other = room[63 - threadIdx.x];
    auto token = bar.arrive();
    bar.wait(std::move(token));
    room[threadIdx.x] = other;
    y[threadIdx.x] = room[threadIdx.x];
}

__global__ void fill(float* y, float value) { y[threadIdx.x] = value; }
__global__ void add(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }

__global__ void tensor_cores(const float* x, float* y, int synced)
{
    __shared__ __align__(32) half a[16][16], b[16][16];
    __shared__ __align__(32) float c[16][16];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
    for (int at = threadIdx.x; at < 256; at += 32) a[at / 16][at % 16] = b[at / 16][at % 16] = __float2half(x[at]);
    if (synced) __syncwarp();
    wmma::fill_fragment(sums, 1.0f);
    wmma::load_matrix_sync(left, &a[0][0], 16);
    wmma::load_matrix_sync(right, &b[0][0], 16);
    wmma::mma_sync(sums, left, right, sums);
    for (int at = 0; at < sums.num_elements; ++at) sums.x[at] *= 2.0f;
    wmma::store_matrix_sync(&c[0][0], sums, 16, wmma::mem_row_major);
    __syncwarp();
    for (int at = threadIdx.x; at < 256; at += 32) y[at] = c[at / 16][at % 16];
}

__global__ void crossed(const float* x, float* y)
{
    const half2 pair = __floats2half2_rn(x[threadIdx.x], 2.0f);
    const float2 wide = __half22float2(__hfma2(pair, pair, __float2half2_rn(1.0f)));
    y[threadIdx.x] = wide.x + wide.y;
    const float4 four = reinterpret_cast<const float4*>(x)[threadIdx.x % 16];
    y[64 + threadIdx.x] = four.x + four.w + (float)__reduce_add_sync(0xffffffffu, (int)threadIdx.x % 32);
}

__global__ void large(float* y) { __shared__ float room[13000]; for (int at = threadIdx.x; at < 13000; at += 64) room[at] = 1.0f; y[threadIdx.x] = room[threadIdx.x]; }
__global__ void whole_grid(float* y) { cg::this_grid().sync(); y[0] = 1.0f; }
template <class T>
__global__ void __launch_bounds__(THREADS * 2, 2) bounded(T* y) { y[threadIdx.x] = 1; }
__global__ void __launch_bounds__(MANY) few(float* y) { y[threadIdx.x] = 1.0f; }
__global__ void by_shuffle(float* y)
{
    __shared__ float value;
    if (threadIdx.x == 0) value = 1.0f;
    __shfl_sync(0xffffffffu, 1.0f, 0);  // orders no memory
    y[threadIdx.x] = value;
}

extern "C" void solution(const float* x, float* y, int which)
{
    static cudaStream_t first, second;
    static cudaEvent_t done;
    if (!done.number) {
        cudaStreamCreate(&first);
        cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    }
    if (which == 0) groups<<<1, 64, 64 * sizeof(float)>>>(x, y);
    if (which == 1 || which == 20) copies<<<1, 64>>>(x, y, which == 1);
    if (which == 2 || which == 21) staged<<<1, 64>>>(x, y, which == 2);
    if (which == 3 || which == 22) phases<<<1, 64>>>(x, y, which == 3, 64);
    if (which == 23) phases<<<1, 64>>>(x, y, 1, 65);
    if (which == 4 || which == 24) {
        fill<<<1, 64, 0, first>>>(y, 1.0f);
        cudaEventRecord(done, first);
        if (which == 4) cudaStreamWaitEvent(second, done, 0);
        add<<<1, 64, 0, second>>>(x, y);
        cudaStreamSynchronize(second);
        cudaMemcpyAsync(y + 64, y, 256, cudaMemcpyDeviceToDevice, first);
        cudaDeviceSynchronize();
    }
    if (which == 25) {
        fill<<<1, 64, 0, second>>>(y, 1.0f);
        cudaMemsetAsync(y, 0, 4, first);
    }
    if (which == 5 || which == 26) tensor_cores<<<1, 32>>>(x, y, which == 5);
    if (which == 6) crossed<<<1, 64>>>(x, y);
    if (which == 27) large<<<1, 64>>>(y);
    if (which == 28) whole_grid<<<2, 32>>>(y);
    if (which == 29) bounded<float><<<1, 129>>>(y);
    if (which == 30) few<<<1, 33>>>(y);
    if (which == 31) by_shuffle<<<1, 32>>>(y);
    if (which == 7) bounded<float><<<1, 128>>>(y);
    cudaDeviceSynchronize();
}
"""

# What people write besides, of today's C++ too, in the same way: x of 256 numbers, y of 256.
FURTHER = r"""
#include <concepts>
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Buffer {  // cannot be copied
    float* place = nullptr;
    explicit Buffer(size_t count) { cudaMalloc(&place, count * sizeof(float)); }
    ~Buffer() { cudaFree(place); }
    Buffer(const Buffer&) = delete;
    float* get() const { return place; }
};

template <std::floating_point T>
__global__ void doubled(const T* x, T* y, auto count)
{
    for (auto at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) y[at] = 2 * x[at];
}

template <class F>
__global__ void each(int count, F f)
{
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) f(at);
    if (at > 1 << 20) printf("never\n");
}

__global__ void fours(const float* x, float* y)
{
    const float4 four = reinterpret_cast<const float4*>(x)[threadIdx.x];
    reinterpret_cast<float4*>(y)[threadIdx.x] = make_float4(four.w, four.z, four.y, four.x);
}

__global__ void bits(float* y)
{
    const half2 pair = __floats2half2_rn(0.0f, 1.0f);
    const half2 grown = h2exp2(__hneg2(__lowhigh2highlow(pair)));  // 2^-1, 2^0
    y[0] = __low2float(grown) + 10 * __high2float(grown);
    y[1] = (float)__hbgt2(grown, __float2half2_rn(0.25f)) + 2 * __hbgt2(grown, __float2half2_rn(0.75f));
    y[2] = (float)(__brev(1u) >> 28) + (float)(__byte_perm(0x44332211u, 0x88776655u, 0x0007u) & 0xffffu);
    y[3] = (float)__dp4a(0x01010102, (int)0xff010203, 4) + (float)__funnelshift_l(0x80000000u, 1u, 1);
    y[4] = __bfloat162float(hfloor(__float2bfloat16(2.5f))) + (float)__half2int_rn(__float2half(3.5f));
    int same;
    y[5] = (float)(__match_all_sync(1u, 7, &same) + (unsigned)same);
    y[6] = (float)__double2hiint(__hiloint2double(5, 6));
    y[7] = (float)atomicAdd_block(&y[8], 1.0f) * 0.0f + sinpif(0.5f);
}

/* The sum of a block's values, which fits a warp and a half; right where lanes that are not there are left out. */
__global__ void uneven(const float* x, float* y, int careful)
{
    const int lane = threadIdx.x % 32, there = min(32, (int)blockDim.x - (int)threadIdx.x / 32 * 32);
    const unsigned mask = careful && there < 32 ? (1u << there) - 1 : 0xffffffffu;
    float sum = x[threadIdx.x];
    for (int distance = 16; distance; distance /= 2) {
        const float other = __shfl_down_sync(mask, sum, distance);
        if (!careful || lane + distance < there) sum += other;
    }
    if (lane == 0) y[threadIdx.x / 32] = sum;
}

__global__ void gone(const float* x, float* y)
{
    if (threadIdx.x >= 20) return;
    y[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], 25);  // who is there no more
}

__global__ void by_pointer(float* y, int step)
{
    __shared__ float room[64];
    float* at = room + threadIdx.x * step;
    *at = 1.0f;
    __syncthreads();
    y[threadIdx.x] = room[threadIdx.x];
}

__global__ void reads_what_nobody_wrote(float* y) { __shared__ float room[32]; y[threadIdx.x] = room[threadIdx.x]; }

__global__ void launches_another(float* y) { reads_what_nobody_wrote<<<1, 32>>>(y); }

__global__ void needs_room(float* y) { extern __shared__ float room[]; room[threadIdx.x] = 1.0f; y[threadIdx.x] = room[threadIdx.x]; }

__global__ void exchanged(const float* x, float* y, int waits)
{
    __shared__ float room[32];
    room[threadIdx.x] = x[threadIdx.x];
    if (waits) __syncwarp();
    y[threadIdx.x] = room[31 - threadIdx.x];
}

extern "C" void solution(const float* x, float* y, int which)
{
    if (which == 0) {
        Buffer between(256);
        const auto [blocks, threads] = std::pair<int, int>(2, 50);
        doubled<float><<<blocks, threads>>>(x, between.get(), 256u);
        each<<<4, 64>>>(256, [=, place = between.get()] __device__(int at) { y[at] = 2 * place[at]; });
    }
    if (which == 1) fours<<<1, 64>>>(x, y);
    if (which == 2) cudaMemset(y, 0, 64), bits<<<1, 1>>>(y);
    if (which == 3 || which == 20) uneven<<<1, 48>>>(x, y, which == 3);
    if (which == 4 || which == 21) exchanged<<<1, 32>>>(x, y, which == 4);
    if (which == 5) {
        unsigned count = 256;
        void* given[] = {&x, &y, &count};
        cudaLaunchKernel(doubled<float, unsigned>, dim3(4), dim3(64), given, 0, nullptr);
    }
    if (which == 22) gone<<<1, 32>>>(x, y);
    if (which == 31) launches_another<<<1, 1>>>(y);
    if (which == 30) reads_what_nobody_wrote<<<1, 32>>>(y);
    if (which == 23) by_pointer<<<1, 64>>>(y, 8);
    if (which == 24) needs_room<<<1, 32>>>(y);
    if (which == 25) fours<<<1, 60>>>(x + 1, y);
    if (which == 26) fours<<<1, 60>>>(x, y + 2);
    if (which == 6) {  // who asks is told
        float* room = nullptr;
        const bool refused = cudaMalloc(&room, (size_t)1 << 60) == cudaErrorMemoryAllocation && !room;
        const bool told = cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess;
        if (refused && told) doubled<float><<<1, 64>>>(x, y, 256);
    }
    if (which == 28) {
        float* room = nullptr;
        cudaMalloc(&room, (size_t)1 << 60);
        by_pointer<<<1, 64>>>(room, 1);
    }
    if (which == 29) {
        float *room, *other;
        cudaMalloc(&room, 1024);
        cudaFree(room);
        cudaMalloc(&other, 1024);
        by_pointer<<<1, 64>>>(room, 1);
    }
    if (which == 27) cudaLaunchKernel((const void*)needs_room, dim3(1), dim3(32), nullptr, 128);
    cudaDeviceSynchronize();
}
"""
