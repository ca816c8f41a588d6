"""A Plan: how one pipeline runs on arrays of given shapes and type. Frozen; making one touches no array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from ...plan.base import BasePlan, by
from ...plan.names import OUTPUT, ArrayName, StatisticName
from ...plan.prepare import rewrite
from ...plan.sweeps import Finish, PhasePool, Sweep, Windowed, cut, output_values
from ...spec import work
from ...spec.dtypes import DType, bfloat16
from ...spec.lazy import lazy
from ...spec.pipeline import Pipeline, Trace
from ...spec.rewrite import Rewritten, max_pool_over_phases, strides_of_one_input
from ...spec.stages import AvgPool3d, MaxPool3d
from ...spec.stages.padding import Pad
from ..steps.base import Where
from .beside import with_samples_beside
from .choice import AUTO, DIRECT, MASKED, Choice, Options, choose_method, direct_method
from .machine import Machine, machine
from .pieces import Pieces
from .registers import RegisterTile
from .structure import Structure
from .tile_cost import cost
from .tiles import Tiling
from .winograd import Method


@dataclass(frozen=True)
class SweepPlan:
    """One walk over tiles: its steps, the code they need, and the tiles for these sizes."""

    sweep: Sweep
    where: Where
    structure: Structure
    tiling: Tiling
    streamed: bool  # the result is stored past the caches

    @property
    def register_tile(self) -> RegisterTile | None:
        """Of the sweep's convolution."""
        if not any(step.convolves for step in self.structure.steps):
            return None
        return self.where.register_tile


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(BasePlan):
    options: Options
    tame: bool  # whether rewrites may rely on finite operands of moderate size
    reach: tuple[int, int, int]  # outputs of the convolution along D, H, W that are computed
    phase_pool: int | None  # stage that pools over the convolution's phases
    work: work.Work
    method: Method
    machine: Machine
    sweeps: tuple[SweepPlan, ...]
    aliases: tuple[ArrayName, ...]  # intermediate values that live in the output array

    def rewrites(self) -> list[tuple[str, str]]:
        """Also those of what the convolution computes."""
        taken, conv = super().rewrites(), self.simplified.values[self.pipeline.conv_index + 1]
        if self.reach != conv[2:]:
            taken.append(("unread_outputs", f": {by(conv[2:])} -> {by(self.reach)} of the convolution are computed"))
        if self.phase_pool is not None:
            pool = self.pipeline.stages[self.phase_pool]
            taken.append(("pool_over_phases", f": every window of {pool!r} holds each phase once"))
        return taken

    @property
    def algorithm(self) -> str:
        return "direct" if self.method.direct else "winograd"

    @property
    def pieces(self) -> Pieces | None:
        """In which the convolution takes taps and input channels."""
        return self.convolving.where.pieces if self.convolving else None

    @property
    def deep(self) -> int:
        """Pairs of channels of a product of tiles; 0 where the convolution has none."""
        return self.convolving.where.deep if self.convolving else 0

    @property
    def together(self) -> int:
        """Products that a lane of the convolution's instructions adds up at once."""
        return self.convolving.where.together if self.convolving else 1

    @property
    def convolving(self) -> SweepPlan | None:
        """The sweep of the convolution; None where its value is thrown away."""
        return _convolving(self.sweeps)

    @property
    def folded_for(self) -> Pipeline:
        """What operands are folded for: plans of equal ones share them."""
        return self.rewritten.pipeline

    @lazy
    def conv_operands(self) -> list[int]:
        """Places of the convolution's weight and bias among the operands of the pipeline as it runs."""
        pipeline = self.rewritten.pipeline
        return [at for at, slot in enumerate(pipeline.slots) if slot.stage == pipeline.conv_index]

    # --- what takes its place where arrays turn out to be unusual, as `fallbacks` of describe.py says. Most calls never
    # need one, and to make them all would triple the time of the first: each is made when first asked for, and held.

    @lazy
    def as_asked(self) -> Plan:
        """Without the rewrites that need finite operands of moderate size."""
        return self._changed(tame=False)

    @lazy
    def directly(self) -> Plan:
        """By direct summation."""
        return self._changed(options=replace(DIRECT, longer=self.options.longer))

    @lazy
    def masked(self) -> Plan:
        """By direct summation of products inside the array alone."""
        return self._changed(options=replace(MASKED, longer=self.options.longer))

    @lazy
    def one_sample(self) -> Plan:
        """For one sample of the batch."""
        return self.some_samples(1)

    def some_samples(self, count: int) -> Plan:
        """For so many samples of the batch; a tensor of one sample serves all."""
        some = tuple(
            (min(count, shape[0]), *shape[1:]) if slot.operand.kind == "tensor" else shape
            for slot, shape in zip(self.asked.slots, self.trace.operand_shapes, strict=True)
        )
        return self._changed(x=(count, *self.trace.values[0][1:]), operands=some)

    def _changed(self, **changes: Any) -> Plan:
        given: dict[str, Any] = {
            "pipeline": self.asked,
            "x": self.trace.values[0],
            "operands": self.trace.operand_shapes,
            "dtype": self.dtype,
            "options": self.options,
            "tame": self.tame,
            "host": self.machine,
        }
        return _make_plan(**{**given, **changes})

    @lazy
    def finishes(self) -> dict[ArrayName, Finish]:
        """What is done with the statistics of a sweep, by the name of its result."""
        found = (planned.sweep.finish for planned in self.sweeps)
        return {finish.result: finish for finish in found if finish is not None}

    def array_name(self, array: ArrayName) -> str:
        if isinstance(array, StatisticName):
            return f"{array.word} of {self.finishes[array.made].stage.name}"
        return super().array_name(array) + (" (in the output array)" if array in self.aliases else "")

    @property
    def operations(self) -> int:
        """Roughly, those of the steps around the convolution included."""
        return self.work.needed + 32 * sum(map(prod, (self.trace.values[0], self.trace.output)))

    @property
    def scratch(self) -> int:
        """Bytes of tile memory for one thread."""
        return max(planned.tiling.scratch for planned in self.sweeps)

    @lazy
    def samples_together(self) -> int:
        """Samples that go through all sweeps before the next ones do: all, or, where the output array cannot hold the
        values between sweeps, as many as have them in the cache, at least one."""
        batch = self.trace.values[0][0]
        each = self._shared_values // max(1, batch)
        return max(1, min(batch, cached_bytes(self.machine) // each)) if each else batch

    @property
    def intermediate(self) -> int:
        """Bytes of values that several sweeps share and that the output array cannot hold, at any time."""
        return self._shared_values // max(1, self.trace.values[0][0]) * self.samples_together

    @property
    def _shared_values(self) -> int:
        """The same, of the whole batch."""
        stored = {
            planned.sweep.dest: planned.sweep.result
            for planned in self.sweeps
            if planned.sweep.dest not in (None, OUTPUT)
        }
        return sum(prod(shape) * self.dtype.number_bytes for name, shape in stored.items() if name not in self.aliases)


def make_plan(
    pipeline: Pipeline,
    x: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    dtype: DType,
    options: Options = AUTO,
    tame: bool = True,
    host: Machine | None = None,
) -> Plan:
    """The plan for input shape `x` (5-D) and operand shapes in slot order; raises ShapeError where they do not fit.

    `tame=False` plans without the rewrites that need finite operands of moderate size; `host` is another machine than
    this one.
    """
    return _make_plan(pipeline, x, operands, dtype, options, tame, host or machine())


@lru_cache(maxsize=1024)
def _make_plan(
    pipeline: Pipeline,
    x: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    dtype: DType,
    options: Options,
    tame: bool,
    host: Machine,
) -> Plan:
    trace = pipeline.trace(x, operands)
    pairs = _pairs(dtype, options, host)
    keep = pairs and pipeline.conv_index == 0
    rewritten, simplified = rewrite(pipeline, trace, dtype, tame, keep, options.averages)
    if options.turns and (split := max_pool_over_phases(rewritten)) is not rewritten:
        rewritten, simplified = split, split.pipeline.trace(simplified.values[0], simplified.operand_shapes)
    longer = options.longer and not options.plain
    if longer and (split := strides_of_one_input(rewritten, simplified)) is not rewritten:
        rewritten, simplified = split, split.pipeline.trace(simplified.values[0], simplified.operand_shapes)
    made = detailed(pipeline, trace, rewritten, simplified, dtype, options, tame, host)
    nominal = work.count(pipeline, trace).nominal
    return Plan(**{**made, "work": replace(made["work"], nominal=nominal)})


def detailed(
    pipeline: Pipeline,
    trace: Trace,
    rewritten: Rewritten,
    simplified: Trace,
    dtype: DType,
    options: Options,
    tame: bool,
    host: Machine,
) -> dict[str, Any]:
    """All that a plan holds, for a pipeline `as it runs`: sweeps, their algorithm and tiles."""
    pairs, item = _pairs(dtype, options, host) and _factors_as_given(rewritten), dtype.number_bytes
    direct = direct_method(rewritten.pipeline, simplified, options)
    where = Where(rewritten.pipeline, simplified, host, item, direct, pairs, options.plain, options.masked)
    cuts, choices = _cut(where, options)
    aliases = output_values(cuts, trace.output, dtype)
    sweeps = []
    for sweep, alone in zip(cuts, choices, strict=True):
        choice = with_samples_beside(sweep, alone, trace.values[0][0])
        structure = Structure(choice.steps, dtype.name, host.isa)
        streamed = _streamed(sweep, aliases, dtype, item, host)
        sweeps.append(SweepPlan(sweep, choice.where, structure, choice.tiling, streamed))
    conv = _convolving(sweeps)
    windowed = [op for op in conv.sweep.ops if isinstance(op, Windowed)] if conv else []
    last = max((op.stage for op in windowed), default=rewritten.pipeline.conv_index)
    return {
        "asked": pipeline,
        "dtype": dtype,
        "options": options,
        "tame": tame,
        "trace": trace,
        "rewritten": rewritten,
        "simplified": simplified,
        "reach": work.reach(rewritten.pipeline, simplified, last + 1),
        "phase_pool": next((op.stage for op in windowed if isinstance(op, PhasePool)), None),
        "work": work.count(rewritten.pipeline, simplified),
        "method": conv.tiling.method if conv else direct,
        "machine": host,
        "sweeps": tuple(sweeps),
        "aliases": aliases,
    }


def _convolving(sweeps: Sequence[SweepPlan]) -> SweepPlan | None:
    return next((planned for planned in sweeps if planned.register_tile is not None), None)


_APART = 0.85  # of the cost of a fused sweep, at which a pool before the convolution has a sweep of its own


def _cut(where: Where, options: Options) -> tuple[tuple[Sweep, ...], list[Choice]]:
    """The sweeps and how each is computed. Tiles of a convolution overlap in what they read: a pool before it is
    computed several times or, where that costs clearly less, once, stored and read again."""

    def tried(conv_apart: bool) -> tuple[float, tuple[Sweep, ...], list[Choice]]:
        """What comes behind the convolution's sweep is the same either way, and is not counted."""
        sweeps = cut(where.pipeline, where.trace, conv_apart)
        choices = [choose_method(sweep, where, options) for sweep in sweeps]
        last = next((n for n, one in enumerate(choices) if any(step.convolves for step in one.steps)), len(sweeps))
        each = zip(sweeps[: last + 1], choices, strict=False)
        return sum(cost(sweep, one.steps, one.where, one.tiling) for sweep, one in each), sweeps, choices

    if options.apart is not None:
        return tried(options.apart)[1:]
    together, before = tried(False), where.pipeline.stages[: where.pipeline.conv_index]
    if any(isinstance(stage, (MaxPool3d, AvgPool3d)) for stage in before):
        apart = tried(True)
        if apart[0] < _APART * together[0]:
            return apart[1:]
    return together[1:]


def _pairs(dtype: DType, options: Options, host: Machine) -> bool:
    """Whether the convolution may multiply pairs of bfloat16 numbers."""
    return dtype == bfloat16 and host.multiplies_bfloat16 and options.pairs and not options.masked


def _factors_as_given(rewritten: Rewritten) -> bool:
    """Whether both factors of the convolution are the caller's numbers. What a stage computes, or a kernel that
    something was folded into, has more digits."""
    before = rewritten.pipeline.stages[: rewritten.pipeline.conv_index]
    return rewritten.keeps_kernel and all(isinstance(stage, Pad) for stage in before)


def _streamed(sweep: Sweep, aliases: tuple[ArrayName, ...], dtype: DType, number: int, host: Machine) -> bool:
    """Whether the result would leave the caches before anyone reads it: fetching its lines first is a waste. A result
    in place of the source has its lines in the cache already."""
    if sweep.dest is None:
        return False
    in_place = sweep.source in aliases and (sweep.dest == OUTPUT or sweep.dest in aliases)
    item = dtype.itemsize if sweep.dest == OUTPUT else number
    return not in_place and prod(sweep.result) * item >= cached_bytes(host)


def cached_bytes(host: Machine) -> int:
    """Of a result, so many may still be cached when it is complete: others use the shared cache, too."""
    return host.l3 // 4 or 4 * host.l2
