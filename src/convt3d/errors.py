"""The one family of errors: each says operator, argument, value received, the rule, and what to do.

Every error a caller can provoke is an `Error`; its second base is the built-in class a caller would expect to catch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Error(Exception):
    """Base of everything convt3d raises. The five parts are attributes, so a program can read them.

    Parameters
    ----------
    operator : str
        The function, stage or module that refuses.
    argument : str
        What it refuses, by the name that the caller knows.
    received : Any
        The value, or a description of it.
    rule : str
        What holds for such values.
    remedy : str
        What to write in its place.

    Examples
    --------
    >>> import convt3d
    >>> try:
    ...     convt3d.Pipeline(convt3d.ConvTranspose3d(stride=0))
    ... except convt3d.Error as error:
    ...     print(error)
    ConvTranspose3d: stride = 0: must be >= 1. Write an int >= 1.
    """

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
    """A rank or size that does not fit the operator or the other arrays; a ValueError, too.

    Examples
    --------
    >>> import convt3d
    >>> try:
    ...     convt3d.Pipeline(convt3d.ConvTranspose3d()).explain((1, 2, 3), (2, 4, 3, 3, 3))
    ... except convt3d.ShapeError as error:
    ...     print(error.argument)
    input
    """


class DTypeError(Error, TypeError):
    """An element type that is unknown here, or arrays of different element types; a TypeError, too.

    Examples
    --------
    >>> import numpy, convt3d
    >>> try:
    ...     convt3d.conv_transpose3d(numpy.ones((1, 1, 2, 2, 2), int), numpy.ones((1, 1, 2, 2, 2)))
    ... except convt3d.DTypeError as error:
    ...     print(error.rule)
    must be float32, float64, float16, bfloat16
    """


class ArgumentError(Error, ValueError):
    """A parameter outside its range, or a pipeline whose stages do not fit together; a ValueError, too.

    Examples
    --------
    >>> import convt3d
    >>> try:
    ...     convt3d.Clamp(1.0, 0.0)
    ... except convt3d.ArgumentError as error:
    ...     print(error.remedy)
    Swap the bounds
    """


class ArgumentTypeError(Error, TypeError):
    """An argument of the wrong kind (a float where an integer is asked for), unknown, or missing; a TypeError, too.

    Examples
    --------
    >>> import convt3d
    >>> try:
    ...     convt3d.ConvTranspose3d(strides=2)
    ... except convt3d.ArgumentTypeError as error:
    ...     print(error.remedy)
    Write stride
    """


class OutputError(Error, ValueError):
    """An `out=` array that cannot take the result: misshaped, read-only or overlapping; a ValueError, too.

    Examples
    --------
    >>> import numpy, convt3d
    >>> x = numpy.ones((1, 1, 2, 2, 2))
    >>> try:
    ...     convt3d.conv_transpose3d(x, x, out=x)
    ... except convt3d.OutputError as error:
    ...     print(error.rule)
    must have the result's shape (1, 1, 3, 3, 3)
    """


class AllocationError(Error, MemoryError):
    """Memory for the result or for scratch could not be had; a MemoryError, too.

    Examples
    --------
    >>> import convt3d
    >>> issubclass(convt3d.AllocationError, MemoryError)
    True
    """

    # MemoryError's own refuses a class with two bases where a pickle calls it, as those of tblib do.
    __new__ = Exception.__new__  # type: ignore[assignment]


class BuildError(Error, RuntimeError):
    """LLVM refused generated code: a defect of convt3d, never of the caller's data; a RuntimeError, too.

    Examples
    --------
    >>> import convt3d
    >>> issubclass(convt3d.BuildError, RuntimeError)
    True
    """


class BoundsError(Error, RuntimeError):
    """Generated code reached outside of an array, as `CONVT3D_CHECK_BOUNDS=1` found out: a defect of convt3d.

    Examples
    --------
    >>> import convt3d
    >>> issubclass(convt3d.BoundsError, RuntimeError)
    True
    """


class ProblemFileError(Error, ValueError):
    """A problem file that does not follow its format; a ValueError, too.

    Examples
    --------
    >>> import convt3d
    >>> issubclass(convt3d.ProblemFileError, ValueError)
    True
    """


class PackError(Error, ValueError):
    """A kernel pack that is damaged, or not signed with the key that was given; a ValueError, too.

    Examples
    --------
    >>> import convt3d
    >>> issubclass(convt3d.PackError, ValueError)
    True
    """


class UnsupportedStageError(Error, KeyError):
    """A stage that a backend cannot compute, or was never told of; a KeyError, too.

    Examples
    --------
    >>> import convt3d
    >>> issubclass(convt3d.UnsupportedStageError, KeyError)
    True
    """


class UnknownProblemError(Error, KeyError):
    """A slug that names none of the problems; a KeyError, too.

    Examples
    --------
    >>> import convt3d
    >>> try:
    ...     convt3d.problems["max-max-sun"]
    ... except convt3d.UnknownProblemError as error:
    ...     print(error.remedy)
    The nearest is 'max-max-sum'
    """


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
