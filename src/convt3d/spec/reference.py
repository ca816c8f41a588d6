"""The meaning of every stage: slow, obvious float64 NumPy. Everything fast is tested against this.

A meaning takes the stage, the value (B, C, D, H, W) and the stage's tensors, and returns the new value. NaN and Inf
follow from the arithmetic, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import stages as s
from .backends import StageTable
from .pipeline import Pipeline
from .stages import OVER
from .stages.padding import NUMPY_MODES, Pad

Array: TypeAlias = npt.NDArray[np.float64]
Meaning: TypeAlias = Callable[..., Array]

MEANINGS: StageTable[Meaning] = StageTable("the meaning", __name__)


def evaluate(pipeline: Pipeline, x: Array, operands: Sequence[Array]) -> Array:
    """The pipeline's meaning; operands in slot order, vectors 1-D."""
    kept = {"x": x}
    value = x
    with np.errstate(all="ignore"):
        for index, stage in enumerate(pipeline.stages):
            own = [array for slot, array in zip(pipeline.slots, operands, strict=True) if slot.stage == index]
            if stage.uses:
                own = [kept[stage.uses]]
            value = pad(stage, value) if isinstance(stage, Pad) else MEANINGS[type(stage)](stage, value, *own)
            if stage.keeps:
                kept[stage.keeps] = value
    return value.squeeze(pipeline.dropped)


def _column(vector: Array) -> Array:
    """(C,) as (C, 1, 1, 1), so that it meets axis 1 of a value."""
    return vector.reshape(-1, 1, 1, 1)


@MEANINGS.of(s.ConvTranspose3d, s.Conv3d)
def convolution(stage: s.Convolution, x: Array, w: Array, bias: Array | None = None) -> Array:
    """y[o] = sum over taps k of w[k] * x[i] with o = i * stride - padding + k * dilation where it is transposed, and
    i = o * stride - padding + k * dilation where it is not."""
    if isinstance(stage, s.Conv3d) and stage.padding_mode != "zeros":
        x = pad(Pad(stage.paddings(w.shape), stage.padding_mode), x)
        stage = replace(stage, padding=0, padding_mode="zeros")
    batch, cin = x.shape[:2]
    axes = stage.axes(x.shape, w.shape)
    w = stage.as_kernel(w)
    per_in, per_out = cin // stage.groups, w.shape[1]
    y = np.zeros((batch, per_out * stage.groups, *(axis.out for axis in axes)))
    for taps in product(*(range(axis.kernel) for axis in axes)):
        slices = [axis.slices(k) for axis, k in zip(axes, taps, strict=True)]
        inputs: Any = (..., *(there for there, _ in slices))
        outputs: Any = (..., *(here for _, here in slices))
        tap: Any = (..., *taps)
        for group in range(stage.groups):
            cins = slice(group * per_in, (group + 1) * per_in)
            couts = slice(group * per_out, (group + 1) * per_out)
            source = x[:, cins][inputs]
            weight = w[cins][tap]  # (Cin/g, Cout/g)
            part = weight.T @ source.reshape(batch, per_in, math.prod(source.shape[2:]))
            y[:, couts][outputs] += part.reshape(batch, per_out, *source.shape[2:])
    return y if bias is None else y + _column(bias)


def pad(stage: Pad, x: Array) -> Array:
    """What a Conv3d becomes a part of; nobody asks for it."""
    return np.pad(x, ((0, 0), (0, 0), *stage.sides), NUMPY_MODES[stage.mode])


def _windows(stage: s.MaxPool3d | s.AvgPool3d, x: Array, fill: float) -> Array:
    """(B, C, D', H', W', window): the values of each window, `fill` where it leaves the array."""
    axes = stage.axes(x.shape)
    after = [max(0, (axis.out - 1) * axis.stride + axis.kernel - axis.size - axis.padding) for axis in axes]
    padding = [(max(axis.padding, 0), end) for axis, end in zip(axes, after, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *padding], constant_values=fill)
    windows = []
    for start in product(*(range(axis.kernel) for axis in axes)):
        firsts = [j + max(-axis.padding, 0) for axis, j in zip(axes, start, strict=True)]
        stops = [first + (axis.out - 1) * axis.stride + 1 for axis, first in zip(axes, firsts, strict=True)]
        d, h, w = (slice(first, stop, axis.stride) for axis, first, stop in zip(axes, firsts, stops, strict=True))
        windows.append(padded[..., d, h, w])
    return np.stack(windows, axis=-1)


