"""What is asked: two arrays, a kernel size, and how positions of the one meet those of the other.

gradient[a, b, k] = sum over samples and positions i of small[a, i] * large[b, i * stride - padding + k * dilation]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...spec.checks import Triple
from ...spec.dtypes import DType
from ...spec.gradient import conv_axes
from ...spec.lazy import lazy
from ...spec.shapes import Range, Shape, TransposedAxis


@dataclass(frozen=True)
class Problem:
    small: Shape  # (B, Ca, D, H, W)
    large: Shape  # (B, Cb, D', H', W')
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    groups: int
    dtype: DType
    transposed: bool = True  # of a transposed convolution, whose input is the small array; else it is the large one

    @property
    def result(self) -> tuple[int, ...]:
        return (self.small[1], self.large_group, *self.kernel)

    @property
    def small_group(self) -> int:
        """Channels of the small array in a group."""
        return self.small[1] // self.groups

    @property
    def large_group(self) -> int:
        return self.large[1] // self.groups

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    @property
    def positions(self) -> int:
        """Of all samples."""
        return self.small[0] * prod(self.small[2:])

    @lazy
    def axes(self) -> tuple[TransposedAxis, TransposedAxis, TransposedAxis]:
        """Their inputs are the positions of the small array."""
        return conv_axes(self.small[2:], self.kernel, self.stride, self.padding, self.dilation)

    def ranges(self, axis: int) -> list[Range]:
        """For each tap the positions, along an axis, that it takes into the large array."""
        one, size = self.axes[axis], self.large[2 + axis]
        return [one.tap_range(k, 0, size) for k in range(one.kernel)]

    @lazy
    def pairs(self) -> int:
        """Pairs of positions, of all taps and samples: multiply-adds for a pair of channels."""
        along = (sum(behind - first for first, behind in self.ranges(axis)) for axis in range(3))
        return self.small[0] * prod(along)

    @property
    def operations(self) -> int:
        """Two for each multiply-add."""
        return 2 * self.pairs * self.small[1] * self.large_group
