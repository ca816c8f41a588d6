"""Every stage in JAX's own operations: what its derivatives follow from, and what other platforms run.

Gradients where a function has a corner are PyTorch's: bounds of a Clamp are inside, those of a HardTanh are not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..spec import stages as s
from ..spec.backends import StageTable
from ..spec.checks import as_triple
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from ..spec.stages.padding import NUMPY_MODES

Array: TypeAlias = Any  # JAX may be absent where types are checked
Others: TypeAlias = Mapping[type[Stage], Callable[..., Array]]
NO_OTHERS: Others = {}
SPACE = (2, 3, 4)


def jax_function(pipeline: Pipeline, others: Others = NO_OTHERS) -> Callable[[Array, Sequence[Array]], Array]:
    """f(x, operands in slot order) for an x with a batch; `others` are meanings that some stages have instead of
    these. Between the stages numbers of 16 bits are float32, as they are in our kernels."""

    def function(x: Array, operands: Sequence[Array]) -> Array:
        kind = x.dtype
        value = wide(x)
        labelled = {"x": value}
        for index, stage in enumerate(pipeline.stages):
            given = [
                wide(operand) for slot, operand in zip(pipeline.slots, operands, strict=True) if slot.stage == index
            ]
            if type(stage) in others:
                value = wide(others[type(stage)](stage, value.astype(kind), *(each.astype(kind) for each in given)))
            else:
                value = JAX[type(stage)](stage, value, given, labelled)
        return jnp.squeeze(value, pipeline.dropped).astype(kind)

    return function


def wide(x: Array) -> Array:
    """In the type that sums run in."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def _conv(stage: s.ConvTranspose3d, x: Array, given: Sequence[Array], _: Mapping[str, Array]) -> Array:
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
    return y + column(given[1]) if stage.bias else y


def padded(stage: s.Conv3d, x: Array, sides: Sequence[tuple[int, int]]) -> Array:
    """x with voxels around it, as the stage's mode has them."""
    return jnp.pad(x, ((0, 0), (0, 0), *sides), NUMPY_MODES.get(stage.padding_mode, "constant"))


def _conv_forward(stage: s.Conv3d, x: Array, given: Sequence[Array], _: Mapping[str, Array]) -> Array:
    sides = stage.paddings(given[0].shape)
    if stage.padding_mode != "zeros":
        x, sides = padded(stage, x, sides), ((0, 0), (0, 0), (0, 0))
    y = lax.conv_general_dilated(
        x,
        given[0],
        as_triple(stage.stride),
        sides,
        rhs_dilation=as_triple(stage.dilation),
        feature_group_count=stage.groups,
        precision=lax.Precision.HIGHEST,
    )
    return y + column(given[1]) if stage.bias else y


def _window(stage: Any, x: Array, start: float, combine: Any) -> Array:
    axes = stage.axes(x.shape)
    ends = [(a.padding, max(0, (a.out - 1) * a.stride + a.kernel - a.size - a.padding)) for a in axes]
    kernel, stride = (1, 1, *(a.kernel for a in axes)), (1, 1, *(a.stride for a in axes))
    return lax.reduce_window(x, np.array(start, x.dtype)[()], combine, kernel, stride, [(0, 0), (0, 0), *ends])


def _avg_pool(stage: s.AvgPool3d, x: Array, *_: Any) -> Array:
    total = _window(stage, x, 0, lax.add)
    if stage.divisor_override is not None:
        return total / stage.divisor_override
    counts: Any = 1
    for axis, along in zip(stage.axes(x.shape), ((-1, 1, 1), (-1, 1), (-1,)), strict=True):
        start = np.arange(axis.out) * axis.stride - axis.padding
        border = axis.padding if stage.count_include_pad else 0
        stop = np.minimum(start + axis.kernel, axis.size + border)
        counts = counts * (stop - np.maximum(start, -border)).reshape(along)
    return total / counts.astype(x.dtype)


def _dims(stage: Any) -> tuple[int, ...]:
    return s.OVER[stage.over]


def _softmax(stage: s.Softmax, x: Array, given: Sequence[Array], _: Mapping[str, Array]) -> Array:
    y = jax.nn.softmax(x, _dims(stage))
    if stage.scale is None:
        return y
    return y * (column(given[0]) if stage.scale == "channel" else stage.scale)


def _normal(x: Array, dims: tuple[int, ...], eps: float) -> Array:
    mean = x.mean(dims, keepdims=True)
    variance = jnp.square(x - mean).mean(dims, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + eps)


