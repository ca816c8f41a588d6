"""Cases near a known one: a few of its values changed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import Error
from ..spec.problem_file import Values
from ..spec.problems import Problem
from .cases import draw, work

MOST_OUTPUT, MOST_WORK = 4000, 300_000  # voxels and multiply-adds of a drawn case: each must be quick
_SPANS = {"padding": (0, 2), "output_padding": (0, 2), "kernel": (1, 5), "stride": (1, 4), "dilation": (1, 3)}


def draw_small(
    problem: Problem, near: Values | None, names: Sequence[str], rng: np.random.Generator
) -> tuple[Values, tuple[int, ...]] | None:
    """A small legal case and the shape of its output: `near` with a few values changed (those of `names`, if there are
    any), or one that has nothing to do with others."""
    for _ in range(5):
        values = dict(draw(problem, rng)) if near is None else _changed(near, names or list(near), rng)
        if work(problem, values) > MOST_WORK:
            continue
        try:
            shape = problem.shapes(values)["output"]
        except Error:
            continue
        if 2 <= prod(shape) <= MOST_OUTPUT:
            return values, shape
    return None


def _changed(values: Values, names: Sequence[str], rng: np.random.Generator) -> dict[str, Any]:
    changed = dict(values)
    for _ in range(int(rng.integers(1, 4))):
        name = names[int(rng.integers(len(names)))]
        stem, axis = name[:-2], name[-2:]
        if axis in ("_d", "_h", "_w") and rng.random() < 0.3:
            changed[name] = changed[f"{stem}_{rng.choice(list('dhw'))}"]
        else:
            changed[name] = _drawn(name, changed[name], rng)
    groups = changed.get("groups", 1)
    for name in ("in_channels", "out_channels"):
        changed[name] = -(-changed[name] // groups) * groups
    return legal(changed)


def _drawn(name: str, now: int | float, rng: np.random.Generator) -> int | float:
    if isinstance(now, float):
        return float(rng.choice((1.0, 0.0, round(float(rng.uniform(-2, 2)), 2))))
    if name in ("depth", "height", "width") or name.endswith("_channels"):
        near, any_size = max(1, now + int(rng.integers(-2, 3))), int(rng.integers(1, 19))
        return near if rng.random() < 0.5 else any_size
    low, high = next((span for stem, span in _SPANS.items() if name.startswith(stem)), (1, 3))
    return int(rng.integers(low, high + 1))


def legal(values: dict[str, Any]) -> dict[str, Any]:
    """With the output padding that strides and dilations leave room for, and clamps in order."""
    for axis in "dhw":
        extra = f"output_padding_{axis}"
        if extra in values:
            most = max(values[f"stride_{axis}"], values.get(f"dilation_{axis}", 1)) - 1
            values[extra] = min(values[extra], most)
    if "clamp_min" in values and values["clamp_min"] > values["clamp_max"]:
        values["clamp_min"], values["clamp_max"] = values["clamp_max"], values["clamp_min"]
    return values
