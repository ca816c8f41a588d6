"""The forms of what is exported: a pipeline as the planner makes it of sample parameters, and for which they serve.

Sizes change no code. Some parameters do, where they are known only at the call: a constant before a norm may be left
out if it is small, a stride decides how rows are put together. Each such choice is a form with kernels of its own, and
a condition in C that says for which parameters it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from ..cpu.plan.choice import PLAIN
from ..cpu.plan.machine import Machine
from ..cpu.plan.plan import Plan, SweepPlan, make_plan
from ..cpu.plan.winograd import MOST_PACE
from ..cpu.steps.winograd import WinogradConvolution
from ..errors import Error
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from ..spec.problem_file import SIZE, Values
from ..spec.problems import TENSOR_AXES, Problem
from ..spec.rewrite import simplify
from ..spec.shapes import LONG_STRIDE
from ..spec.stages import AvgPool3d, Conv3d, GroupNorm, MaxPool3d

# Numbers that float32 holds exactly and that no stage has of itself: found again among the constants of kernels.
SUM_WEIGHTS = {"fabs(sum_weight) <= 65536.0": 1.59375, "1": 70000.53125}
CLAMPS = {
    "clamp_max - clamp_min <= 40.0 && fabs(clamp_min) <= 20.0 && fabs(clamp_max) <= 20.0": (-1.28125, 2.71875),
    "clamp_max - clamp_min <= 40.0 && isfinite(clamp_min) && isfinite(clamp_max)": (-30.28125, 2.71875),
    "1": (-100.28125, 102.71875),
}
SCALING = 3.28125
POOL_KERNELS = {"pool_kernel == 2": 2, "1": 3}
MANY_PHASES = LONG_STRIDE + 1

# Sizes that no two axes share and no product of which is another: equal shapes are equal for every size.
LARGE, SMALL, _BATCH = (37, 41, 43), (11, 12, 13), 3
_KERNELS, _CHANNELS = (3, 5, 7, 2, 4, 1), ((5, 7), (5, 5), (5, 1), (1, 5))


@dataclass(frozen=True)
class Ways:
    """How a sweep can be computed; the library chooses, as the planner does."""

    direct: SweepPlan  # also where it holds no convolution
    others: tuple[SweepPlan | None, ...]  # by Winograd's method: a position is one output wide, or two; or any number


@dataclass(frozen=True)
class Form:
    condition: str  # in C, of the parameters; the first form for which it holds is taken
    plan: Plan
    values: Values  # of the parameters of a problem, in this form
    ways: tuple[Ways, ...]  # of each sweep

    @property
    def pipeline(self) -> Pipeline:
        return self.plan.pipeline


@dataclass(frozen=True)
class Subject:
    """What is exported."""

    name: str  # of the library, and of all that it offers
    pipeline: Pipeline
    problem: Problem | None

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Names and types of those that are no sizes of arrays."""
        if self.problem is None:
            return []
        sizes = {name for axes in TENSOR_AXES.values() for name in axes}
        return [(p.name, p.type) for p in self.problem.parameters if not p.pointer and p.name not in sizes]

    @property
    def integers(self) -> list[str]:
        return [name for name, kind in self.parameters if kind == SIZE]

    @property
    def reals(self) -> list[str]:
        return [name for name, kind in self.parameters if kind != SIZE]

    @property
    def operands(self) -> tuple[str, ...]:
        return self.pipeline.operand_names if self.problem is None else self.problem.operand_names

    def forms(self, dtype: DType, machine: Machine) -> list[Form]:
        if self.problem is None:
            return [_form("1", self.pipeline, {}, dtype, machine, False)]
        dilated = any(name.startswith("dilation") for name, _ in self.parameters)
        return [
            _form(condition, self.problem.pipeline(values), values, dtype, machine, dilated)
            for condition, values in _choices(self.problem, dtype)
        ]


