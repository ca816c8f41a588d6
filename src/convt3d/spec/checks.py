"""Turns parameters as callers write them (2, (1, 2, 2), numpy integers) into plain numbers, or says what is wrong.

Everything here runs before any memory is touched.
"""

from __future__ import annotations

import difflib
import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from itertools import islice
from numbers import Complex, Real
from typing import Any, TypeAlias, TypeVar

from ..errors import ArgumentError, ArgumentTypeError, Error, described

Triple: TypeAlias = tuple[int, int, int]
Check = TypeVar("Check", bound=Callable[..., Any])

INT64_MAX = 2**63 - 1


def reads(check: Check) -> Check:
    """A check of (stage, argument, value, ...) to whose caller nothing gets through that the value's methods raise."""

    @wraps(check)
    def guarded(stage: str, argument: str, value: Any, *rest: Any, **more: Any) -> Any:
        try:
            return check(stage, argument, value, *rest, **more)
        except Exception as problem:
            rule, remedy = f"cannot be read ({type(problem).__name__})", "Write plain numbers and words"
            ours = isinstance(problem, Error)
            raise problem if ours else ArgumentTypeError(stage, argument, value, rule, remedy) from None

    return guarded  # type: ignore[return-value]


def is_a(value: Any, kind: type) -> bool:
    """isinstance without asking the value itself, which might raise anything."""
    return issubclass(type(value), kind)


@reads
def integer(stage: str, argument: str, value: Any, minimum: int) -> int:
    """An integer >= minimum that fits 64 bits. Booleans and floats (also 2.0) are refused, as in PyTorch."""
    if type(value).__name__ == "SymInt" and type(value) is getattr(sys.modules.get("torch"), "SymInt", None):
        return value  # type: ignore[no-any-return]  # PyTorch is tracing: it stays a symbol, and has been checked there
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(stage, argument, value, "must be an integer", f"Write an int >= {minimum}")
    try:
        number = operator.index(value)
    except TypeError:  # an array of several elements has __index__ too
        raise ArgumentTypeError(stage, argument, value, "must be an integer", f"Write an int >= {minimum}") from None
    if number < minimum:
        raise ArgumentError(stage, argument, number, f"must be >= {minimum}", f"Write an int >= {minimum}")
    if number > INT64_MAX:
        raise ArgumentError(stage, argument, number, "must fit a signed 64-bit integer", "Write a smaller number")
    return number


@reads
def triple(stage: str, argument: str, value: Any, minimum: int) -> Triple:
    """One integer for all three axes, or one for each of depth, height, width."""
    if isinstance(value, (str, bytes)):
        raise ArgumentTypeError(
            stage, argument, value, "must be an int or three ints (depth, height, width)", "Write numbers, not text"
        )
    if isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0:
        items = tuple(islice(value, 1000))  # some never end
        if len(items) not in (1, 3):
            raise ArgumentError(
                stage,
                argument,
                items,
                f"must be an int or three ints (depth, height, width), not {len(items)} values",
                "Give one number for each axis",
            )
        d, h, w = (integer(stage, argument, item, minimum) for item in (items * 3)[:3])
        return d, h, w
    number = integer(stage, argument, value, minimum)
    return number, number, number


def as_triple(value: Any) -> Triple:
    """A parameter that `triple` has made one of."""
    d, h, w = value
    return d, h, w


@reads
def real(stage: str, argument: str, value: Any, *, nan: bool = False, minimum: float | None = None) -> float:
    """A C double. NaN is refused unless `nan`: as data it travels, as a parameter it would make the meaning void."""
    is_complex = isinstance(value, Complex) and not isinstance(value, Real)
    if (
        isinstance(value, (str, bytes))
        or is_complex
        or not (hasattr(value, "__float__") or hasattr(value, "__index__"))
    ):
        raise ArgumentTypeError(stage, argument, value, "must be a real number", "Write an int or a float")
    try:
        number = float(value)
    except OverflowError:
        raise ArgumentError(stage, argument, value, "must fit a C double", "Write a smaller number") from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(stage, argument, value, "must be a real number", "Write an int or a float") from None
    if math.isnan(number) and not nan:
        raise ArgumentError(stage, argument, number, "must not be NaN", "Write a number (infinities are allowed)")
    if minimum is not None and number < minimum:
        raise ArgumentError(stage, argument, number, f"must be >= {minimum:g}", f"Write a number >= {minimum:g}")
    return number


