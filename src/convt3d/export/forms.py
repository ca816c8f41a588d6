"""The forms of what is exported: a pipeline as the planner makes it of sample parameters, and for which they serve.

Sizes change no code. Some parameters do, where they are known only at the call: a constant before a norm may be left
out if it is small, a stride decides how rows are put together. Each such choice is a form with kernels of its own, and
a condition in C that says for which parameters it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain, islice, product
from math import lcm
from typing import Any

from ..cpu.plan.choice import Options
from ..cpu.plan.machine import Machine
from ..cpu.plan.plan import Plan, SweepPlan, make_plan
from ..cpu.plan.winograd import MOST_PACE
from ..cpu.steps.direct import HEIGHTS, DirectConvolution, MaskedConvolution
from ..cpu.steps.winograd import WinogradConvolution
from ..errors import Error
from ..plan.segments import Constant, Given, Segment, Value, segments
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline, Trace
from ..spec.problem_file import SIZE, Values
from ..spec.problems import TENSOR_AXES, Problem
from ..spec.rewrite import simplify
from ..spec.shapes import LONG_STRIDE
from ..spec.stages import AvgPool3d, Conv3d, Convolution, GroupNorm, MaxPool3d

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
_TRIED = 20000  # of kernels that differ from one convolution to the next


@dataclass(frozen=True)
class Ways:
    """How a sweep can be computed; the library chooses, as the planner does."""

    direct: SweepPlan  # also where it holds no convolution
    by_rows: SweepPlan | None  # where channels have taps of their own: as many groups, or one channel
    in_pieces: SweepPlan | None  # where taps lie far apart, or channels are very many
    masked: tuple[SweepPlan | None, ...]  # for weights that are not finite: whole, or in pieces
    winograd: tuple[SweepPlan | None, ...]  # a position is one output wide, or two; or any number

    @property
    def others(self) -> tuple[SweepPlan | None, ...]:
        return (self.by_rows, self.in_pieces, *self.masked, *self.winograd)


@dataclass(frozen=True)
class Form:
    """A pipeline as it runs, cut into sweeps."""

    condition: str  # in C, of the parameters; the first form for which it holds is taken
    plan: Plan
    values: Values  # of the parameters of a problem, in this form
    ways: tuple[Ways, ...]  # of each sweep
    average: str = ""  # the rewrite that put one into the weights, which depends on sizes
    apart: Form | None = None  # the same with a pool before the convolution in a sweep of its own
    tame: Form | None = None  # the same with rewrites that rely on tame operands

    @property
    def pipeline(self) -> Pipeline:
        return self.plan.pipeline

    @property
    def all(self) -> list[Form]:
        """What may take its place, and it: each after those it refers to."""
        return [*(one for other in (self.apart, self.tame) if other is not None for one in other.all), self]


@dataclass(frozen=True)
class Part:
    """One convolution, and the stages that go with it."""

    pipeline: Pipeline
    source: int  # number of the value that enters; 0 is the input, and each part gives the next one
    repeated: int  # along axes of size 1, to the sizes of this operand of its own; -1: as it is
    operands: tuple[int | None, ...]  # 0 and more: of the call; -1 - n: value n; None: a kernel of ones
    last_reader: int  # of the value that it gives: the number of the part that reads it last

    @property
    def of_ones(self) -> bool:
        """Its convolution is thrown away, and has as many groups as channels."""
        return None in self.operands


def _parts(cut: Sequence[Segment], trace: Trace) -> Iterator[Part]:
    numbers = {Value(0): 0, **{segment.result: at for at, segment in enumerate(cut, start=1)}}
    for at, segment in enumerate(cut):
        operands = tuple(
            None if isinstance(one, Constant) else one.place if isinstance(one, Given) else -1 - numbers[one]
            for one in segment.operands
        )
        larger = segment.shape != segment.source.shape(trace)
        repeated = next(slot for slot, one in enumerate(segment.operands) if isinstance(one, Value)) if larger else -1
        readers = (n for n, one in enumerate(cut) if segment.result in (one.source, *one.operands))
        yield Part(segment.pipeline, numbers[segment.source], repeated, operands, max(readers, default=at))


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

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What runs one after the other."""
        if len(self.pipeline.convolutions) == 1:
            return (Part(self.pipeline, 0, -1, tuple(range(len(self.pipeline.slots))), 0),)
        x, operands = shapes_for(self.pipeline, LARGE)
        trace = self.pipeline.trace(x, operands)
        return tuple(_parts(segments(self.pipeline, trace), trace))

    def forms(self, part: Part, dtype: DType, machine: Machine) -> list[Form]:
        if self.problem is None:
            return [_form("1", part.pipeline, {}, dtype, machine, ())]
        return [
            _form(condition, self.problem.pipeline(values), values, dtype, machine, self.integers, turns=turns)
            for condition, values, turns in choices(self.problem, dtype)
        ]

    def averaged(self, part: Part, dtype: DType, machine: Machine) -> list[Form]:
        """Forms in which an average right behind the convolution is part of its weights. No problem has one."""
        names = [] if self.problem else _changes(part.pipeline, dtype, machine, averages=True)
        if not (names and names[-1] in AVERAGES):
            return []
        return [_form("1", part.pipeline, {}, dtype, machine, (), average=names[-1])]


