"""The meaning of the gradients with respect to weight and bias: slow, obvious float64 NumPy.

Both convolutions pair each position i of a `small` array with the position i * stride - padding + k * dilation of a
`large` one, once for each tap k. The transposed convolution reads the small one and writes the large one; the
convolution does the reverse. Either way the gradient of the weight is the sum, over samples and positions, of the
products of these pairs.
"""

from __future__ import annotations

from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .checks import Triple
from .shapes import TransposedAxis

Array: TypeAlias = npt.NDArray[np.float64]


def weight_gradient(
    small: Array,
    large: Array,
    kernel_size: Triple,
    stride: Triple = (1, 1, 1),
    padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    groups: int = 1,
) -> Array:
    """small (B, Ca, D, H, W), large (B, Cb, D', H', W') -> (Ca, Cb / groups, Kd, Kh, Kw): for every tap k, the sum of
    small[b, ca, i] * large[b, cb, i * stride - padding + k * dilation] over all b and i for which both are there."""
    axes = conv_axes(small.shape[2:], kernel_size, stride, padding, dilation)
    per_a, per_b = small.shape[1] // groups, large.shape[1] // groups
    found = np.zeros((small.shape[1], per_b, *kernel_size))
    for taps in product(*map(range, kernel_size)):
        pairs = list(zip(axes, taps, large.shape[2:], strict=True))
        ranges = [axis.tap_range(k, 0, size) for axis, k, size in pairs]
        if any(first >= behind for first, behind in ranges):
            continue
        own: Any = (..., *(slice(*range_) for range_ in ranges))
        met: Any = (
            ...,
            *(
                slice(axis.partner(first, k), axis.partner(behind - 1, k) + 1, axis.stride)
                for (axis, k, _), (first, behind) in zip(pairs, ranges, strict=True)
            ),
        )
        with np.errstate(all="ignore"):
            for group in range(groups):
                a, b = slice(group * per_a, (group + 1) * per_a), slice(group * per_b, (group + 1) * per_b)
                tap: Any = (a, slice(None), *taps)
                found[tap] = np.einsum("badhw,bcdhw->ac", small[:, a][own], large[:, b][met])
    return found


def bias_gradient(grad: Array) -> Array:
    """(B, C, D, H, W) -> (C,)"""
    with np.errstate(all="ignore"):
        total: Array = grad.sum(axis=(0, 2, 3, 4))
    return total


def conv_axes(
    sizes: tuple[int, ...], kernel_size: Triple, stride: Triple, padding: Triple, dilation: Triple
) -> tuple[TransposedAxis, TransposedAxis, TransposedAxis]:
    """Axes whose inputs are the small array's positions."""
    d, h, w = (
        TransposedAxis(size, kernel, step, pad, 0, apart)
        for size, kernel, step, pad, apart in zip(sizes, kernel_size, stride, padding, dilation, strict=True)
    )
    return d, h, w
