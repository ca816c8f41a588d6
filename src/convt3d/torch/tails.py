"""Gradients through the stages beside a convolution by our kernels, in as few sweeps as there are pools, reductions and
norms over space between.

Runs of stages that a gradient passes together (plan/tail_ways.py) are segments. The few stages between them (an array
whose gradient is wanted, a value that is used again beyond a pool, a norm along rows) are passed by PyTorch's
operations, on values that kernels of ours make.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from ..cpu.plan.tail_plan import TailPlan, make_tail_plan
from ..cpu.runtime.tails import NO_MOMENTS, Given, Moments, run_forward, run_tail
from ..front.arrays import Storage, tensor_storage
from ..plan.tail_links import TrainedBatchNorm
from ..plan.tail_ways import REPEATED, Segment, can_repeat, local_labels, needs, opens, passes
from ..spec import stages
from ..spec.pipeline import Pipeline
from .engine import DTYPES_OF, memory, result_like
from .stage_gradients import first_stage, label_places, through_stage, values_of_stage
from .stock import STOCK, Tensor, own_operands, value_shapes, values


class Way(NamedTuple):
    """Of a gradient, from value `last` back to value `first`."""

    first: int
    last: int
    start: int  # the value that sweeps start from
    reads: bool  # whether any of them does
    parts: tuple[Segment | int, ...]  # in the order of the way; a number is the place of a stage between


@lru_cache(maxsize=1024)
def way_back(pipeline: Pipeline, wanted: tuple[bool, ...], result_kept: bool) -> Way | None:
    """Through the stages behind the convolution, as far as a gradient is wanted; None where PyTorch's operations take
    it. The result is kept where it is all that is needed."""
    behind, count = pipeline.conv_index + 1, len(pipeline.stages)
    return _way(pipeline, wanted, max(first_stage(pipeline, wanted), behind), count, count if result_kept else behind)


@lru_cache(maxsize=1024)
def way_in_front(pipeline: Pipeline, wanted: tuple[bool, ...]) -> Way | None:
    """The same through the stages before the convolution."""
    return _way(pipeline, wanted, first_stage(pipeline, wanted), pipeline.conv_index, 0)


def _way(pipeline: Pipeline, wanted: tuple[bool, ...], first: int, last: int, start: int) -> Way | None:
    begin = 0 if last <= pipeline.conv_index else pipeline.conv_index + 1
    local = local_labels(pipeline)
    if first >= last:
        return None
    parts: list[Segment | int] = []
    end = last
    for index in reversed(range(first, last)):
        stage = pipeline.stages[index]
        if passes(stage, own_operands(pipeline, wanted[1:], index), local):
            continue
        if index + 1 < end:
            parts.append(_segment(pipeline, start, index + 1, end))
        end = index + 1
        if not opens(stage):
            parts.append(index)
            end = index
    parts += [_segment(pipeline, start, first, end)] if first < end else []
    reads = False
    for part in parts:
        numbers = _read(pipeline, part, wanted)
        reads = reads or bool(numbers)
        if isinstance(part, int):
            if any(number != start if start > begin else number < begin for number in numbers):
                return None
        elif numbers and _names_before(pipeline, part):
            return None
    return Way(first, last, start, reads, tuple(parts))


def _segment(pipeline: Pipeline, start: int, first: int, last: int) -> Segment | int:
    """Of a sum alone the gradient is repeated without being stored. What sweeps cannot compute again, PyTorch does."""
    if first + 1 == last and isinstance(pipeline.stages[first], REPEATED):
        return first
    others = [index + 1 for index in range(start, first) if not can_repeat(pipeline.stages[index])]
    return Segment(max(others, default=start), first, last)


def _names_before(pipeline: Pipeline, segment: Segment) -> bool:
    """Whether a value from before its start is used by its name."""
    used = [stage.uses for stage in pipeline.stages[segment.start : segment.last] if stage.uses]
    return any(0 < label_places(pipeline)[label] < segment.start for label in used)


def _read(pipeline: Pipeline, part: Segment | int, wanted: tuple[bool, ...]) -> list[int]:
    """Values that are computed again for a part of a way; of a segment, the one that it starts from."""
    if isinstance(part, int):
        wants = own_operands(pipeline, wanted[1:], part)
        return [number for number in values_of_stage(pipeline, part, any(wants)) if number]
    for index in range(part.first, part.last):
        stage = pipeline.stages[index]
        if opens(stage):
            if isinstance(stage, (stages.MaxPool3d, stages.Max, stages.LogSumExp)):
                return [part.start]
        elif needs(stage, any(own_operands(pipeline, wanted[1:], index))):
            return [part.start]
    return []


@lru_cache(maxsize=256)
def trained(pipeline: Pipeline) -> Pipeline:
    """With every BatchNorm by the statistics of its batch."""
    return Pipeline(
        *(
            TrainedBatchNorm(eps=stage.eps, affine=stage.affine) if isinstance(stage, stages.BatchNorm) else stage
            for stage in pipeline.stages
        )
    )


@lru_cache(maxsize=256)
def trained_way(pipeline: Pipeline, wanted: tuple[bool, ...]) -> Way | None:
    """The way back of a pipeline whose BatchNorms, all behind the convolution, are in training, to the convolution's
    result; None where kernels of ours do not compute these stages."""
    norms = [index for index, stage in enumerate(pipeline.stages) if isinstance(stage, stages.BatchNorm)]
    if not norms or not starts_behind(pipeline):
        return None
    behind, count = pipeline.conv_index + 1, len(pipeline.stages)
    return None if norms[0] < behind else _way(trained(pipeline), wanted, behind, count, behind)


def starts_behind(pipeline: Pipeline) -> bool:
    """Whether kernels of ours compute all stages behind its one convolution from its result."""
    if len(pipeline.convolutions) > 1 or pipeline.dropped:
        return False
    return all(map(can_repeat, pipeline.stages[pipeline.conv_index + 1 :]))


class Tail:
    """The stages on one side of a convolution, on tensors: `x` is the pipeline's input, with its batch, `value` the one
    that sweeps start from, by its number `start`; None where no sweep reads it."""

    def __init__(
        self,
        pipeline: Pipeline,
        x: Tensor,
        operands: Sequence[Tensor],
        start: int,
        value: Any,
        known: Moments = NO_MOMENTS,
    ) -> None:
        self.pipeline, self.x, self.operands, self.start, self.start_value = pipeline, x, operands, start, value
        self.known = known  # of norms that were gone through before
        self.dtype = DTYPES_OF[x.dtype]

    def value(self, number: int) -> Tensor:
        """By its number."""
        return self.forward(number)[0]

    def forward(self, number: int, memory_format: Any = None) -> tuple[Tensor, Moments]:
        """A value, and the moments of norms before it. Its memory is that of the value that sweeps start from, unless a
        format is given."""
        if number in (0, self.start):
            return (self.start_value if number == self.start else self.x), NO_MOMENTS
        if not all(map(can_repeat, self.pipeline.stages[self.start : number])):
            known = self.start, self.start_value
            return values(self.pipeline, self.x, self.operands, {number}, known=known)[number], NO_MOMENTS
        plan = self._plan(Segment(self.start, number, number))
        shape, kind = plan.trace.values[number], self.x.dtype
        if memory_format is None:
            result = result_like(self.start_value, shape)
        else:
            result = memory("pipeline", shape, kind, memory_format)
        return result, run_forward(plan, self._given(self.start_value), self._vectors(plan), self._target(result))

    def back(
        self,
        way: Way,
        grad: Tensor,
        wanted: Sequence[bool],
        pending: dict[int, Tensor],
        in_place: bool = False,
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient of value `way.first`, and those of the operands of all stages on the way, in slot order; `grad`
        is that of value `way.last`, with five axes. Gradients of named values are taken from, and added to, `pending`.
        `in_place`: the value that sweeps start from may be written over."""
        found: dict[int, list[Tensor | None]] = {}
        for part in way.parts:
            if isinstance(part, Segment):
                grad = self._through(part, grad, wanted, found, in_place and part.first == self.start)
            else:
                grad, found[part] = self._between(part, grad, wanted, pending)
        operands: list[Tensor | None] = []
        for index in range(way.first, way.last):
            own = own_operands(self.pipeline, self.operands, index)
            operands += found.get(index) or [None] * len(own)
        return grad, operands

    def _between(
        self, index: int, grad: Tensor, wanted: Sequence[bool], pending: dict[int, Tensor]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Through one stage by PyTorch's operations. Its result is made of its input: of a maximum, say, they must have
        the same bits."""
        pipeline, own = self.pipeline, own_operands(self.pipeline, self.operands, index)
        value = partial(self._beside, index, {})
        wants = (True, *own_operands(pipeline, wanted[1:], index))
        shapes = value_shapes(pipeline, self.x, self.operands)
        return through_stage(pipeline, index, grad, value, own, wants, shapes, pending)

    def _beside(self, index: int, known: dict[int, Tensor], number: int) -> Tensor:
        """A value for that; each is made once."""
        if number not in known:
            if number == index + 1:
                stage, own = self.pipeline.stages[index], own_operands(self.pipeline, self.operands, index)
                known[number] = STOCK[type(stage)](stage, self._beside(index, known, index), *own)
            else:
                known[number] = self.value(number)
        return known[number]

    def _plan(self, part: Segment, wanted: Sequence[bool] = (), in_place: bool = False) -> TailPlan:
        shapes = [each.shape for each in self.operands]
        wanted = wanted or [False] * len(shapes)
        return make_tail_plan(self.pipeline, self.x.shape, shapes, self.dtype, part, wanted, in_place)

    def _stored(self, tensor: Tensor) -> Storage:
        return tensor_storage(tensor, self.dtype, torch)

    def _target(self, tensor: Tensor) -> Storage:
        return tensor_storage(tensor, self.dtype, torch, writable=True)

    def _given(self, value: Tensor | None) -> Given:
        return Given(None if value is None else self._stored(value), self._stored(self.x))

    def _vectors(self, plan: TailPlan) -> list[Storage]:
        """Operands as kernels read them."""
        shapes = plan.trace.operand_shapes
        return [self._stored(each).reshape(own) for each, own in zip(self.operands, shapes, strict=True)]

    def _through(
        self,
        segment: Segment,
        grad: Tensor,
        wanted: Sequence[bool],
        found: dict[int, list[Tensor | None]],
        in_place: bool,
    ) -> Tensor:
        plan = self._plan(segment, wanted[1:], in_place)
        value = None if self.start_value is None else self.value(segment.start)
        result = value if in_place else result_like(grad if value is None else value, plan.trace.values[segment.first])
        given, vectors, target = self._given(value), self._vectors(plan), self._target(result)
        sums = run_tail(plan, given, self._stored(grad), vectors, target, self.known)
        for index, totals in sums.items():
            own = own_operands(self.pipeline, self.operands, index)
            found[index] = _of_operands(self.pipeline.stages[index], [torch.from_numpy(each) for each in totals], own)
        return result


def _of_operands(stage: Any, sums: Sequence[Tensor], own: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of a stage's operands from sums of float64."""
    if not own:
        return []
    kind, wide = own[0].dtype, [each.reshape(-1).double() for each in own]
    if isinstance(stage, TrainedBatchNorm):
        return [None, None, *(each.to(kind) for each in sums)][: len(own)]
    if isinstance(stage, stages.BatchNorm):
        about = (sums[0] - sums[1] * wide[0]) / torch.sqrt(wide[1] + stage.eps)
        return [None, None, about.to(kind), sums[1].to(kind)][: len(own)]
    grads = list(sums)  # those of a norm's weight and bias, or one
    if isinstance(stage, stages.Subtract) and not stage.reverse:
        grads = [-sums[0]]
    elif isinstance(stage, stages.Divide) and not stage.reverse:
        grads = [-sums[0] / (wide[0] * wide[0])]
    elif isinstance(stage, stages.PReLU) and own[0].numel() == 1:
        grads = [sums[0].sum().reshape(own[0].shape)]
    return [each.to(kind) for each in grads[: len(own)]]