def choices(problem: Problem, dtype: DType) -> Iterator[tuple[str, Values, bool]]:
    """Conditions, parameters for which they hold, and whether a max-pool begins with the phases then."""
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
        for condition, strides, turns in _strides(problem, values, dtype):
            both = [text for text in (*(text for text, _ in chosen), condition) if text != "1"]
            yield " && ".join(f"({text})" for text in both) or "1", {**values, **strides}, turns


def _strides(problem: Problem, values: Values, dtype: DType) -> Iterator[tuple[str, Values, bool]]:
    """Strides that code depends on: those of a pool over the phases, and how rows are put together."""
    pipeline = simplify(problem.pipeline(values), dtype, tame=False).pipeline
    for stage in pipeline.stages[pipeline.conv_index + 1 :]:
        if isinstance(stage, (MaxPool3d, AvgPool3d)) and stage.triples[0] == stage.triples[1]:
            window = dict(zip("dhw", stage.triples[0], strict=True))
            same = " && ".join(f"stride_{axis} == {size}" for axis, size in window.items())
            yield same, {f"stride_{axis}": size for axis, size in window.items()}, False
            if isinstance(stage, MaxPool3d):
                yield from _whole_turns(stage.triples[0])
    for width in (1, 2):
        yield f"stride_w == {width}", {"stride_d": 3, "stride_h": 3, "stride_w": width}, False
    yield "1", {"stride_d": 3, "stride_h": 3, "stride_w": MANY_PHASES}, False


def _whole_turns(window: tuple[int, int, int]) -> Iterator[tuple[str, Values, bool]]:
    """Strides that divide the window of a max-pool: not all of them 1, nor the window itself, which has its form. Its
    code depends on whether two positions are left of it along the width."""
    depth, height, width = ([n for n in range(1, LONG_STRIDE + 1) if size % n == 0] for size in window)
    for pairs in (True, False):
        own = [n for n in width if (window[2] == 2 * n) == pairs]
        if own and max(depth[-1], height[-1]) > 1:
            ways = zip("dhw", (depth, height, own), strict=True)
            among = (" || ".join(f"stride_{axis} == {n}" for n in found) for axis, found in ways)
            some = "stride_d > 1 || stride_h > 1 || stride_w > 1"
            condition = " && ".join(f"({text})" for text in (*among, some))
            sample = {"stride_d": depth[:2][-1], "stride_h": height[-1], "stride_w": own[0]}
            yield condition, sample, True


