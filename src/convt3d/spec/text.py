"""A pipeline as one line of text and back: `ConvTranspose3d(stride=2) -> BatchNorm(affine=True) -> ReLU()`.

Each part is a stage as `repr` writes it. Nothing is evaluated: a part is a known stage with literal parameters.
"""

from __future__ import annotations

import ast
import math
from typing import Any

from ..errors import ArgumentError, Error
from . import stages
from .pipeline import Pipeline
from .stage import Stage

ARROW = "->"
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_STAGES = {name: getattr(stages, name) for name in stages.__all__ if name != "Binary"}


def write_pipeline(pipeline: Pipeline) -> str:
    return f" {ARROW} ".join(map(repr, pipeline.stages))


def read_stages(text: str) -> tuple[Stage, ...]:
    """The stages that `write_pipeline` has written, or a person."""
    return tuple(_stage(part.strip()) for part in text.split(ARROW))


def _stage(text: str) -> Stage:
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in _STAGES:
            raise ValueError
        positional = [_literal(node) for node in call.args]
        named = {word.arg or "": _literal(word.value) for word in call.keywords}
        stage: Stage = _STAGES[call.func.id](*positional, **named)
        return stage
    except Error:
        raise
    except (SyntaxError, ValueError, TypeError):
        rule = "must be a stage with literal parameters"
        raise ArgumentError("pipeline text", "stage", text, rule, "Write it like MaxPool3d(2) or Add('skip')") from None


def _literal(node: ast.expr) -> Any:
    """A literal; inf and nan, which `repr` writes too, count as numbers."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    if isinstance(inner, ast.Name) and inner.id in _NUMBERS:
        return -_NUMBERS[inner.id] if negative else _NUMBERS[inner.id]
    return ast.literal_eval(node)