def _choices(problem: Problem, dtype: DType) -> Iterator[tuple[str, Values]]:
    """Conditions, and parameters for which they hold."""
    known = problem.benchmark
    options: list[dict[str, Mapping[str, Any]]] = []
    if "sum_weight" in known:
        options.append({condition: {"sum_weight": value} for condition, value in SUM_WEIGHTS.items()})
    if "clamp_min" in known:
        options.append({text: {"clamp_min": low, "clamp_max": high} for text, (low, high) in CLAMPS.items()})
    if "pool_kernel" in known:
        options.append({condition: {"pool_kernel": value} for condition, value in POOL_KERNELS.items()})
    base = {**known, **{name: 0 for name in known if name.startswith("output_padding_")}}
    if "scaling_factor" in known:
        base["scaling_factor"] = SCALING
    for chosen in product(*(option.items() for option in options)):
        values = dict(base)
        for _, changes in chosen:
            values.update(changes)
        for condition, strides in _strides(problem, values, dtype):
            both = [text for text in (*(text for text, _ in chosen), condition) if text != "1"]
            yield " && ".join(f"({text})" for text in both) or "1", {**values, **strides}


def _strides(problem: Problem, values: Values, dtype: DType) -> Iterator[tuple[str, Values]]:
    """Strides that code depends on: those of a pool over the phases, and how rows are put together."""
    pipeline = simplify(problem.pipeline(values), dtype, tame=False).pipeline
    for stage in pipeline.stages[pipeline.conv_index + 1 :]:
        if isinstance(stage, (MaxPool3d, AvgPool3d)) and stage.triples[0] == stage.triples[1]:
            window = dict(zip("dhw", stage.triples[0], strict=True))
            yield (
                " && ".join(f"stride_{axis} == {size}" for axis, size in window.items()),
                {f"stride_{axis}": size for axis, size in window.items()},
            )
    for width in (1, 2):
        yield f"stride_w == {width}", {"stride_d": 3, "stride_h": 3, "stride_w": width}
    yield "1", {"stride_d": 3, "stride_h": 3, "stride_w": MANY_PHASES}


def shapes_for(pipeline: Pipeline, sizes: tuple[int, int, int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Of the input and the operands, for a volume of these sizes. Values that are added to each other may need equal
    channels, or a kernel that keeps the size."""
    groups = prod(stage.num_groups for stage in pipeline.stages if isinstance(stage, GroupNorm)) * pipeline.conv.groups
    problem: Error | None = None
    for taps, (per_in, per_out) in product(_KERNELS, _CHANNELS):
        cin, cout = per_in * groups, per_out * groups
        before, after = (cout, cin) if isinstance(pipeline.conv, Conv3d) else (cin, cout)
        x = (_BATCH, cin, *sizes)
        try:
            return x, pipeline.operand_shapes(x, (before, after // pipeline.conv.groups, taps, taps, taps))
        except Error as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _form(condition: str, pipeline: Pipeline, values: Values, dtype: DType, machine: Machine, dilated: bool) -> Form:
    """Plans without rewrites that need to look at arrays, for sizes that stand for all. `dilated`: it may be, at the
    call."""
    x, operands = shapes_for(pipeline, LARGE)

    def planned(outputs: tuple[int, int, int] | None = None) -> Plan:
        options = PLAIN if outputs is None else replace(PLAIN, algorithm="auto", outputs=outputs)
        return make_plan(pipeline, x, operands, dtype, options, tame=False, host=machine)

    plan = planned()
    narrow, wide = planned((2, 2, 1)), planned((2, 2, 2))

    def ways(at: int) -> Ways:
        sweep = plan.sweeps[at]
        if sweep.register_tile is None:
            return Ways(sweep, (None, None, None))
        found = [_for_any_kernel(one.sweeps[at]) for one in (narrow, wide)]
        any_pace = _for_any_kernel(wide.sweeps[at], 0) if dilated else None
        return Ways(sweep, (*found, any_pace))

    return Form(condition, plan, values, tuple(map(ways, range(len(plan.sweeps)))))


def _for_any_kernel(planned: SweepPlan, pace: int | None = None) -> SweepPlan | None:
    """Whose transforms are found when it runs, and positions are `pace` inputs wide, if not as in the sample."""
    (at,) = [n for n, step in enumerate(planned.structure.steps) if isinstance(step, WinogradConvolution)]
    steps = list(planned.structure.steps)
    step = steps[at]
    assert isinstance(step, WinogradConvolution)
    if step.pace > MOST_PACE:
        return None
    steps[at] = replace(step, gathers=(), scatters=(), pace=step.pace if pace is None else pace)
    return replace(planned, structure=replace(planned.structure, steps=tuple(steps)))
