"""The operators of spec/operators.py as functions on arrays.

Their signatures are written out for people and tools that read sources; a test compares them with the declaration, from
which their help is made.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

from ..errors import named
from ..spec.checks import answers
from ..spec.operators import OPERATORS
from .apply import apply, options_of
from .arrays import AnyArray, Array
from .help import array_help

Size: TypeAlias = int | tuple[int, int, int]
Padding: TypeAlias = int | tuple[int, int, int] | Literal["same", "valid"]
Function = TypeVar("Function", bound=Any)


def _declared(function: Function) -> Function:
    operator = OPERATORS[function.__name__]
    function.__doc__ = array_help(operator)
    return answers(function)


def _call(name: str, out: Array | None, options: tuple[str, str], input: Array, *arguments: Any) -> Array:
    operator = OPERATORS[name]
    with named(name, operator.renamed):
        asked = options_of(*options)
        pipeline, operands = operator.lower((input, *arguments))
        result: Array = apply(name, pipeline, input, operands, out, asked)
        return result


@_declared
def conv3d(
    input: Array,
    weight: AnyArray,
    bias: AnyArray | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    out: Array | None = None,
    *,
    padding_mode: str = "zeros",
    algorithm: str = "auto",
    precision: str = "full",
) -> Array:
    arguments = weight, bias, stride, padding, dilation, groups, padding_mode
    return _call("conv3d", out, (algorithm, precision), input, *arguments)


@_declared
def conv_transpose3d(
    input: Array,
    weight: AnyArray,
    bias: AnyArray | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    out: Array | None = None,
    *,
    algorithm: str = "auto",
    precision: str = "full",
) -> Array:
    arguments = weight, bias, stride, padding, output_padding, groups, dilation
    return _call("conv_transpose3d", out, (algorithm, precision), input, *arguments)


@_declared
def conv_transpose3d_max_max_sum(
    input: Array,
    weight: AnyArray,
    bias: AnyArray | None = None,
    stride: Size = 2,
    padding: Size = 2,
    out: Array | None = None,
    *,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Array:
    arguments = weight, bias, stride, padding, output_padding, groups, dilation
    return _call("conv_transpose3d_max_max_sum", out, (algorithm, precision), input, *arguments)


@_declared
def conv_transpose3d_sum_layernorm_avgpool_gelu(
    input: Array,
    weight: AnyArray,
    sum_weight: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    out: Array | None = None,
    *,
    bias: AnyArray | None = None,
    norm_weight: AnyArray | None = None,
    norm_bias: AnyArray | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Array:
    norm = bias, norm_weight, norm_bias, eps, approximate
    arguments = weight, sum_weight, stride, padding, output_padding, *norm, groups, dilation
    return _call("conv_transpose3d_sum_layernorm_avgpool_gelu", out, (algorithm, precision), input, *arguments)


@_declared
def conv_transpose3d_avgpool_clamp_softmax_multiply(
    input: Array,
    weight: AnyArray,
    scale: AnyArray,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 1,
    pool_kernel: Size = 2,
    clamp_min: float | None = 0.0,
    clamp_max: float | None = 1.0,
    out: Array | None = None,
    *,
    bias: AnyArray | None = None,
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Array:
    conv = stride, padding, output_padding
    arguments = weight, scale, *conv, pool_kernel, clamp_min, clamp_max, bias, groups, dilation
    return _call("conv_transpose3d_avgpool_clamp_softmax_multiply", out, (algorithm, precision), input, *arguments)


@_declared
def conv_transpose3d_layernorm_gelu_scaling(
    input: Array,
    weight: AnyArray,
    scaling_factor: float = 1.0,
    stride: Size = 2,
    padding: Size = 1,
    output_padding: Size = 0,
    out: Array | None = None,
    *,
    bias: AnyArray | None = None,
    norm_weight: AnyArray | None = None,
    norm_bias: AnyArray | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = 1,
    algorithm: str = "auto",
    precision: str = "full",
) -> Array:
    norm = bias, norm_weight, norm_bias, eps, approximate
    arguments = weight, scaling_factor, stride, padding, output_padding, *norm, groups, dilation
    return _call("conv_transpose3d_layernorm_gelu_scaling", out, (algorithm, precision), input, *arguments)
