"""Arguments as callers write them (numpy integers, tensors of one number) made what the schemas of the operators say,
or refused with the class of error that PyTorch raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import ArgumentTypeError, described
from ..spec import operators as spec
from ..spec.checks import INT64_MAX, integer, real
from .operators import OPERATORS


def checked(name: str, arguments: Sequence[Any]) -> list[Any]:
    """The arguments of one call of the operator `name`, in the order of its schema."""
    rows = zip(_SIGNATURES[name], arguments, strict=False)
    return [_CHECKS[kind](name, argument, value) for (argument, kind), value in rows]


def word_in_numbers(name: str, arguments: Sequence[Any]) -> bool:
    """Whether a checked argument is a word where the schema has numbers: padding="same"."""
    rows = zip(_SIGNATURES[name], arguments, strict=False)
    return any(kind == "padding" and isinstance(value, str) for (_, kind), value in rows)


def padding_in_numbers(weight: Any, bias: Any, stride: Any, padding: str, dilation: Sequence[int]) -> list[int] | None:
    """Of conv3d, for "same" or "valid": voxels at each end of each axis. None where the ends differ, or an argument is
    wrong."""
    if padding == "valid":
        return [0, 0, 0]
    if padding != "same" or weight.dim() != 5 or any(step != 1 for step in stride) or len(dilation) not in (1, 3):
        return None
    totals = [
        step * (taps - 1) for step, taps in zip((*dilation, *dilation, *dilation), weight.shape[2:], strict=False)
    ]
    return None if any(total % 2 for total in totals) else [total // 2 for total in totals]


def _tensor(operator: str, argument: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    raise ArgumentTypeError(
        operator, argument, described(type(value).__name__), "must be a tensor", "Pass a torch.Tensor"
    )


def _tensors(operator: str, argument: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_tensor(operator, f"{argument}[{place}]", each) for place, each in enumerate(value)]
    kind = described(type(value).__name__)
    raise ArgumentTypeError(operator, argument, kind, "must be a list of tensors", "Write [weight, bias, ...]")


def _integer(operator: str, argument: str, value: Any) -> Any:
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return value
    try:
        return integer(operator, argument, value, -INT64_MAX)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            operator, argument, value, "must be an integer, or one for each axis", "Write an int"
        ) from None


def _sizes(operator: str, argument: str, value: Any) -> Any:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return [_integer(operator, argument, each) for each in values]


def _padding(operator: str, argument: str, value: Any) -> Any:
    return value if isinstance(value, str) else _sizes(operator, argument, value)


def _real(operator: str, argument: str, value: Any) -> Any:
    return value if isinstance(value, (float, torch.SymFloat)) else real(operator, argument, value, nan=True)


def text(operator: str, argument: str, value: Any) -> Any:
    if isinstance(value, str):
        return value
    rule, remedy = ("must be text", "Write a word")
    if argument == "stages":
        rule, remedy = "must be a Pipeline or its text", "Write it like 'ConvTranspose3d(stride=2) -> ReLU()'"
    raise ArgumentTypeError(operator, argument, value, rule, remedy)


def _optional(check: Callable[[str, str, Any], Any]) -> Callable[[str, str, Any], Any]:
    return lambda operator, argument, value: None if value is None else check(operator, argument, value)


_CHECKS: dict[str, Callable[[str, str, Any], Any]] = {
    "Tensor": _tensor,
    "Tensor?": _optional(_tensor),
    "Tensor[]": _tensors,
    "SymInt": _integer,
    "SymInt[3]": _sizes,
    "int[3]": _sizes,
    "padding": _padding,
    "float": _real,
    "float?": _optional(_real),
    "str": text,
}
_PADDINGS = {
    (each.name, argument.name)
    for each in spec.OPERATORS.values()
    for argument in each.arguments
    if argument.kind == "padding"
}
_SIGNATURES = {
    each.name: tuple(
        (name, "padding" if (each.name, name) in _PADDINGS else part.split()[0])
        for name, part in zip(each.names, each.schema.split(", "), strict=True)
    )
    for each in OPERATORS
}
