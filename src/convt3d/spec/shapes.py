"""Shape rules in exact integers: output sizes, which input index meets which tap, and how much work that is.

Notation of one axis: `size` inputs i, `kernel` taps k, outputs o.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
class ConvAxis(ABC):
    """One axis of a convolution, either way: tap k carries input i to output o where

        i * outputs_per_input = o * inputs_per_output + offset(k)

    One of the two factors is the stride, the other 1. Subclasses say which.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    output_padding: int
    dilation: int

    @property
    @abstractmethod
    def out(self) -> int: ...

    @property
    def outputs_per_input(self) -> int:
        return 1

    @property
    def inputs_per_output(self) -> int:
        return 1

    @abstractmethod
    def offset(self, k: int) -> int: ...

    @property
    @abstractmethod
    def taps_by_input(self) -> Iterable[int]:
        """Taps in the order of the inputs that an output meets through them."""

    @abstractmethod
    def tap_range(self, k: int, low: int, high: int) -> Range:
        """The inputs of a transposed convolution, or the outputs of a convolution, for which tap k carries an input to
        an output in [low, high): always one contiguous range."""

    @abstractmethod
    def slices(self, k: int) -> tuple[slice, slice]:
        """The inputs that tap k takes, and the outputs it takes them to."""

    def inputs_of(self, low: int, high: int) -> Range:
        """The inputs that meet any output in [low, high), clipped to the array; empty ranges become one input."""
        offsets = self.offset(0), self.offset(self.kernel - 1)
        first = -(-(low * self.inputs_per_output + min(offsets)) // self.outputs_per_input)
        last = ((high - 1) * self.inputs_per_output + max(offsets)) // self.outputs_per_input
        first = min(max(first, 0), self.size - 1)
        return first, min(max(last + 1, first + 1), self.size)

    def multiplications(self, wanted: Iterable[Range]) -> int:
        """Input-tap pairs that land in the wanted outputs (disjoint ranges)."""
        pairs = ((self.tap_range(k, low, high)) for low, high in wanted for k in range(self.kernel))
        return sum(last - first for first, last in pairs)

    def partner(self, index: int, k: int) -> int:
        """The output of an input, or the input of an output, through tap k."""
        return index * self.stride - self.padding + k * self.dilation

    def _strided(self, k: int, indices: Range) -> slice:
        """The partners of these."""
        first, last = indices
        return slice(self.partner(first, k), self.partner(last - 1, k) + 1, self.stride)


@dataclass(frozen=True)
class TransposedAxis(ConvAxis):
    """Of a transposed convolution: o = i * stride - padding + k * dilation."""

    @property
    def out(self) -> int:
        reach = self.dilation * (self.kernel - 1) + self.output_padding + 1
        return (self.size - 1) * self.stride - 2 * self.padding + reach

    @property
    def outputs_per_input(self) -> int:
        return self.stride

    def offset(self, k: int) -> int:
        return self.padding - k * self.dilation

    @property
    def taps_by_input(self) -> Iterable[int]:
        return reversed(range(self.kernel))

    def tap_range(self, k: int, low: int, high: int) -> Range:
        """Inputs."""
        first = max(0, -((-low - self.offset(k)) // self.stride))
        last = min(self.size - 1, (high - 1 + self.offset(k)) // self.stride)
        return first, max(first, last + 1)

    def slices(self, k: int) -> tuple[slice, slice]:
        first, last = inputs = self.tap_range(k, 0, self.out)
        return (slice(*inputs), self._strided(k, inputs)) if first < last else (slice(0), slice(0))


@dataclass(frozen=True)
class ForwardAxis(ConvAxis):
    """Of a convolution: i = o * stride - padding + k * dilation. `output_padding` are further zeros at the far end."""

    @property
    def out(self) -> int:
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.size + 2 * self.padding + self.output_padding - reach) // self.stride + 1

    @property
    def inputs_per_output(self) -> int:
        return self.stride

    def offset(self, k: int) -> int:
        return k * self.dilation - self.padding

    @property
    def taps_by_input(self) -> Iterable[int]:
        return range(self.kernel)

    def tap_range(self, k: int, low: int, high: int) -> Range:
        """Outputs."""
        first = max(low, -(self.offset(k) // self.stride))
        last = min(high - 1, (self.size - 1 - self.offset(k)) // self.stride)
        return first, max(first, last + 1)

    def slices(self, k: int) -> tuple[slice, slice]:
        first, last = outputs = self.tap_range(k, 0, self.out)
        return (self._strided(k, outputs), slice(*outputs)) if first < last else (slice(0), slice(0))


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

    def windows_of(self) -> npt.NDArray[np.int64]:
        """For each input: the first window that it is in, and the one behind the last."""
        at = np.arange(self.size) + self.padding
        end = np.minimum(at // self.stride + 1, self.out)
        return np.stack([np.clip((at - self.kernel) // self.stride + 1, 0, end), end], axis=1)

    def inputs_of(self, low: int, high: int) -> Range:
        return self.window(low)[0], self.window(high - 1)[1]


@dataclass(frozen=True)
class PoolPart(PoolAxis):
    """Some windows of a pool's axis, on a part of what the whole axis reads."""

    whole: PoolAxis
    first: int  # window
    count: int
    begin: int  # of the part

    @classmethod
    def of(cls, axis: PoolAxis, part: Range, outputs: Range) -> PoolPart:
        padding = axis.padding + part[0] - outputs[0] * axis.stride
        sizes = part[1] - part[0], axis.kernel, axis.stride, padding, axis.ceil_mode
        return cls(*sizes, axis, outputs[0], outputs[1] - outputs[0], part[0])

    @property
    def out(self) -> int:
        return self.count

    def window(self, o: int) -> Range:
        low, high = self.whole.window(self.first + o)
        return low - self.begin, high - self.begin

    def divisor(self, o: int, include_pad: bool) -> int:
        return self.whole.divisor(self.first + o, include_pad)

    def windows(self, include_pad: bool) -> npt.NDArray[np.int64]:
        every = self.whole.windows(include_pad)
        found: npt.NDArray[np.int64] = every[self.first : self.first + self.count].copy()
        found[:, :2] -= self.begin
        return found


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
