"""Checks a result against the float64 meaning on sampled voxels, computing only the part of the input they depend on.

A block of output voxels is walked back through the stages to the box of every value it reads. That box is widened to
whole steps of every grid, so that the meaning of the cropped arrays is the crop of the meaning. An axis that a stage
couples as a whole (softmax over space, LayerNorm over channels) is simply needed whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..spec.crop import axis_ranges, meetings, needed_boxes
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline, Slot, Trace
from ..spec.reference import evaluate
from ..spec.rewrite import round_scalars, with_all_axes
from ..spec.shapes import Box, Range, Shape
from ..spec.stage import whole
from ..spec.stages import Conv3d
from ..spec.work import count

Storage: TypeAlias = npt.NDArray[Any]

SECONDS = 4.0  # what a check may take, by the estimate of `Crop.seconds`
BLOCK_SECONDS = 0.05  # a block beyond this is narrowed to one voxel of few channels
BLOCK_SIDE = 3
FEW_CHANNELS = 2
LEAST_BLOCKS = 4


@dataclass(frozen=True)
class Check:
    """How far a result is from its meaning. `worst` is infinite where NaN or Inf are out of place."""

    voxels: int  # output elements compared
    worst: float
    tolerance: float
    passed: bool
    scale: float = 0.0  # the largest expected value, finite ones only


@dataclass(frozen=True)
class Crop:
    """The meaning of one block: sample, compared box of the output, and the box of each value that is computed."""

    sample: int
    block: Box
    boxes: tuple[Box, ...]
    groups: int  # of the convolution that is left

    def expected(self, pipeline: Pipeline, dtype: DType, x: Storage, operands: Sequence[Storage]) -> Any:
        """The meaning of the block, (C, D, H, W), from stored arrays."""
        part, arrays = self.cut(pipeline, x, operands)
        value = evaluate(self.smaller(pipeline), dtype.widen(part), [dtype.widen(array) for array in arrays])
        starts = [start for start, _ in self.boxes[-1]]
        inside = [(low - start, high - start) for (low, high), start in zip(self.block, starts, strict=True)]
        return value[0][_slices(inside)]

    def seconds(self, pipeline: Pipeline, x: Storage, operands: Sequence[Storage]) -> float:
        """A rough estimate of the time `expected` takes: multiply-adds, and passes over values."""
        part, arrays = self.cut(pipeline, x, operands)
        trace = self.smaller(pipeline).trace(part.shape, [array.shape for array in arrays])
        flops = count(self.smaller(pipeline), trace).nominal
        return flops / 2e9 + 3e-8 * sum(map(prod, trace.values))

    def smaller(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline as it runs on the block: perhaps of one group's channels only."""
        stages = list(pipeline.stages)
        stages[pipeline.conv_index] = replace(pipeline.conv, groups=self.groups)  # type: ignore[call-arg]  # a field of both kinds
        return Pipeline(*stages)

    def cut(self, pipeline: Pipeline, x: Storage, operands: Sequence[Storage]) -> tuple[Storage, list[Storage]]:
        """Input and operands that the block depends on."""
        arrays = [
            _cut_operand(pipeline, slot, array, self.sample, self.boxes)
            for slot, array in zip(pipeline.slots, operands, strict=True)
        ]
        part = (slice(self.sample, self.sample + 1), *_slices(self.boxes[0]))
        return x[part], arrays


@dataclass(frozen=True, eq=False)
class Sample:
    """The meaning of some blocks of a result: drawn and computed once, compared with as many results as one likes."""

    dtype: DType
    crops: tuple[Crop, ...]
    expected: tuple[Any, ...]  # of each crop, flat
    terms: int  # products in each sum of the convolution
    dropped: tuple[int, ...] = ()  # axes that a result may be without

    def check(self, y: Storage) -> Check:
        if not self.crops:
            return Check(0, 0.0, 0.0, True)
        y = y if y.ndim == 5 else np.expand_dims(y, self.dropped)
        actual = [self.dtype.widen(y[crop.sample][_slices(crop.block)]).ravel() for crop in self.crops]
        return compare(np.concatenate(actual), np.concatenate(self.expected), self.dtype, self.terms)


