"""The cases a kernel is tried on: those of the problem file, and some drawn anew in every run.

Data are signed and unsaturated. A case that zeros, a constant, a constant for each channel, or the result without the
kernel's weights (the bias alone) would pass proves nothing, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..errors import ArgumentError, Error, described
from ..front.verify import Storage
from ..spec.dtypes import DType
from ..spec.problem_file import Case, Values
from ..spec.problems import Problem
from ..spec.reference import evaluate
from ..spec.rewrite import round_scalars
from .tolerance import Array, Expectation, expectation

DRAWN = 4
MOST_WORK = 10_000_000  # multiply-adds of one case: what slow, honest loops do within seconds


@dataclass(frozen=True, eq=False)
class Trial:
    """A case with its data: arrays as stored, and what is expected of them."""

    case: Case
    problem: Problem
    dtype: DType
    arrays: Mapping[str, Storage]  # input tensors by name, in the problem's order
    expected: Expectation

    @property
    def values(self) -> Values:
        return self.case.values

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.expected.values.shape)


def make_trial(problem: Problem, case: Case, dtype: DType, rng: np.random.Generator) -> Trial:
    wide = problem.make_inputs(case.values, rng)
    return trial_of(problem, case, dtype, {name: dtype.narrow(wide[name]) for name in wide}, rng)


def trial_of(
    problem: Problem, case: Case, dtype: DType, arrays: Mapping[str, Storage], rng: np.random.Generator
) -> Trial:
    expected = expectation(problem.pipeline(case.values), dtype, *_tensors(problem, dtype, arrays), rng)
    return Trial(case, problem, dtype, arrays, expected)


def _tensors(problem: Problem, dtype: DType, arrays: Mapping[str, Storage]) -> tuple[Array, list[Array]]:
    """In float64: the input, and the operands in the pipeline's order with vectors 1-D."""
    wide = {name: dtype.widen(array) for name, array in arrays.items()}
    operands = [wide[name] if name == "kernel" else wide[name].reshape(-1) for name in problem.operand_names]
    return wide["input"], operands


def weakness(trial: Trial) -> str | None:
    """What would pass this trial without doing the work."""
    expected = trial.expected
    exact = expected.values
    if not exact.size:
        return "an empty result"
    everywhere, per_channel = (0, 1, 2, 3, 4), (0, 2, 3, 4)
    idle = {**trial.arrays, "kernel": np.zeros_like(trial.arrays["kernel"])}
    pipeline = round_scalars(trial.problem.pipeline(trial.values), trial.dtype)
    answers: dict[str, Array] = {
        "zeros": np.zeros_like(exact),
        "a constant": _middle(exact, everywhere),
        "a constant for each channel": _middle(exact, per_channel),
        "the result without the kernel's weights": evaluate(pipeline, *_tensors(trial.problem, trial.dtype, idle)),
    }
    return next((name for name, answer in answers.items() if expected.accepts(answer)), None)


def _middle(exact: Array, axes: tuple[int, ...]) -> Array:
    with np.errstate(invalid="ignore"):
        middle = (exact.max(axis=axes, keepdims=True) + exact.min(axis=axes, keepdims=True)) / 2
    return np.broadcast_to(middle, exact.shape)


@dataclass(frozen=True, eq=False)
class Suite:
    """The trials of a run in their order, and the cases left out with the reason."""

    trials: tuple[Trial, ...]
    left_out: Mapping[str, str]


