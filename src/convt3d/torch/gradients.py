"""Gradients of a pipeline: values are computed again from the input, a few samples at a time, never stored between;
by our kernels, unless gradients of the gradients are recorded.

Each stage also says how a gradient passes it and which values that takes, in PyTorch's own backward operations, for all
that our kernels do not take. What a gradient does not need is not computed again: conv -> ReLU needs nothing but the
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..spec.pipeline import Pipeline
from .convolutions import own_convolutions, takes
from .direct import direct
from .segment_gradients import segment_gradients
from .stage_gradients import GRADIENTS, first_stage, needed_values, through_stage
from .stock import NO_OTHERS, Tensor, as_value, batched, own_operands, value_shapes, values, weights_of
from .tails import Tail, way_back, way_in_front

_MOST_PLACES = 2**31 - 1  # of a volume, which kernels name by 32 bits
CHUNK_BYTES = 32 << 20  # samples are taken together as long as one value of theirs stays below this


def needs_result(pipeline: Pipeline, wanted: Sequence[bool]) -> bool:
    """Whether to keep the pipeline's result for the gradient, as eager PyTorch does: only if that saves the
    convolution from being computed again."""
    before = pipeline.conv_index if len(pipeline.convolutions) == 1 else 0
    return {number for number in needed_values(pipeline, wanted) if number > before} == {len(pipeline.stages)}


def operands_read(pipeline: Pipeline, wanted: Sequence[bool]) -> list[bool]:
    """Which operands the wanted gradients read; of the others they take the shape alone."""
    need, first = needed_values(pipeline, wanted), first_stage(pipeline, wanted)
    again = max(need - {len(pipeline.stages)} if needs_result(pipeline, wanted) else need, default=0)
    read: list[bool] = []
    for index, stage in enumerate(pipeline.stages):
        count = sum(slot.stage == index for slot in pipeline.slots)
        reads = count if index < again else GRADIENTS[type(stage)].reads if index >= first else 0
        read += [number < reads for number in range(count)]
    return read


def gradients(
    pipeline: Pipeline,
    grad: Tensor,
    x: Tensor,
    operands: Sequence[Tensor],
    result: Tensor | None,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Of x and each operand, None where not wanted; differentiable again where gradients are being recorded."""
    shapes = [tensor.shape for tensor in (x, *operands)]
    x, tensors, unbatched = batched(pipeline, x, operands)
    grad = as_value(pipeline, grad, unbatched)
    result = None if result is None else as_value(pipeline, result, unbatched)
    found = _in_chunks(pipeline, grad, x, tensors, result, wanted)
    return [None if each is None else of_shape(each, shape) for each, shape in zip(found, shapes, strict=True)]


def of_shape(grad: Tensor, shape: Sequence[int]) -> Tensor:
    """As its tensor was given; one number that served all channels has all their gradients."""
    return grad.reshape(shape) if len(shape) else grad.sum()


