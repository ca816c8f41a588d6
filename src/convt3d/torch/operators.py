"""The operators PyTorch is told of: their schemas, and the pipeline and operands that the arguments of a call mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from typing import Any, TypeAlias

import torch

from ..errors import ArgumentError, ArgumentTypeError, Error, described
from ..front import named
from ..front.named import remembered, shared
from ..spec.pipeline import Pipeline
from ..spec.text import read_stages
from .stock import Tensor

Size: TypeAlias = int | Sequence[int]
Lowered: TypeAlias = tuple[Pipeline, Tensor, list[Tensor]]  # the pipeline, its input, its operands in slot order


@dataclass(frozen=True)
class Operator:
    """`meaning` takes the arguments of the schema; `operands` names those that are tensors of the pipeline, in slot
    order; a float32 tensor among `promotes` makes the result float32 under autocast."""

    meaning: Callable[..., Lowered]
    schema: str
    operands: tuple[str, ...]
    promotes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.meaning.__name__

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(signature(self.meaning).parameters)

    def lower(self, *arguments: Any, **named: Any) -> Lowered:
        """The pipeline and operands of a call, or why it cannot be one."""
        try:
            pipeline, x, operands = self.meaning(*arguments, **named)
        except Error as e:
            kind = RefusedError if isinstance(e, ArgumentError) else type(e)
            raise kind(self.name, e.argument, e.received, e.rule, e.remedy) from None
        for each in operands:
            if not isinstance(each, torch.Tensor):
                where, what = self.operands[0], described(type(each).__name__)
                raise ArgumentTypeError(self.name, where, what, "and all operands must be tensors", "Pass tensors")
        if len(operands) != len(pipeline.slots):
            count, names = described(f"{len(operands)} tensors after input"), ", ".join(pipeline.operand_names)
            raise ArgumentTypeError(self.name, self.operands[0], count, f"must be {names}", "Pass each of them once")
        return pipeline, x, operands


class RefusedError(ArgumentError, RuntimeError):
    """A parameter outside its range, which PyTorch refuses with a RuntimeError."""


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
    return _built(named.plain, *conv), input, _given(weight, bias)


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
    return _built(named.max_max_sum, *conv), input, _given(weight, bias)


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
    pipeline = _built(named.sum_layernorm_avgpool_gelu, *conv, *norm, sum_weight, approximate)
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
    pipeline = _built(named.avgpool_clamp_softmax_multiply, *conv, _sizes(pool_kernel), clamp_min, clamp_max)
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
    pipeline = _built(named.layernorm_gelu_scaling, *conv, *norm, scaling_factor, approximate)
    return pipeline, input, _given(weight, bias, norm_weight, norm_bias)


def pipeline(input: Tensor, operands: Sequence[Tensor], stages: str) -> Lowered:
    return _known(stages), input, list(operands)


def _known(text: str) -> Pipeline:
    return _read(text)


_known._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result, not imported


@lru_cache(maxsize=1024)
def _read(text: str) -> Pipeline:
    return shared(Pipeline(*read_stages(text)))


def _conv(stride: Size, padding: Size, output_padding: Size, groups: int, dilation: Size, bias: Any) -> tuple[Any, ...]:
    return _sizes(stride), _sizes(padding), _sizes(output_padding), groups, _sizes(dilation), bias is not None


def _sizes(given: Size) -> tuple[int, ...]:
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _built(build: Callable[..., Pipeline], *arguments: Any) -> Pipeline:
    try:
        return remembered(build, *arguments)
    except TypeError:  # while PyTorch traces, sizes may be symbols, which cannot be looked up
        return build(*arguments)


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


_SIZES = "SymInt[3] stride={}, SymInt[3] padding={}, SymInt[3] output_padding={}"
_REST = "SymInt groups=1, SymInt[3] dilation=1"
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
BY_NAME = {operator.name: operator for operator in OPERATORS}
