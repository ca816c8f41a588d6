"""A convolution alone, and its gradients by our kernels. That with respect to the input is the transposed convolution,
or the other way round: both are operators, which can be traced, and mapped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ..cpu.gradient.bias import bias_gradient
from ..cpu.gradient.run import weight_gradient
from ..front.arrays import tensor_storage
from ..spec.checks import Triple, as_triple
from ..spec.pipeline import Pipeline
from ..spec.shapes import ConvAxis
from ..spec.stages import Conv3d, Convolution, ConvTranspose3d
from ..spec.text import write_pipeline
from . import gpu
from .direct import direct
from .engine import DTYPES_OF, knows
from .stock import Others, Tensor

# Multiply-adds below which PyTorch's own kernels take gradients: ours need longer to be started than theirs to be done.
SMALL = 1 << 18


def small(shape: Sequence[int], weight: Tensor) -> bool:
    """Whether the gradients of a convolution of an input of `shape` are left to PyTorch, for there is little to do."""
    sizes = (*shape, *weight.shape)
    return all(type(size) is int for size in sizes) and prod(sizes) < SMALL * shape[1]


def conv(stage: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The convolution alone, by our operator."""
    if isinstance(stage, Conv3d):
        if isinstance(stage.padding, str):
            alone = Pipeline(replace(stage, bias=bias is not None))
            operands = [weight] if bias is None else [weight, bias]
            return torch.ops.convt3d.pipeline.default(x, operands, write_pipeline(alone))
        geometry = map(as_triple, (stage.stride, stage.padding, stage.dilation))
        return torch.ops.convt3d.conv3d.default(x, weight, bias, *geometry, stage.groups, stage.padding_mode)
    assert isinstance(stage, ConvTranspose3d)
    stride, padding, output_padding, dilation = stage.triples
    sizes = stride, padding, output_padding, stage.groups, dilation
    return torch.ops.convt3d.conv_transpose3d.default(x, weight, bias, *sizes)


def own_convolutions(pipeline: Pipeline) -> Others:
    """Our operators as the meanings of its convolutions."""
    return {type(pipeline.stages[index]): conv for index in pipeline.convolutions}


def takes(*tensors: Tensor) -> bool:
    """Whether our operators are to compute with these tensors, where nobody differentiates that again."""
    if torch.is_grad_enabled():
        return False
    first = tensors[0]
    if not (first.device.type == "cpu" or (first.is_cuda and torch.cuda.is_available())):
        return False
    if not knows(first.dtype) or not all(
        each.device == first.device
        and each.layout is torch.strided
        and each.dtype is first.dtype
        and 0 not in each.shape
        for each in tensors
    ):
        return False
    return not first.is_cuda or gpu.why_not(first, ()) is None


def input_gradient(stage: Convolution, g: Tensor, weight: Tensor, shape: Any) -> Tensor:
    """Of an input of `shape`: a transposed convolution passes a gradient on by the convolution with the same weight,
    and the other way round. A Conv3d pads with zeros here."""
    if isinstance(stage, ConvTranspose3d):
        stride, padding, _, dilation = stage.triples
        made = torch.ops.convt3d.conv3d.default(g, weight, None, stride, padding, dilation, stage.groups, "zeros")
    else:
        assert isinstance(stage, Conv3d)
        stride, dilation, axes = as_triple(stage.stride), as_triple(stage.dilation), stage.axes(shape, weight.shape)
        before = [axis.padding for axis in axes]
        # what the last window leaves of the input; none where more zeros were added behind it than before
        extra = [max(axis.size - _made(axis), 0) for axis in axes]
        sizes = stride, before, extra, stage.groups, dilation
        made = torch.ops.convt3d.conv_transpose3d.default(g, weight, None, *sizes)
    # Long output_padding, and zeros behind the input, make voxels that it has not.
    inside = made
    for axis in (2, 3, 4):
        inside = inside if inside.shape[axis] == shape[axis] else inside.narrow(axis, 0, shape[axis])
    return made if inside is made else inside.clone()


def _made(axis: ConvAxis) -> int:
    """Voxels that the transposed convolution makes by itself."""
    return (axis.out - 1) * axis.stride - 2 * axis.padding + axis.dilation * (axis.kernel - 1) + 1


def _like(tensor: Tensor) -> Tensor:
    """Memory for its gradient, of the strides that PyTorch gives it."""
    return tensor.new_empty(tensor.shape) if tensor.is_contiguous() else torch.empty_like(tensor)


def weight_gradients(
    stage: Convolution, g: Tensor, v: Tensor, padding: Triple, own: Sequence[Tensor], want: Sequence[bool]
) -> list[Tensor | None] | None:
    """Of the weight and the bias, where wanted, by our kernels; None where something must see the calls (tracing, a
    transform, a profiler). `padding` are the zeros around the input v."""
    if not (takes(g, v, own[0]) and direct((g, v, own[0]))):
        return None
    dtype = DTYPES_OF[v.dtype]
    grad, input = (tensor_storage(each, dtype, torch) for each in (g, v))
    found = [_like(each) if wanted else None for each, wanted in zip(own, want, strict=True)]
    results = [None if each is None else tensor_storage(each, dtype, torch, writable=True) for each in found]
    if results[0] is not None:
        transposed = isinstance(stage, ConvTranspose3d)
        small, large = (input, grad) if transposed else (grad, input)
        d, h, w = own[0].shape[2:]
        sizes = (d, h, w), as_triple(stage.stride), padding, as_triple(stage.dilation), stage.groups
        weight_gradient(small, large, *sizes, dtype, results[0], transposed=transposed)
    if len(results) > 1 and results[1] is not None:
        bias_gradient(grad, dtype, results[1].reshape(-1))
    return found
