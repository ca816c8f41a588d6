"""BatchNorm in training: the convolution is ours, statistics are the batch's, and running ones are updated as PyTorch
does it. Where our kernels know all stages behind the convolution, they compute these and take the gradient back through
them, from the convolution's result, which is kept as eager PyTorch keeps it; else PyTorch's own operations do."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.nn import functional

from ..errors import ArgumentTypeError, described
from ..spec.checks import real
from ..spec.pipeline import Pipeline
from ..spec.stages import BatchNorm, Conv3d, ConvTranspose3d
from . import stock
from .convolutions import conv, takes
from .direct import direct
from .layout import result_format
from .operators import BY_NAME
from .stock import Tensor
from .tails import Moments, Tail, trained, trained_way


def train(
    input: Tensor, operands: Sequence[Tensor], stages: str, momentum: float | None, batches: Tensor | None
) -> Tensor:
    """The pipeline with every BatchNorm in training; `batches` is how many there have been, or nobody counts them."""
    pipeline, x, given = BY_NAME["pipeline"].lower(input, operands, stages)
    share = _share(momentum, batches)

    def batch_norm(stage: Any, v: Tensor, mean: Tensor, var: Tensor, *affine: Tensor) -> Tensor:
        weight, bias = (each.reshape(-1) for each in affine) if affine else (None, None)
        return functional.batch_norm(v, mean.view(-1), var.view(-1), weight, bias, True, share, stage.eps)

    others: stock.Others = {ConvTranspose3d: conv, Conv3d: conv, BatchNorm: batch_norm}
    if trained_way(pipeline, (True,) * (1 + len(given))) is None or x.dim() not in (4, 5):
        return stock.run(pipeline, x, given, others)
    x, tensors, unbatched = stock.batched(pipeline, x, given)
    behind = pipeline.conv_index + 1
    value = stock.values(pipeline, x, tensors, {behind}, others)[behind]
    shapes = stock.value_shapes(pipeline, x, tensors)
    norms = [index for index, stage in enumerate(pipeline.stages) if isinstance(stage, BatchNorm)]
    counts = [prod(shapes[index]) // shapes[index][1] for index in norms]  # values of each channel
    if min(counts) < 2 or not _ours(value, tensors):  # a single one is refused by PyTorch
        return stock.run(pipeline, x, given, others, (behind, value))
    moments: list[Moments] = []
    running = [slot.operand.role.startswith("running_") for slot in pipeline.slots]
    own = [each.detach().clone() if moved else each for each, moved in zip(tensors, running, strict=True)]
    result = _Trained.apply(pipeline, moments, x, value, *own)
    _move(pipeline, tensors, norms, moments, counts, share)
    return stock.as_result(pipeline, result, unbatched)


def train_module(input: Tensor, operands: Sequence[Tensor | None], stages: str, norm: Any, channels: int) -> Tensor:
    """The pipeline of modules among which `norm` is the one BatchNorm3d, of so many channels; operands that are None
    are running statistics that it has not."""
    given = [torch.zeros(channels, dtype=input.dtype) if each is None else each for each in operands]
    if norm.running_mean is None:
        return train(input, given, stages, 0.0, None)
    return train(input, given, stages, norm.momentum, norm.num_batches_tracked)


def _ours(value: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether our kernels may compute with these tensors as they are."""
    with torch.no_grad():
        return takes(value, *tensors) and direct((value, *tensors))


def _move(
    pipeline: Pipeline,
    tensors: Sequence[Tensor],
    norms: Sequence[int],
    moments: Sequence[Moments],
    counts: Sequence[int],
    share: float,
) -> None:
    """Running statistics of the norms towards those of the batch; the variance among them is the unbiased one."""
    with torch.no_grad():
        for index, (mean, variance), count in zip(norms, moments, counts, strict=True):
            running = stock.own_operands(pipeline, tensors, index)[:2]
            for old, new in zip(running, (mean, variance * (count / (count - 1))), strict=True):
                old.copy_(old.double() * (1.0 - share) + torch.from_numpy(new).reshape(old.shape) * share)


class _Trained(torch.autograd.Function):  # type: ignore[misc]
    """apply(pipeline, moments, x, the convolution's result, *operands). `moments` gets mean and variance of each batch.
    Running statistics among the operands are not read."""

    @staticmethod
    def forward(ctx: Any, pipeline: Pipeline, moments: list[Moments], x: Tensor, value: Tensor, *own: Tensor) -> Tensor:
        ctx.pipeline = pipeline
        ctx.save_for_backward(x, value, *own)
        tail = Tail(trained(pipeline), x, own, pipeline.conv_index + 1, value)
        chosen = result_format(pipeline, x, stock.weights_of(pipeline, own))
        result, found = tail.forward(len(pipeline.stages), chosen)
        moments += found
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, value, *own = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        way, pending = trained_way(ctx.pipeline, wanted), dict[int, Tensor]()
        if way is not None and takes(grad, value, *own) and direct((grad, value, *own)):
            tail = Tail(trained(ctx.pipeline), x, own, way.start, value)
            grad, of_operands = tail.back(way, grad, wanted, pending)
            found = [pending.get(0), grad, *([None] * (len(own) - len(of_operands))), *of_operands]
        else:
            found = _stock_gradients(ctx.pipeline, grad, (x, value, *own), ctx.needs_input_grad[2:])
        every = zip(found, ctx.needs_input_grad[2:], strict=True)
        return None, None, *(each if want else None for each, want in every)


def _stock_gradients(
    pipeline: Pipeline, grad: Tensor, given: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """By PyTorch's operations, differentiable again where gradients are recorded; `given` are x, the convolution's
    result and the operands."""
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


def _share(momentum: float | None, batches: Any) -> float:
    """How far the running statistics move towards those of this batch, which is counted."""
    if not isinstance(batches, torch.Tensor | None):
        kind = described(type(batches).__name__)
        raise ArgumentTypeError("pipeline", "num_batches_tracked", kind, "must be a tensor of one integer", "Pass one")
    if momentum is not None:
        share = real("pipeline", "momentum", momentum)
    elif batches is not None:
        share = 1.0 / (float(batches) + 1.0)
    else:
        rule = "asks for the average over all batches, which needs their number"
        raise ArgumentTypeError("pipeline", "momentum", None, rule, "Pass num_batches_tracked=, or a number")
    if batches is not None:
        batches.add_(1)
    return share
