"""A pipeline as one line of text and back: `ConvTranspose3d(stride=2) -> BatchNorm(affine=True) -> ReLU()`.

Each part is a stage as `repr` writes it. Nothing is evaluated: a part is a known stage with literal parameters.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from ..errors import ArgumentError, Error
from .backends import vocabulary
from .pipeline import Pipeline
from .stage import Stage

ARROW = "->"
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_STAGES = vocabulary()


def write_pipeline(pipeline: Pipeline) -> str:
    return f" {ARROW} ".join(map(repr, pipeline.stages))


def read_stages(text: str) -> tuple[Stage, ...]:
    """The stages that `write_pipeline` has written, or a person."""
    return tuple(_stage(part.strip()) for part in text.split(ARROW))


def _stage(text: str) -> Stage:
    """One part of the text, or an error that says which word is wrong, and what was probably meant."""

    def refused(rule: str, remedy: str = f"Write it like MaxPool3d(2), with {ARROW} between stages") -> ArgumentError:
        return ArgumentError("pipeline text", "stage", text, rule, remedy)

    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused("must be a stage with its parameters") from None
    name = call.func if isinstance(call, ast.Call) else call
    if not isinstance(name, ast.Name):
        raise refused("must be a stage with its parameters")
    if name.id not in _STAGES:
        raise refused(f"there is no stage {name.id!r}", _meant(name.id, _STAGES, "Stages are"))
    if not isinstance(call, ast.Call):
        raise refused("has no brackets", f"Write {name.id}()")
    known = [field.name for field in fields(_STAGES[name.id])]
    for word in call.keywords:
        if word.arg not in known:
            raise refused(f"{name.id} has no parameter {word.arg!r}", _meant(word.arg or "", known, "It has"))
    try:
        positional = [_literal(node) for node in call.args]
        named = {word.arg or "": _literal(word.value) for word in call.keywords}
    except (ValueError, TypeError):
        raise refused("its parameters must be numbers, True, False, None, or words in quotes") from None
    try:
        stage: Stage = _STAGES[name.id](*positional, **named)
    except TypeError as error:
        if isinstance(error, Error):
            raise
        raise refused("has a parameter too many, twice, or not at all", _meant("", known, "It has")) from None
    return stage


def _meant(word: str, known: Iterable[str], otherwise: str) -> str:
    """The known name that is most like the word, whatever the case of its letters; all of them if none is."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"Did you mean {by_lower[near[0]]}?" if near else f"{otherwise} {', '.join(by_lower.values()) or 'none'}"


def _literal(node: ast.expr) -> Any:
    """A literal; inf and nan, which `repr` writes too, count as numbers."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    if isinstance(inner, ast.Name) and inner.id in _NUMBERS:
        return -_NUMBERS[inner.id] if negative else _NUMBERS[inner.id]
    return ast.literal_eval(node)
