"""Gradients through the stages behind a convolution by our kernels: from the gradient of the pipeline's result to that
of the convolution's, in as few sweeps as there are pools, and norms over space, between.

Runs of stages that a gradient passes together (plan/tails.py) are segments. Between them stand pools and reductions:
a max-pool's gradient goes to places that a kernel has found, the others are spread by PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch

from ..cpu.plan.tail_plan import TailPlan, make_tail_plan
from ..cpu.runtime.tails import run_forward, run_places, run_tail
from ..front.arrays import Storage, tensor_storage
from ..plan.tail_links import TrainedBatchNorm
from ..plan.tails import Places, Segment, can_pass, can_repeat
from ..spec import stages
from ..spec.pipeline import Pipeline
from .engine import DTYPES_OF, result_like
from .stage_gradients import GRADIENTS, first_stage, needed_values
from .stock import Tensor, own_operands

Moments: TypeAlias = tuple[Any, Any]  # mean and variance of a batch, for each channel


class Way(NamedTuple):
    """From the pipeline's result back to the convolution's."""

    start: int  # the value that sweeps start from
    parts: tuple[Segment | int, ...]  # in the order of the way; a number is the place of a stage between


BETWEEN = (stages.MaxPool3d, stages.AvgPool3d, stages.Sum, stages.Mean)


@lru_cache(maxsize=1024)
def way_back(pipeline: Pipeline, wanted: tuple[bool, ...], result_kept: bool) -> Way | None:
    """None where PyTorch's operations take the gradients: no value is needed, or a stage is among them that has no
    kernel of ours. The result is kept where it is all that is needed."""
    if len(pipeline.convolutions) > 1:
        return None
    behind, count = pipeline.conv_index + 1, len(pipeline.stages)
    need = {number for number in needed_values(pipeline, wanted) if number >= behind}
    if not need or first_stage(pipeline, wanted) >= behind:
        return None
    start = count if result_kept else behind
    parts: list[Segment | int] = []
    last = count
    for index in reversed(range(behind, count)):
        stage = pipeline.stages[index]
        if can_pass(stage, own_operands(pipeline, wanted[1:], index)):
            continue
        if not isinstance(stage, BETWEEN):
            return None
        parts += [*([Segment(start, index + 1, last)] if index + 1 < last else []), index]
        last = index
    parts += [Segment(start, behind, last)] if behind < last else []
    if start == count:
        return Way(start, tuple(parts)) if len(parts) == 1 else None
    reached = [part.first if isinstance(part, Segment) else part for part in parts if _computes(pipeline, part)]
    repeated = pipeline.stages[behind : max(reached, default=behind)]
    return Way(start, tuple(parts)) if reached and all(map(can_repeat, repeated)) else None


def _computes(pipeline: Pipeline, part: Segment | int) -> bool:
    """Whether kernels of ours go there, and not only spread a gradient."""
    return isinstance(part, Segment) or isinstance(pipeline.stages[part], stages.MaxPool3d)


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
def trained_way(pipeline: Pipeline) -> Way | None:
    """The way back of a pipeline whose BatchNorms, all behind the convolution, are in training; None where a stage has
    no kernel of ours."""
    if len(pipeline.convolutions) > 1:
        return None
    behind, count = pipeline.conv_index + 1, len(pipeline.stages)
    norms = [index for index, stage in enumerate(pipeline.stages) if isinstance(stage, stages.BatchNorm)]
    if not norms or norms[0] < behind or pipeline.dropped:
        return None
    tail = trained(pipeline).stages[behind:]
    return Way(behind, (Segment(behind, behind, count),)) if all(can_pass(stage, (True,)) for stage in tail) else None


class Tail:
    """The stages behind a convolution, on tensors: `shape` is that of the pipeline's input with its batch, `value` the
    one that sweeps start from."""

    def __init__(self, pipeline: Pipeline, shape: Sequence[int], operands: Sequence[Tensor], value: Tensor) -> None:
        self.pipeline, self.shape, self.operands, self.value = pipeline, shape, operands, value
        self.dtype = DTYPES_OF[value.dtype]
        self.behind = pipeline.conv_index + 1

    def forward(self) -> tuple[Tensor, list[Moments]]:
        """The pipeline's result from the convolution's, and moments of batches."""
        count = len(self.pipeline.stages)
        plan = self._plan(Segment(self.behind, count, count))
        result = result_like(self.value, plan.trace.output)
        return result, run_forward(plan, self._stored(self.value), self._vectors(plan), self._target(result))

    def back(
        self, way: Way, grad: Tensor, wanted: Sequence[bool], in_place: bool = False
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient of the convolution's result, and those of operands behind it, in slot order; `grad` is that of
        the last value, with five axes. `in_place`: the value is the convolution's, and may be written over."""
        found: dict[int, list[Tensor | None]] = {}
        for part in way.parts:
            if isinstance(part, Segment):
                grad = self._through(part, grad, wanted, found, in_place and part.first == self.behind)
            elif isinstance(self.pipeline.stages[part], stages.MaxPool3d):
                grad = self._to_places(part, grad, in_place and part == self.behind)
            else:
                stage = self.pipeline.stages[part]
                trace = self.pipeline.trace(self.shape, [each.shape for each in self.operands])
                (grad,) = GRADIENTS[type(stage)].back(stage, grad, None, None, [], (True,), trace.values[part])
        operands: list[Tensor | None] = []
        for index in range(self.behind, len(self.pipeline.stages)):
            own = own_operands(self.pipeline, self.operands, index)
            operands += found.get(index, [None] * len(own))
        return grad, operands

    def _plan(self, part: Segment | Places, wanted: Sequence[bool] = (), in_place: bool = False) -> TailPlan:
        shapes = [each.shape for each in self.operands]
        return make_tail_plan(self.pipeline, self.shape, shapes, self.dtype, part, wanted, in_place)

    def _stored(self, tensor: Tensor) -> Storage:
        return tensor_storage(tensor, self.dtype, torch)

    def _target(self, tensor: Tensor) -> Storage:
        return tensor_storage(tensor, self.dtype, torch, writable=True)

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
        result = self.value if in_place else result_like(self.value, plan.trace.values[segment.first])
        arrays = self._stored(self.value), self._stored(grad), self._vectors(plan)
        sums = run_tail(plan, *arrays, self._target(result))
        for index, totals in sums.items():
            own = own_operands(self.pipeline, self.operands, index)
            found[index] = _of_operands(self.pipeline.stages[index], [torch.from_numpy(each) for each in totals], own)
        return result

    def _to_places(self, pool: int, grad: Tensor, in_place: bool) -> Tensor:
        """Through a max-pool: the gradient of a window goes to its largest value."""
        plan, value = self._plan(Places(self.behind, pool)), self.value
        before, (batch, channels, *sizes) = plan.trace.values[pool : pool + 2]
        kind = torch.int64 if self.dtype.number_bytes == 8 else torch.int32
        places = torch.empty((batch, channels, *sizes), dtype=kind)
        run_places(plan, self._stored(value), self._vectors(plan), places.numpy())
        back = value.zero_() if in_place and value.is_contiguous() else value.new_zeros(before)
        grad = grad.expand(batch, channels, *sizes).reshape(batch, channels, -1)
        back.view(batch, channels, -1).scatter_add_(2, places.view(batch, channels, -1).long(), grad)
        return back


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
    elif isinstance(stage, stages.Divide):
        grads = [-sums[0] / (wide[0] * wide[0])]
    elif isinstance(stage, stages.PReLU) and own[0].numel() == 1:
        grads = [sums[0].sum()]
    return [each.to(kind) for each in grads[: len(own)]]
