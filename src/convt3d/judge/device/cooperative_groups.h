// Cooperative groups: a block, tiles of a warp, the lanes that are together. What needs all blocks at once is not there.
#pragma once
#include "cuda_runtime.h"

namespace cooperative_groups {

struct thread_block {
    CONVT3D_UNSEEN static void sync() { convt3d_device::barrier(CONVT3D_SITE); }
    static unsigned thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
    static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned size() { return num_threads(); }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 dim_threads() { return blockDim; }
    static dim3 group_dim() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

/* Lanes of one warp, by their mask. */
struct lanes {
    unsigned mask;

    unsigned thread_rank() const { return (unsigned)__popc(mask & ((1u << own()) - 1)); }
    unsigned num_threads() const { return (unsigned)__popc(mask); }
    unsigned size() const { return num_threads(); }
    CONVT3D_UNSEEN void sync() const { convt3d_device::warp_barrier(mask, CONVT3D_SITE); }
    CONVT3D_UNSEEN int any(int value) const { return convt3d_device::ballot(mask, value, CONVT3D_SITE) != 0; }
    CONVT3D_UNSEEN int all(int value) const { return convt3d_device::ballot(mask, !value, CONVT3D_SITE) == 0; }
    CONVT3D_UNSEEN unsigned ballot(int value) const { return packed(convt3d_device::ballot(mask, value, CONVT3D_SITE)); }
    template <class T>
    CONVT3D_UNSEEN T shfl(T value, unsigned rank) const { return from(value, (int)(rank % num_threads()), CONVT3D_SITE); }
    template <class T>
    CONVT3D_UNSEEN T shfl_up(T value, unsigned by) const { return from(value, (int)thread_rank() - (int)by, CONVT3D_SITE); }
    template <class T>
    CONVT3D_UNSEEN T shfl_down(T value, unsigned by) const { return from(value, (int)(thread_rank() + by), CONVT3D_SITE); }
    template <class T>
    CONVT3D_UNSEEN T shfl_xor(T value, unsigned by) const { return from(value, (int)(thread_rank() ^ by), CONVT3D_SITE); }

    static unsigned own() { return thread_block::thread_rank() % 32; }
    unsigned packed(unsigned votes) const
    {
        unsigned found = 0, rank = 0;
        for (unsigned lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1) found |= (votes >> lane & 1) << rank++;
        return found;
    }
    /* The value of that rank, or one's own where there is none. */
    template <class T>
    CONVT3D_UNSEEN T from(T value, int rank, const void* site) const
    {
        unsigned long long every[32];
        convt3d_device::of_lane(mask, convt3d_device::bits_of(value), every, site);
        for (unsigned lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1 && rank-- == 0) return convt3d_device::of_bits<T>(every[lane]);
        return value;
    }
};
using coalesced_group = lanes;

template <unsigned SIZE, class Parent = void>
struct thread_block_tile : lanes {
    static_assert(SIZE && SIZE <= 32 && !(SIZE & (SIZE - 1)), "tiles of 1, 2, 4, 8, 16 or 32 threads are played here");
    thread_block_tile() : lanes{(SIZE == 32 ? ~0u : (1u << SIZE % 32) - 1) << lanes::own() / SIZE * SIZE & here()} {}
    static unsigned here()  // lanes of the block's last warp that exist
    {
        const unsigned behind = thread_block::num_threads() - thread_block::thread_rank() / 32 * 32;
        return behind >= 32 ? ~0u : (1u << behind) - 1;
    }
    static constexpr unsigned num_threads() { return SIZE; }
    static constexpr unsigned size() { return SIZE; }
    static unsigned thread_rank() { return thread_block::thread_rank() % SIZE; }
    static unsigned meta_group_rank() { return thread_block::thread_rank() / SIZE; }
    static unsigned meta_group_size() { return (thread_block::num_threads() + SIZE - 1) / SIZE; }
};
template <unsigned SIZE, class Parent>
inline thread_block_tile<SIZE, Parent> tiled_partition(const Parent&) { return {}; }
CONVT3D_UNSEEN inline coalesced_group coalesced_threads() { return {convt3d_device::active(CONVT3D_SITE)}; }

struct grid_group {
    static unsigned long long thread_rank()
    {
        const unsigned long long block = blockIdx.x + gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
        return block * thread_block::num_threads() + thread_block::thread_rank();
    }
    static unsigned long long num_threads() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z * thread_block::num_threads(); }
    static unsigned long long size() { return num_threads(); }
    static bool is_valid() { return false; }
    static void sync() { convt3d_device::unplayed("grid.sync() needs all blocks at once, and here they run one after the other"); }
};
inline grid_group this_grid() { return {}; }

CONVT3D_UNSEEN inline void sync(const thread_block&) { convt3d_device::barrier(CONVT3D_SITE); }
CONVT3D_UNSEEN inline void sync(const lanes& group) { convt3d_device::warp_barrier(group.mask, CONVT3D_SITE); }

}  // namespace cooperative_groups