def build_suite(
    problem: Problem,
    dtype: DType,
    rng: np.random.Generator,
    names: Sequence[str] = (),
    most_work: int = MOST_WORK,
    changes: Values | None = None,
) -> Suite:
    """The sample, the file's cases, then drawn ones; or those in `names`, with some values changed. The first comes
    three times, with other data in the same memory."""
    cases, changes = known_cases(problem, rng), changes or {}
    if changes:
        names = names or ("sample",)
        for name in names:
            if case := cases.get(name):
                values = changed_values(problem, case.values, changes)
                cases[name] = Case(name, f"{case.why}, changed", values)
    for name in names:
        if name not in cases:
            rule = "names no case of the problem"
            raise ArgumentError(problem.slug, "--case", name, rule, f"Use one of {', '.join(cases)}, or an .npz file")
    trials: list[Trial] = []
    left_out = {}
    for name, case in cases.items():
        if names and name not in names:
            continue
        if not names and work(problem, case.values) > most_work:
            left_out[name] = f"more than {most_work} multiply-adds"
            continue
        trial = make_trial(problem, case, dtype, rng)
        weak = weakness(trial)
        if weak and case.values["batch_size"] == 1 and "batch_size" not in changes:  # such as a single voxel
            why = f"{case.why}; with 2 samples, since of one {weak} would pass"
            case = Case(name, why, {**case.values, "batch_size": 2})
            trial = make_trial(problem, case, dtype, rng)
            weak = weakness(trial)
        if weak:
            left_out[name] = f"{weak} would pass"
            continue
        trials += [trial] if trials else [trial, *(make_trial(problem, case, dtype, rng) for _ in range(2))]
    return Suite(tuple(trials), left_out)


def changed_values(problem: Problem, values: Values, changes: Values) -> Values:
    """Sizes and scalars with some changed; an error names what does not fit."""
    changed = problem.checked({**values, **changes})
    if not prod(problem.shapes(changed)["output"]):
        asked = described(", ".join(f"{name}={value:g}" for name, value in changes.items()))
        rule = "gives an empty result, of which nothing can be wrong"
        raise ArgumentError(problem.slug, "--set", asked, rule, "Choose larger sizes")
    return changed


def known_cases(problem: Problem, rng: np.random.Generator) -> dict[str, Case]:
    sample = Case("sample", "the small example of the problem's text", problem.sample)
    drawn = [Case(f"drawn-{number}", "sizes nobody chose", draw(problem, rng)) for number in range(1, DRAWN + 1)]
    return {case.name: case for case in (sample, *problem.cases, *drawn)}


def work(problem: Problem, values: Mapping[str, Any]) -> int:
    """Multiply-adds of the convolution, those that fall outside included."""
    size = prod(values[name] for name in ("batch_size", "in_channels", "out_channels", "depth", "height", "width"))
    return int(size * prod(values[f"kernel_{axis}"] for axis in "dhw") // values.get("groups", 1))


_SIZES = (1, 2, 3, 5, 7)
_CHANNELS = (1, 2, 3, 5, 6, 7, 11)


def draw(problem: Problem, rng: np.random.Generator) -> Values:
    """Small legal values with unequal strides."""
    while True:
        values = _draw_once(problem, rng)
        try:
            shapes = problem.shapes(values)
        except Error:
            continue
        if 2 <= prod(shapes["output"]) <= 20_000 and work(problem, values) <= MOST_WORK // 8:
            return values


def _draw_once(problem: Problem, rng: np.random.Generator) -> dict[str, int | float]:
    pools = 6 if "max-max" in problem.slug else 1
    groups = int(rng.choice((1, 1, 2, 3)))
    values: dict[str, int | float] = {}
    for name, given in problem.sample.items():
        if isinstance(given, float):
            values[name] = round(float(rng.uniform(-2.0, 2.0)), 2)
        elif name == "batch_size":
            values[name] = int(rng.integers(1, 4))
        elif name.endswith("_channels"):
            values[name] = int(rng.choice(_CHANNELS)) * (groups if "groups" in problem.sample else 1)
        elif name in ("depth", "height", "width"):
            values[name] = int(rng.choice(_SIZES)) + int(rng.integers(pools))
        elif name.startswith(("kernel_", "stride_")):
            values[name] = int(rng.integers(1, 5))
        elif name.startswith("dilation_"):
            values[name] = int(rng.integers(1, 4))
        elif name.startswith(("padding_", "output_padding_")):
            values[name] = int(rng.integers(0, 3))
        else:
            values[name] = groups if name == "groups" else int(rng.integers(1, 4))
    if "clamp_min" in values:
        values["clamp_min"], values["clamp_max"] = sorted((values["clamp_min"], values["clamp_max"] + 0.5))
    strides = [values[f"stride_{axis}"] for axis in "dhw"]
    if len(set(strides)) == 1:
        values["stride_w"] = strides[0] % 4 + 1
    return values