@MEANINGS.of(s.MaxPool3d)
def max_pool3d(stage: s.MaxPool3d, x: Array) -> Array:
    return _windows(stage, x, -np.inf).max(axis=-1)


@MEANINGS.of(s.AvgPool3d)
def avg_pool3d(stage: s.AvgPool3d, x: Array) -> Array:
    counts: Any = 1
    for axis, along in zip(stage.axes(x.shape), ((-1, 1, 1), (-1, 1), (-1,)), strict=True):
        divisors = [axis.divisor(o, stage.count_include_pad) for o in range(axis.out)]
        counts = counts * np.array(divisors).reshape(along)
    return _windows(stage, x, 0.0).sum(axis=-1) / (stage.divisor_override or counts)


@MEANINGS.of(s.Sum)
def sum_over(stage: s.Sum, x: Array) -> Array:
    return x.sum(axis=OVER[stage.over], keepdims=True)


@MEANINGS.of(s.Mean)
def mean_over(stage: s.Mean, x: Array) -> Array:
    return x.mean(axis=OVER[stage.over], keepdims=True)


@MEANINGS.of(s.Max)
def max_over(stage: s.Max, x: Array) -> Array:
    return x.max(axis=OVER[stage.over], keepdims=True)


@MEANINGS.of(s.LogSumExp)
def log_sum_exp(stage: s.LogSumExp, x: Array) -> Array:
    largest = x.max(axis=OVER[stage.over], keepdims=True)
    largest = np.where(np.isinf(largest), 0.0, largest)  # all -inf gives -inf, any +inf gives +inf
    return largest + np.log(np.exp(x - largest).sum(axis=OVER[stage.over], keepdims=True))


@MEANINGS.of(s.Softmax)
def softmax(stage: s.Softmax, x: Array, scale: Array | None = None) -> Array:
    axes = OVER[stage.over]
    shift = np.asarray(x.max(axis=axes, keepdims=True) if stage.shift is None else stage.shift)
    exponentials: Array = np.exp(x - shift)
    result: Array = exponentials / exponentials.sum(axis=axes, keepdims=True)
    factor = scale if isinstance(stage.scale, str) else stage.scale
    return result if factor is None else result * _other(factor)


def _normalise(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps)


