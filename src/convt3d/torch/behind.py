"""The stages behind a convolution as one node of autograd's graph: they are computed from the convolution's result,
which is kept, as eager PyTorch keeps it, and the gradient goes back through them to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from operator import or_
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from ..spec.pipeline import Pipeline
from ..spec.stages import BatchNorm
from . import stock
from .convolutions import multiply_adds, takes
from .direct import direct
from .gradients import needs_result, of_shape, operands_read, through_stages
from .layout import result_format
from .stage_gradients import first_stage, label_places, needed_values
from .stock import Tensor
from .tails import Tail, starts_behind, trained, trained_way, way_back

OfBatch: TypeAlias = tuple[Any, Any]  # mean and biased variance of a batch, for each channel
ByBatch: TypeAlias = Callable[[Sequence[OfBatch]], None]  # is told those of the batch of each norm

# Whether the graph that is gone back through may be so once more, and the caller's hooks for what is saved; early
# releases do not tell.
_graph_is_kept: Any = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda tracing: ())

# Multiply-adds for a number of a convolution's result from which on the result is kept: to compute it again then takes
# longer than to write it in forward, and to read it there once more.
_WORTH_KEEPING = 32


def pays(pipeline: Pipeline, wanted: tuple[bool, ...], x: Tensor, operands: Sequence[Tensor]) -> bool:
    """Whether to keep the convolution's result for backward, which reads it: where that is sooner done than to compute
    it again, and eager PyTorch keeps as much. 16-bit results would be rounded once more than without gradients."""
    if x.itemsize < 4 or not _reads(pipeline, wanted):
        return False
    shapes, conv = stock.value_shapes(pipeline, x, operands), pipeline.conv_index
    size, (weight, *_) = prod(shapes[conv + 1]), stock.weights_of(pipeline, operands)
    if not size or not any(prod(shapes[number]) >= size for number in needed_values(pipeline, wanted) if number > conv):
        return False
    return multiply_adds(pipeline.conv, shapes[conv], shapes[conv + 1], weight.shape) >= _WORTH_KEEPING * size


@lru_cache(maxsize=1024)
def _reads(pipeline: Pipeline, wanted: tuple[bool, ...]) -> bool:
    """Whether sweeps of ours compute the stages behind the convolution, and read its result on their way back."""
    if not starts_behind(pipeline) or _names_in_front(pipeline):
        return False
    way = way_back(pipeline, wanted, False)
    return way is not None and way.reads and not needs_result(pipeline, wanted)


def _names_in_front(pipeline: Pipeline) -> bool:
    """Whether a stage behind the convolution uses a value from before it."""
    behind, places = pipeline.conv_index + 1, label_places(pipeline)
    return any(0 < places[stage.uses] < behind for stage in pipeline.stages[behind:] if stage.uses)


@lru_cache(maxsize=256)
def running_ones(pipeline: Pipeline) -> list[bool]:
    """Which operands are running statistics."""
    return [slot.operand.role.startswith("running_") for slot in pipeline.slots]


@lru_cache(maxsize=256)
def in_front(pipeline: Pipeline) -> Pipeline:
    """The pipeline as far as the convolution."""
    return Pipeline(*pipeline.stages[: pipeline.conv_index + 1])


def run_behind(
    pipeline: Pipeline, x: Tensor, value: Tensor, operands: Sequence[Tensor], by_batch: ByBatch | None = None
) -> Tensor:
    """The result of the pipeline for its input x, the convolution's result and all operands. With `by_batch`, every
    BatchNorm goes by the statistics of its batch, which it is told, and running ones are not read."""
    in_front = [slot.stage <= pipeline.conv_index for slot in pipeline.slots]  # their gradients come through the value
    own = (each.detach() if front else each for each, front in zip(operands, in_front, strict=True))
    return _Behind.apply(pipeline, by_batch, x, value, *own)


class _Behind(torch.autograd.Function):  # type: ignore[misc]
    """apply(pipeline, by_batch or None, x, the convolution's result, *operands). Backward writes the gradient of that
    result over it, unless somebody else may read it: whoever goes back once more (`retain_graph`), also in another
    thread, or a hook that was given it to keep."""

    @staticmethod
    def forward(
        ctx: Any, pipeline: Pipeline, by_batch: ByBatch | None, x: Tensor, value: Tensor, *own: Tensor
    ) -> Tensor:
        ctx.pipeline, ctx.by_batch, ctx.seen = pipeline, by_batch is not None, _hooks(False) is not None
        if by_batch is None:
            front = [slot.stage <= pipeline.conv_index for slot in pipeline.slots]
            read = [*map(or_, front, operands_read(pipeline, ctx.needs_input_grad[3:]))]
        else:
            read = [not running for running in running_ones(pipeline)]
        ctx.shapes = [None if reads else tensor.shape for tensor, reads in zip(own, read, strict=True)]
        ctx.save_for_backward(x, value, *(tensor for tensor, reads in zip(own, read, strict=True) if reads))
        _, tensors, _ = stock.batched(pipeline, x, own)
        tail = Tail(pipeline if by_batch is None else trained(pipeline), x, tensors, pipeline.conv_index + 1, value)
        chosen = result_format(pipeline, x, stock.weights_of(pipeline, own))
        result, found = tail.forward(len(pipeline.stages), chosen)
        if by_batch is not None:  # here: a checkpoint that runs this again ends when the last tensor is saved
            norms = [index for index, stage in enumerate(pipeline.stages) if isinstance(stage, BatchNorm)]
            by_batch([(found[index][0][0], found[index][1][0]) for index in norms])
        ctx.moments = found
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, value, *kept = ctx.saved_tensors
        rest = iter(kept)
        unread = x.new_full((), torch.nan)  # would show if it were read
        given = [next(rest) if shape is None else unread.expand(shape) for shape in ctx.shapes]
        pipeline, wanted = ctx.pipeline, ctx.needs_input_grad[3:]
        _, own, _ = stock.batched(pipeline, x, given)
        way = trained_way(pipeline, wanted) if ctx.by_batch else way_back(pipeline, wanted, False)
        pending: dict[int, Tensor] = {}
        if way is not None and takes(grad, value, *own) and direct((grad, value, *own)):
            over = way.reads and not ctx.seen and not _graph_is_kept()
            tail = Tail(trained(pipeline) if ctx.by_batch else pipeline, x, own, way.start, value, ctx.moments)
            grad, of_operands = tail.back(way, grad, wanted, pending, over)
        elif ctx.by_batch:
            found = _by_batch_gradients(pipeline, grad, (x, value, *own), ctx.needs_input_grad[2:])
            return None, None, *found
        else:
            grad, of_operands = _stock_gradients(pipeline, grad, x, value, own, wanted, pending)
        found = [pending.get(0), grad, *([None] * (len(own) - len(of_operands))), *of_operands]
        every = zip(found, (x, value, *given), ctx.needs_input_grad[2:], strict=True)
        return (
            None,
            None,
            *(of_shape(each, of.shape) if want and each is not None else None for each, of, want in every),
        )


def _stock_gradients(
    pipeline: Pipeline,
    grad: Tensor,
    x: Tensor,
    value: Tensor,
    operands: Sequence[Tensor],
    wanted: tuple[bool, ...],
    pending: dict[int, Tensor],
) -> tuple[Tensor, list[Tensor | None]]:
    """By PyTorch's operations, differentiable again where gradients are recorded."""
    behind, count = pipeline.conv_index + 1, len(pipeline.stages)
    need = {number for number in needed_values(pipeline, wanted) if number >= behind}
    known = stock.values(pipeline, x, operands, need, known=(behind, value))
    span = range(max(first_stage(pipeline, wanted), behind), count)
    shapes = stock.value_shapes(pipeline, x, operands)
    return through_stages(pipeline, grad, operands, known, span, wanted, shapes, pending)


def _by_batch_gradients(
    pipeline: Pipeline, grad: Tensor, given: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The same through norms by the statistics of the batch; `given` are x, the convolution's result and the
    operands."""
    again = torch.is_grad_enabled()
    leaves = [each.view_as(each) for each in given]  # the convolution's result is made of x: not through it again
    if not again:
        leaves = [each.detach().requires_grad_(want) for each, want in zip(leaves, wanted, strict=True)]
    with torch.enable_grad():
        behind, count = pipeline.conv_index + 1, len(pipeline.stages)
        others: stock.Others = {BatchNorm: _by_batch}
        result = stock.values(pipeline, leaves[0], leaves[2:], {count}, others, (behind, leaves[1]))[count]
        inputs = [each for each, want in zip(leaves, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(result, inputs, grad, allow_unused=True, create_graph=again))
    return [next(found) if want else None for want in wanted]


def _by_batch(stage: Any, v: Tensor, mean: Tensor, var: Tensor, *affine: Tensor) -> Tensor:
    """BatchNorm without running statistics."""
    weight, bias = (each.reshape(-1) for each in affine) if affine else (None, None)
    return functional.batch_norm(v, None, None, weight, bias, True, 0.0, stage.eps)
