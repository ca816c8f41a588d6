"""What computes nothing: views, copies, dropout in eval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..views import NoStageError, permuted, reshaped
from .base import Meaning, inside, rule, without_gradient


def _viewed(value: Any, view: Sequence[tuple[int, ...]], alias: bool = True) -> Meaning:
    return Meaning(inside(value), (), tuple(view), value.sizes, alias=alias)


@rule("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout")
def _dropout(input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Meaning:
    if training and p != 0:
        raise NoStageError("draws random numbers")
    return _viewed(input, input.view)


@rule("contiguous")
def _contiguous(input: Any, *, memory_format: Any = torch.contiguous_format) -> Meaning:
    if memory_format is not torch.contiguous_format:
        raise NoStageError("asks for a memory format")
    return _viewed(input, input.view)


@rule("detach")
def _detach(input: Any) -> Meaning:
    without_gradient(input, "than its input")
    return _viewed(input, input.view)


@rule("getitem")
def _getitem(input: Any, index: Any) -> Meaning:
    """`y[:, :, None, None, None]` and `y[...]`, which give all numbers; new axes have size 1."""
    view = list(inside(input).view)
    indices = list(index) if isinstance(index, tuple) else [index]
    if not all(each is None or each is Ellipsis or each == slice(None) for each in indices):
        raise NoStageError("takes a part of the value")
    named = sum(each is not None and each is not Ellipsis for each in indices)
    at = 0
    for each in indices:
        if each is None:
            view.insert(at, ())
        at += len(input.view) - named if each is Ellipsis else 1
    return _viewed(input, view)


@rule("clone")
def _clone(input: Any) -> Meaning:
    return _viewed(input, input.view, alias=False)


@rule("to", "float", "double", "half", "bfloat16", "type_as")
def _to(input: Any, *types: Any, **named: Any) -> Meaning:
    """`capture` refuses it where the type changes."""
    if set(named) - {"dtype", "device", "non_blocking"}:
        raise NoStageError("asks for a memory format")
    return _viewed(input, input.view)


def _flat(first: Any) -> list[Any]:
    """`permute(0, 2, 1)` and `permute((0, 2, 1))` are the same."""
    return list(first[0]) if len(first) == 1 and isinstance(first[0], (list, tuple)) else list(first)


@rule("permute")
def _permute(input: Any, *dims: Any, **named: Any) -> Meaning:
    return _viewed(input, permuted(inside(input), named.get("dims") or _flat(dims)))


@rule("transpose", "swapaxes", "swapdims")
def _transpose(input: Any, dim0: Any, dim1: Any) -> Meaning:
    view = list(inside(input).view)
    one, other = input.axis(dim0), input.axis(dim1)
    view[one], view[other] = view[other], view[one]
    return _viewed(input, view)


@rule("movedim", "moveaxis")
def _movedim(input: Any, source: Any, destination: Any) -> Meaning:
    sources, targets = inside(input).axes(source), input.axes(destination)
    rest = [group for at, group in enumerate(input.view) if at not in sources]
    for target, at in sorted(zip(targets, sources, strict=True)):
        rest.insert(target, input.view[at])
    return _viewed(input, rest)


@rule("unsqueeze")
def _unsqueeze(input: Any, dim: Any) -> Meaning:
    view = list(inside(input).view)
    if type(dim) is not int:
        raise NoStageError("goes along an axis that is not known here")
    view.insert(dim if dim >= 0 else len(view) + 1 + dim, ())
    return _viewed(input, view)


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "view_as", "reshape_as")
def _reshape(input: Any, *shape: Any, result: Any, **named: Any) -> Meaning:
    """By the shape of its result, whatever asked for it."""
    return _viewed(input, reshaped(inside(input), tuple(result.shape)))
