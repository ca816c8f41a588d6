"""The operators as functions, with PyTorch's names, order and defaults; gradients, autocast and tracing included.

input is (B, Cin, D, H, W) or unbatched (Cin, D, H, W); weight is (Cin, Cout/groups, Kd, Kh, Kw).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from . import operators, ops, stock
from .direct import direct
from .engine import knows, run, tell, unknown
from .stock import Tensor

Size: TypeAlias = int | Sequence[int]


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transpose3d`."""
    return _call("conv_transpose3d", input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d_max_max_sum(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 2,
    padding: Size = 2,
    *,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """conv_transpose3d + bias -> max-pool 2 -> max-pool 3 -> sum over channels: (B, 1, D', H', W')."""
    return _call("conv_transpose3d_max_max_sum", input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d_sum_layernorm_avgpool_gelu(
    input: Tensor,
    weight: Tensor,
    sum_weight: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """conv_transpose3d -> + sum_weight -> LayerNorm over channels -> average-pool 2 -> GELU."""
    norm = bias, norm_weight, norm_bias, eps, approximate
    conv = stride, padding, output_padding
    name = "conv_transpose3d_sum_layernorm_avgpool_gelu"
    return _call(name, input, weight, sum_weight, *conv, *norm, groups, dilation)


def conv_transpose3d_avgpool_clamp_softmax_multiply(
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    pool_kernel: Size = 2,
    clamp_min: float | None = 0.0,
    clamp_max: float | None = 1.0,
    *,
    bias: Tensor | None = None,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """average-pool of input -> conv_transpose3d -> clamp -> softmax over the voxels of each channel -> * scale."""
    conv = stride, padding, output_padding
    name = "conv_transpose3d_avgpool_clamp_softmax_multiply"
    return _call(name, input, weight, scale, *conv, pool_kernel, clamp_min, clamp_max, bias, groups, dilation)


def conv_transpose3d_layernorm_gelu_scaling(
    input: Tensor,
    weight: Tensor,
    scaling_factor: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 0,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """conv_transpose3d -> LayerNorm over channels -> GELU -> * scaling_factor."""
    norm = bias, norm_weight, norm_bias, eps, approximate
    conv = stride, padding, output_padding
    name = "conv_transpose3d_layernorm_gelu_scaling"
    return _call(name, input, weight, scaling_factor, *conv, *norm, groups, dilation)


def pipeline(input: Tensor, operands: Sequence[Tensor], stages: str) -> Tensor:
    """A pipeline written as text, such as "ConvTranspose3d(stride=2, bias=True) -> InstanceNorm() -> ReLU()"."""
    return _call("pipeline", input, list(operands), stages)


def _call(name: str, *arguments: Any) -> Tensor:
    if direct(arguments):
        return run(name, *getattr(operators, name)(*arguments))
    reason = _why_stock(arguments[0])
    if not reason:
        return getattr(ops.NAMESPACE, name)(*arguments)
    # All of it is stock PyTorch's, its derivatives too.
    result = stock.run(*getattr(operators, name)(*arguments))
    if not torch.compiler.is_compiling():
        tell(name, reason)
    return result


def _why_stock(input: Tensor) -> str:
    """Why PyTorch could not differentiate the operator here: an odd type, or a transform that operators defined in
    Python do not take part in."""
    if not knows(input.dtype):
        return unknown(input.dtype)
    if torch.compiler.is_compiling():
        return ""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    if any(each.key() != _VMAP for each in transforms):
        return "torch.func transforms other than vmap need its own operations"
    return "forward-mode derivatives need its own operations" if forward_ad._current_level >= 0 else ""


_VMAP = torch._C._functorch.TransformType.Vmap
