"""Shape rules in exact integers: output sizes, which input index meets which tap, and how much work that is.

Notation of one axis: `size` inputs, `kernel` taps, and  o = i * stride - padding + k * dilation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import ShapeError
from .checks import INT64_MAX

Shape: TypeAlias = tuple[int, int, int, int, int]  # (B, C, D, H, W)
Range: TypeAlias = tuple[int, int]  # [low, high)
Box: TypeAlias = tuple[Range, Range, Range, Range]  # of C, D, H, W

AXES = ("depth", "height", "width")
LONG_STRIDE = 8  # from here on, outputs that no tap meets are not computed one by one


@dataclass(frozen=True)
class ConvAxis:
    """One axis of a transposed convolution."""

    size: int
    kernel: int
    stride: int
    padding: int
    output_padding: int
    dilation: int

    @property
    def out(self) -> int:
        reach = self.dilation * (self.kernel - 1) + self.output_padding + 1
        return (self.size - 1) * self.stride - 2 * self.padding + reach

    def tap_range(self, k: int, low: int, high: int) -> Range:
        """The inputs i that tap k carries to an output in [low, high): always one contiguous range."""
        shift = self.padding - k * self.dilation  # i * stride = o + shift
        first = max(0, -((-low - shift) // self.stride))
        last = min(self.size - 1, (high - 1 + shift) // self.stride)
        return first, max(first, last + 1)

    def out_index(self, i: int, k: int) -> int:
        return i * self.stride - self.padding + k * self.dilation

    def inputs_of(self, low: int, high: int) -> Range:
        """The inputs that meet any output in [low, high), clipped to the array; empty ranges become one input."""
        first = -(-(low + self.padding - self.dilation * (self.kernel - 1)) // self.stride)
        last = (high - 1 + self.padding) // self.stride
        first = min(max(first, 0), self.size - 1)
        return first, min(max(last + 1, first + 1), self.size)

    def multiplications(self, wanted: Iterable[Range]) -> int:
        """Input-tap pairs that land in the wanted outputs (disjoint ranges)."""
        pairs = ((self.tap_range(k, low, high)) for low, high in wanted for k in range(self.kernel))
        return sum(last - first for first, last in pairs)


@dataclass(frozen=True)
class PoolAxis:
    """One axis of a pool: window [o * stride - padding, + kernel), cut at the array's ends."""

    size: int
    kernel: int
    stride: int
    padding: int
    ceil_mode: bool

    @property
    def out(self) -> int:
        span = self.size + 2 * self.padding - self.kernel
        if not self.ceil_mode:
            return span // self.stride + 1 if span >= 0 else 0
        count = -(-span // self.stride) + 1
        # As in PyTorch: a window that would start in the right padding is dropped.
        return count - 1 if (count - 1) * self.stride >= self.size + self.padding else count

    def window(self, o: int) -> Range:
        """The part of window `o` that lies inside the array."""
        start = o * self.stride - self.padding
        return max(start, 0), min(start + self.kernel, self.size)

    def divisor(self, o: int, include_pad: bool) -> int:
        """What window `o` contributes to the number an average divides by: as in PyTorch, padding right of the array
        counts only up to `padding`."""
        start, border = o * self.stride - self.padding, self.padding if include_pad else 0
        return min(start + self.kernel, self.size + border) - max(start, -border)

    def windows(self, include_pad: bool) -> npt.NDArray[np.int64]:
        """For each output: first input, end, divisor."""
        start, border = np.arange(self.out) * self.stride - self.padding, self.padding if include_pad else 0
        # Lengths, not ends, are compared with the kernel: an end might not fit 64 bits.
        end = start + np.minimum(self.kernel, self.size - start)
        last = start + np.minimum(self.kernel, self.size + border - start)
        return np.stack([np.maximum(start, 0), end, last - np.maximum(start, -border)], axis=1)

    def inputs_of(self, low: int, high: int) -> Range:
        return self.window(low)[0], self.window(high - 1)[1]


def check_extent(stage: str, shape: Shape) -> Shape:
    """Every offset into an array of 8-byte elements must fit a signed 64-bit integer."""
    if prod(max(size, 1) for size in shape) * 8 > INT64_MAX:
        raise ShapeError(
            stage,
            "output shape",
            shape,
            "has more elements than 64-bit offsets can address",
            "Use smaller sizes, strides or dilations",
        )
    return shape
