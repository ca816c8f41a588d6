"""Calls on plain CPU tensors whose gradients are recorded: by PyTorch's own operations where there is little to do,
with the convolution's result kept where that pays, else with what `gradients` computes it again from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from ..spec.pipeline import Pipeline
from ..spec.stages import LayerNorm
from . import stock
from .behind import in_front, pays, run_behind
from .convolutions import small
from .derivatives import record
from .stock import Tensor

# The result of a pipeline for its operands: of the one that was called, or of that as far as the convolution.
Compute: TypeAlias = Callable[[Pipeline, Sequence[Tensor]], Tensor]


def recording(x: Tensor, operands: Sequence[Tensor | None]) -> bool:
    """Whether gradients are recorded."""
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(each is not None and each.requires_grad for each in operands)


def left_to_torch(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor]) -> bool:
    """Whether each of its convolutions has little to do. LayerNorm over channels PyTorch has not: the axes are moved
    for it."""
    shapes, alone = stock.value_shapes(pipeline, x, operands), len(pipeline.stages) == 1
    served = not any(isinstance(stage, LayerNorm) and stage.over == "channels" for stage in pipeline.stages)
    every = zip(pipeline.convolutions, stock.weights_of(pipeline, operands), strict=True)
    return all(small(pipeline.stages[index], shapes[index], weight.shape, alone, served) for index, weight in every)


def recorded(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor], compute: Compute) -> Tensor:
    """The result of the pipeline, for tensors that nobody but autograd looks at."""
    wanted = (x.requires_grad, *(each.requires_grad for each in operands))
    usual = x.dim() == 5 and all(weight.dim() == 5 for weight in stock.weights_of(pipeline, operands))
    if usual and left_to_torch(pipeline, x, operands):
        return stock.run(pipeline, x, operands)
    if not (usual and pays(pipeline, wanted, x, operands)):
        return record(lambda: compute(pipeline, operands), pipeline, (x, *operands))
    return run_behind(pipeline, x, value_in_front(pipeline, x, operands, compute), operands)


def value_in_front(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor], compute: Compute) -> Tensor:
    """The convolution's result, for tensors that nobody but autograd looks at."""
    front = in_front(pipeline)
    own = operands[: len(front.slots)]
    return record(lambda: compute(front, own), front, (x, *own)) if recording(x, own) else compute(front, own)
