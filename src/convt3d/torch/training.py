"""BatchNorm in training: the convolution is ours, statistics are the batch's, and running ones are updated as PyTorch
does it. All else is PyTorch's own operations, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from ..errors import ArgumentTypeError, described
from ..spec.checks import real
from ..spec.stages import BatchNorm, Conv3d, ConvTranspose3d
from . import stock
from .convolutions import conv
from .operators import BY_NAME
from .stock import Tensor


def train(
    input: Tensor, operands: Sequence[Tensor], stages: str, momentum: float | None, batches: Tensor | None
) -> Tensor:
    """The pipeline with every BatchNorm in training; `batches` is how many there have been, or nobody counts them."""
    pipeline, x, given = BY_NAME["pipeline"].lower(input, operands, stages)
    share = _share(momentum, batches)

    def batch_norm(stage: Any, v: Tensor, mean: Tensor, var: Tensor, *affine: Tensor) -> Tensor:
        weight, bias = (each.reshape(-1) for each in affine) if affine else (None, None)
        return functional.batch_norm(v, mean.view(-1), var.view(-1), weight, bias, True, share, stage.eps)

    return stock.run(pipeline, x, given, {ConvTranspose3d: conv, Conv3d: conv, BatchNorm: batch_norm})


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