def shapes_for(pipeline: Pipeline, sizes: tuple[int, int, int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Of the input and the operands, for a volume of these sizes, or of even ones. Values that are added to each other
    may need equal channels, or kernels that keep the size."""
    convs = [stage for stage in pipeline.stages if isinstance(stage, Convolution)]
    groups = lcm(*(stage.num_groups for stage in pipeline.stages if isinstance(stage, GroupNorm)))
    groups *= lcm(*(stage.groups for stage in convs))
    problem: Error | None = None
    for volume, (per_in, per_out), taps in _samples(sizes, len(convs)):
        x = (_BATCH, per_in * groups, *volume)
        try:
            return x, pipeline.operand_shapes(x, *_kernels(convs, x[1], per_out * groups, taps))
        except Error as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _samples(
    sizes: tuple[int, int, int], convs: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, int], Sequence[int]]]:
    """Volumes, channels, and taps of each kernel; not without end."""
    volumes = (sizes, tuple(16 * -(-size // 16) + 16 * axis for axis, size in enumerate(sizes)))
    alike = product(volumes, _CHANNELS, ((taps,) * convs for taps in _KERNELS))
    any_taps = product(volumes, _CHANNELS, product(_KERNELS, repeat=convs))
    return chain(alike, islice(any_taps, _TRIED)) if convs > 1 else alike


def _kernels(
    convs: Sequence[Convolution], cin: int, cout: int, taps: Sequence[int]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Channels alternate, from the input to the result."""
    for number, (stage, k) in enumerate(zip(convs, taps, strict=True)):
        before, after = (cin, cout) if number % 2 == 0 else (cout, cin)
        first, second = (after, before) if isinstance(stage, Conv3d) else (before, after)
        yield first, second // stage.groups, k, k, k


def _form(
    condition: str,
    pipeline: Pipeline,
    values: Values,
    dtype: DType,
    machine: Machine,
    may: Collection[str],
    tame: bool = False,
    apart: bool = False,
    average: str = "",
    turns: bool = True,
) -> Form:
    """Plans for sizes that stand for all. `may` are words for what the convolution may have at the call, `turns` says
    whether a max-pool over whole turns of phases begins with these."""
    x, operands = shapes_for(pipeline, LARGE)

    def planned(outputs: tuple[int, int, int]) -> Plan:
        options = Options(outputs=outputs, apart=apart, plain=True, turns=turns, averages=bool(average))
        return make_plan(pipeline, x, operands, dtype, options, tame or bool(average), machine)

    plan, narrow, wide = (planned(outputs) for outputs in ((1, 1, 1), (2, 2, 1), (2, 2, 2)))

    def ways(at: int) -> Ways:
        if plan.sweeps[at].register_tile is None:
            return Ways(plan.sweeps[at], None, None, (None, None), (None, None, None))
        direct = _directly(plan.sweeps[at], pointwise=False)
        found = [_for_any_kernel(one.sweeps[at]) for one in (narrow, wide)]
        any_pace = _for_any_kernel(wide.sweeps[at], 0) if "dilation_w" in may else None
        heights, high = tuple(range(1, HEIGHTS.stop)), direct.where.method.walks[1].pace
        by_rows = None
        if not direct.where.pairs:
            by_rows = _directly(direct, heights=heights, high=high)  # whatever the taps along the height
        masked = _masked(direct)
        both = masked, _directly(masked, in_pieces=True)
        return Ways(direct, by_rows, _directly(direct, in_pieces=True), both, (*found, any_pace))

    own = tuple(map(ways, range(len(plan.sweeps))))
    before = plan.pipeline.stages[: plan.pipeline.conv_index]
    given = condition, pipeline, values, dtype, machine, may
    other = rewritten = None
    if not apart and any(isinstance(stage, (MaxPool3d, AvgPool3d)) for stage in before):
        other = _form(*given, tame=tame, apart=True, turns=turns)
    if not (tame or apart or average) and _changes(pipeline, dtype, machine, averages=False):
        rewritten = _form(*given, tame=True, turns=turns)
    return Form(condition, plan, values, own, average, other, rewritten)


# How operands change where a pipeline is rewritten: what a library calls it.
PREPARED = {
    "bias_before_norm": "LEAVE_OUT",
    "bias_through_max_pool": "SAME_NUMBERS",
    "scale_into_softmax": "SAME_NUMBERS",
    "channel_constant_through_sum": "ADDED_UP",
    "batch_norm_into_weights": "INTO_WEIGHTS",
    "pool_into_weights": "POOL_TAPS",
    "mean_over_taps": "SUM_TAPS",
}
AVERAGES = ("pool_into_weights", "mean_over_taps")


def _changes(pipeline: Pipeline, dtype: DType, machine: Machine, averages: bool) -> list[str]:
    """Rewrites for tame operands that change them; none where libraries do not know how each of them does."""
    x, operands = shapes_for(pipeline, LARGE)
    options = Options(plain=True, averages=averages)
    steps = make_plan(pipeline, x, operands, dtype, options, True, machine).rewritten.steps
    names = [step.name for step in steps if step.prepare is not None]
    return names if all(name in PREPARED for name in names) else []


def _directly(planned: SweepPlan, **changes: Any) -> SweepPlan:
    """The same with other code of direct summation."""
    steps = tuple(
        replace(step, **changes) if isinstance(step, DirectConvolution) else step for step in planned.structure.steps
    )
    return replace(planned, structure=replace(planned.structure, steps=steps))


def _masked(planned: SweepPlan) -> SweepPlan:
    """The same without the products around the array."""
    steps = tuple(
        MaskedConvolution(**{field.name: getattr(step, field.name) for field in fields(MaskedConvolution)})
        if isinstance(step, DirectConvolution)
        else step
        for step in planned.structure.steps
    )
    return replace(planned, structure=replace(planned.structure, steps=steps))


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