def _in_chunks(
    pipeline: Pipeline,
    grad: Tensor,
    x: Tensor,
    operands: Sequence[Tensor],
    result: Tensor | None,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    chunk = _chunk(pipeline, grad, x, operands, wanted)
    if chunk is None:
        return _chunk_gradients(pipeline, grad, x, operands, result, wanted)
    totals: list[Any] = [None] * (1 + len(operands))
    per_sample = [True, *(slot.operand.kind == "tensor" for slot in pipeline.slots)]
    for start in range(0, x.shape[0], chunk):
        part = slice(start, start + chunk)
        own = [
            tensor[part] if split and tensor.shape[0] == x.shape[0] else tensor
            for tensor, split in zip((x, *operands), per_sample, strict=True)
        ]
        here = None if result is None else result[part]
        found = _chunk_gradients(pipeline, grad[part], own[0], own[1:], here, wanted)
        for index, (each, tensor) in enumerate(zip(found, (x, *operands), strict=True)):
            if each is None:
                continue
            if per_sample[index] and tensor.shape[0] == x.shape[0]:
                if totals[index] is None:
                    totals[index] = torch.empty_like(tensor)
                totals[index][part] = each
            else:
                if totals[index] is None:  # never `each` itself, which may be the gradient handed in
                    totals[index] = torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
                totals[index] += each
    return [None if total is None else total.to(x.dtype) for total in totals]


def _chunk(
    pipeline: Pipeline, grad: Tensor, x: Tensor, operands: Sequence[Tensor], wanted: Sequence[bool]
) -> int | None:
    """How many samples to take at once; None for all, also while PyTorch is tracing or recording gradients, or where
    vmap has hidden another batch."""
    batch = x.shape[0]
    if type(batch) is not int or batch < 2 or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (grad, x, *operands))):
        return None
    largest = max(prod(shape[1:]) for shape in value_shapes(pipeline, x, operands))
    chunk = max(1, CHUNK_BYTES // (largest * x.element_size()))
    again = max(needed_values(pipeline, wanted) - {len(pipeline.stages)}, default=0)
    return chunk if chunk < batch and again > 0 else None


def through_stages(
    pipeline: Pipeline,
    grad: Any,
    operands: Sequence[Tensor],
    known: dict[int, Any],
    span: range,
    wanted: Sequence[bool],
    shapes: Sequence[Any],
    pending: dict[int, Tensor],
) -> tuple[Any, list[Tensor | None]]:
    """The gradient of the value that enters the first of these stages, and those of their operands, stage by stage.
    `known` are the values that this takes, by their number; they are dropped as soon as no stage needs them."""
    stages, first = pipeline.stages, first_stage(pipeline, wanted)
    found: list[Tensor | None] = []
    for index in reversed(span):
        own = own_operands(pipeline, operands, index)
        wants = (wanted[0] or index > first, *own_operands(pipeline, wanted[1:], index))
        if "r" not in GRADIENTS[type(stages[index])].uses_of(stages[index]):
            known.pop(index + 1, None)
        grad, of_operands = through_stage(pipeline, index, grad, known.__getitem__, own, wants, shapes, pending)
        found = [*of_operands, *found]
        known.pop(index + 1, None)
    return grad, found


def _chunk_gradients(
    pipeline: Pipeline,
    grad: Tensor,
    x: Tensor,
    operands: Sequence[Tensor],
    result: Tensor | None,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    count = len(pipeline.stages)
    shapes = value_shapes(pipeline, x, operands)
    ours = takes(grad, x, *operands) and direct((grad, x, *operands))
    ours = ours and all(prod(shape[2:]) <= _MOST_PLACES for shape in shapes)
    if ours and len(pipeline.convolutions) > 1:
        return segment_gradients(pipeline, grad, x, operands, wanted, _chunk_gradients)
    first, conv = first_stage(pipeline, wanted), pipeline.convolutions[0]
    need = {number for number in needed_values(pipeline, wanted) if number < count or result is None}
    others = own_convolutions(pipeline) if takes(x, *weights_of(pipeline, operands)) else NO_OTHERS
    back = way_back(pipeline, tuple(wanted), result is not None) if ours else None
    front = way_in_front(pipeline, tuple(wanted)) if ours and (back is not None or conv + 1 == count) else None
    last, begin, start = count, first, None
    if back is not None:
        last = conv + 1
        need = {number for number in need if number < last} | ({last} if back.reads and result is None else set())
    if front is not None:
        begin, need = conv, {number for number in need if number >= conv}
        start = (conv, Tail(pipeline, x, operands, 0, x).value(conv)) if need else None
    known: dict[int, Any] = values(pipeline, x, operands, need, others, start)
    del start
    pending: dict[int, Tensor] = {}  # gradients of labelled values, by their number
    found: list[Tensor | None] = []
    if back is not None:
        value = known.pop(last, None) if result is None else result
        behind = Tail(pipeline, x, operands, back.start, value)
        grad, found = behind.back(back, grad, wanted, pending, back.reads and result is None)
        del value, behind
    elif result is not None:
        known[count] = result
    grad, more = through_stages(pipeline, grad, operands, known, range(begin, last), wanted, shapes, pending)
    found = [*more, *found]
    if front is not None:
        grad, of_operands = Tail(pipeline, x, operands, 0, x).back(front, grad, wanted, pending)
        found = [*of_operands, *found]
    if 0 in pending:
        grad = grad + pending[0] if grad is not None else pending[0]
    left = sum(slot.stage < first for slot in pipeline.slots)
    found = [*([None] * left), *found]
    return [each if want else None for each, want in zip((grad, *found), wanted, strict=True)]
