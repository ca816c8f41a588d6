"""Pipelines as text, so that an operator of PyTorch, which takes no other objects, can be told which one to run:

"ConvTranspose3d(stride=(2, 2, 2)), BatchNorm(eps=1e-05), ReLU()"
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

from ..errors import ArgumentError
from ..front.named import shared
from ..spec import stages
from ..spec.pipeline import Pipeline
from ..spec.stage import Stage

_STAGES = {
    name: kind
    for name, kind in vars(stages).items()
    if isinstance(kind, type) and issubclass(kind, Stage) and not name.startswith("_") and kind is not Stage
}
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}


def write(pipeline: Pipeline) -> str:
    return ", ".join(map(repr, pipeline.stages))


@lru_cache(maxsize=1024)
def read(text: str) -> Pipeline:
    """The pipeline that `write` has written; nothing but stages with plain parameters is understood."""
    try:
        body = ast.parse(f"({text},)", mode="eval").body
        return shared(Pipeline(*map(_stage, body.elts if isinstance(body, ast.Tuple) else ())))
    except (SyntaxError, KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        rule = f"must list stages, such as 'ConvTranspose3d(stride=2), ReLU()' ({error})"
        raise ArgumentError(
            "convt3d::pipeline", "stages", text, rule, "Write it with convt3d.torch.text.write"
        ) from None


def _stage(node: Any) -> Stage:
    arguments = [_value(argument) for argument in node.args]
    keywords = {keyword.arg: _value(keyword.value) for keyword in node.keywords}
    return _STAGES[node.func.id](*arguments, **keywords)


def _value(node: Any) -> Any:
    if isinstance(node, ast.Name):
        return _NUMBERS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Tuple):
        return tuple(map(_value, node.elts))
    return ast.literal_eval(node)
