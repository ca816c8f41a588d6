"""A convolution alone, and its gradients by our kernels. That with respect to the input is the transposed convolution,
or the other way round: both are operators, which can be traced, and mapped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from ..cpu.gradient.bias import bias_gradient
from ..cpu.gradient.run import weight_gradient
from ..front.arrays import tensor_storage
from ..spec.checks import Triple, as_triple, triple
from ..spec.operators import shared
from ..spec.pipeline import Pipeline
from ..spec.shapes import ConvAxis
from ..spec.stages import Conv3d, Convolution, ConvTranspose3d
from ..spec.text import write_pipeline
from . import gpu
from .direct import direct
from .engine import DTYPES_OF, knows, run
from .stock import Others, Tensor

# Multiply-adds of a convolution by itself below which all of a step is PyTorch's: ours needs longer to be started than
# theirs to be done. It is twice as many where stages follow, which start kernels of their own, and a share of it where
# there are groups, of which PyTorch makes a slow way. It is so many times as much where PyTorch runs near the peak of
# the registers and Winograd's method saves little: with strides or single taps and whole vectors of channels, and with
# images, the one to three channels that a network begins with. With strides or single taps, weights that meet few
# positions are not worth packing at each step; fewer make it worth moving those of a transposed convolution whose
# kernels do not overlap.
SMALL, _SHARE_OF_GROUPS, _WELL_SERVED, _FEW, _FEW_APART = 1 << 23, 16, 4, 1024, 256


def multiply_adds(stage: Convolution, entering: Sequence[int], leaving: Sequence[int], weight: Sequence[int]) -> int:
    """Of a convolution, by the shapes of its input, its result and its weight: each number of the weight meets every
    position of the input of a transposed one, and of the result of the other."""
    batch, _, d, h, w = entering if isinstance(stage, ConvTranspose3d) else leaving
    return batch * d * h * w * prod(weight)


def small(conv: Any, shape: Sequence[int], weight: Sequence[int], alone: bool = True, served: bool = True) -> bool:
    """Whether gradients of a convolution, a stage or a module, with input and weight of these shapes are left to
    PyTorch, for there is little to do; `alone`: no stages follow; `served`: or PyTorch is as good at them. The bits of
    ours do not depend on threads: whoever asks PyTorch for algorithms that are deterministic gets them."""
    if len(shape) != 5 or not all(type(size) is int for size in (*shape, *weight)):
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False
    transposed = isinstance(conv, (ConvTranspose3d, torch.nn.ConvTranspose3d))
    apart = triple(type(conv).__name__, "stride", conv.stride, 1)  # PyTorch's modules may hold (2,)
    strides = prod(apart)
    positions = prod(shape) // shape[1] // (1 if transposed else strides) if shape[1] else 0
    work, most = positions * prod(weight), SMALL if alone else 2 * SMALL
    if conv.groups > 1:
        work *= _SHARE_OF_GROUPS
    elif served and (strides > 1 or prod(weight[2:]) == 1) and min(weight[:2]) >= (32 if transposed else 16):
        lone = transposed and all(size <= step for size, step in zip(weight[2:], apart, strict=True))
        few = positions <= (_FEW_APART if lone else _FEW)
        return most > 0 and (few or work < _WELL_SERVED * most)
    elif served and not transposed and weight[1] <= 3 and weight[0] >= 16:
        return work < _WELL_SERVED * most
    return work < most


def conv(stage: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The convolution alone, by our operator; what it makes of weights that are learnt is not kept."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if direct(given):
        return run("pipeline", _alone(stage, bias is not None), x, given[1:], passing=weight.requires_grad)
    if isinstance(stage, Conv3d):
        if isinstance(stage.padding, str):
            words = write_pipeline(_alone(stage, bias is not None))
            return torch.ops.convt3d.pipeline.default(x, list(given[1:]), words)
        geometry = map(as_triple, (stage.stride, stage.padding, stage.dilation))
        return torch.ops.convt3d.conv3d.default(x, weight, bias, *geometry, stage.groups, stage.padding_mode)
    assert isinstance(stage, ConvTranspose3d)
    stride, padding, output_padding, dilation = stage.triples
    sizes = stride, padding, output_padding, stage.groups, dilation
    return torch.ops.convt3d.conv_transpose3d.default(x, weight, bias, *sizes)


@lru_cache(maxsize=1024)
def _alone(stage: Convolution, bias: bool) -> Pipeline:
    made: Convolution = replace(stage, bias=bias)  # type: ignore[call-arg]  # both kinds have it
    return shared(Pipeline(made))


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
    """Of an input of `shape`; a Conv3d pads with zeros here."""
    if direct((g, weight), recorded=True):
        back = _known_adjoint(stage, tuple(shape), tuple(weight.shape))
        made = run("gradients", back, g, [weight], passing=weight.requires_grad)
    else:
        made = conv(_adjoint(stage, shape, weight.shape), g, weight)
    # Long output_padding, and zeros behind the input, make voxels that it has not.
    inside = made
    for axis in (2, 3, 4):
        inside = inside if inside.shape[axis] == shape[axis] else inside.narrow(axis, 0, shape[axis])
    return made if inside is made else inside.clone()


def _adjoint(stage: Convolution, shape: Any, kernel: Any) -> Convolution:
    """A transposed convolution passes a gradient on by the convolution with the same weight, and the other way
    round."""
    if isinstance(stage, ConvTranspose3d):
        stride, padding, _, dilation = stage.triples
        return Conv3d(stride=stride, padding=padding, groups=stage.groups, dilation=dilation)
    assert isinstance(stage, Conv3d)
    d, h, w = axes = stage.axes(shape, kernel)
    # what the last window leaves of the input; none where more zeros were added behind it than before
    depth, height, width = (max(axis.size - _made(axis), 0) for axis in axes)
    return ConvTranspose3d(
        stride=stage.stride,
        padding=(d.padding, h.padding, w.padding),
        output_padding=(depth, height, width),
        groups=stage.groups,
        dilation=stage.dilation,
    )


@lru_cache(maxsize=1024)
def _known_adjoint(stage: Convolution, shape: tuple[int, ...], kernel: tuple[int, ...]) -> Pipeline:
    return shared(Pipeline(_adjoint(stage, shape, kernel)))


def _made(axis: ConvAxis) -> int:
    """Voxels that the transposed convolution makes by itself."""
    return (axis.out - 1) * axis.stride - 2 * axis.padding + axis.dilation * (axis.kernel - 1) + 1


def _like(tensor: Tensor) -> Tensor:
    """Memory for its gradient, of the strides that PyTorch gives it."""
    return tensor.new_empty(tensor.shape) if tensor.is_contiguous() else torch.empty_like(tensor)


def weight_gradients(
    stage: Convolution, g: Tensor, v: Tensor, padding: Triple, own: Sequence[Tensor], want: Sequence[bool]
) -> list[Tensor | None] | None:
    """Of the weight and the bias, where wanted, by our kernels: called at once, or, where something must see the call
    (tracing, a profiler), as an operator. None where PyTorch's own must do it: on a GPU, and
    within a transform, which cannot go into ours. `padding` are the zeros around the input v."""
    tensors = g, v, own[0]
    if g.is_cuda or not takes(*tensors) or any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
        return None
    geometry = as_triple(stage.stride), padding, as_triple(stage.dilation), stage.groups
    wanted = want[0], len(own) > 1 and want[1]
    call: Any = _gradients if direct(tensors) else torch.ops.convt3d.convolution_gradients.default
    found = call(*tensors, *geometry, isinstance(stage, ConvTranspose3d), wanted)
    return [each if wanted else None for each, wanted in zip(found, want, strict=False)]


_library = torch.library.Library("convt3d", "FRAGMENT")
_library.define(
    "convolution_gradients(Tensor grad, Tensor input, Tensor weight, SymInt[3] stride, SymInt[3] padding, "
    "SymInt[3] dilation, SymInt groups, bool transposed, bool[2] wanted) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _empty(grad: Tensor, input: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Memory for gradients of the weight and of the bias; without numbers where it is not wanted."""
    of_weight, of_bias = rest[-1]
    return _like(weight) if of_weight else weight.new_empty(0), weight.new_empty(grad.shape[1] if of_bias else 0)


