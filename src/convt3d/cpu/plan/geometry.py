"""Where a tile of the destination comes from: for every step of a pass the ranges it reads and writes along one axis.

All of it is worked out here, in Python integers, and handed to the kernel as tables; the kernel itself knows no
stride, padding, dilation or pool. A convolution's outputs are o = stride * pace * q + j: `q` is the position, `j` the
residue (its phase); tap k meets input pace * q + (j + padding - k * dilation) / stride, where that is a whole number.
The direct algorithm has pace 1; minimal multiplication makes several outputs of a phase together and has a larger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...plan.passes import Conv, Pass, PhasePool, Pool
from ...spec.lazy import lazy
from ...spec.pipeline import Pipeline, Trace
from ...spec.shapes import LONG_STRIDE, ConvAxis, PoolAxis, Range
from ...spec.stages import AvgPool3d, MaxPool3d

STEP_WORDS = 9  # words of one geometric step in a row of an axis table
READ, READ_COUNT, WRITE, WRITE_COUNT, POSITION, POSITION_COUNT, PLACE, FROM, VALID = range(STEP_WORDS)


@dataclass(frozen=True)
class PhaseAxis:
    """Taps of one residue j along one axis, and how far their inputs lie from the position."""

    phase: int  # j
    taps: tuple[int, ...]
    shifts: tuple[int, ...]


@dataclass(frozen=True)
class Walk:
    """A convolution's axis and the inputs from one position to the next."""

    axis: ConvAxis
    pace: int = 1
    more: int = 0  # inputs beyond the last one that a tap meets, which a scheme filled up with zero taps reads

    @property
    def period(self) -> int:
        """Outputs from one position to the next: the number of phases."""
        return self.axis.stride * self.pace

    @lazy
    def kept(self) -> int:
        """Phases that have a place of their own: all of a short stride. Of a long one those with taps, and one place
        for all the others, which give the bias alone: there may be millions."""
        found = len(_taps(self))
        return found + 1 if self.axis.stride > LONG_STRIDE and found + 1 < self.period else self.period

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


@lru_cache(maxsize=4096)
def _taps(walk: Walk) -> dict[int, list[tuple[int, int]]]:
    """For each phase that has taps: (tap, shift)."""
    axis = walk.axis
    found: dict[int, list[tuple[int, int]]] = {}
    for k in range(axis.kernel):
        distance = axis.padding - k * axis.dilation
        for phase in range(-distance % axis.stride, walk.period, axis.stride):
            found.setdefault(phase, []).append((k, (phase + distance) // axis.stride))
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
    """The tiles of a pass along one axis, worked out one by one when asked for."""

    steps: tuple[Walk | PoolAxis, ...]
    size: int  # of the destination
    tile: int

    @property
    def count(self) -> int:
        return -(-self.size // self.tile)

    def spans(self, number: int) -> tuple[Span, ...]:
        """One span for each step; a pass without geometric steps has one that copies."""
        wanted = (number * self.tile, min((number + 1) * self.tile, self.size))
        row: list[Span] = []
        for step in reversed(self.steps):
            if isinstance(step, Walk):
                positions = (wanted[0] // step.period, (wanted[1] - 1) // step.period + 1)
                read = _convolution_reads(step, positions)
            else:
                read, positions = step.inputs_of(*wanted), (0, 0)
            row.append(Span(read, wanted, positions))
            wanted = read
        return tuple(reversed(row)) or (Span(wanted, wanted),)

    @lazy
    def _longest(self) -> list[dict[str, int]]:
        """Upper bounds for every step, walked back from the tile; no tile reads, writes or computes more."""
        length, first, advance = min(self.tile, self.size), 0, self.tile
        bounds = []
        for step in reversed(self.steps):
            bound = {"write": length, "positions": 0}
            if isinstance(step, Walk):
                # A tile that begins at another remainder by the period may touch one position more.
                remainder = step.period - 1 if advance % step.period else first % step.period
                most = (remainder + length - 1) // step.period + 1
                bound["positions"] = min(most, step.positions)
                length = min(reach(step, bound["positions"]), step.axis.size)
            else:
                length = min((length - 1) * step.stride + step.kernel, step.size)
                first = first * step.stride - step.padding
                advance *= step.stride
            bounds.append({**bound, "read": length})
        return bounds[::-1] or [{"read": length, "write": length, "positions": 0}]

    def longest(self, step: int, what: str) -> int:
        """What a tile reads, writes or (positions) computes at most in a step."""
        return self._longest[step][what]


def conv_axes(pipeline: Pipeline, trace: Trace) -> tuple[ConvAxis, ConvAxis, ConvAxis]:
    """Of the pipeline's convolution: depth, height, width."""
    index = pipeline.conv_index
    return pipeline.conv.axes(trace.values[index], trace.operands[index][0])


def axis_steps(pipeline: Pipeline, trace: Trace, one: Pass, axis: int, walk: Walk) -> tuple[Walk | PoolAxis, ...]:
    """The geometric steps of a pass along axis 0, 1, 2 = depth, height, width; `walk` is the convolution's."""
    steps: list[Walk | PoolAxis] = []
    for op in one.ops:
        if isinstance(op, Conv):
            steps.append(walk)
        elif isinstance(op, (Pool, PhasePool)):
            pool = pipeline.stages[op.stage]
            assert isinstance(pool, (MaxPool3d, AvgPool3d))
            steps.append(pool.axes(trace.values[op.stage])[axis])
    return tuple(steps)


def reach(walk: Walk, positions: int) -> int:
    """Inputs from the first to the last that so many positions meet."""
    least, most = walk.shift_range
    return walk.pace * (positions - 1) + most - least + 1


def _convolution_reads(walk: Walk, positions: Range) -> Range:
    """Inputs any phase of these positions may meet; at least one, so that no range is empty."""
    size, first = walk.axis.size, walk.pace * positions[0] + walk.shift_range[0]
    low = min(max(first, 0), size - 1)
    return low, min(max(first + reach(walk, positions[1] - positions[0]), low + 1), size)
