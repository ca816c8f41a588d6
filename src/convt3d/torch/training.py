"""BatchNorm in training: the convolution is ours, statistics are the batch's, and running ones are updated as PyTorch
does it. All else is PyTorch's own operations, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn import functional

from ..spec.stages import BatchNorm, ConvTranspose3d
from . import stock
from .derivatives import conv
from .operators import BY_NAME
from .stock import Tensor


def train(input: Tensor, operands: Sequence[Tensor], stages: str, momentum: float) -> Tensor:
    """The pipeline with every BatchNorm in training."""

    def batch_norm(stage: Any, v: Tensor, mean: Tensor, var: Tensor, *affine: Tensor) -> Tensor:
        weight, bias = (each.reshape(-1) for each in affine) if affine else (None, None)
        return functional.batch_norm(v, mean.view(-1), var.view(-1), weight, bias, True, momentum, stage.eps)

    pipeline, x, given = BY_NAME["pipeline"].lower(input, operands, stages)
    return stock.run(pipeline, x, given, {ConvTranspose3d: conv, BatchNorm: batch_norm})
