"""Where a tile of the destination comes from: for every step of a pass the ranges it reads and writes along one axis.

All of it is worked out here, in Python integers, and handed to the kernel as tables; the kernel itself knows no
stride, padding, dilation or pool. A convolution's outputs are o = stride * t + j: `t` is the position, `j` the residue
(its phase); tap k meets input t + (j + padding - k * dilation) / stride, where that is a whole number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..spec.lazy import lazy
from ..spec.pipeline import Pipeline, Trace
from ..spec.shapes import ConvAxis, PoolAxis, Range
from ..spec.stages import AvgPool3d, MaxPool3d
from .passes import Conv, Pass, PhasePool, Pool

STEP_WORDS = 9  # words of one geometric step in a row of an axis table
READ, READ_COUNT, WRITE, WRITE_COUNT, POSITION, POSITION_COUNT, PLACE, FROM, VALID = range(STEP_WORDS)


@dataclass(frozen=True)
class PhaseAxis:
    """Taps of one residue j along one axis, and how far their inputs lie from the position."""

    phase: int  # j
    taps: tuple[int, ...]
    shifts: tuple[int, ...]


@lru_cache(maxsize=4096)
def _taps(axis: ConvAxis) -> dict[int, list[tuple[int, int]]]:
    """For each phase that has taps: (tap, shift)."""
    found: dict[int, list[tuple[int, int]]] = {}
    for k in range(axis.kernel):
        distance = axis.padding - k * axis.dilation
        phase = -distance % axis.stride
        found.setdefault(phase, []).append((k, (phase + distance) // axis.stride))
    return found


def phases(axis: ConvAxis) -> tuple[PhaseAxis, ...]:
    """The phases that have taps, in order; the others, of which a long stride has many, give the bias alone."""
    found = sorted(_taps(axis).items())
    return tuple(PhaseAxis(j, tuple(k for k, _ in own), tuple(shift for _, shift in own)) for j, own in found)


@lru_cache(maxsize=4096)
def shift_range(axis: ConvAxis) -> tuple[int, int]:
    """Smallest and largest shift of any phase."""
    shifts = [shift for own in _taps(axis).values() for _, shift in own]
    return min(shifts), max(shifts)


@dataclass(frozen=True)
class Span:
    """One tile along one axis at one geometric step."""

    read: Range  # of the step's input, inside the array
    write: Range
    positions: Range = (0, 0)  # of a convolution


@dataclass(frozen=True)
class AxisSpans:
    """The tiles of a pass along one axis, worked out one by one when asked for."""

    steps: tuple[ConvAxis | PoolAxis, ...]
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
            read, positions = step.inputs_of(*wanted), (0, 0)
            if isinstance(step, ConvAxis):
                positions = (wanted[0] // step.stride, (wanted[1] - 1) // step.stride + 1)
                read = _convolution_reads(step, positions)
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
            if isinstance(step, ConvAxis):
                # A tile that begins at another remainder by the stride may touch one position more.
                remainder = step.stride - 1 if advance % step.stride else first % step.stride
                most = (remainder + length - 1) // step.stride + 1
                bound["positions"] = min(most, (step.out - 1) // step.stride + 1)
                least_shift, most_shift = shift_range(step)
                length = min(bound["positions"] + most_shift - least_shift, step.size)
            else:
                length = min((length - 1) * step.stride + step.kernel, step.size)
                first = first * step.stride - step.padding
                advance *= step.stride
            bounds.append({**bound, "read": length})
        return bounds[::-1] or [{"read": length, "write": length, "positions": 0}]

    def longest(self, step: int, what: str) -> int:
        """What a tile reads, writes or (positions) computes at most in a step."""
        return self._longest[step][what]


def axis_steps(pipeline: Pipeline, trace: Trace, one: Pass, axis: int) -> tuple[ConvAxis | PoolAxis, ...]:
    """The geometric steps of a pass along axis 0, 1, 2 = depth, height, width."""
    steps: list[ConvAxis | PoolAxis] = []
    for op in one.ops:
        if isinstance(op, Conv):
            steps.append(pipeline.conv.axes(trace.values[op.stage], trace.operands[op.stage][0])[axis])
        elif isinstance(op, (Pool, PhasePool)):
            pool = pipeline.stages[op.stage]
            assert isinstance(pool, (MaxPool3d, AvgPool3d))
            steps.append(pool.axes(trace.values[op.stage])[axis])
    return tuple(steps)


def _convolution_reads(axis: ConvAxis, positions: Range) -> Range:
    """Inputs any phase of these positions may meet; at least one, so that no range is empty."""
    least, most = shift_range(axis)
    low = min(max(positions[0] + least, 0), axis.size - 1)
    return low, min(max(positions[1] + most, low + 1), axis.size)
