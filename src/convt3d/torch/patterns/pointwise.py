"""Functions of one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...spec import stages as s
from ...spec.stage import Stage
from ..views import NoStageError, Value, same
from .base import OTHER, OWN, SELF, Given, Meaning, Outer, inside, mapped, number, outer, rule, without_gradient


def _plain_function(stage: Callable[[], Stage], *names: str) -> None:
    rule(*names)(lambda input, inplace=False: mapped(input, stage()))


_plain_function(s.ReLU, "relu")
_plain_function(lambda: s.HardTanh(0.0, 6.0), "relu6")
_plain_function(s.SiLU, "silu")
_plain_function(s.Sigmoid, "sigmoid", "expit")
_plain_function(s.Tanh, "tanh")
_plain_function(s.HardSwish, "hardswish")
_plain_function(s.Mish, "mish")
_plain_function(s.Exp, "exp")
_plain_function(s.Log, "log")
_plain_function(lambda: s.Multiply(-1.0), "neg", "negative")
_plain_function(lambda: s.Divide(1.0, reverse=True), "reciprocal")
_plain_function(lambda: s.Multiply(SELF), "square")

# |x| = max(x, 0) + max(-x, 0): one of them is zero
_MAGNITUDE = s.ReLU(), s.Keep(OWN), s.Recall(SELF), s.Multiply(-1.0), s.ReLU(), s.Add(OWN)


@rule("tanhshrink")
def _tanhshrink(input: Any) -> Meaning:
    return mapped(input, s.Tanh(), s.Subtract(SELF, reverse=True))


@rule("softshrink")
def _softshrink(input: Any, lambd: Any = 0.5) -> Meaning:
    """What a clamp takes away."""
    bound = float(number(lambd))
    if bound < 0:
        raise NoStageError("has a negative bound, which PyTorch refuses")
    return mapped(input, s.Clamp(-bound, bound), s.Subtract(SELF, reverse=True))


def _contiguous(result: Any) -> None:
    """The result of an operation whose memory is contiguous, whatever it is on tensors without numbers."""
    if not result.is_contiguous():
        raise NoStageError("has contiguous results only, whatever is said of their strides")


@rule("logsigmoid", "log_sigmoid")
def _logsigmoid(input: Any, *, result: Any) -> Meaning:
    """-softplus(-x); beyond 40, exp(-x) is nothing beside x in float64 either."""
    _contiguous(result)
    return mapped(input, s.Multiply(-1.0), s.Softplus(threshold=40.0), s.Multiply(-1.0))


@rule("rrelu")
def _rrelu(
    input: Any, lower: Any = 1 / 8, upper: Any = 1 / 3, training: Any = False, inplace: Any = False, *, result: Any
) -> Meaning:
    if training:
        raise NoStageError("draws random numbers")
    if not inplace:
        _contiguous(result)
    return mapped(input, s.LeakyReLU((number(lower) + number(upper)) / 2))


@rule("leaky_relu")
def _leaky_relu(input: Any, negative_slope: Any = 0.01, inplace: Any = False) -> Meaning:
    return mapped(input, s.LeakyReLU(number(negative_slope)))


@rule("gelu")
def _gelu(input: Any, *, approximate: Any = "none") -> Meaning:
    return mapped(input, s.GELU(approximate))


@rule("softplus")
def _softplus(input: Any, beta: Any = 1, threshold: Any = 20) -> Meaning:
    return mapped(input, s.Softplus(number(beta), number(threshold)))


@rule("hardtanh")
def _hardtanh(input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: Any = False) -> Meaning:
    return mapped(input, s.HardTanh(number(min_val), number(max_val)))


@rule("clamp", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Meaning:
    low, high = (None if each is None else number(each, "a bound") for each in (min, max))
    return mapped(input, s.Clamp(low, high))


@rule("clamp_min")
def _clamp_min(input: Any, min: Any) -> Meaning:
    return mapped(input, s.Clamp(number(min, "a bound"), None))


@rule("clamp_max")
def _clamp_max(input: Any, max: Any) -> Meaning:
    return mapped(input, s.Clamp(None, number(max, "a bound")))


_LIMITS = (torch.max, torch.min, torch.maximum, torch.minimum, "max", "min", "maximum", "minimum")  # none writes


@rule("maximum")
def _maximum(input: Any, other: Any) -> Meaning:
    return limited(input, other, lambda bound: s.Clamp(bound, None))


@rule("minimum")
def _minimum(input: Any, other: Any) -> Meaning:
    return limited(input, other, lambda bound: s.Clamp(None, bound))


def limited(input: Any, other: Any, clamp: Callable[[float], Stage]) -> Meaning:
    """By a number that the model's code makes a tensor of where it stands: `torch.tensor(0.0)`."""
    value, bound = (input, other) if isinstance(input, Value) else (other, input)
    node = bound.node if isinstance(bound, Outer) else None
    if (
        node is None
        or node.target is not torch.tensor
        or bound.shape
        or any(u.target not in _LIMITS for u in node.users)
    ):
        raise NoStageError("compares with no plain number")
    without_gradient(value, "where both are equal")
    return mapped(value, clamp(number(node.args[0], "a bound")))


@rule("hardsigmoid")
def _hardsigmoid(input: Any, inplace: Any = False) -> Meaning:
    without_gradient(input, "where it bends")
    return mapped(input, s.Add(3.0), s.Clamp(0.0, 6.0), s.Divide(6.0))


@rule("prelu")
def _prelu(input: Any, weight: Any) -> Meaning:
    shape = outer(weight).shape
    if not (len(shape) == 0 or (len(shape) == 1 and same(shape[0], 1)) or input.view[1:2] == ((1,),)):
        raise NoStageError("has its channels on another axis")
    return Meaning(inside(input), ((s.PReLU(), (Given(weight.node),)),), input.view, input.sizes)


@rule("elu")
def _elu(input: Any, alpha: Any = 1.0, inplace: Any = False) -> Meaning:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
    return mapped(input, *_bent((), number(alpha)))


@rule("celu")
def _celu(input: Any, alpha: Any = 1.0, inplace: Any = False) -> Meaning:
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)."""
    if number(alpha) <= 0:
        raise NoStageError("has a negative alpha")
    return mapped(input, *_bent((s.Divide(float(alpha)),), alpha))


@rule("selu")
def _selu(input: Any, inplace: Any = False) -> Meaning:
    """An ELU, scaled: the numbers are PyTorch's."""
    return mapped(input, *_bent((), 1.6732632423543772), s.Multiply(1.0507009873554805))


def _bent(inner: tuple[Stage, ...], alpha: Any) -> tuple[Stage, ...]:
    """max(x, 0) + alpha * (exp(z) - 1), z = inner(min(x, 0)). With t = tanh(z / 2), exp(z) - 1 is 2 t / (1 - t), which
    keeps the digits of a small z."""
    half = s.Clamp(None, 0.0), *inner, s.Multiply(0.5), s.Tanh()
    below = s.Keep(OTHER), s.Subtract(1.0, reverse=True), s.Divide(OTHER, reverse=True), s.Multiply(2.0 * alpha)
    return *half, *below, s.Keep(OWN), s.Recall(SELF), s.ReLU(), s.Add(OWN)


@rule("abs", "absolute")
def _abs(input: Any) -> Meaning:
    return mapped(input, *_MAGNITUDE)


@rule("softsign")
def _softsign(input: Any) -> Meaning:
    return mapped(input, *_MAGNITUDE, s.Add(1.0), s.Divide(SELF, reverse=True))
