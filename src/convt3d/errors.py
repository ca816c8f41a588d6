"""The one family of errors: each says operator, argument, value received, the rule, and what to do.

Every error a caller can provoke is an `Error`; its second base is the built-in class a caller would expect to catch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Error(Exception):
    """Base of everything convt3d raises. The five parts are attributes, so a program can read them."""

    def __init__(self, operator: str, argument: str, received: Any, rule: str, remedy: str) -> None:
        super().__init__(operator, argument, received, rule, remedy)
        self.operator = operator
        self.argument = argument
        self.received = received
        self.rule = rule
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.operator}: {self.argument} = {_short(self.received)}: {self.rule}. {self.remedy}."


class ShapeError(Error, ValueError):
    """A rank or size that does not fit the operator or the other arrays."""


class DTypeError(Error, TypeError):
    """An element type that is unknown here, or arrays of different element types."""


class ArgumentError(Error, ValueError):
    """A parameter outside its range, or a pipeline whose stages do not fit together."""


class ArgumentTypeError(Error, TypeError):
    """An argument of the wrong kind: a list where an array is asked for, a float where an integer is."""


class OutputError(Error, ValueError):
    """An `out=` array that cannot take the result: misshaped, read-only or overlapping."""


class AllocationError(Error, MemoryError):
    """Memory for the result or for scratch could not be had."""


class BuildError(Error, RuntimeError):
    """LLVM refused generated code: a defect of convt3d, never of the caller's data."""


class BoundsError(Error, RuntimeError):
    """Generated code reached outside of an array, as `CONVT3D_CHECK_BOUNDS=1` found out: a defect of convt3d."""


class ProblemFileError(Error, ValueError):
    """A problem file that does not follow its format."""


class UnsupportedStageError(Error, KeyError):
    """A stage that a backend cannot compute, or was never told of."""


class UnknownProblemError(Error, KeyError):
    """A slug that names none of the problems."""


def _short(value: Any) -> str:
    try:
        text = value if isinstance(value, _Described) else repr(value)
    except Exception:  # integers of thousands of digits, and whatever a foreign object's own method raises
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 120 else text[:117] + "..."


class _Described(str):
    """A text about a value (such as an array's shape) that is shown without quotes."""


def described(text: str) -> str:
    """Marks `text` as a description of the received value rather than the value itself."""
    return _Described(text)


@contextmanager
def named(operator: str, arguments: Mapping[str, str] | None = None) -> Iterator[None]:
    """Errors raised inside carry the operator's name and, by `arguments`, the names of arguments the caller knows."""
    try:
        yield
    except Error as error:
        error.operator = operator
        error.argument = (arguments or {}).get(error.argument, error.argument)
        raise
