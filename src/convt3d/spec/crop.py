"""Which box of every value a box of the result depends on, and crops of all values that keep their grids in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor, gcd, lcm

from .checks import as_triple
from .pipeline import Pipeline, Trace
from .shapes import Box, Range, Shape
from .stages import AvgPool3d, Conv3d, ConvTranspose3d, Keep, MaxPool3d, Recall
from .work import label_shape


def needed_boxes(
    pipeline: Pipeline, trace: Trace, block: Box, widen: Callable[[Box], Box] | None = None
) -> tuple[Box, ...]:
    """For every value of the trace the box that the block depends on; `widen` makes that of the convolution's result
    larger."""
    kept: dict[str, Box] = {}
    boxes = [block]
    recalled = 0  # values before a Recall: under their name they are needed
    for index in reversed(range(len(pipeline.stages))):
        stage, shape, box = pipeline.stages[index], trace.values[index], boxes[-1]
        if widen is not None and index == pipeline.conv_index:
            box = boxes[-1] = widen(box)
        if stage.uses:
            other = _repeated(box, label_shape(pipeline, trace, stage.uses))
            kept[stage.uses] = hull(kept.get(stage.uses, other), other)
            recalled = 1 if isinstance(stage, Recall) else 0
            box = _repeated(box, shape)
        elif isinstance(stage, Keep) and recalled:
            box = kept.get(stage.label, box)
            boxes[-recalled:] = [box] * recalled
            recalled = 0 if stage.label in kept else recalled + 1
        elif isinstance(stage, Keep):
            box = hull(box, kept.get(stage.label, box))
        else:
            box = stage.reads(box, shape, trace.operands[index])
        boxes.append(box)
    boxes[-1] = hull(boxes[-1], kept.get("x", boxes[-1]))
    return tuple(reversed(boxes))


def label_stage(pipeline: Pipeline, label: str) -> int:
    """Index of the value that carries the label."""
    return next((i for i, stage in enumerate(pipeline.stages) if isinstance(stage, Keep) and stage.label == label), 0)


def _repeated(box: Box, shape: Shape) -> Box:
    """The part of a value of `shape` that is repeated to fill `box`."""
    c, d, h, w = ((0, 1) if size == 1 else part for part, size in zip(box, shape[1:], strict=True))
    return c, d, h, w


def hull(a: Box, b: Box) -> Box:
    c, d, h, w = ((min(p[0], q[0]), max(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return c, d, h, w


def axis_ranges(pipeline: Pipeline, trace: Trace, needed: Sequence[Box], axis: int, outputs: int = 1) -> list[Range]:
    """Ranges of every value along a spatial axis that start and end whole steps of the input's grid from its ends.

    A crop of n inputs on the left shifts value k by n * ratio[k]; n is a multiple of the least number that makes all
    these shifts whole. Taking such multiples off the right as well keeps all sizes in step. A window that touches a
    true end needs that end (its box is cut there), so nothing is taken off on that side. The range of the convolution's
    result begins at a multiple of `outputs`.
    """
    ratios = [Fraction(1)]
    for stage in pipeline.stages:
        step = Fraction(1)
        if isinstance(stage, ConvTranspose3d):
            step = Fraction(stage.triples[0][axis - 1])
        elif isinstance(stage, Conv3d):
            step = Fraction(1, as_triple(stage.stride)[axis - 1])
        elif isinstance(stage, (MaxPool3d, AvgPool3d)):
            step = Fraction(1, stage.triples[1][axis - 1])
        ratios.append(ratios[-1] * step)
    sizes = [shape[axis + 1] for shape in trace.values]
    if any(ratios[here] != ratios[there] for here, there in meetings(pipeline)):
        return [(0, size) for size in sizes]  # grids of different pitch meet: no crop keeps them together
    if isinstance(pipeline.conv, Conv3d) and pipeline.conv.padding_mode != "zeros":
        return [(0, size) for size in sizes]  # a crop may be shorter than what is repeated of it
    period = lcm(*(ratio.denominator for ratio in ratios))
    period *= outputs // gcd(outputs, int(period * ratios[pipeline.conv_index + 1]))
    rows = list(zip((period * ratio for ratio in ratios), sizes, (box[axis] for box in needed), strict=True))
    left = min(floor(low / step) for step, _, (low, _) in rows)
    right = min(floor((size - high) / step) for step, size, (_, high) in rows)
    return [(int(left * step), size - int(right * step)) for step, size, _ in rows]


def meetings(pipeline: Pipeline) -> list[tuple[int, int]]:
    """Pairs of values that a stage combines: the one that enters it, and the kept one."""
    return [(index, label_stage(pipeline, stage.uses)) for index, stage in enumerate(pipeline.stages) if stage.uses]
