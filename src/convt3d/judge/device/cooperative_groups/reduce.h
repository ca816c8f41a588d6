// One value of all that the lanes of a group have, for each of them; and sums of those before.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

#define CONVT3D_OPERATION(name, expression)                                                                             \
    template <class T>                                                                                                  \
    struct name {                                                                                                       \
        T operator()(T a, T b) const { return (T)(expression); }                                                        \
    };
CONVT3D_OPERATION(plus, a + b)
CONVT3D_OPERATION(less, b < a ? b : a)
CONVT3D_OPERATION(greater, a < b ? b : a)
CONVT3D_OPERATION(bit_and, a & b)
CONVT3D_OPERATION(bit_or, a | b)
CONVT3D_OPERATION(bit_xor, a ^ b)

/* By halves, as lanes do it: each adds what the other has. */
template <class T, class Operation>
CONVT3D_UNSEEN T reduce(const lanes& group, T value, Operation operation)
{
    unsigned long long every[32];
    T all[32];
    int count = 0;
    convt3d_device::of_lane(group.mask, convt3d_device::bits_of(value), every, CONVT3D_SITE);
    for (int lane = 0; lane < 32; ++lane)
        if (group.mask >> lane & 1) all[count++] = convt3d_device::of_bits<T>(every[lane]);
    for (int half = 16; half; half /= 2)
        for (int at = 0; at < half; ++at)
            if (at + half < count) all[at] = operation(all[at], all[at + half]);
    return all[0];
}

}  // namespace cooperative_groups
