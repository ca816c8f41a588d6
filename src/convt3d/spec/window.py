"""A window of a pipeline: one box of its result, computed from the box of the input that it depends on.

Stages that look at neighbours are told where they stand: the convolution by other padding, a pool by the windows of the
whole array that it computes. Nothing is computed twice, and what lies outside of the array is what it is for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias

from .crop import hull, label_stage, needed_boxes
from .pipeline import Pipeline, Trace
from .rewrite import pool_over_phases
from .shapes import Box, ConvAxis, PoolPart, Range, Shape, TransposedAxis
from .stage import Stage, whole
from .stages import SPATIAL, AvgPool3d, Convolution, ConvTranspose3d, GroupNorm, InstanceNorm, MaxPool3d, Recall
from .stages.padding import Pad

Periods: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Window:
    """What computes one box of the result."""

    pipeline: Pipeline
    values: tuple[Box, ...]  # of each value that enters a stage of the pipeline, and of the result
    pad: Pad | None  # the input is that of the whole, padded by this first


def over_space(stage: Stage) -> bool:
    """Whether it has statistics over all of space: then each box of the result depends on all of the input."""
    return isinstance(stage, (InstanceNorm, GroupNorm)) or getattr(stage, "over", None) == "spatial"


def needed(pipeline: Pipeline, trace: Trace, block: Box, periods: Periods, whole_ends: bool) -> tuple[Box, ...]:
    """For every value the box that the block depends on. The convolution's outputs are computed from multiples of
    `periods` on; and up to such, with `whole_ends`, though there may be none so far."""

    def widen(box: Box) -> Box:
        d, h, w = (
            (low // period * period, -(-high // period) * period if whole_ends else high)
            for (low, high), period in zip(box[1:], periods, strict=True)
        )
        return box[0], d, h, w

    return needed_boxes(pipeline, trace, block, widen)


def window(
    pipeline: Pipeline, trace: Trace, block: Box, given: Box, periods: Periods = (1, 1, 1), whole_ends: bool = False
) -> Window | None:
    """The window of `block`, from the box `given` of the input, which holds all that is needed; None where values meet
    that would have to be cut differently."""
    wanted = needed(pipeline, trace, block, periods, whole_ends)
    pad, start = None, 0
    if isinstance(pipeline.stages[0], Pad):
        pad, start = pipeline.stages[0], 1
    stages: list[Stage] = []
    values: list[Box] = [given] * (start + 1)
    phases = pool_over_phases(pipeline)
    for index in range(start, len(pipeline.stages)):
        stage, shape, out = pipeline.stages[index], trace.values[index], trace.values[index + 1]
        box = values[-1]
        target = within(wanted[index + 1], out)
        if isinstance(stage, Convolution):
            axes = stage.axes(shape, trace.operands[index][0])
            stage, box = _convolution(stage, axes, box, target), target
        elif index == phases:
            box = _halves(box, stage)
        elif isinstance(stage, (MaxPool3d, AvgPool3d)):
            stage, box = _pool(stage, shape, box, target), target
        elif isinstance(stage, (Pad, Recall)):
            return None
        elif stage.uses:
            met = _meet(box, values[label_stage(pipeline, stage.uses)], out)
            if met is None:
                return None
            box = met
        else:
            if stage.couples & SPATIAL and not _is_whole(stage, box, shape):
                return None
            box = _reduced(box, out)
        stages.append(stage)
        values.append(box)
    return Window(Pipeline(*stages), tuple(values[start:]), pad) if values[-1] == block else None


def within(box: Box, shape: Shape) -> Box:
    c, d, h, w = ((low, min(high, size)) for (low, high), size in zip(box, shape[1:], strict=True))
    return c, d, h, w


def _reduced(box: Box, out: Shape) -> Box:
    c, d, h, w = ((0, 1) if size == 1 else part for part, size in zip(box, out[1:], strict=True))
    return c, d, h, w


def _is_whole(stage: Stage, box: Box, shape: Shape) -> bool:
    full = whole(shape)
    return stage.reads(box, shape, ()) == box or all(a == b for a, b in zip(box[1:], full[1:], strict=True))


def _meet(box: Box, other: Box, out: Shape) -> Box | None:
    """The box of two values that a stage combines; one may have size 1 along an axis."""
    found: list[Range] = []
    for one, two, size in zip(box, other, out[1:], strict=True):
        if one != two and size > 1 and (0, 1) not in (one, two):
            return None
        found.append(hull(((0, 1), one, one, one), ((0, 1), two, two, two))[1] if (0, 1) in (one, two) else one)
    c, d, h, w = found
    return c, d, h, w


def _past_rules(stage: Stage, **values: Any) -> Stage:
    """A copy with parameters that no caller may write."""
    made = copy(stage)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _convolution(stage: Convolution, axes: Sequence[ConvAxis], box: Box, target: Box) -> Stage:
    """Output o and input i of the window are o + first and i + begin of the whole."""
    rows = list(zip(axes, box[1:], target[1:], strict=True))
    before, after = [], []
    for axis, (begin, end), (first, last) in rows:
        reach = axis.dilation * (axis.kernel - 1) + 1
        if isinstance(axis, TransposedAxis):
            padding = axis.padding + first - begin * axis.stride
            after.append(last - first - ((end - begin - 1) * axis.stride - 2 * padding + reach))
        else:
            padding = axis.padding + begin - first * axis.stride
            after.append((last - first - 1) * axis.stride + reach - (end - begin) - padding)
        before.append(padding)
    if isinstance(stage, ConvTranspose3d):
        return _past_rules(stage, padding=tuple(before), output_padding=tuple(after))
    return _past_rules(stage, padding=tuple(zip(before, after, strict=True)))


def _halves(box: Box, pool: Stage) -> Box:
    """What a pool over phases makes of a box that begins at a window."""
    assert isinstance(pool, (MaxPool3d, AvgPool3d))
    d, h, w = ((low // step, high // step) for (low, high), step in zip(box[1:], pool.triples[1], strict=True))
    return box[0], d, h, w


def _pool(stage: MaxPool3d | AvgPool3d, shape: Shape, box: Box, target: Box) -> Stage:
    """Itself, where windows lie side by side without padding; else it is told which windows it computes. So it is where
    one window happens to be all of the row: whole rows are summed in another order."""
    kernels, strides, paddings = stage.triples
    rows = list(zip(kernels, strides, box[1:], target[1:], strict=True))
    fits = all((low * s, (high - 1) * s + k) == part for k, s, part, (low, high) in rows)
    row = target[3][1] - target[3][0] > 1 or kernels[2] == shape[4] or strides[2] != kernels[2]
    if fits and row and not stage.ceil_mode and not any(paddings):
        return stage
    parts = tuple(
        PoolPart.of(axis, part, outs) for axis, part, outs in zip(stage.axes(shape), box[1:], target[1:], strict=True)
    )
    return _past_rules(stage, padding=parts)


def out_periods(pipeline: Pipeline, trace: Trace, periods: Periods) -> Periods:
    """Boxes of the result that begin at multiples of these need no output of the convolution before multiples of
    `periods`."""
    found = list(periods)
    for index in range(pipeline.conv_index + 1, len(pipeline.stages)):
        stage = pipeline.stages[index]
        if isinstance(stage, (MaxPool3d, AvgPool3d)):
            found = [p // gcd(p, s) for p, s in zip(found, stage.triples[1], strict=True)]
        found = [1 if size == 1 else p for p, size in zip(found, trace.values[index + 1][2:], strict=True)]
    d, h, w = found
    return d, h, w