@MEANINGS.of(s.LayerNorm)
def layer_norm(stage: s.LayerNorm, x: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    y = _normalise(x, OVER[stage.over], stage.eps)
    if weight is None or bias is None:
        return y
    return y * _column(weight) + _column(bias) if stage.over == "channels" else y * weight + bias


@MEANINGS.of(s.GroupNorm)
def group_norm(stage: s.GroupNorm, x: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    grouped = x.reshape(x.shape[0], stage.num_groups, x.shape[1] // stage.num_groups, *x.shape[2:])
    y = _normalise(grouped, (2, 3, 4, 5), stage.eps).reshape(x.shape)
    return y if weight is None or bias is None else y * _column(weight) + _column(bias)


@MEANINGS.of(s.InstanceNorm)
def instance_norm(stage: s.InstanceNorm, x: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    y = _normalise(x, (2, 3, 4), stage.eps)
    return y if weight is None or bias is None else y * _column(weight) + _column(bias)


@MEANINGS.of(s.BatchNorm)
def batch_norm(
    stage: s.BatchNorm, x: Array, mean: Array, var: Array, weight: Array | None = None, bias: Array | None = None
) -> Array:
    scale = (1.0 if weight is None else weight) / np.sqrt(var + stage.eps)
    shift = (
        0.0 if bias is None else bias
    ) - mean * scale  # this order as in PyTorch: it decides what zero variance gives
    return x * _column(scale) + _column(shift)


def _other(x: Any) -> Array:
    """A vector (C,) meets the channel axis; numbers and (B, C, D, H, W) tensors are used as they are."""
    array = np.asarray(x)
    return _column(array) if array.ndim == 1 else array


def _sides(stage: s.Binary, x: Array, other: Array | None) -> tuple[Array, Array]:
    """What stands left and right of the sign; the second value is the stage's own number where no array is given."""
    left, right = stage.sides(x, _other(stage.other if other is None else other))
    return left, right


@MEANINGS.of(s.Add)
def add(stage: s.Add, x: Array, other: Array | None = None) -> Array:
    return np.add(*_sides(stage, x, other))


@MEANINGS.of(s.Subtract)
def subtract(stage: s.Subtract, x: Array, other: Array | None = None) -> Array:
    return np.subtract(*_sides(stage, x, other))


@MEANINGS.of(s.Multiply)
def multiply(stage: s.Multiply, x: Array, other: Array | None = None) -> Array:
    return np.multiply(*_sides(stage, x, other))


@MEANINGS.of(s.Divide)
def divide(stage: s.Divide, x: Array, other: Array | None = None) -> Array:
    return np.divide(*_sides(stage, x, other))


@MEANINGS.of(s.Clamp)
def clamp(stage: s.Clamp, x: Array) -> Array:
    if stage.min is not None:
        x = np.maximum(x, stage.min)
    return x if stage.max is None else np.minimum(x, stage.max)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@MEANINGS.of(s.GELU)
def gelu(stage: s.GELU, x: Array) -> Array:
    if stage.approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * _erfc(x * -math.sqrt(0.5))  # 1 + erf(z) = erfc(-z), without cancellation for negative x


@MEANINGS.of(s.ReLU)
def relu(stage: s.ReLU, x: Array) -> Array:
    return np.maximum(x, 0.0)


@MEANINGS.of(s.LeakyReLU)
def leaky_relu(stage: s.LeakyReLU, x: Array) -> Array:
    return np.where(x > 0.0, x, x * stage.negative_slope)


@MEANINGS.of(s.PReLU)
def prelu(stage: s.PReLU, x: Array, weight: Array) -> Array:
    return np.where(x > 0.0, x, x * _column(weight))


@MEANINGS.of(s.Sigmoid)
def sigmoid(stage: s.Sigmoid, x: Array) -> Array:
    shrunk = np.exp(-np.abs(x))  # of -x it would overflow, and the result be 0, where it is not
    return np.where(x < 0, shrunk, 1.0) / (1.0 + shrunk)


@MEANINGS.of(s.Tanh)
def tanh(stage: s.Tanh, x: Array) -> Array:
    return np.tanh(x)


@MEANINGS.of(s.SiLU)
def silu(stage: s.SiLU, x: Array) -> Array:
    shrunk = np.exp(-np.abs(x))
    return np.where(x < 0, x * shrunk, x) / (1.0 + shrunk)


@MEANINGS.of(s.HardSwish)
def hard_swish(stage: s.HardSwish, x: Array) -> Array:
    return x * np.minimum(np.maximum(x + 3.0, 0.0), 6.0) / 6.0


@MEANINGS.of(s.HardTanh)
def hard_tanh(stage: s.HardTanh, x: Array) -> Array:
    return np.minimum(np.maximum(x, stage.min_val), stage.max_val)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


@MEANINGS.of(s.Mish)
def mish(stage: s.Mish, x: Array) -> Array:
    return x * np.tanh(_softplus(x))


@MEANINGS.of(s.Softplus)
def softplus(stage: s.Softplus, x: Array) -> Array:
    return np.where(x * stage.beta > stage.threshold, x, _softplus(x * stage.beta) / stage.beta)


@MEANINGS.of(s.Exp)
def exp(stage: s.Exp, x: Array) -> Array:
    return np.exp(x)


@MEANINGS.of(s.Log)
def log(stage: s.Log, x: Array) -> Array:
    return np.log(x)


@MEANINGS.of(s.Keep)
def keep(stage: s.Keep, x: Array) -> Array:
    return x


@MEANINGS.of(s.Recall)
def recall(stage: s.Recall, x: Array, other: Array) -> Array:
    return other