def _affine(x: Array, given: Sequence[Array], shape: Callable[[Array], Array]) -> Array:
    return x * shape(given[0]) + shape(given[1]) if given else x


def _layer_norm(stage: s.LayerNorm, x: Array, given: Sequence[Array], _: Mapping[str, Array]) -> Array:
    if stage.over == "width":
        return _affine(_normal(x, (4,), stage.eps), given, lambda vector: vector)
    return _affine(_normal(x, (1,), stage.eps), given, column)


def _group_norm(stage: s.GroupNorm, x: Array, given: Sequence[Array], _: Mapping[str, Array]) -> Array:
    rows = x.reshape(x.shape[0], stage.num_groups, -1)
    return _affine(_normal(rows, (2,), stage.eps).reshape(x.shape), given, column)


def _batch_norm(stage: s.BatchNorm, x: Array, given: Sequence[Array], _: Mapping[str, Array]) -> Array:
    mean, variance, *affine = given
    weight, bias = affine or (1.0, 0.0)
    scale = weight / jnp.sqrt(variance + stage.eps)
    return x * column(scale) + column(bias - mean * scale)


def _keep(stage: s.Keep, x: Array, given: Sequence[Array], labelled: dict[str, Array]) -> Array:
    labelled[stage.label] = x
    return x


def _other(stage: s.Binary, given: Sequence[Array], labelled: Mapping[str, Array]) -> Array:
    if stage.other == "channel":
        return column(given[0])
    return given[0] if stage.other == "tensor" else labelled[stage.label] if stage.label else stage.other


def column(vector: Array) -> Array:
    """One number for each channel, to meet axis 1 of a value."""
    return vector.reshape(1, -1, 1, 1, 1)


def _clamp(stage: s.Clamp, x: Array, *_: Any) -> Array:
    if stage.min is not None:
        x = jnp.where(x < stage.min, stage.min, x)
    return x if stage.max is None else jnp.where(x > stage.max, stage.max, x)


def _within(x: Array, low: float, high: float) -> Array:
    """Clamped; at the bounds themselves it is constant."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def _softplus(stage: s.Softplus, x: Array, *_: Any) -> Array:
    scaled = x * stage.beta
    return jnp.where(scaled > stage.threshold, x, jax.nn.softplus(scaled) / stage.beta)


_ENTRIES: dict[type[Stage], Callable[..., Array]] = {
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
    s.InstanceNorm: lambda stage, x, given, _: _affine(_normal(x, SPACE, stage.eps), given, column),
    s.BatchNorm: _batch_norm,
    s.Keep: _keep,
    s.Recall: lambda stage, x, given, labelled: labelled[stage.label],
    s.Add: lambda stage, x, given, labelled: x + _other(stage, given, labelled),
    s.Subtract: lambda stage, x, given, labelled: operator.sub(*stage.sides(x, _other(stage, given, labelled))),
    s.Multiply: lambda stage, x, given, labelled: x * _other(stage, given, labelled),
    s.Divide: lambda stage, x, given, labelled: operator.truediv(*stage.sides(x, _other(stage, given, labelled))),
    s.Clamp: _clamp,
    s.GELU: lambda stage, x, *_: jax.nn.gelu(x, approximate=stage.approximate == "tanh"),
    s.ReLU: lambda stage, x, *_: jax.nn.relu(x),
    s.LeakyReLU: lambda stage, x, *_: jax.nn.leaky_relu(x, stage.negative_slope),
    s.PReLU: lambda stage, x, given, _: jnp.where(x > 0, x, x * column(given[0])),
    s.Sigmoid: lambda stage, x, *_: jax.nn.sigmoid(x),
    s.Tanh: lambda stage, x, *_: jnp.tanh(x),
    s.SiLU: lambda stage, x, *_: jax.nn.silu(x),
    s.HardSwish: lambda stage, x, *_: x * _within(x + 3.0, 0.0, 6.0) / 6.0,
    s.HardTanh: lambda stage, x, *_: _within(x, stage.min_val, stage.max_val),
    s.Mish: lambda stage, x, *_: jax.nn.mish(x),
    s.Softplus: _softplus,
    s.Exp: lambda stage, x, *_: jnp.exp(x),
    s.Log: lambda stage, x, *_: jnp.log(x),
}
JAX: StageTable[Callable[..., Array]] = StageTable("JAX", __name__, _ENTRIES)