def draw_sample(
    pipeline: Pipeline,
    x: Storage,
    operands: Sequence[Storage],
    dtype: DType,
    rng: np.random.Generator,
    voxels: int = 512,
    seconds: float = SECONDS,
) -> Sample:
    """The meaning at `voxels` positions or more, or at fewer where that would take longer than about `seconds`."""
    dropped, pipeline = pipeline.dropped, with_all_axes(round_scalars(pipeline, dtype))
    trace = pipeline.trace(x.shape, [operand.shape for operand in operands])
    crops = tuple(_choose(pipeline, trace, x, operands, rng, voxels, seconds))
    expected = tuple(crop.expected(pipeline, dtype, x, operands).ravel() for crop in crops)
    terms = prod(trace.operands[pipeline.conv_index][0][2:]) * trace.values[pipeline.conv_index][1]
    return Sample(dtype, crops, expected, terms // pipeline.conv.groups, dropped)


def sampled_check(
    pipeline: Pipeline,
    x: Storage,
    operands: Sequence[Storage],
    y: Storage,
    dtype: DType,
    rng: np.random.Generator,
    voxels: int = 512,
) -> Check:
    """Compares `y` with the meaning at `voxels` positions or more. Arrays hold storage values, as for `execute`."""
    return draw_sample(pipeline, x, operands, dtype, rng, voxels).check(y)


def compare(actual: Storage, expected: Storage, dtype: DType, terms: int) -> Check:
    """Both in float64; `terms` is the number of products in each sum of the convolution.

    Tolerance, relative to the largest expected value: half a unit in the last place for storing the result, and for the
    sums a random walk of `terms` roundings in the accumulator, times 16 for what the other stages and a reordered
    summation add. Wrong voxels are off by the order of the result itself. Near the smallest number of the type (a
    float16 softmax of a large volume) its spacing is all that can be asked.
    """
    stored = dtype.widen(dtype.narrow(expected))  # float16 turns 1e6 into inf, and so must the result
    finite = np.isfinite(stored)
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    accumulate_eps = float(np.finfo(dtype.accumulate).eps)
    tolerance = scale * (dtype.eps / 2 + 16 * sqrt(terms) * accumulate_eps / 2) + dtype.smallest
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.where(finite, np.abs(actual - expected), np.where(_same(actual, stored), 0.0, np.inf))
    errors[np.isnan(errors)] = np.inf
    worst = float(errors.max(initial=0.0))
    return Check(expected.size, worst, tolerance, worst <= tolerance, scale)


def _same(a: Storage, b: Storage) -> Any:
    return (a == b) | (np.isnan(a) & np.isnan(b))


# --- which blocks -----------------------------------------------------------------------------------------------------


def _choose(
    pipeline: Pipeline,
    trace: Trace,
    x: Storage,
    operands: Sequence[Storage],
    rng: np.random.Generator,
    voxels: int,
    most_seconds: float,
) -> list[Crop]:
    """Distinct blocks until there are enough positions, or no time for more; at least one."""
    crops: dict[tuple[int, Box], Crop] = {}
    positions, seconds = 0, 0.0
    for sample, block in _draw(trace.output, rng, max(LEAST_BLOCKS, voxels // 8)):
        crop = make_crop(pipeline, trace, sample, block)
        cost = crop.seconds(pipeline, x, operands)
        if cost > BLOCK_SECONDS:
            crop = make_crop(pipeline, trace, sample, _narrow(pipeline, trace, block, rng))
            cost = crop.seconds(pipeline, x, operands)
        if crops and seconds + cost > most_seconds:
            break
        if (sample, crop.block) not in crops:
            crops[sample, crop.block] = crop
            seconds += cost
            positions += prod(high - low for low, high in crop.block[1:])
        if positions >= voxels and len(crops) >= LEAST_BLOCKS:
            break
    return list(crops.values())


def _draw(output: Shape, rng: np.random.Generator, count: int) -> Iterator[tuple[int, Box]]:
    """Small blocks with all channels: the two far corners first, then borders and interior in any mixture."""
    batch, channels, *sizes = output
    for number in range(count if batch else 0):
        sample = (0, batch - 1)[number] if number < 2 else int(rng.integers(batch))
        starts = []
        for size in sizes:
            last = max(0, size - BLOCK_SIDE)
            places = (0, last, *rng.integers(last + 1, size=2).tolist())
            starts.append(places[number] if number < 2 else places[rng.integers(4)])
        d, h, w = ((start, min(start + BLOCK_SIDE, size)) for start, size in zip(starts, sizes, strict=True))
        yield sample, ((0, channels), d, h, w)


def _narrow(pipeline: Pipeline, trace: Trace, block: Box, rng: np.random.Generator) -> Box:
    """One voxel of the block, and a few neighbouring channels of one group."""
    channels = trace.output[1]
    per_group = min(channels, pipeline.conv.kernel(trace.operands[pipeline.conv_index][0])[1])
    low = int(rng.integers(channels))
    high = min(low + FEW_CHANNELS, (low // per_group + 1) * per_group, channels)
    d, h, w = ((at, at + 1) for at in (int(rng.integers(*part)) for part in block[1:]))
    return (low, high), d, h, w


# --- from a block back to the input -----------------------------------------------------------------------------------


def make_crop(pipeline: Pipeline, trace: Trace, sample: int, block: Box) -> Crop:
    """The crop for a block. Where an axis is computed whole anyway, the block grows to the whole axis."""
    needed = needed_boxes(pipeline, trace, block)
    channels = _channel_ranges(pipeline, trace, needed)
    axes = [channels, *(axis_ranges(pipeline, trace, needed, axis) for axis in (1, 2, 3))]
    boxes = tuple((c, d, h, w) for c, d, h, w in zip(*axes, strict=True))
    everything = [whole(shape) for shape in trace.values]
    uncut = [all(box[axis] == full[axis] for box, full in zip(boxes, everything, strict=True)) for axis in range(4)]
    c, d, h, w = (full if keep else part for keep, full, part in zip(uncut, everything[-1], block, strict=True))
    return Crop(sample, (c, d, h, w), boxes, groups=pipeline.conv.groups if uncut[0] else 1)


def _channel_ranges(pipeline: Pipeline, trace: Trace, needed: Sequence[Box]) -> list[Range]:
    """Few output channels, and the input channels of their group; or all channels where that cannot be had."""
    conv, sizes = pipeline.conv_index, [shape[1] for shape in trace.values]
    every = [(0, size) for size in sizes]
    outputs = needed[conv + 1][0]
    group_in, group_out = sizes[conv] // pipeline.conv.groups, sizes[conv + 1] // pipeline.conv.groups
    group = outputs[0] // group_out
    inputs = (group * group_in, (group + 1) * group_in)
    one_group = outputs[1] <= (group + 1) * group_out
    before_fits = all(box[0] == inputs for box in needed[: conv + 1])
    after_fits = all(box[0] == outputs for box in needed[conv + 1 :])
    crosses = any(here <= conv < there for there, here in meetings(pipeline))
    if not (one_group and before_fits and after_fits) or crosses:
        return every
    return [inputs] * (conv + 1) + [outputs] * (len(sizes) - conv - 1)


# --- cut arrays -------------------------------------------------------------------------------------------------------


def _slices(box: Sequence[Range]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


def _cut_operand(pipeline: Pipeline, slot: Slot, array: Storage, sample: int, boxes: Sequence[Box]) -> Storage:
    entering, leaving = boxes[slot.stage], boxes[slot.stage + 1]
    if slot.operand.kind == "tensor":
        samples = (0, 1) if array.shape[0] == 1 else (sample, sample + 1)
        ranges = [(0, 1) if n == 1 else part for n, part in zip(array.shape[1:], entering, strict=True)]
        return array[_slices((samples, *ranges))]
    if slot.operand.kind == "width":
        return array
    if slot.operand.kind == "kernel":
        (low, high), per_group = leaving[0], pipeline.conv.kernel(array.shape)[1]
        if high - low > per_group:  # all channels of all groups
            return array
        if isinstance(pipeline.conv, Conv3d):
            return array[low:high]
        return array[slice(*entering[0]), low % per_group : low % per_group + high - low]
    low, high = (leaving if slot.operand.kind == "out_channel" else entering)[0]
    return array if array.shape[0] == 1 else array[low:high]
