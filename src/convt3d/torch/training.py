"""BatchNorm in training: the convolution is ours, statistics are the batch's, and running ones are updated as PyTorch
does it. Where our kernels know all stages behind the convolution, they compute these and take the gradient back through
them, from the convolution's result, which is kept as eager PyTorch keeps it; else PyTorch's own operations do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.nn import functional

from ..errors import ArgumentTypeError, described
from ..spec.checks import real
from ..spec.pipeline import Pipeline
from ..spec.stages import BatchNorm, Conv3d, ConvTranspose3d
from . import stock
from .behind import OfBatch, run_behind, running_ones
from .convolutions import conv, takes
from .direct import direct
from .engine import one_type, run
from .operators import BY_NAME
from .recorded import Compute, left_to_torch, recording, value_in_front
from .stock import Tensor
from .tails import trained_way


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
    if x.dim() == 5 and recording(x, given) and left_to_torch(pipeline, x, given):
        return stock.run(pipeline, x, given, {BatchNorm: batch_norm})
    x, tensors, unbatched = stock.batched(pipeline, x, given)
    behind = pipeline.conv_index + 1
    if direct((x, *tensors), recorded=True) and one_type(x, tensors):
        value = value_in_front(pipeline, x, tensors, _computed(x))
    else:
        value = stock.values(pipeline, x, tensors, {behind}, others)[behind]
    shapes = stock.value_shapes(pipeline, x, tensors)
    norms = [index for index, stage in enumerate(pipeline.stages) if isinstance(stage, BatchNorm)]
    counts = [prod(shapes[index]) // shapes[index][1] for index in norms]  # values of each channel
    if min(counts) < 2 or not _ours(value, tensors):  # a single one is refused by PyTorch
        return stock.run(pipeline, x, given, others, (behind, value))
    own = [each.detach() if moved else each for each, moved in zip(tensors, running_ones(pipeline), strict=True)]
    move = partial(_move, pipeline, tensors, norms, counts, share)
    result = run_behind(pipeline, x, value, own, move)
    return stock.as_result(pipeline, result, unbatched)


def _computed(x: Tensor) -> Compute:
    """By our kernels, which keep nothing of weights that are others after a step of the optimiser."""
    return lambda part, own: run("pipeline", part, x, own, passing=any(each.requires_grad for each in own))


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
    counts: Sequence[int],
    share: float,
    moments: Sequence[OfBatch],
) -> None:
    """Running statistics of the norms towards those of the batch; the variance among them is the unbiased one."""
    with torch.no_grad():
        for index, (mean, variance), count in zip(norms, moments, counts, strict=True):
            running = stock.own_operands(pipeline, tensors, index)[:2]
            for old, new in zip(running, (mean, variance * (count / (count - 1))), strict=True):
                old.copy_(old.double() * (1.0 - share) + torch.from_numpy(new).reshape(old.shape) * share)


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
