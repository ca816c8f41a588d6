"""The five operators as functions, with PyTorch's names, order and meaning of arguments.

Arrays: x is (B, Cin, D, H, W) or unbatched (Cin, D, H, W); w is (Cin, Cout/groups, Kd, Kh, Kw). The result has the kind
and type of x; `out=` takes it instead of a new array. A conv bias and the norm's weight and bias are optional.
`algorithm` and `precision` are explained at `plan.choice.Options`; the defaults are the fastest way that is as exact as
direct summation.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ..errors import named
from .apply import apply, how
from .named import (
    avgpool_clamp_softmax_multiply,
    layernorm_gelu_scaling,
    max_max_sum,
    plain,
    remembered,
    sum_layernorm_avgpool_gelu,
)

Size: TypeAlias = int | tuple[int, int, int]


def conv_transpose3d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    out: Any = None,
    *,
    algorithm: str = "auto",
    precision: str = "full",
) -> Any:
    """Transposed 3-D convolution; arguments as in `torch.nn.functional.conv_transpose3d`."""
    with named("conv_transpose3d"):
        options = how(algorithm, precision)
        pipeline = remembered(plain, stride, padding, output_padding, groups, dilation, bias is not None)
        return apply("conv_transpose3d", pipeline, x, _given(w, bias), out, options)


def conv_transpose3d_max_max_sum(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Size = 2,
    padding: Size = 2,
    out: Any = None,
    *,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Any:
    """conv_transpose3d + bias -> max-pool 2 -> max-pool 3 -> sum over channels: (B, 1, D', H', W')."""
    with named("conv_transpose3d_max_max_sum", {"kernel_size": "max-pool kernel"}):
        conv = stride, padding, output_padding, groups, dilation, bias is not None
        options = how(algorithm, precision)
        pipeline = remembered(max_max_sum, *conv)
        return apply("conv_transpose3d_max_max_sum", pipeline, x, _given(w, bias), out, options)


def conv_transpose3d_sum_layernorm_avgpool_gelu(
    x: Any,
    w: Any,
    sum_weight: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    out: Any = None,
    *,
    bias: Any = None,
    norm_weight: Any = None,
    norm_bias: Any = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Any:
    """conv_transpose3d -> + sum_weight -> LayerNorm over channels -> average-pool 2 -> GELU."""
    with named("conv_transpose3d_sum_layernorm_avgpool_gelu", {"other": "sum_weight", **_NORM_NAMES}):
        conv = stride, padding, output_padding, groups, dilation, bias is not None
        norm = eps, norm_weight is not None, norm_bias is not None
        options = how(algorithm, precision)
        pipeline = remembered(sum_layernorm_avgpool_gelu, *conv, *norm, sum_weight, approximate)
        operands = _given(w, bias, norm_weight, norm_bias)
        return apply("conv_transpose3d_sum_layernorm_avgpool_gelu", pipeline, x, operands, out, options)


def conv_transpose3d_avgpool_clamp_softmax_multiply(
    x: Any,
    w: Any,
    scale: Any,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    pool_kernel: Size = 2,
    clamp_min: float | None = 0.0,
    clamp_max: float | None = 1.0,
    out: Any = None,
    *,
    bias: Any = None,
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Any:
    """average-pool of x -> conv_transpose3d -> clamp -> softmax over the voxels of each channel -> * scale (Cout,)."""
    names = {"multiply_other": "scale", "kernel_size": "pool_kernel", "min": "clamp_min", "max": "clamp_max"}
    with named("conv_transpose3d_avgpool_clamp_softmax_multiply", {**names, "min, max": "clamp_min, clamp_max"}):
        conv = stride, padding, output_padding, groups, dilation, bias is not None
        options = how(algorithm, precision)
        pipeline = remembered(avgpool_clamp_softmax_multiply, *conv, pool_kernel, clamp_min, clamp_max)
        operands = (*_given(w, bias), scale)
        return apply("conv_transpose3d_avgpool_clamp_softmax_multiply", pipeline, x, operands, out, options)


def conv_transpose3d_layernorm_gelu_scaling(
    x: Any,
    w: Any,
    scaling_factor: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 0,
    out: Any = None,
    *,
    bias: Any = None,
    norm_weight: Any = None,
    norm_bias: Any = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Any:
    """conv_transpose3d -> LayerNorm over channels -> GELU -> * scaling_factor."""
    with named("conv_transpose3d_layernorm_gelu_scaling", {"other": "scaling_factor", **_NORM_NAMES}):
        conv = stride, padding, output_padding, groups, dilation, bias is not None
        norm = eps, norm_weight is not None, norm_bias is not None
        options = how(algorithm, precision)
        pipeline = remembered(layernorm_gelu_scaling, *conv, *norm, scaling_factor, approximate)
        operands = _given(w, bias, norm_weight, norm_bias)
        return apply("conv_transpose3d_layernorm_gelu_scaling", pipeline, x, operands, out, options)


_NORM_NAMES = {"multiply_other": "norm_weight", "add_other": "norm_bias", "kernel_size": "average-pool kernel"}


def _given(w: Any, *optional: Any) -> tuple[Any, ...]:
    return (w, *(operand for operand in optional if operand is not None))
