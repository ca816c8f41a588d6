// Asynchronous copies of a thread, by their functions in C; <cuda/pipeline> has the others.
#pragma once
#include "cuda_runtime.h"

CONVT3D_UNSEEN inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0)
{
    if (bytes != 4 && bytes != 8 && bytes != 16) convt3d_device::trap("__pipeline_memcpy_async copies 4, 8 or 16 bytes, but not as many as asked");
    if (((uintptr_t)to | (uintptr_t)from) % bytes) convt3d_device::trap("__pipeline_memcpy_async of addresses that are no multiple of its bytes");
    convt3d_device::copy_later(to, from, bytes, zeros, CONVT3D_SITE);
}
inline void __pipeline_commit() { convt3d_device::commit_copies(); }
inline void __pipeline_wait_prior(size_t left) { convt3d_device::wait_for_copies(left); }