@reads
def flag(stage: str, argument: str, value: Any) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise ArgumentTypeError(stage, argument, value, "must be True or False", "Write True or False")


@reads
def one_of(stage: str, argument: str, value: Any, words: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in words:
        return value
    listed = " or ".join(repr(word) for word in words)
    raise ArgumentError(stage, argument, value, f"must be {listed}", f"Write {listed}")


# --- the arguments of a call ------------------------------------------------------------------------------------------

RENAMED = {"x": "input", "w": "weight"}  # as some write them, and as PyTorch and convt3d do
_SIZES = ("in_channels", "out_channels", "kernel_size", "num_features", "num_channels", "num_parameters")


def answers(function: Check, name: str = "") -> Check:
    """The function, whose callers get an Error (of `name`, or its own) for arguments it does not have, or lacks."""
    operator = name or function.__name__

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except TypeError as problem:
            wrong = None if isinstance(problem, Error) else wrong_call(operator, function, args, named)
            if wrong is None:
                raise
            raise wrong from None

    return call  # type: ignore[return-value]


def wrong_call(name: str, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Error | None:
    """What is wrong with the arguments, if they are not those of the function."""
    parameters = list(signature(function).parameters.values())
    own = int(bool(parameters) and parameters[0].name == "self")
    given, parameters = tuple(args[own:]), parameters[own:]
    placed = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    by_name = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    kinds = {p.kind for p in parameters}
    several = [f"*{p.name}" for p in parameters if p.kind is Parameter.VAR_POSITIONAL]
    takes = f"{name} takes {', '.join(placed + several + by_name) or 'no arguments'}"
    for word, value in named.items():
        twice = word in placed[: len(given)]
        if twice or (word not in placed + by_name and (Parameter.VAR_KEYWORD not in kinds or word in RENAMED)):
            rule, remedy = f"is {'given twice' if twice else 'unknown'}; {takes}", remedy_for(word, placed + by_name)
            return ArgumentTypeError(name, word, described(type(value).__name__), rule, remedy)
    if len(given) > len(placed) and Parameter.VAR_POSITIONAL not in kinds:
        rule = f"takes {', '.join(placed) or 'nothing'} by position" + (
            f"; {', '.join(by_name)} by name" * bool(by_name)
        )
        remedy = f"rite {name}({', '.join(['...'] * len(placed) + [f'{word}=...' for word in by_name[:1]])})"
        sizes = own and all(is_a(value, int) and not is_a(value, bool) for value in given)
        remedy = f"Sizes come from the tensors; w{remedy}" if sizes else f"W{remedy}"
        shown = given if own else described(f"{len(given)} values")
        return ArgumentTypeError(name, "arguments by position", shown, rule, remedy)
    for p in parameters:
        if p.default is Parameter.empty and p.name in {*placed, *by_name} - {*named, *placed[: len(given)]}:
            return ArgumentTypeError(name, p.name, described("no value"), f"is missing; {takes}", "Pass it")
    return None


def remedy_for(word: str, names: Sequence[str]) -> str:
    """What to write in the place of an unknown or repeated name."""
    if word in names:
        return "Pass it once, by position or by name"
    if word in _SIZES:
        return "Leave it out: sizes come from the tensors"
    near = [RENAMED[word]] if RENAMED.get(word) in names else difflib.get_close_matches(word, names, n=1, cutoff=0.45)
    return f"Write {near[0]}" if near else "Leave it out"
