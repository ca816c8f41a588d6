"""The operators PyTorch is told of: their schemas, and the pipeline and operands that the arguments of a call mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from typing import Any, TypeAlias

from ..front import named
from ..front.named import remembered, shared
from ..spec.pipeline import Pipeline
from ..spec.text import read_stages
from .stock import Tensor

Size: TypeAlias = int | Sequence[int]
Lowered: TypeAlias = tuple[Pipeline, Tensor, list[Tensor]]  # the pipeline, its input, its operands in slot order


@dataclass(frozen=True)
class Operator:
    """`lower` takes the arguments of the schema; `operands` names those that are tensors of the pipeline, in slot
    order; a float32 tensor among `promotes` makes the result float32 under autocast."""

    lower: Callable[..., Lowered]
    schema: str
    operands: tuple[str, ...]
    promotes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.lower.__name__

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(signature(self.lower).parameters)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where the operands stand among the arguments."""
        return tuple(self.names.index(name) for name in self.operands)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = (1,),
    padding: Size = (0,),
    output_padding: Size = (0,),
    groups: int = 1,
    dilation: Size = (1,),
) -> Lowered:
    conv = _conv(stride, padding, output_padding, groups, dilation, bias)
    return remembered(named.plain, *conv), input, _given(weight, bias)


def conv_transpose3d_max_max_sum(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = (2,),
    padding: Size = (2,),
    output_padding: Size = (0,),
    groups: int = 1,
    dilation: Size = (1,),
) -> Lowered:
    conv = _conv(stride, padding, output_padding, groups, dilation, bias)
    return remembered(named.max_max_sum, *conv), input, _given(weight, bias)


def conv_transpose3d_sum_layernorm_avgpool_gelu(
    input: Tensor,
    weight: Tensor,
    sum_weight: float = 1.0,
    stride: Size = (2,),
    padding: Size = (1,),
    output_padding: Size = (1,),
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = (1,),
) -> Lowered:
    conv = _conv(stride, padding, output_padding, groups, dilation, bias)
    norm = eps, norm_weight is not None, norm_bias is not None
    pipeline = remembered(named.sum_layernorm_avgpool_gelu, *conv, *norm, sum_weight, approximate)
    return pipeline, input, _given(weight, bias, norm_weight, norm_bias)


def conv_transpose3d_avgpool_clamp_softmax_multiply(
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    stride: Size = (2,),
    padding: Size = (1,),
    output_padding: Size = (1,),
    pool_kernel: Size = (2,),
    clamp_min: float | None = 0.0,
    clamp_max: float | None = 1.0,
    bias: Tensor | None = None,
    groups: int = 1,
    dilation: Size = (1,),
) -> Lowered:
    conv = _conv(stride, padding, output_padding, groups, dilation, bias)
    pipeline = remembered(named.avgpool_clamp_softmax_multiply, *conv, _sizes(pool_kernel), clamp_min, clamp_max)
    return pipeline, input, _given(weight, bias, scale)


def conv_transpose3d_layernorm_gelu_scaling(
    input: Tensor,
    weight: Tensor,
    scaling_factor: float = 1.0,
    stride: Size = (2,),
    padding: Size = (1,),
    output_padding: Size = (0,),
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
    groups: int = 1,
    dilation: Size = (1,),
) -> Lowered:
    conv = _conv(stride, padding, output_padding, groups, dilation, bias)
    norm = eps, norm_weight is not None, norm_bias is not None
    pipeline = remembered(named.layernorm_gelu_scaling, *conv, *norm, scaling_factor, approximate)
    return pipeline, input, _given(weight, bias, norm_weight, norm_bias)


def pipeline(input: Tensor, operands: Sequence[Tensor], stages: str) -> Lowered:
    return _read(stages), input, list(operands)


@lru_cache(maxsize=1024)
def _read(text: str) -> Pipeline:
    return shared(Pipeline(*read_stages(text)))


def _conv(stride: Size, padding: Size, output_padding: Size, groups: int, dilation: Size, bias: Any) -> tuple[Any, ...]:
    return _sizes(stride), _sizes(padding), _sizes(output_padding), groups, _sizes(dilation), bias is not None


def _sizes(given: Size) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


_SIZES = "int[3] stride={}, int[3] padding={}, int[3] output_padding={}"
_REST = "int groups=1, int[3] dilation=1"
_NORM = 'Tensor? bias=None, Tensor? norm_weight=None, Tensor? norm_bias=None, float eps=1e-5, str approximate="none"'

OPERATORS = (
    Operator(
        conv_transpose3d,
        f"Tensor input, Tensor weight, Tensor? bias=None, {_SIZES.format(1, 0, 0)}, {_REST}",
        ("weight", "bias"),
    ),
    Operator(
        conv_transpose3d_max_max_sum,
        f"Tensor input, Tensor weight, Tensor? bias=None, {_SIZES.format(2, 2, 0)}, {_REST}",
        ("weight", "bias"),
    ),
    Operator(
        conv_transpose3d_sum_layernorm_avgpool_gelu,
        f"Tensor input, Tensor weight, float sum_weight=1.0, {_SIZES.format(2, 1, 1)}, {_NORM}, {_REST}",
        ("weight", "bias", "norm_weight", "norm_bias"),
    ),
    Operator(
        conv_transpose3d_avgpool_clamp_softmax_multiply,
        f"Tensor input, Tensor weight, Tensor scale, {_SIZES.format(2, 1, 1)}, int[3] pool_kernel=2, "
        f"float? clamp_min=0.0, float? clamp_max=1.0, Tensor? bias=None, {_REST}",
        ("weight", "bias", "scale"),
        promotes=("scale",),
    ),
    Operator(
        conv_transpose3d_layernorm_gelu_scaling,
        f"Tensor input, Tensor weight, float scaling_factor=1.0, {_SIZES.format(2, 1, 0)}, {_NORM}, {_REST}",
        ("weight", "bias", "norm_weight", "norm_bias"),
    ),
    Operator(pipeline, "Tensor input, Tensor[] operands, str stages", ("operands",)),
)
