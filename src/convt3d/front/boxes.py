"""A result computed box by box: which part of the input and of each tensor a box needs, and its numbers from those.

Every box has the bits that the same voxels have where all is computed at once: plans of boxes take rewrites and
algorithm from the plan for the whole, and begin where outputs that Winograd's method makes together begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..cpu.plan.choice import AUTO, Options
from ..cpu.plan.cores import get_num_threads
from ..cpu.plan.plan import Plan, make_plan
from ..cpu.plan.window import Geometry, WindowPlan, geometry, periods_of, result_periods, tensor_boxes, window_plan
from ..cpu.runtime.execute import EVERYONE, execute_in_pieces, execute_plan
from ..cpu.runtime.memory import empty
from ..cpu.runtime.ready import Keeper
from ..cpu.runtime.strips import InPieces
from ..errors import ArgumentError
from ..spec.crop import axis_ranges, hull, needed_boxes
from ..spec.dtypes import DTYPES
from ..spec.lazy import lazy
from ..spec.pipeline import Pipeline
from ..spec.shapes import Box, Range, Shape
from ..spec.stage import whole
from ..spec.stages import Binary, Convolution, LayerNorm
from ..spec.stages.padding import Pad
from ..spec.window import needed, within

Storage: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Request:
    """What is computed: all that a worker needs to know to plan any box of it. It can be pickled."""

    pipeline: Pipeline
    x: Shape
    operands: tuple[tuple[int, ...], ...]
    dtype: str
    options: Options = AUTO

    @property
    def boxes(self) -> Boxes:
        return _boxes(self)


@dataclass(frozen=True)
class Take:
    """What is read along one axis: ranges one after the other, and which of their voxels, if not all in order."""

    ranges: tuple[Range, ...]
    order: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return len(self.order) if self.order is not None else sum(high - low for low, high in self.ranges)


@dataclass(frozen=True, eq=False)
class Part:
    """One box of the result: what it reads, how it is computed."""

    box: Box  # wanted
    computed: Box  # it lies in this one
    given: Box  # of the input, padded where the pipeline pads first
    reads: tuple[Take, Take, Take, Take]  # of the input: channels, depth, height, width
    tensors: tuple[Box, ...]  # of each tensor of the value's shape, in the order of the operands
    window: Geometry | None  # else the pipeline as it is, on what is read


class Boxes:
    """Plans of all boxes of one result."""

    def __init__(self, request: Request) -> None:
        convolutions = sum(isinstance(stage, Convolution) for stage in request.pipeline.stages)
        if convolutions != 1:
            rule = f"must hold one convolution where results are computed box by box, not {convolutions}"
            remedy = "Run one pipeline after the other, or use convt3d.dask"
            raise ArgumentError("Pipeline", "stages", request.pipeline.stages, rule, remedy)
        self.request = request
        self.pipeline, self.inputs = _with_input_as_tensor(request.pipeline)
        self.dtype = DTYPES[request.dtype]
        given = iter(request.operands)
        tensors = [request.x if at in self.inputs else next(given) for at in range(len(self.pipeline.slots))]
        self.plan: Plan = make_plan(self.pipeline, request.x, tuple(tensors), self.dtype, request.options)

    @property
    def output(self) -> Shape:
        return self.plan.trace.output

    @lazy
    def periods(self) -> tuple[int, int, int]:
        """Boxes that begin at multiples of these compute nothing beside themselves."""
        return result_periods(self.plan)

    def part(self, box: Box) -> Part:
        """What a box of the result reads, and how it is computed."""
        plan = self.plan
        computed, periods, ends = self._computed(box), periods_of(plan), plan.options.precision == "fast"
        pad = plan.pipeline.stages[0]
        first = 1 if isinstance(pad, Pad) else 0
        given = needed(plan.pipeline, plan.simplified, computed, periods, ends)[first]
        if not first:
            given = hull(given, needed_boxes(plan.asked, plan.trace, computed)[0])
        found = geometry(plan, computed, given, periods)
        if found is None:
            return self._cropped(box)
        for own in self._input_boxes(tensor_boxes(found.found)):
            given = hull(given, _shifted(own, self._before))
        found = geometry(plan, computed, given, periods)
        assert found is not None
        takes = [Take((part,)) for part in given]
        if isinstance(pad, Pad):
            shape = plan.trace.values[0]
            takes[1:] = [_take(pad, axis, shape[2 + axis], part) for axis, part in enumerate(given[1:])]
        channels, depth, height, width = takes
        return Part(box, computed, given, (channels, depth, height, width), tensor_boxes(found.found), found)

    def _computed(self, box: Box) -> Box:
        """All channels, and what is made together with voxels of the box: whole rows for a norm along them; outputs of
        Winograd's method from a multiple of its period on, and up to one where they depend on each other."""
        channels, *sizes = whole(self.output)
        ends = self.plan.options.precision == "fast"
        d, h, w = (
            (low // period * period, min(-(-high // period) * period, size) if ends else high)
            for (low, high), period, (_, size) in zip(box[1:], self.periods, sizes, strict=True)
        )
        rows = any(isinstance(stage, LayerNorm) and stage.over == "width" for stage in self.pipeline.stages)
        return channels, d, h, sizes[2] if rows else w

    @lazy
    def _before(self) -> tuple[int, int, int, int]:
        """Voxels that padding adds in front of each axis of the input."""
        pad = self.plan.pipeline.stages[0]
        d, h, w = (before for before, _ in pad.sides) if isinstance(pad, Pad) else (0, 0, 0)
        return 0, d, h, w

    def own_tensors(self, part: Part) -> list[Box]:
        """What a box reads of each tensor that is an operand of the request."""
        places = [at for at, slot in enumerate(self.pipeline.slots) if slot.operand.kind == "tensor"]
        return [box for at, box in zip(places, part.tensors, strict=True) if at not in self.inputs]

    def _input_boxes(self, tensors: Sequence[Box]) -> list[Box]:
        """Of tensors that are the input."""
        places = [at for at, slot in enumerate(self.pipeline.slots) if slot.operand.kind == "tensor"]
        return [box for at, box in zip(places, tensors, strict=True) if at in self.inputs]

    def _cropped(self, box: Box) -> Part:
        """The pipeline itself, on a crop of the input whose grids are in step: its borders are computed in vain."""
        plan, trace = self.plan, self.plan.trace
        wanted = (whole(self.output)[0], *box[1:])
        periods, ends = periods_of(plan), plan.options.precision == "fast"
        depends = [
            within(each, shape)
            for each, shape in zip(needed(plan.asked, trace, wanted, periods, ends), trace.values, strict=True)
        ]
        axes = [axis_ranges(plan.asked, trace, depends, axis + 1, periods[axis]) for axis in range(3)]
        boxes: list[Box] = [((0, shape[1]), d, h, w) for shape, d, h, w in zip(trace.values, *axes, strict=True)]
        c, d, h, w = (Take((part,)) for part in boxes[0])
        slots = [slot for slot in plan.asked.slots if slot.operand.kind == "tensor"]
        return Part(box, boxes[-1], boxes[0], (c, d, h, w), tuple(boxes[slot.stage] for slot in slots), None)

    def _plan_of(self, part: Part, x: tuple[int, ...], operands: tuple[tuple[int, ...], ...]) -> Plan:
        if part.window is not None:
            return window_plan(self.plan, x[0], part.window)
        d, h, w = (axis.outputs for axis in self.plan.method.axes)
        plan, asked = self.plan, self.request.options
        options = replace(asked, outputs=(d, h, w), pieces=plan.pieces, deep=plan.deep)
        return make_plan(self.pipeline, x, operands, self.dtype, options)

    def scratch(self, part: Part) -> int:
        """Bytes that one sample of a box takes beside what it reads and makes."""
        boxes, shapes = iter(part.tensors), []
        for slot, shape in zip(self.pipeline.slots, self.plan.trace.operand_shapes, strict=True):
            if slot.operand.kind == "tensor":
                cut = zip(shape[1:], next(boxes), strict=True)
                shape = (1, *(1 if size == 1 else high - low for size, (low, high) in cut))
            shapes.append(shape)
        plan = self._plan_of(part, (1, *(take.size for take in part.reads)), tuple(shapes))
        return plan.intermediate + get_num_threads() * plan.scratch

    def compute(
        self, part: Part, x: Storage | InPieces, operands: Sequence[Storage], keeper: Keeper = EVERYONE
    ) -> Storage:
        """The numbers of a box from what it reads: storage of the request's type, tensors cut to their boxes, other
        operands whole."""
        if isinstance(x, InPieces) and (self.inputs or part.window is None):
            x = x.whole
        given = iter(operands)
        tensors = iter(part.tensors)
        arrays = []
        for at, slot in enumerate(self.pipeline.slots):
            box = next(tensors) if slot.operand.kind == "tensor" else None
            if at in self.inputs:
                assert box is not None
                assert not isinstance(x, InPieces)
                before = (0, 0, 0, 0) if part.window is None else self._before
                arrays.append(x[_slices(_shifted(box, before), part.given)])
            else:
                arrays.append(next(given))
        plan = self._plan_of(part, x.shape, tuple(array.shape for array in arrays))
        vectors = tuple(
            array.reshape(flat) if array.ndim else np.full(flat, array)
            for array, flat in zip(arrays, plan.trace.operand_shapes, strict=True)
        )
        out = empty(plan.trace.output, self.dtype.storage)
        if isinstance(x, InPieces):
            assert isinstance(plan, WindowPlan)
            execute_in_pieces(plan, x, vectors, out, keeper)
        else:
            execute_plan(plan, x, vectors, out, keeper)
        return out[_slices(part.box, part.computed)]


@lru_cache(maxsize=64)
def _boxes(request: Request) -> Boxes:
    return Boxes(request)


def _with_input_as_tensor(pipeline: Pipeline) -> tuple[Pipeline, frozenset[int]]:
    """Where a stage combines a value with the pipeline's input, it takes it as a tensor: a window needs less of it
    there than at its beginning. Also the places of these tensors among the operands."""
    stages = [
        replace(stage, other="tensor") if isinstance(stage, Binary) and stage.label == "x" else stage
        for stage in pipeline.stages
    ]
    made = Pipeline(*stages)
    changed = {at for at, (old, new) in enumerate(zip(pipeline.stages, stages, strict=True)) if old is not new}
    return made, frozenset(place for place, slot in enumerate(made.slots) if slot.stage in changed)


def _take(pad: Pad, axis: int, size: int, part: Range) -> Take:
    """The voxels that some places of a padded axis hold."""
    places = pad.sources(axis, size)[slice(*part)]
    held = np.unique(places)
    starts = np.flatnonzero(np.diff(held, prepend=held[0] - 2) != 1)
    ends = [*starts[1:], len(held)]
    ranges = tuple((int(held[a]), int(held[b - 1]) + 1) for a, b in zip(starts, ends, strict=True))
    order = np.searchsorted(held, places)
    in_order = len(order) == len(held) and bool(np.all(order == np.arange(len(order))))
    return Take(ranges, None if in_order else tuple(map(int, order)))


def _shifted(box: Box, by: Sequence[int]) -> Box:
    c, d, h, w = ((low + n, high + n) for (low, high), n in zip(box, by, strict=True))
    return c, d, h, w


def _slices(box: Box, within: Box) -> tuple[slice, ...]:
    cuts = [slice(low - start, high - start) for (low, high), (start, _) in zip(box, within, strict=True)]
    return slice(None), *cuts
