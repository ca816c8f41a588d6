"""The operators PyTorch is told of: their schemas, and the pipeline and operands that the arguments of a call mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from ..errors import ArgumentError, ArgumentTypeError, Error, described
from ..spec import operators as spec
from ..spec.operators import Argument, shared
from ..spec.pipeline import Pipeline
from ..spec.text import read_stages
from .stock import Tensor

Lowered: TypeAlias = tuple[Pipeline, Tensor, list[Tensor]]  # the pipeline, its input, its operands in slot order


@dataclass(frozen=True, eq=False)
class Operator:
    """`meaning` takes all arguments of the schema; `operands` names those that are tensors of the pipeline, in slot
    order; a float32 tensor among `promotes` makes the result float32 under autocast."""

    name: str
    meaning: Callable[..., Lowered]
    schema: str
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    operands: tuple[str, ...]
    promotes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def lower(self, *arguments: Any, **named: Any) -> Lowered:
        """The pipeline and operands of a call, which may lack arguments at their default; or why it cannot be one."""
        rest = zip(self.names[len(arguments) :], self.defaults[len(arguments) :], strict=True)
        try:
            pipeline, x, operands = self.meaning(*arguments, *(named.get(name, default) for name, default in rest))
        except Error as e:
            kind = RefusedError if isinstance(e, ArgumentError) else type(e)
            raise kind(self.name, self.renamed.get(e.argument, e.argument), e.received, e.rule, e.remedy) from None
        for each in operands:
            if not isinstance(each, torch.Tensor):
                where, what = self.operands[0], described(type(each).__name__)
                raise ArgumentTypeError(self.name, where, what, "and all operands must be tensors", "Pass tensors")
        if len(operands) != len(pipeline.slots):
            count, names = described(f"{len(operands)} tensors after input"), ", ".join(pipeline.operand_names)
            raise ArgumentTypeError(self.name, self.operands[0], count, f"must be {names}", "Pass each of them once")
        return pipeline, x, operands


class RefusedError(ArgumentError, RuntimeError):
    """A parameter outside its range, which PyTorch refuses with a RuntimeError."""


def _known(text: str) -> Pipeline:
    return _read(text)


_known._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result, not imported


@lru_cache(maxsize=1024)
def _read(text: str) -> Pipeline:
    return shared(Pipeline(*read_stages(text)))


# A padding that is a word goes by the text of a pipeline.
_TYPES = {
    "triple": "SymInt[3]",
    "window": "int[3]",
    "padding": "SymInt[3]",
    "integer": "SymInt",
    "real": "float",
    "word": "str",
}


def _schema(argument: Argument) -> str:
    kind = _TYPES.get(argument.kind, "Tensor") + "?" * argument.optional
    default = f'"{argument.default}"' if argument.kind == "word" else argument.default
    return f"{kind} {argument.name}" + ("" if argument.required else f"={default}")


def _declared(declared: spec.Operator, *promotes: str) -> Operator:
    def meaning(*arguments: Any) -> Lowered:
        pipeline, operands = declared.lower(arguments)
        return pipeline, arguments[0], operands

    schema = ", ".join(map(_schema, declared.arguments))
    defaults = tuple(argument.default for argument in declared.arguments)
    return Operator(
        declared.name, meaning, schema, declared.names, defaults, declared.tensors, promotes, declared.renamed
    )


_PROMOTES = {"conv_transpose3d_avgpool_clamp_softmax_multiply": ("scale",)}
_PIPELINE = Operator(
    "pipeline",
    lambda input, operands, stages: (_known(stages), input, list(operands)),
    "Tensor input, Tensor[] operands, str stages",
    ("input", "operands", "stages"),
    (spec.REQUIRED,) * 3,
    ("operands",),
)
OPERATORS = (*(_declared(each, *_PROMOTES.get(each.name, ())) for each in spec.OPERATORS.values()), _PIPELINE)
BY_NAME = {operator.name: operator for operator in OPERATORS}
