"""Arithmetic with a number, with a tensor from outside, and with another value of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...spec import stages as s
from ..views import NoStageError, Value, met, same
from .base import SECOND, SELF, Given, Meaning, Outer, mapped, number, rule


def _binary(stage: Callable[..., s.Binary], one: Any, other: Any, ordered: bool = False) -> Meaning:
    """`one` (sign) `other`, at least one of which is a Value."""
    reverse = not isinstance(one, Value)
    main, second = (other, one) if reverse else (one, other)
    side = {"reverse": True} if reverse and ordered else {}
    if isinstance(second, Value):
        view, sizes = met(main, second)
        if second.node is main.node:
            return mapped(main, stage(SELF, **side))
        return Meaning(main, ((stage(SECOND, **side), ()),), view, sizes, second)
    if isinstance(second, Outer):
        word, given = operand_of(main, second)
        return Meaning(main, ((stage(word, **side), (given,)),), main.view, main.sizes)
    return mapped(main, stage(float(number(second, "a second operand")), **side))


def operand_of(value: Value, other: Outer) -> tuple[str, Given]:
    """An outer tensor that meets the value from the right, as a vector of channels or as a tensor with five axes."""
    shape, view = other.shape, value.view
    if len(shape) > len(view):
        raise NoStageError("meets a tensor with more axes")
    ones = len(view) - len(shape)
    for size, group in zip(shape, view[ones:], strict=True):
        if not same(size, 1) and not same(size, value.size(group)):
            raise NoStageError("meets a tensor of another shape")
    meets = [(size, group) for size, group in zip(shape, view[ones:], strict=True) if not same(size, 1)]
    flat = any(len(group) > 1 for group in view)
    one_vector = len(shape) == 0 or (meets and all(group == (1,) for _, group in meets))
    if one_vector and (flat or not other.passing):
        return "channel", Given(other.node, vector=len(shape) > 0 and not is_column(shape))
    if flat:
        raise NoStageError("meets a tensor whose axes are flattened")
    # One axis of the tensor for each of the five: () groups stand for axes that no group has.
    missing = [axis for axis in range(5) if (axis,) not in view]
    if view.count(()) > len(missing):
        raise NoStageError("meets a tensor with more axes than five")
    axes = [group[0] if group else missing.pop() for group in view]
    ones += len(missing)
    axes = missing + axes
    order = () if axes == sorted(axes) else tuple(axes.index(axis) for axis in range(5))
    return "tensor", Given(other.node, ones, order)


def is_column(shape: Sequence[Any]) -> bool:
    """Whether a vector of channels has a shape that operands may have: (C,), (C, 1, 1, 1), (1, C, 1, 1, 1)."""
    at = {1: 0, 4: 0, 5: 1}.get(len(shape))
    return at is not None and all(at == axis or same(size, 1) for axis, size in enumerate(shape))


def _times(other: Any, alpha: Any) -> Any:
    """A number may be multiplied beforehand."""
    if alpha == 1:
        return other
    if not all(type(each) in (int, float) for each in (other, alpha)):
        raise NoStageError("has an alpha")
    return other * alpha


@rule("add")
def _add(input: Any, other: Any, *, alpha: Any = 1) -> Meaning:
    other = _times(other, alpha)
    return _binary(s.Add, input, other)


@rule("sub", "subtract")
def _sub(input: Any, other: Any, *, alpha: Any = 1) -> Meaning:
    other = _times(other, alpha)
    return _binary(s.Subtract, input, other, ordered=True)


@rule("rsub")
def _rsub(input: Any, other: Any, *, alpha: Any = 1) -> Meaning:
    if alpha != 1:
        raise NoStageError("has an alpha")
    return _binary(s.Subtract, other, input, ordered=True)


@rule("mul", "multiply")
def _mul(input: Any, other: Any) -> Meaning:
    return _binary(s.Multiply, input, other)


@rule("div", "divide", "true_divide", "truediv")
def _div(input: Any, other: Any, *, rounding_mode: Any = None) -> Meaning:
    if rounding_mode is not None:
        raise NoStageError("rounds its quotient")
    return _binary(s.Divide, input, other, ordered=True)


@rule("pow")
def _pow(input: Any, exponent: Any) -> Meaning:
    if type(exponent) not in (int, float) or exponent not in (2, 3, -1):
        raise NoStageError("has another exponent than 2, 3 or -1")
    if exponent == -1:
        return mapped(input, s.Divide(1.0, reverse=True))
    return mapped(input, *(s.Multiply(SELF),) * (int(exponent) - 1))
