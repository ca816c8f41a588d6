// What the lanes of a group before one's own have, put together.
#pragma once
#include "reduce.h"

namespace cooperative_groups {

template <class T, class Operation>
CONVT3D_UNSEEN T scanned(const lanes& group, T value, Operation operation, bool inclusive, const void* site)
{
    unsigned long long every[32];
    convt3d_device::of_lane(group.mask, convt3d_device::bits_of(value), every, site);
    T sum{};
    bool first = true;
    for (unsigned lane = 0; lane < lanes::own() + inclusive; ++lane) {
        if (!(group.mask >> lane & 1)) continue;
        const T other = convt3d_device::of_bits<T>(every[lane]);
        sum = first ? other : operation(sum, other), first = false;
    }
    return sum;
}
template <class T, class Operation = plus<T>>
CONVT3D_UNSEEN T inclusive_scan(const lanes& group, T value, Operation operation = {}) { return scanned(group, value, operation, true, CONVT3D_SITE); }
template <class T, class Operation = plus<T>>
CONVT3D_UNSEEN T exclusive_scan(const lanes& group, T value, Operation operation = {}) { return scanned(group, value, operation, false, CONVT3D_SITE); }

}  // namespace cooperative_groups