def _gradients(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Triple,
    padding: Triple,
    dilation: Triple,
    groups: int,
    transposed: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    found, dtype = _empty(grad, input, weight, wanted), DTYPES_OF[weight.dtype]
    of_result, read = (tensor_storage(each, dtype, torch) for each in (grad, input))
    of_weight, of_bias = (tensor_storage(each, dtype, torch, writable=True) for each in found)
    if wanted[0]:
        small, large = (read, of_result) if transposed else (of_result, read)
        d, h, w = weight.shape[2:]
        sizes = (d, h, w), as_triple(stride), as_triple(padding), as_triple(dilation), groups
        weight_gradient(small, large, *sizes, dtype, of_weight, transposed=transposed)
    if wanted[1]:
        bias_gradient(of_result, dtype, of_bias)
    return found


def _flops(grad: Tensor, input: Tensor, weight: Tensor, *rest: Any, out_val: Any = None) -> int:
    """What `torch.utils.flop_counter` counts: of the weight alone, as it does for PyTorch's own."""
    *_, transposed, wanted = rest
    meets = input if transposed else grad
    return 2 * meets.numel() // meets.shape[1] * weight.numel() if wanted[0] else 0


_library.impl("convolution_gradients", _gradients, "CPU")
torch.library.register_fake("convt3d::convolution_gradients", _empty, lib=_library)
register_flop_formula(torch.ops.convt3d.convolution_gradients, get_raw=True)(_flops)
