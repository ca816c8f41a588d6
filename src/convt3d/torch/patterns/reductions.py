"""Reductions along axes of the tensor, and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...spec import stages as s
from ...spec.stage import Stage
from ..views import NoStageError, Value, same, tidy
from .base import OWN, SELF, Meaning, Part, inside, mapped, rule, without_gradient
from .pointwise import limited

_NAMES = {axes: over for over, axes in s.OVER.items()}


def reduced(kind: Callable[[str], Stage], value: Any, dims: Any, keepdim: Any) -> Meaning:
    at = inside(value).axes(dims)
    axes = sorted(axis for dim in set(at) for axis in value.view[dim])
    if 0 in axes:
        raise NoStageError("reduces the batch")
    left, overs = set(axes), []
    for over in ("spatial", "channels", "depth", "height", "width"):
        if set(s.OVER[over]) <= left:
            overs.append(over)
            left -= set(s.OVER[over])
    if not overs:
        raise NoStageError("reduces an axis of size 1")
    sizes = tuple(1 if axis in axes else size for axis, size in enumerate(value.sizes))
    groups = ((g if keepdim else None) if dim in at else g for dim, g in enumerate(value.view))
    view = tidy([group for group in groups if group is not None], sizes)
    return Meaning(value, tuple((kind(over), ()) for over in overs), view, sizes)


def _plain_type(dtype: Any) -> None:
    if dtype is not None:
        raise NoStageError("changes the type")


@rule("sum")
def _sum(input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Meaning:
    _plain_type(dtype)
    return reduced(s.Sum, input, dim, keepdim)


@rule("mean")
def _mean(input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Meaning:
    _plain_type(dtype)
    return reduced(s.Mean, input, dim, keepdim)


@rule("amax")
def _amax(input: Any, dim: Any = (), keepdim: Any = False) -> Meaning:
    return reduced(s.Max, input, dim or None, keepdim)


@rule("amin")
def _amin(input: Any, dim: Any = (), keepdim: Any = False) -> Meaning:
    return _negated(reduced(s.Max, input, dim or None, keepdim))


@rule("logsumexp")
def _logsumexp(input: Any, dim: Any, keepdim: Any = False) -> Meaning:
    return reduced(s.LogSumExp, input, dim, keepdim)


def _negated(largest: Meaning) -> Meaning:
    """The smallest number is the largest of the negated ones, negated."""
    sign: Part = (s.Multiply(-1.0), ())
    parts = (sign, *largest.parts, sign)
    return Meaning(largest.main, parts, largest.view, largest.sizes)


@rule("max.values")
def _max(input: Any, dim: Any = None, keepdim: Any = False, *, other: Any = None) -> Meaning:
    """`max(dim)` without its indices; `capture` has looked after them. Or the larger of two tensors."""
    if type(dim) is not int:
        return limited(input, dim if other is None else other, lambda bound: s.Clamp(bound, None))
    without_gradient(input, "where several values are largest")
    return reduced(s.Max, input, dim, keepdim)


@rule("min.values")
def _min(input: Any, dim: Any = None, keepdim: Any = False, *, other: Any = None) -> Meaning:
    if type(dim) is not int:
        return limited(input, dim if other is None else other, lambda bound: s.Clamp(None, bound))
    without_gradient(input, "where several values are smallest")
    return _negated(reduced(s.Max, input, dim, keepdim))


@rule("softmax")
def _softmax(input: Any, dim: Any = None, _stacklevel: Any = 3, dtype: Any = None) -> Meaning:
    _plain_type(dtype)
    return mapped(input, s.Softmax(_over(input, dim)))


@rule("softmin")
def _softmin(input: Any, dim: Any = None, _stacklevel: Any = 3, dtype: Any = None) -> Meaning:
    _plain_type(dtype)
    return mapped(input, s.Multiply(-1.0), s.Softmax(_over(input, dim)))


@rule("log_softmax")
def _log_softmax(input: Any, dim: Any = None, _stacklevel: Any = 3, dtype: Any = None) -> Meaning:
    """From the largest value down, as PyTorch computes it: large numbers cost no digits."""
    _plain_type(dtype)
    without_gradient(input, "through the largest value")
    over = _over(input, dim)
    below = s.Max(over), s.Subtract(SELF, reverse=True), s.Keep(OWN)
    return mapped(input, *below, s.LogSumExp(over), s.Subtract(OWN, reverse=True))


def _over(input: Any, dim: Any) -> str:
    """What a softmax along an axis goes over."""
    group = inside(input).view[input.axis(dim)]
    over = {(1,): "channels"}.get(group) or ("spatial" if _is_space(input, group) else None)
    if over is None:
        raise NoStageError("goes along another axis than channels or space")
    return over


def _is_space(value: Value, group: tuple[int, ...]) -> bool:
    """Whether a group runs over all voxels of a channel."""
    rest = {2, 3, 4} - set(group)
    return bool(group) and set(group) <= {2, 3, 4} and all(same(value.sizes[axis], 1) for axis in rest)
