"""How much of a pipeline is needed: which parts of each value reach the output, and the multiply-adds that costs.

Walks the stages backwards from the output. Axes are independent, so a region is one set of disjoint ranges per axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from .pipeline import Pipeline, Trace
from .shapes import PoolAxis, Range, Shape
from .stage import Stage, whole
from .stages import AvgPool3d, ConvTranspose3d, Keep, MaxPool3d, Recall

Ranges: TypeAlias = tuple[Range, ...]
Region: TypeAlias = tuple[Ranges, Ranges, Ranges, Ranges]  # of C, D, H, W
_NOTHING: Region = ((), (), (), ())


@dataclass(frozen=True)
class Work:
    """Floating-point operations of the convolution; one multiply-add is two."""

    needed: int  # in-bounds, of voxels that reach the output
    nominal: int  # 2 * B * Cout * D * H * W * Cin * Kd * Kh * Kw, as the problem authors count; sizes are those of the
    # smaller side, the input of a transposed convolution and the output of a convolution


def needed_regions(pipeline: Pipeline, trace: Trace, stop: int | None = None) -> tuple[Region, ...]:
    """For every value of the trace the region that the output depends on; or for those up to `stop`, and that one."""
    stop = len(pipeline.stages) if stop is None else stop
    region = _whole_region(trace.values[stop])
    regions = [region]
    kept: dict[str, Region] = {}
    for index in reversed(range(stop)):
        stage, shape = pipeline.stages[index], trace.values[index]
        if stage.uses:
            wanted = _broadcast(region, label_shape(pipeline, trace, stage.uses))
            kept[stage.uses] = _union(kept[stage.uses], wanted) if stage.uses in kept else wanted
            region = _NOTHING if isinstance(stage, Recall) else _broadcast(region, shape)
        elif isinstance(stage, Keep):
            region = _union(region, kept[stage.label]) if stage.label in kept else region
        else:
            region = _reads(stage, region, shape, trace.operands[index])
        regions.append(region)
    if "x" in kept:
        regions[-1] = _union(regions[-1], kept["x"])
    return tuple(reversed(regions))


def reach(pipeline: Pipeline, trace: Trace, stop: int | None = None) -> tuple[int, int, int]:
    """How many outputs of the convolution along D, H, W any later stage reads, or any in front of stage `stop`, counted
    from the start of each axis."""
    _, d, h, w = needed_regions(pipeline, trace, stop)[pipeline.conv_index + 1]
    return d[-1][1], h[-1][1], w[-1][1]


def count(pipeline: Pipeline, trace: Trace) -> Work:
    index = pipeline.conv_index
    shape, weight = trace.values[index], trace.operands[index][0]
    batch, cin = shape[:2]
    cout = trace.values[index + 1][1]
    regions = needed_regions(pipeline, trace)[index + 1]
    axes = zip(pipeline.conv.axes(shape, weight), regions[1:], strict=True)
    pairs = prod(axis.multiplications(wanted) for axis, wanted in axes)
    needed_channels = sum(high - low for low, high in regions[0])
    return Work(
        needed=2 * batch * needed_channels * (cin // pipeline.conv.groups) * pairs,
        nominal=2 * batch * cout * prod(_places(pipeline, trace)) * cin * prod(weight[2:]),
    )


def _places(pipeline: Pipeline, trace: Trace) -> tuple[int, ...]:
    """Sizes of the side whose every voxel nominally meets every tap."""
    index = pipeline.conv_index
    return trace.values[index if isinstance(pipeline.conv, ConvTranspose3d) else index + 1][2:]


def _whole_region(shape: Shape) -> Region:
    c, d, h, w = whole(shape)
    return (c,), (d,), (h,), (w,)


def label_shape(pipeline: Pipeline, trace: Trace, label: str) -> Shape:
    """The shape of the value that a Keep has given this name, or of the input."""
    for stage, shape in zip(pipeline.stages, trace.values, strict=False):
        if isinstance(stage, Keep) and stage.label == label:
            return shape
    return trace.values[0]


def _broadcast(region: Region, shape: Shape) -> Region:
    """The region of a second value of `shape`: its size-1 axes are read whole."""
    c, d, h, w = (((0, 1),) if size == 1 else ranges for ranges, size in zip(region, shape[1:], strict=True))
    return c, d, h, w


def _union(a: Region, b: Region) -> Region:
    c, d, h, w = (_merge((*first, *second)) for first, second in zip(a, b, strict=True))
    return c, d, h, w


def _merge(ranges: Iterable[Range]) -> Ranges:
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _reads(stage: Stage, region: Region, shape: Shape, operands: tuple[tuple[int, ...], ...]) -> Region:
    if isinstance(stage, (MaxPool3d, AvgPool3d)):
        d, h, w = (_windows(axis, wanted) for axis, wanted in zip(stage.axes(shape), region[1:], strict=True))
        return region[0], d, h, w
    result: list[Ranges] = []
    for position, ranges in enumerate(region):
        wanted = []
        if not stage.couples:  # voxel by voxel
            result.append(ranges)
            continue
        for span in ranges:  # axes are independent: ask for one range with the others at their first
            box = [span if other == position else region[other][0] for other in range(4)]
            wanted.append(stage.reads((box[0], box[1], box[2], box[3]), shape, operands)[position])
        result.append(_merge(wanted))
    return result[0], result[1], result[2], result[3]


def _windows(axis: PoolAxis, wanted: Ranges) -> Ranges:
    if axis.stride <= axis.kernel:  # windows touch, so a range of outputs reads one range
        return _merge(axis.inputs_of(low, high) for low, high in wanted)
    return tuple(axis.window(o) for low, high in wanted for o in range(low, high))  # apart, and in order
