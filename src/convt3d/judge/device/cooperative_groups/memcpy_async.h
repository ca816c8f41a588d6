// Copies by all threads of a group, done when they wait for them.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

/* Each thread takes every so many 16 bytes. */
template <class Group>
CONVT3D_UNSEEN void share_copy(const Group& group, void* to, const void* from, size_t bytes, const void* site)
{
    for (size_t at = 16 * (size_t)group.thread_rank(); at < bytes; at += 16 * (size_t)group.num_threads())
        convt3d_device::copy_later((char*)to + at, (const char*)from + at, std::min<size_t>(16, bytes - at), 0, site);
}
template <class Group, class T, class Bytes>
CONVT3D_UNSEEN void memcpy_async(const Group& group, T* to, const T* from, Bytes bytes)
{
    share_copy(group, to, from, (size_t)bytes, CONVT3D_SITE);
    convt3d_device::commit_copies();
}
template <unsigned STAGES>
CONVT3D_UNSEEN void wait_prior(const thread_block&)
{
    convt3d_device::wait_for_copies(STAGES);
    convt3d_device::barrier(CONVT3D_SITE);
}
template <unsigned STAGES>
CONVT3D_UNSEEN void wait_prior(const lanes& group)
{
    convt3d_device::wait_for_copies(STAGES);
    convt3d_device::warp_barrier(group.mask, CONVT3D_SITE);
}
CONVT3D_UNSEEN inline void wait(const thread_block&)
{
    convt3d_device::wait_for_copies(0);
    convt3d_device::barrier(CONVT3D_SITE);
}
CONVT3D_UNSEEN inline void wait(const lanes& group)
{
    convt3d_device::wait_for_copies(0);
    convt3d_device::warp_barrier(group.mask, CONVT3D_SITE);
}

}  // namespace cooperative_groups
