"""Gradients through the stages behind a convolution by our kernels: from the gradient of the pipeline's result to that
of the convolution's, in as few sweeps as there are pools, and norms over space, between.

Runs of stages that a gradient passes together (plan/tails.py) are segments. Between them stand pools and reductions,
whose gradients PyTorch spreads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ..cpu.plan.tail_plan import TailPlan, make_tail_plan
from ..cpu.runtime.tails import run_places, run_tail
from ..front.arrays import Storage, tensor_storage
from ..plan.tails import Places, Segment, can_pass, can_repeat
from ..spec import stages
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from .engine import DTYPES_OF, result_like
from .layout import shapes_of
from .stage_gradients import GRADIENTS, first_stage, needed_values
from .stock import Tensor, own_operands, weight_of


class Way(NamedTuple):
    """From the pipeline's result back to the convolution's."""

    start: int  # the value that sweeps start from
    parts: tuple[Segment | int, ...]  # in the order of the way; a number is the place of a stage between


class Back(NamedTuple):
    gradient: Tensor  # of the convolution's result
    operands: list[Tensor | None]  # of those behind the convolution, in slot order


def way_back(pipeline: Pipeline, wanted: Sequence[bool], result_kept: bool) -> Way | None:
    """None where PyTorch's operations take the gradients: no value is needed, or a stage is among them that has no
    kernel of ours. The result is kept where it is all that is needed."""
    return _way_back(pipeline, tuple(wanted), result_kept)


@lru_cache(maxsize=1024)
def _way_back(pipeline: Pipeline, wanted: tuple[bool, ...], result_kept: bool) -> Way | None:
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
    reached = [part.first if isinstance(part, Segment) else part for part in parts if _computes(pipeline, part)]
    if start == count:
        return Way(start, tuple(parts)) if len(parts) == 1 else None
    repeated = pipeline.stages[behind : max(reached, default=behind)]
    return Way(start, tuple(parts)) if reached and all(map(can_repeat, repeated)) else None


def _computes(pipeline: Pipeline, part: Segment | int) -> bool:
    """Whether kernels of ours go there, and not only spread a gradient."""
    return isinstance(part, Segment) or isinstance(pipeline.stages[part], stages.MaxPool3d)


BETWEEN = (stages.MaxPool3d, stages.AvgPool3d, stages.Sum, stages.Mean)


def tail_gradients(
    way: Way, pipeline: Pipeline, grad: Tensor, x: Tensor, operands: Sequence[Tensor], value: Tensor, wanted: Any
) -> Back:
    """`grad` is that of the last value, with five axes; `value` is the one that sweeps start from, and is written over
    where it is the convolution's."""
    shapes = shapes_of(pipeline, x.shape, weight_of(pipeline, operands).shape)
    found: dict[int, list[Tensor | None]] = {}
    for part in way.parts:
        if isinstance(part, Segment):
            last = part.first == pipeline.conv_index + 1
            grad = _through(part, pipeline, grad, x, operands, value, wanted, found, last and way.start == part.first)
        else:
            stage = pipeline.stages[part]
            if isinstance(stage, stages.MaxPool3d):
                last = part == pipeline.conv_index + 1
                grad = _to_places(part, pipeline, grad, x, operands, value, last and way.start == part)
            else:
                (grad,) = GRADIENTS[type(stage)].back(stage, grad, None, None, [], (True,), shapes[part])
    behind = range(pipeline.conv_index + 1, len(pipeline.stages))
    empty = {index: [None] * len(own_operands(pipeline, operands, index)) for index in behind}
    return Back(grad, [each for index in behind for each in found.get(index, empty[index])])


def _to_places(
    pool: int,
    pipeline: Pipeline,
    grad: Tensor,
    x: Tensor,
    operands: Sequence[Tensor],
    value: Tensor,
    in_place: bool,
) -> Tensor:
    """Through a max-pool: the gradient of a window goes to its largest value."""
    dtype, start = DTYPES_OF[x.dtype], pipeline.conv_index + 1
    plan = make_tail_plan(pipeline, x.shape, [each.shape for each in operands], dtype, Places(start, pool))
    _, channels, *sizes = plan.trace.values[pool]
    shape = plan.trace.values[pool + 1]
    places = torch.empty(shape, dtype=torch.int64 if x.dtype is torch.float64 else torch.int32)
    source, arrays = tensor_storage(value, dtype, torch), _vectors(plan, operands, dtype)
    run_places(plan, source, arrays, places.numpy())
    back = value.zero_() if in_place and value.is_contiguous() else x.new_zeros((shape[0], channels, *sizes))
    rows = back.view(shape[0], channels, -1)
    rows.scatter_add_(2, places.view(*shape[:2], -1).long(), grad.expand(shape).reshape(*shape[:2], -1))
    return back


def _vectors(plan: TailPlan, operands: Sequence[Tensor], dtype: DType) -> list[Storage]:
    """Operands as kernels read them."""
    flat = plan.trace.operand_shapes
    return [tensor_storage(each, dtype, torch).reshape(own) for each, own in zip(operands, flat, strict=True)]


def _through(
    segment: Segment,
    pipeline: Pipeline,
    grad: Tensor,
    x: Tensor,
    operands: Sequence[Tensor],
    value: Tensor,
    wanted: Sequence[bool],
    found: dict[int, list[Tensor | None]],
    in_place: bool,
) -> Tensor:
    dtype = DTYPES_OF[x.dtype]
    plan = make_tail_plan(pipeline, x.shape, [each.shape for each in operands], dtype, segment, wanted[1:], in_place)
    shape = plan.trace.values[segment.first]
    result = value if in_place else result_like(value, shape)
    arrays = _vectors(plan, operands, dtype)
    source, incoming = (tensor_storage(each, dtype, torch) for each in (value, grad))
    sums = run_tail(plan, source, incoming, arrays, tensor_storage(result, dtype, torch, writable=True))
    for index, totals in sums.items():
        own = own_operands(pipeline, operands, index)
        found[index] = _of_operands(pipeline.stages[index], [torch.from_numpy(each) for each in totals], own)
    return result


def _of_operands(stage: Any, sums: Sequence[Tensor], own: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of a stage's operands from sums of float64."""
    kind = own[0].dtype if own else None
    wide = [each.reshape(-1).double() for each in own]
    if isinstance(stage, stages.Subtract):
        grads = [stage.sides(None, -sums[0])[1] if not stage.reverse else sums[0]]
    elif isinstance(stage, stages.Divide):
        grads = [-sums[0] / (wide[0] * wide[0])]
    elif isinstance(stage, stages.PReLU):
        grads = [sums[0] if own[0].numel() > 1 or len(sums[0]) == 1 else sums[0].sum()]
    elif isinstance(stage, stages.BatchNorm):
        about = (sums[0] - sums[1] * wide[0]) / torch.sqrt(wide[1] + stage.eps)
        return [None, None, about.to(kind), sums[1].to(kind)][: len(own)]
    else:  # those of a norm's weight and bias, or one
        grads = list(sums)
    return [each.to(kind) for each in grads[: len(own)]]
