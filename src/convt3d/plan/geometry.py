"""Where a tile of the destination comes from: for every step of a pass the ranges it reads and writes along one axis.

All of it is worked out here, in Python integers, and handed to the kernel as tables; the kernel itself knows no stride,
padding, dilation or pool. A convolution's outputs are o = stride * t + j: `t` is the position, `j` the residue (its phase);
tap k meets input t + (j + padding - k * dilation) / stride, where that is a whole number.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.pipeline import Pipeline, Trace
from ..spec.shapes import ConvAxis, PoolAxis, Range
from .passes import Conv, Pass, Pool

STEP_WORDS = 9  # words of one geometric step in a row of an axis table
READ, READ_COUNT, WRITE, WRITE_COUNT, POSITION, POSITION_COUNT, PLACE, FROM, VALID = range(STEP_WORDS)


@dataclass(frozen=True)
class PhaseAxis:
    """Taps of one residue j along one axis, and how far their inputs lie from the position."""

    taps: tuple[int, ...]
    shifts: tuple[int, ...]


def phases(axis: ConvAxis) -> tuple[PhaseAxis, ...]:
    found = []
    for j in range(axis.stride):
        pairs = [(k, j + axis.padding - k * axis.dilation) for k in range(axis.kernel)]
        met = [(k, distance // axis.stride) for k, distance in pairs if distance % axis.stride == 0]
        found.append(PhaseAxis(tuple(k for k, _ in met), tuple(shift for _, shift in met)))
    return tuple(found)


def shift_range(axis: ConvAxis) -> tuple[int, int]:
    """Smallest and largest shift of any phase."""
    shifts = [shift for phase in phases(axis) for shift in phase.shifts]
    return min(shifts), max(shifts)


@dataclass(frozen=True)
class Span:
    """One tile along one axis at one geometric step."""

    read: Range  # of the step's input, inside the array
    write: Range
    positions: Range = (0, 0)  # of a convolution


@dataclass(frozen=True)
class AxisSpans:
    """All tiles along one axis: spans[tile][step]; a pass without geometric steps has one that copies."""

    spans: tuple[tuple[Span, ...], ...]

    def longest(self, step: int, what: str) -> int:
        ranges = [getattr(tile[step], what) for tile in self.spans]
        return max(high - low for low, high in ranges)


def axis_steps(pipeline: Pipeline, trace: Trace, one: Pass, axis: int) -> tuple[ConvAxis | PoolAxis, ...]:
    """The geometric steps of a pass along axis 0, 1, 2 = depth, height, width."""
    steps: list[ConvAxis | PoolAxis] = []
    for op in one.ops:
        if isinstance(op, Conv):
            steps.append(pipeline.conv.axes(trace.values[op.stage], trace.operands[op.stage][0])[axis])
        elif isinstance(op, Pool):
            pool = pipeline.stages[op.stage]
            steps.append(pool.axes(trace.values[op.stage])[axis])  # type: ignore[attr-defined]
    return tuple(steps)


def axis_spans(steps: tuple[ConvAxis | PoolAxis, ...], size: int, tile: int) -> AxisSpans:
    """Tiles of `tile` along a destination axis of `size`."""
    rows = []
    for low in range(0, size, tile):
        wanted = (low, min(low + tile, size))
        row: list[Span] = []
        for step in reversed(steps):
            read = step.inputs_of(*wanted)
            positions = (0, 0)
            if isinstance(step, ConvAxis):
                positions = (wanted[0] // step.stride, (wanted[1] - 1) // step.stride + 1)
                read = _convolution_reads(step, positions)
            row.append(Span(read, wanted, positions))
            wanted = read
        rows.append(tuple(reversed(row)) or (Span(wanted, wanted),))
    return AxisSpans(tuple(rows))


def _convolution_reads(axis: ConvAxis, positions: Range) -> Range:
    """Inputs any phase of these positions may meet; at least one, so that no range is empty."""
    least, most = shift_range(axis)
    low = min(max(positions[0] + least, 0), axis.size - 1)
    return low, min(max(positions[1] + most, low + 1), axis.size)
