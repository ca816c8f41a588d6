"""Where a tile of the destination comes from: for every step of a sweep the ranges it reads and writes along one axis.

All of it is worked out here, in Python integers, and handed to the kernel as tables; the kernel itself knows no
stride, padding, dilation or pool. A convolution's outputs are o = period * q + j: `q` is the position, `j` the residue
(its phase), and its inputs are i = pace * q + a shift that depends on phase and tap. A transposed convolution has
period = stride and pace = 1, a convolution period = 1 and pace = stride. Winograd's method makes several outputs of a
phase together: both are so many times larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...spec.lazy import lazy
from ...spec.pipeline import Pipeline, Trace
from ...spec.shapes import LONG_STRIDE, ConvAxis, PoolAxis, Range

STEP_WORDS = 9  # words of one geometric step in a row of an axis table
READ, READ_COUNT, WRITE, WRITE_COUNT, POSITION, POSITION_COUNT, PLACE, FROM, VALID = range(STEP_WORDS)


@dataclass(frozen=True)
class Bound:
    """What a tile reads, writes and computes at most in a step, in elements."""

    read: int
    write: int
    positions: int = 0


class AxisStep(Protocol):
    """A geometric step along one axis."""

    def reads(self, write: Range) -> tuple[Range, Range]:
        """What it reads for what it writes, and the positions it computes."""
        ...

    def bound(self, length: int, first: int, advance: int) -> tuple[Bound, int, int]:
        """For tiles of `length` that begin at `first` and every `advance` from there; and where those of its input
        begin, and how far apart."""
        ...

    def period_after(self, period: int) -> int:
        """Where tiles must begin so that none computes a part of what belongs together: multiples of this, if what it
        reads has `period`."""
        ...

    def words(self, span: Span) -> list[int]:
        """Of a row in the axis table, after the ranges: positions, and the place of the inputs in the slab."""
        ...


@dataclass(frozen=True)
class PhaseAxis:
    """Taps of one residue j along one axis, and how far their inputs lie from the position."""

    phase: int  # j
    taps: tuple[int, ...]
    shifts: tuple[int, ...]


@dataclass(frozen=True)
class Walk:
    """A convolution's axis, cut into positions."""

    axis: ConvAxis
    together: int = 1  # outputs of a phase at one position
    more: int = 0  # inputs beyond the last one that a tap meets, which a scheme filled up with zero taps reads

    @property
    def period(self) -> int:
        """Outputs from one position to the next: the number of phases."""
        return self.axis.outputs_per_input * self.together

    @property
    def pace(self) -> int:
        """Inputs from one position to the next."""
        return self.axis.inputs_per_output * self.together

    @lazy
    def kept(self) -> int:
        """Phases that have a place of their own: all of a short stride. Of a long one those with taps, and one place
        for all the others, which give the bias alone: there may be millions."""
        found = len(_taps(self))
        return found + 1 if self.axis.outputs_per_input > LONG_STRIDE and found + 1 < self.period else self.period

    def place(self, phase: int) -> int:
        """Of a phase with taps among those that are kept."""
        return phase if self.kept == self.period else self._places[phase]

    @lazy
    def _places(self) -> dict[int, int]:
        return {phase: at for at, phase in enumerate(sorted(_taps(self)))}

    def places(self) -> npt.NDArray[np.int64]:
        """Of all phases that the output has."""
        count = min(self.period, self.axis.out)
        if self.kept == self.period:
            return np.arange(count)
        found = np.full(count, self.kept - 1)
        for phase, at in self._places.items():
            found[phase : phase + 1] = at
        return found

    @property
    def positions(self) -> int:
        """Of the whole output."""
        return (self.axis.out - 1) // self.period + 1

    @lazy
    def shift_range(self) -> tuple[int, int]:
        """Smallest and largest shift of any phase, clipped."""
        shifts = [shift for own in _taps(self).values() for _, shift in own]
        return self.clipped(min(shifts)), self.clipped(max(shifts)) + self.more

    def clipped(self, shift: int) -> int:
        """A shift that meets no input at any position is as good as the nearest such one: it meets zeros."""
        return min(max(shift, -self.pace * (self.positions - 1) - 1), self.axis.size)

    def reads(self, write: Range) -> tuple[Range, Range]:
        """Inputs any phase of these positions may meet; at least one, so that no range is empty."""
        positions = (write[0] // self.period, (write[1] - 1) // self.period + 1)
        size, first = self.axis.size, self.pace * positions[0] + self.shift_range[0]
        low = min(max(first, 0), size - 1)
        return (low, min(max(first + reach(self, positions[1] - positions[0]), low + 1), size)), positions

    def bound(self, length: int, first: int, advance: int) -> tuple[Bound, int, int]:
        # A tile that begins at another remainder by the period may touch one position more.
        remainder = self.period - 1 if advance % self.period else first % self.period
        positions = min((remainder + length - 1) // self.period + 1, self.positions)
        return Bound(min(reach(self, positions), self.axis.size), length, positions), first, advance

    def period_after(self, period: int) -> int:
        return self.period if self.kept == self.period else 1

    def words(self, span: Span) -> list[int]:
        """Positions, and where in the slab the valid inputs are put: place, from (in what was read), count."""
        low, high = span.positions
        origin = self.pace * low + self.shift_range[0]
        first, last = max(origin, 0), min(origin + reach(self, high - low), self.axis.size)
        valid = max(0, last - first)
        place = first - origin if valid else 0
        start = first - span.read[0] if valid else 0
        return [low, high - low, place, start, valid]


@dataclass(frozen=True)
class Windows:
    """A pool's axis."""

    axis: PoolAxis

    def reads(self, write: Range) -> tuple[Range, Range]:
        return self.axis.inputs_of(*write), (0, 0)

    def bound(self, length: int, first: int, advance: int) -> tuple[Bound, int, int]:
        stride = self.axis.stride
        read = min((length - 1) * stride + self.axis.kernel, self.axis.size)
        return Bound(read, length), first * stride - self.axis.padding, advance * stride

    def period_after(self, period: int) -> int:
        return period // gcd(period, self.axis.stride)

    def words(self, span: Span) -> list[int]:
        return [0] * 5


@dataclass(frozen=True)
class Spread:
    """A pool's axis the other way: inputs are written, windows read."""

    axis: PoolAxis

    def reads(self, write: Range) -> tuple[Range, Range]:
        """Windows that any of these inputs is in; at least one, so that no range is empty."""
        axis = self.axis
        first = max(0, (write[0] + axis.padding - axis.kernel) // axis.stride + 1)
        end = min((write[1] - 1 + axis.padding) // axis.stride + 1, axis.out)
        low = min(first, axis.out - 1)
        return (low, max(end, low + 1)), (0, 0)

    def bound(self, length: int, first: int, advance: int) -> tuple[Bound, int, int]:
        windows = -(-(length + self.axis.kernel - 1) // self.axis.stride)
        return Bound(min(max(windows, 1), self.axis.out), length), 0, 1

    def period_after(self, period: int) -> int:
        return self.axis.stride

    def words(self, span: Span) -> list[int]:
        return [0] * 5


@lru_cache(maxsize=4096)
def _taps(walk: Walk) -> dict[int, list[tuple[int, int]]]:
    """For each phase that has taps: (tap, shift), shifts falling."""
    axis = walk.axis
    found: dict[int, list[tuple[int, int]]] = {}
    every = axis.outputs_per_input
    for k in reversed(tuple(axis.taps_by_input)):
        offset = axis.offset(k)
        for phase in range(-offset % every, walk.period, every):
            found.setdefault(phase, []).append((k, (phase * axis.inputs_per_output + offset) // every))
    return found


def phases(walk: Walk) -> tuple[PhaseAxis, ...]:
    """The phases that have taps, in order; the others, of which a long stride has many, give the bias alone."""
    found = sorted(_taps(walk).items())
    return tuple(PhaseAxis(j, tuple(k for k, _ in own), tuple(shift for _, shift in own)) for j, own in found)


@dataclass(frozen=True)
class Span:
    """One tile along one axis at one geometric step."""

    read: Range  # of the step's input, inside the array
    write: Range
    positions: Range = (0, 0)  # of a convolution


@dataclass(frozen=True)
class AxisSpans:
    """The tiles of a sweep along one axis, worked out one by one when asked for."""

    steps: tuple[AxisStep, ...]
    size: int  # of the destination
    tile: int

    @property
    def count(self) -> int:
        return -(-self.size // self.tile)

    def spans(self, number: int) -> tuple[Span, ...]:
        """One span for each step; a sweep without geometric steps has one that copies."""
        wanted = (number * self.tile, min((number + 1) * self.tile, self.size))
        row: list[Span] = []
        for step in reversed(self.steps):
            read, positions = step.reads(wanted)
            row.append(Span(read, wanted, positions))
            wanted = read
        return tuple(reversed(row)) or (Span(wanted, wanted),)

    @lazy
    def _longest(self) -> list[Bound]:
        """Upper bounds for every step, walked back from the tile; no tile reads, writes or computes more."""
        length, first, advance = min(self.tile, self.size), 0, self.tile
        bounds = []
        for step in reversed(self.steps):
            bound, first, advance = step.bound(length, first, advance)
            length = bound.read
            bounds.append(bound)
        return bounds[::-1] or [Bound(length, length)]

    def longest(self, step: int, what: str) -> int:
        """What a tile reads, writes or (positions) computes at most in a step."""
        found: int = getattr(self._longest[step], what)
        return found

    def table(self) -> npt.NDArray[np.int64]:
        """A row for each tile, STEP_WORDS words for each step."""
        rows = []
        for number in range(self.count):
            for at, span in enumerate(self.spans(number)):
                words = [span.read[0], span.read[1] - span.read[0], span.write[0], span.write[1] - span.write[0]]
                rows.append(words + (self.steps[at].words(span) if self.steps else [0] * 5))
        return np.array(rows, dtype=np.int64)


def conv_axes(pipeline: Pipeline, trace: Trace) -> tuple[ConvAxis, ConvAxis, ConvAxis]:
    """Of the pipeline's convolution: depth, height, width."""
    index = pipeline.conv_index
    return pipeline.conv.axes(trace.values[index], trace.operands[index][0])


def reach(walk: Walk, positions: int) -> int:
    """Inputs from the first to the last that so many positions meet."""
    least, most = walk.shift_range
    return walk.pace * (positions - 1) + most - least + 1
