"""The problems as callers see them: `convt3d.problems[slug].solution(...)`, with the published positional signature.

A `solution` takes tensors, then sizes, then scalars; it checks each size against the arrays, writes `output` and
returns None. Nothing is written when it raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import ArgumentTypeError, OutputError, ShapeError, described, named
from ..spec.problem_file import TENSOR
from ..spec.problems import TENSOR_AXES, Problem, ProblemTable
from .apply import apply

_PYTHON_TYPES = {"size_t": int, "double": float, TENSOR: Any}


@dataclass(frozen=True, eq=False)
class SolvedProblem(Problem):
    """A problem and its solution."""

    @cached_property
    def solution(self) -> Callable[..., None]:
        """The function the problem asks for."""

        def solution(*args: Any, **kwargs: Any) -> None:
            given = self._bind(args, kwargs)
            tensors = {name: given.pop(name) for name in ("input", *self.operand_names, "output")}
            values = self.checked(given)
            self._check_sizes(tensors, values)
            operands = tuple(tensors[name] for name in self.operand_names)
            with named(self.slug, self.argument_names):
                apply(self.slug, self.build(values), tensors["input"], operands, tensors["output"])

        solution.__doc__ = f"{self.title}: writes `output`, returns None.\n\n{self.statement}"
        solution.__qualname__ = f"problems[{self.slug!r}].solution"
        solution.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=_PYTHON_TYPES[p.type])
                for p in self.parameters
            ],
            return_annotation=None,
        )
        return solution

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Each parameter once, by position or by name."""
        names = [parameter.name for parameter in self.parameters]
        takes = f"takes {len(names)} arguments: {', '.join(names)}"
        remedy = "Pass each of them once, by position or by name"
        if len(args) > len(names):
            raise ArgumentTypeError(self.slug, "arguments", described(f"{len(args)} values"), takes, remedy)
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in given or name not in names:
                rule = f"is {'given twice' if name in given else 'unknown'}; solution {takes}"
                raise ArgumentTypeError(self.slug, name, described(type(value).__name__), rule, remedy)
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            count = described(f"{len(given)} values")
            raise ArgumentTypeError(self.slug, "arguments", count, f"{takes}; missing: {', '.join(missing)}", remedy)
        return given

    def _check_sizes(self, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Every size that an array shows too must be the array's."""
        shapes = {name: self._shape(name, array) for name, array in tensors.items()}
        groups = values.get("groups", 1)
        for name in ("input", *self.operand_names):
            axes, shape = TENSOR_AXES[name], shapes[name]
            if name == "scale" and len(shape) == 5 and (shape[0], *shape[2:]) == (1, 1, 1, 1):
                shape = shape[1:2]
            if len(shape) != len(axes):
                layout = "(1, out_channels, 1, 1, 1) or (out_channels,)" if name == "scale" else f"({', '.join(axes)})"
                received = described(f"array of shape {shape}")
                raise ShapeError(self.slug, name, received, f"must have the layout {layout}", "Reshape it")
            for at, axis in enumerate(axes):
                per_group = (name, axis) == ("kernel", "out_channels")
                size = shape[at] * groups if per_group else shape[at]
                if size != values[axis]:
                    times = f" * groups {groups}" if per_group and groups != 1 else ""
                    rule = f"contradicts `{name}` of shape {shapes[name]}, where it is {shape[at]}{times}"
                    remedy = f"Pass {axis}={size}, or another `{name}`"
                    raise ShapeError(self.slug, axis, values[axis], rule, remedy)
        expected = self.shapes(values)["output"]
        if shapes["output"] != expected:
            received = described(f"array of shape {shapes['output']}")
            rule = f"must have shape {expected}, which follows from the sizes"
            raise OutputError(self.slug, "output", received, rule, "Allocate that shape, or correct the sizes")

    def _shape(self, name: str, array: Any) -> tuple[int, ...]:
        try:
            shape = tuple(int(size) for size in array.shape)
        except Exception:  # a foreign object's methods may raise anything
            received = described(type(array).__name__)
            rule = "must be a numpy array, a torch CPU tensor, or an object with __dlpack__ and a shape"
            remedy = "Convert it, for example with numpy.asarray"
            raise ArgumentTypeError(self.slug, name, received, rule, remedy) from None
        return shape


problems = ProblemTable(SolvedProblem)
