"""A failing case made small: step by step, each to a case that fails too and whose sizes add up to less.

It ends where no step leads on, or after a number of tries: what is found is small, but perhaps not the smallest there
is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..errors import Error
from ..spec.problem_file import Values
from ..spec.problems import Problem
from .cases import work
from .near import legal

MOST_TRIES = 120  # cases asked about

Asked = Callable[[Values], "bool | None"]  # whether a case fails; None where that cannot be told
Change = Callable[[dict[str, Any]], None]

_CHANNELS = ("in_channels", "out_channels")
_STEPS = (16, 8, 4, 2, 1)  # what is left over from blocks stays so
_VOLUME = {"d": "depth", "h": "height", "w": "width"}
_PLAIN = {"stride": 1, "kernel": 1, "dilation": 1, "padding": 0, "output_padding": 0}
_PLAIN_SCALARS = {"sum_weight": 1.0, "scaling_factor": 1.0, "clamp_min": -np.inf, "clamp_max": np.inf}


def size(problem: Problem, values: Values) -> tuple[int, int, int]:
    """By which cases are compared: the sum of the sizes, multiply-adds, and how many scalars are not plain."""
    sizes = sum(number for number in values.values() if isinstance(number, int))
    odd = sum(values[name] != plain for name, plain in _PLAIN_SCALARS.items() if name in values)
    return sizes, work(problem, values), odd


def shrink(problem: Problem, start: Values, fails: Asked, hurry: Callable[[], bool] = lambda: False) -> Values:
    """`start` is known to fail. `hurry` says when there is no time for more tries."""
    smallest, asked = dict(start), set[tuple[Any, ...]]()
    changes, still = list(_changes(problem)), 0
    while still < len(changes):  # all of them once in vain
        for change in changes:
            still += 1
            smaller = dict(smallest)
            change(smaller)
            legal(smaller)
            key = tuple(smaller.values())
            if key in asked or not size(problem, smaller) < size(problem, smallest):
                continue
            if len(asked) == MOST_TRIES or hurry():
                return smallest
            asked.add(key)
            if fails(smaller):
                smallest, still = smaller, 0
    return smallest


def _changes(problem: Problem) -> Iterator[Change]:
    """The large steps first."""
    names = problem.sample
    stems = [stem for stem in _PLAIN if f"{stem}_d" in names]
    volume = tuple(_VOLUME.values())
    yield _to("batch_size", 1)
    if "groups" in names:
        yield _groups(lambda groups: 1)
    for axis in "dhw":
        yield _plain_axis(problem, axis, stems)
    for stem in ("dilation", "output_padding", "padding"):
        if stem in stems:
            yield from (_to(f"{stem}_{axis}", _PLAIN[stem]) for axis in "dhw")
    for stem in ("stride", "kernel"):
        for one, other in ("hw", "dw", "dh"):  # the second way where the first leaves nothing of the volume
            yield _as(f"{stem}_{one}", f"{stem}_{other}")
            yield _as(f"{stem}_{other}", f"{stem}_{one}")
    for stem in ("stride", "kernel"):
        yield from (_to(f"{stem}_{axis}", 1) for axis in "dhw")
    if "pool_kernel" in names:
        yield _to("pool_kernel", 1)
    for most in (32, 16, 8, 4, 2, 1):
        yield from (_channels(name, partial(min, most)) for name in _CHANNELS)
        yield from (_by(name, partial(min, most)) for name in volume)
    yield from (_to(name, plain) for name, plain in _PLAIN_SCALARS.items() if name in names)
    if "groups" in names:
        yield _groups(partial(_less, 1, 1))
    for step in _STEPS:
        yield from (_channels(name, partial(_less, step, 1)) for name in _CHANNELS)
        yield from (_by(name, partial(_less, step, 1)) for name in volume)
    for name in ("batch_size", "pool_kernel"):
        if name in names:
            yield _by(name, partial(_less, 1, 1))
    for stem in stems:
        yield from (_by(f"{stem}_{axis}", partial(_less, 1, _PLAIN[stem])) for axis in "dhw")


def _to(name: str, value: float) -> Change:
    return lambda values: values.update({name: value})


def _as(name: str, other: str) -> Change:
    return lambda values: values.update({name: values[other]})


def _less(step: int, least: int, number: int) -> int:
    return max(number - step, least)


def _by(name: str, fewer: Callable[[int], int]) -> Change:
    return lambda values: values.update({name: fewer(values[name])})


def _channels(name: str, fewer: Callable[[int], int]) -> Change:
    """Fewer channels in each group."""

    def change(values: dict[str, Any]) -> None:
        groups = values.get("groups", 1)
        values[name] = fewer(values[name] // groups) * groups

    return change


def _groups(fewer: Callable[[int], int]) -> Change:
    """Fewer groups of as many channels each."""

    def change(values: dict[str, Any]) -> None:
        groups = fewer(values["groups"])
        values.update({name: values[name] // values["groups"] * groups for name in _CHANNELS})
        values["groups"] = groups

    return change


def _plain_axis(problem: Problem, axis: str, stems: list[str]) -> Change:
    """A kernel of one along this axis, and as much volume as gives the same output."""

    def change(values: dict[str, Any]) -> None:
        try:
            shapes = problem.shapes(values)
            pipeline = problem.pipeline(values)
            trace = pipeline.trace(shapes["input"], [shapes[name] for name in problem.operand_names]).values
        except Error:
            return
        at, place = 2 + "dhw".index(axis), pipeline.conv_index
        before, after = trace[place][at], trace[place + 1][at]
        values[_VOLUME[axis]] = after * (values[_VOLUME[axis]] // max(before, 1))  # `before` is less behind a pool
        values.update({f"{stem}_{axis}": _PLAIN[stem] for stem in stems})

    return change
