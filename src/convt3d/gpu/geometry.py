"""Numbers that a GPU kernel needs for one axis, in exact integers; a kernel's code knows no size, stride or window.

Final outputs are p = pace * q + a: position q, residue a. Member j of p's window is output o = jump * p + j - pad of
the convolution. The pace is such that jump * pace is a multiple of the stride: all positions of a residue then meet the
same taps, at inputs step * q + a constant (docs/gpu.md has the algebra). A convolution that is not transposed has one
residue, and `scale` inputs from an output to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ..spec.shapes import ConvAxis, ForwardAxis, PoolAxis

INT32_MAX = 2**31 - 1
SIZES = ("ends", "outs", "size", "count")  # numbers of an axis that differ from input to input


@dataclass(frozen=True)
class GpuAxis:
    """One axis of one kernel. A kernel without convolution has stride 1, one without pool has window 1 and jump 1."""

    ends: int  # final outputs
    outs: int  # outputs of the convolution, or values of the source, that windows are cut to
    size: int  # inputs
    kernel: int
    stride: int
    padding: int
    dilation: int
    window: int
    jump: int
    pad: int
    low: int = 0  # further positions before and after: the halo of a convolution's input, where that is written
    high: int = 0
    scale: int = 1  # inputs from an output to the next, of a convolution that is not transposed

    @property
    def pace(self) -> int:
        return self.stride // gcd(self.stride, self.jump)

    @property
    def count(self) -> int:
        """Positions of a residue."""
        return -(-self.ends // self.pace) + self.low + self.high

    @property
    def beside(self) -> tuple[int, int]:
        """How far before the first input and after the last one addresses reach, of all positions, residues and members
        of windows."""
        first, taps = self.number("shift"), (self.kernel - 1) * self.dilation
        lowest = (first - max(taps, 0)) // self.stride
        last = first + ((self.pace - 1) * self.jump + self.window - 1) * self.scale - min(taps, 0)
        highest = self.step * (self.count - 1) + last // self.stride
        return max(0, -lowest), max(0, highest - (self.size - 1))

    @property
    def step(self) -> int:
        """Inputs from one position to the next."""
        return self.jump * self.pace * self.scale // self.stride

    @property
    def common(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def hop(self) -> int:
        """From a tap that meets an output to the next one that does; the input goes back by `back`."""
        return self.stride // self.common

    @property
    def back(self) -> int:
        return self.dilation // self.common

    @property
    def inverse(self) -> int:
        """Of dilation / common modulo hop: the first tap of remainder r is (r / common) * inverse mod hop."""
        return pow(self.back, -1, self.hop) if self.hop > 1 else 0

    @property
    def reach(self) -> int:
        """The largest index that an address of an input is made of: positions beside the input have taps inside it."""
        return max(self.size - 1, self.step * (self.count - 1))

    @property
    def largest(self) -> int:
        """At least every number on the way from a position to an index."""
        ends, first = self.ends * self.jump, self.pace * self.jump + abs(self.padding)
        taps = (self.kernel + self.stride) * abs(self.dilation) + self.stride * self.stride
        outputs = (ends + self.window) * self.scale
        return max(self.outs, outputs, first + self.window, self.step * self.count, taps)

    def number(self, name: str) -> int:
        """What a kernel calls `name`; `shift` is the output that position 0 and residue 0 have, seen from tap 0."""
        return self.padding - self.pad * self.scale if name == "shift" else int(getattr(self, name))


def gpu_axis(conv: ConvAxis | None, pool: PoolAxis | None, size: int, ends: int) -> GpuAxis:
    """`size` is the source's; a plain walk over it has neither convolution nor pool."""
    kernel, stride, padding, dilation, scale = (1, 1, 0, 1, 1)
    if isinstance(conv, ForwardAxis):  # as a transposed one of stride 1, whose taps go the other way
        kernel, padding, dilation, scale = conv.kernel, -conv.padding, -conv.dilation, conv.stride
    elif conv is not None:
        kernel, stride, padding, dilation = conv.kernel, conv.stride, conv.padding, conv.dilation
    window, jump, pad = (1, 1, 0) if pool is None else (pool.kernel, pool.stride, pool.padding)
    outs = size if conv is None else conv.out
    return GpuAxis(ends, outs, size, kernel, stride, padding, dilation, window, jump, pad, scale=scale)
