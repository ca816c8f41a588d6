"""A pipeline as a function of JAX arrays. The convolution is XLA's, with a dilated input."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...spec import stages as s
from ...spec.backends import StageTable
from ...spec.checks import as_triple
from ...spec.pipeline import Pipeline
from ...spec.stage import Stage
from .base import UnsupportedError

SPACE = (2, 3, 4)


def jax_function(pipeline: Pipeline) -> Callable[[Any, Sequence[Any]], Any]:
    """f(x, operands in slot order)."""
    if any(getattr(stage, "ceil_mode", False) for stage in pipeline.stages):
        raise UnsupportedError("reduce_window has no ceil_mode")

    def function(x: Any, operands: Sequence[Any]) -> Any:
        value, labelled = x, {"x": x}
        for index, stage in enumerate(pipeline.stages):
            given = [operand for slot, operand in zip(pipeline.slots, operands, strict=True) if slot.stage == index]
            value = JAX[type(stage)](stage, value, given, labelled)
        return jnp.squeeze(value, pipeline.dropped)

    return function


def _conv(stage: s.ConvTranspose3d, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    stride, padding, extra, dilation = stage.triples
    cin, per_group, *kernel = given[0].shape
    groups = stage.groups
    # (Cin, Cout/groups, ...) -> (Cout, Cin/groups, ...), taps reversed.
    parts = given[0].reshape(groups, cin // groups, per_group, *kernel).swapaxes(1, 2)
    turned = jnp.flip(parts.reshape(groups * per_group, cin // groups, *kernel), SPACE)
    ends = [(d * (k - 1) - p, d * (k - 1) - p + e) for d, k, p, e in zip(dilation, kernel, padding, extra, strict=True)]
    y = lax.conv_general_dilated(
        x,
        turned,
        (1, 1, 1),
        ends,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )
    return y + _column(given[1]) if stage.bias else y


def _conv_forward(stage: s.Conv3d, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    if stage.padding_mode != "zeros":
        raise UnsupportedError("padding modes are operators of their own")
    y = lax.conv_general_dilated(
        x,
        given[0],
        as_triple(stage.stride),
        stage.paddings(given[0].shape),
        rhs_dilation=as_triple(stage.dilation),
        feature_group_count=stage.groups,
        precision=lax.Precision.HIGHEST,
    )
    return y + _column(given[1]) if stage.bias else y


def _window(stage: Any, x: Any, start: Any, combine: Any) -> Any:
    kernel, stride, padding = stage.triples
    ends = [(0, 0), (0, 0), *((p, p) for p in padding)]
    return lax.reduce_window(x, jnp.array(start, x.dtype), combine, (1, 1, *kernel), (1, 1, *stride), ends)


def _avg_pool(stage: s.AvgPool3d, x: Any, *_: Any) -> Any:
    total = _window(stage, x, 0, lax.add)
    if stage.divisor_override is not None:
        return total / stage.divisor_override
    if stage.count_include_pad:
        d, h, w = stage.triples[0]
        return total / (d * h * w)
    return total / _window(stage, jnp.ones_like(x), 0, lax.add)


def _dims(stage: Any) -> tuple[int, ...]:
    return s.OVER[stage.over]


def _softmax(stage: s.Softmax, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    y = jax.nn.softmax(x, _dims(stage))
    if stage.scale is None:
        return y
    return y * (_column(given[0]) if stage.scale == "channel" else stage.scale)


def _normal(x: Any, dims: tuple[int, ...], eps: float) -> Any:
    mean = x.mean(dims, keepdims=True)
    variance = jnp.square(x - mean).mean(dims, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + eps)


def _affine(x: Any, given: Sequence[Any], shape: Callable[[Any], Any]) -> Any:
    return x * shape(given[0]) + shape(given[1]) if given else x


def _layer_norm(stage: s.LayerNorm, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    if stage.over == "width":
        return _affine(_normal(x, (4,), stage.eps), given, lambda vector: vector)
    return _affine(_normal(x, (1,), stage.eps), given, _column)


def _group_norm(stage: s.GroupNorm, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    rows = x.reshape(x.shape[0], stage.num_groups, -1)
    return _affine(_normal(rows, (2,), stage.eps).reshape(x.shape), given, _column)


def _batch_norm(stage: s.BatchNorm, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    mean, variance, *affine = given
    return _affine((x - _column(mean)) * lax.rsqrt(_column(variance) + stage.eps), affine, _column)


def _keep(stage: s.Keep, x: Any, given: Sequence[Any], labelled: dict[str, Any]) -> Any:
    labelled[stage.label] = x
    return x


def _other(stage: s.Binary, given: Sequence[Any], labelled: Mapping[str, Any]) -> Any:
    if stage.other == "channel":
        return _column(given[0])
    return given[0] if stage.other == "tensor" else labelled[stage.label] if stage.label else stage.other


def _column(vector: Any) -> Any:
    return vector.reshape(1, -1, 1, 1, 1)


def _softplus(stage: s.Softplus, x: Any, *_: Any) -> Any:
    scaled = x * stage.beta
    return jnp.where(scaled > stage.threshold, x, jax.nn.softplus(scaled) / stage.beta)


_ENTRIES: dict[type[Stage], Callable[..., Any]] = {
    s.ConvTranspose3d: _conv,
    s.Conv3d: _conv_forward,
    s.MaxPool3d: lambda stage, x, *_: _window(stage, x, -jnp.inf, lax.max),
    s.AvgPool3d: _avg_pool,
    s.Sum: lambda stage, x, *_: x.sum(_dims(stage), keepdims=True),
    s.Mean: lambda stage, x, *_: x.mean(_dims(stage), keepdims=True),
    s.Max: lambda stage, x, *_: x.max(_dims(stage), keepdims=True),
    s.LogSumExp: lambda stage, x, *_: jax.nn.logsumexp(x, _dims(stage), keepdims=True),
    s.Softmax: _softmax,
    s.LayerNorm: _layer_norm,
    s.GroupNorm: _group_norm,
    s.InstanceNorm: lambda stage, x, given, _: _affine(_normal(x, SPACE, stage.eps), given, _column),
    s.BatchNorm: _batch_norm,
    s.Keep: _keep,
    s.Recall: lambda stage, x, given, labelled: labelled[stage.label],
    s.Add: lambda stage, x, given, labelled: x + _other(stage, given, labelled),
    s.Subtract: lambda stage, x, given, labelled: operator.sub(*stage.sides(x, _other(stage, given, labelled))),
    s.Multiply: lambda stage, x, given, labelled: x * _other(stage, given, labelled),
    s.Divide: lambda stage, x, given, labelled: operator.truediv(*stage.sides(x, _other(stage, given, labelled))),
    s.Clamp: lambda stage, x, *_: jnp.clip(x, stage.min, stage.max),
    s.GELU: lambda stage, x, *_: jax.nn.gelu(x, approximate=stage.approximate == "tanh"),
    s.ReLU: lambda stage, x, *_: jax.nn.relu(x),
    s.LeakyReLU: lambda stage, x, *_: jax.nn.leaky_relu(x, stage.negative_slope),
    s.PReLU: lambda stage, x, given, _: jnp.where(x > 0, x, x * _column(given[0])),
    s.Sigmoid: lambda stage, x, *_: jax.nn.sigmoid(x),
    s.Tanh: lambda stage, x, *_: jnp.tanh(x),
    s.SiLU: lambda stage, x, *_: jax.nn.silu(x),
    s.HardSwish: lambda stage, x, *_: jax.nn.hard_swish(x),
    s.HardTanh: lambda stage, x, *_: jnp.clip(x, stage.min_val, stage.max_val),
    s.Mish: lambda stage, x, *_: jax.nn.mish(x),
    s.Softplus: _softplus,
    s.Exp: lambda stage, x, *_: jnp.exp(x),
    s.Log: lambda stage, x, *_: jnp.log(x),
}
JAX: StageTable[Callable[..., Any]] = StageTable("JAX", __name__, _ENTRIES)
