"""Cuts the way back of a gradient, through stages that follow each other, into sweeps that start from a stored value.

A sweep goes through the stages again, tile by tile, keeps the values that derivatives take, puts the gradient that came
in their place and takes it back stage by stage. A norm over space needs sums over all voxels of a channel: a sweep of
its own makes them, and the next one goes the whole way again. Nothing but the gradient is stored, and what a reduction
gives, which is small. Where no value is needed, sweeps start from the gradient alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..spec import stages as s
from ..spec.backends import StageTable
from ..spec.pipeline import Pipeline, Trace
from ..spec.stage import Stage
from .names import INPUT, OUTPUT, ArrayName, CallerName, StatisticsName
from .sweeps import LOWER, Affine, Chain, Cutter, Finish, Op, Reduce, Sweep
from .tail_links import (
    ArgmaxPool,
    BatchNormGradient,
    ChannelSoftmaxGradient,
    Derivative,
    Incoming,
    LogSumExpGradient,
    NormGradient,
    PeakGradient,
    Peaks,
    QuotientGradient,
    SoftmaxGradient,
    SpreadPool,
    Sums,
    Totals,
    TrainedBatchNorm,
    Unit,
    UnitGradient,
)
from .tail_ways import NORMS, POOLS, REDUCTIONS, Segment, local_labels, needs, opens

GRADIENT = CallerName("gradient")  # the one that comes in
FIRST = CallerName("first")  # the pipeline's own input, which stages may use by its name


def cut_tail(
    pipeline: Pipeline, trace: Trace, segment: Segment, wanted: Sequence[bool]
) -> tuple[tuple[Sweep, ...], dict[ArrayName, int]]:
    """From the gradient of value `last` to that of value `first`; `wanted` operands get gradients, too. Without stages:
    from value `start` to value `first`. And the places of norms, by the names of what is made of their moments."""
    cutter = TailCutter(pipeline, trace, segment, wanted)
    sweeps = cutter.run() if segment.first < segment.last else cutter.run_forward()
    by_moments = (TrainedBatchNorm, s.InstanceNorm, s.GroupNorm)
    places = cutter.statistics_of
    return sweeps, {places[index]: index for index in places if isinstance(pipeline.stages[index], by_moments)}


class TailCutter(Cutter):
    def __init__(self, pipeline: Pipeline, trace: Trace, segment: Segment, wanted: Sequence[bool]) -> None:
        super().__init__(pipeline, trace)
        self.segment = segment
        self.source, self.shape = INPUT, trace.values[segment.start]
        self.kept["x"] = FIRST
        self.local = local_labels(pipeline)
        self.wanted = {
            index: [want for slot, want in zip(pipeline.slots, wanted, strict=True) if slot.stage == index]
            for index in range(len(pipeline.stages))
        }
        self.statistics_of: dict[int, StatisticsName] = {}  # of norms and softmaxes, by stage
        self.totals: list[Totals] = []  # of the sweep that is being cut
        self.asides = 0
        self.pending: dict[str, str] = {}  # what a named value has got so far, by the name that this is kept under
        self.nothing = False  # no gradient has come yet, but by a name
        # before names of ours, where the pipeline has names
        self.mark = "_" * max((1 + len(label) - len(label.lstrip("_")) for label in self.local), default=0)

    def value_name(self, number: int) -> str:
        """Of the value that enters stage `number`, while it is kept."""
        return f"{self.mark}v{number}"

    def unit_name(self, index: int) -> str:
        """Of a norm's value before its weights."""
        return f"{self.mark}u{index}"

    def _to(self, number: int) -> None:
        """From value `start` to value `number`."""
        for index in range(self.segment.start, number):
            if isinstance(self.pipeline.stages[index], TrainedBatchNorm) or index >= self.segment.first:
                self._again(index, True)
            else:
                LOWER[type(self.pipeline.stages[index])](self, index)

    def run_forward(self) -> tuple[Sweep, ...]:
        self._to(self.segment.first)
        self._end(self.trace.values[self.segment.first], OUTPUT)
        return tuple(self.sweeps)

    def run(self) -> tuple[Sweep, ...]:
        segment, stages = self.segment, self.pipeline.stages
        opening = segment.last - 1 if opens(stages[segment.last - 1]) else None
        end = segment.last if opening is None else opening
        own = range(segment.first, end)
        needed = {index: needs(stages[index], any(self.wanted[index])) for index in own}
        values = {index + "vr".index(word) for index, word in needed.items() if word in ("v", "r")}
        if opening is not None and isinstance(stages[opening], (s.Max, s.LogSumExp)):
            values.add(opening)
        places = self._places(opening) if opening is not None and isinstance(stages[opening], s.MaxPool3d) else None
        last = max([*values, *(index for index, word in needed.items() if word == "u")], default=-1)
        if last >= 0:
            self._to(segment.first)
            for index in range(max(segment.start, segment.first), end + 1):
                if index in values:
                    self.link(index, s.Keep(self.value_name(index)), ())
                if index < end and (index < last or needed[index] == "u"):
                    self._again(index, index < last)
        self._incoming(opening, end, last >= 0, places)
        for index in reversed(own):
            if isinstance(stages[index], TrainedBatchNorm):
                self.norm_gradient(index)
            else:
                BACK[type(stages[index])](self, index)
        self._end(self.trace.values[segment.first], OUTPUT)
        return tuple(self.sweeps)

    # --- where the gradient comes in

    def _incoming(self, opening: int | None, end: int, valued: bool, places: ArrayName | None) -> None:
        """Puts the gradient of value `end` in the place of that value. `valued`: there is one, kept for derivatives."""
        stage = None if opening is None else self.pipeline.stages[opening]
        if isinstance(stage, POOLS):
            assert opening is not None
            return self._spread(SpreadPool(opening, places), valued)
        if not valued:
            self.source, self.shape, self.ops = GRADIENT, self.trace.values[end], []
        elif isinstance(stage, (s.Max, s.LogSumExp)):
            assert opening is not None
            return self._reduction_gradient(opening, stage)
        else:
            self.link(0, Incoming(), (GRADIENT,))
        if isinstance(stage, s.Mean):
            self.link(end, s.Divide(float(prod(self.trace.values[end][axis] for axis in stage.reduces))), ())

    def _places(self, pool: int) -> ArrayName:
        """Of the largest values in the windows of a max-pool, integers as wide as numbers of the arithmetic."""
        before = self._state
        self._to(pool)
        self.ops.append(ArgmaxPool(pool))
        name = self._new_value()
        self._end(self.trace.values[pool + 1], name)
        self._state = before
        return name

    def _spread(self, spread: SpreadPool, valued: bool) -> None:
        """A sweep starts from the pool's gradient. What computes values again joins it, unless it has a box of its own
        kind, or of another number of channels."""
        pool, ops, source, shape = spread.stage, self.ops, self.source, self.shape
        together = all(isinstance(op, Chain) for op in ops) and shape == self.trace.values[pool]
        self.ops, self.source, self.shape = [spread], GRADIENT, self.trace.values[pool + 1]
        if not valued:
            return
        if together:
            gradient = f"{self.mark}g"
            self.link(pool, s.Keep(gradient), ())
            self.link(pool, Incoming(), (source,))
            for link in (link for op in ops for link in op.links):
                self.link(pool, link.stage, link.arrays)
            return self.link(pool, s.Recall(gradient), ())
        name = self.store(self.trace.values[pool])
        self.ops, self.source, self.shape = ops, source, shape
        self.link(pool, Incoming(), (name,))

    def _reduction_gradient(self, index: int, stage: s.Max | s.LogSumExp) -> None:
        at = self.value_name(index)
        result = self._reduced(index, stage)
        if isinstance(stage, s.LogSumExp):
            self.link(index, Incoming(), (GRADIENT,))
            return self.link(index, LogSumExpGradient(at), (result,))
        before = self._state
        self.link(index, Peaks(), (result,))
        count = self._reduced(index, s.Sum(stage.over))
        self._state = before
        self.link(index, Incoming(), (GRADIENT,))
        self.link(index, PeakGradient(at), (result,))
        self.link(index, s.Divide("tensor"), (count,))

    def _reduced(self, index: int, stage: s.Sum | s.Max | s.LogSumExp) -> ArrayName:
        """The value's reduction, stored; what was done so far is done again afterwards."""
        before, name = self._state, self._new_value()
        if stage.over == "channels":
            self.link(index, stage, ())
            self._end(self.trace.values[index + 1], name)
        else:
            kind = {s.Sum: "sum", s.Max: "max", s.LogSumExp: "maxexp"}[type(stage)]
            self.ops.append(Reduce(kind))
            self._end(self.trace.values[index], None, Finish(stage, (), name))
        self._state = before
        return name

    @property
    def _state(self) -> tuple[list[Op], ArrayName, Any]:
        """What the sweep that is being cut has, to come back to it."""
        return list(self.ops), self.source, self.shape

    @_state.setter
    def _state(self, state: tuple[list[Op], ArrayName, Any]) -> None:
        self.ops, self.source, self.shape = state

    # --- values again

    def _again(self, index: int, whole: bool) -> None:
        """Goes through a stage; a norm keeps its value before the weights, which are applied where it is gone through
        as a whole."""
        stage = self.pipeline.stages[index]
        if not isinstance(stage, NORMS) or (isinstance(stage, s.LayerNorm) and stage.over != "channels"):
            return LOWER[type(stage)](self, index)
        if isinstance(stage, s.LayerNorm):
            self.link(index, Unit(stage.eps, self.unit_name(index)), ())
            self.link(index, s.Keep(self.unit_name(index)), ())
        else:
            found = self.statistics(index, "moments")
            self.link(index, Affine(), (found.vector("shift"), found.vector("scale"), found.vector("offset")))
            if index >= self.segment.first:
                self.link(index, s.Keep(self.unit_name(index)), ())
        if stage.affine and whole:
            weight, bias = self.operands(index)[-2:]
            self.link(index, s.Multiply("channel"), (weight,))
            self.link(index, s.Add("channel"), (bias,))

    def statistics(self, index: int, kind: str) -> StatisticsName:
        """A sweep that makes nothing else; what was done so far is done again in the next. Statistics of a norm are
        those without its weights."""
        if index in self.statistics_of:
            return self.statistics_of[index]
        stage = self.pipeline.stages[index]
        if isinstance(stage, TrainedBatchNorm) or (isinstance(stage, NORMS) and self.segment.first <= index):
            finish = Finish(replace(stage, affine=False), (), StatisticsName(self.stats))
        else:
            finish = Finish(stage, self.operands(index), StatisticsName(self.stats))
        self.statistics_of[index] = self._made(finish, (Reduce(kind),), index)
        return self.statistics_of[index]

    def _made(self, finish: Finish, more: tuple[Reduce, ...], index: int) -> StatisticsName:
        assert isinstance(finish.result, StatisticsName)
        self.stats += 1
        before = self.ops
        self.ops = [*before, *more]
        self._end(self.trace.values[index], None, finish)
        self.ops = [_without_totals(op) if isinstance(op, Chain) else op for op in before]
        self.totals = []
        return finish.result

    def _end(self, result: Any, dest: Any, finish: Finish | None = None) -> None:
        if finish is None and self.totals:
            finish = Finish(Sums(tuple(self.totals)), (), StatisticsName(self.stats))
        super()._end(result, dest, finish)

    def total(self, index: int, *factors: str, below: bool = False, divided: bool = False) -> None:
        totals = Totals(index, factors, below, divided)
        self.totals.append(totals)
        self.link(index, totals, ())

    # --- the way back, by stage

    def derivative(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        at = self.value_name(index + (needs(stage, False) == "r"))
        self.link(index, Derivative(stage, at))

    def prelu_gradient(self, index: int) -> None:
        if any(self.wanted[index]):
            self.total(index, self.value_name(index), below=True)
        self.derivative(index)

    def binary_gradient(self, index: int) -> None:
        stage, at = self.pipeline.stages[index], self.value_name(index)
        assert isinstance(stage, s.Binary)
        product, reverse = isinstance(stage, (s.Multiply, s.Divide)), getattr(stage, "reverse", False)
        divided = product and reverse  # other / value
        if any(self.wanted[index]):
            self.total(index, at if product else "", divided=divided)
        if stage.label:
            self._aside(stage.label, self._to_other(stage, at))
        if divided:
            self.link(index, QuotientGradient(stage.other, at))
        elif product:
            self.link(index)
        elif reverse:
            self.link(index, s.Multiply(-1.0), ())

    def _to_other(self, stage: s.Binary, at: str) -> tuple[Stage, ...]:
        """From the gradient of the result to that of the named value."""
        if isinstance(stage, s.Multiply):
            return (s.Multiply(at),)
        if isinstance(stage, s.Divide):
            if stage.reverse:
                return (s.Divide(at),)
            return s.Multiply(at), s.Divide(stage.other), s.Divide(stage.other), s.Multiply(-1.0)
        return (s.Multiply(-1.0),) if isinstance(stage, s.Subtract) and not stage.reverse else ()

    def _aside(self, label: str, links: tuple[Stage, ...]) -> None:
        """Adds what these make of the gradient to that of a named value; the gradient stays as it is."""
        before, into = (f"{self.mark}{word}{self.asides}" for word in "gp")
        self.asides += 1
        links += (s.Add(self.pending[label]),) if label in self.pending else ()
        around = (s.Keep(before),) if links else (), (s.Recall(before),) if links else ()
        for stage in (*around[0], *links, s.Keep(into), *around[1]):
            self.link(0, stage, ())
        self.pending[label] = into

    def keep_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.Keep)
        if stage.label in self.pending:
            name = self.pending.pop(stage.label)
            self.link(index, s.Recall(name) if self.nothing else s.Add(name), ())
            self.nothing = False

    def recall_gradient(self, index: int) -> None:
        """The value before it has a name, by which its gradient comes."""
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.Recall)
        self._aside(stage.label, ())
        self.nothing = True

    def batch_norm_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.BatchNorm)
        if any(self.wanted[index]):
            self.total(index, self.value_name(index), "")
        _, variance, *affine = self.operands(index)
        self.link(index, BatchNormGradient(stage.eps), (variance, *affine[:1]))

    def layer_norm_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.LayerNorm)
        if any(self.wanted[index]):
            self.total(index, self.unit_name(index), "")
        if stage.affine:
            self.link(index, s.Multiply("channel"), self.operands(index)[:1])
        self.link(index, UnitGradient(self.unit_name(index)), ())

    def norm_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        self.total(index, self.unit_name(index), "")
        sums = Sums(tuple(self.totals), stage, self.statistics_of[index])
        result = StatisticsName(self.stats)
        weight = self.operands(index)[-2:-1]  # of weight and bias, or of none
        weight = weight if getattr(stage, "affine", False) else ()
        found = self._made(Finish(sums, weight, result), (), index)
        vectors = found.vector("scale"), found.vector("shift"), found.vector("offset")
        self.link(index, NormGradient(self.unit_name(index)), vectors)

    def softmax_gradient(self, index: int) -> None:
        stage, at = self.pipeline.stages[index], self.value_name(index + 1)
        assert isinstance(stage, s.Softmax)
        if stage.over == "channels":
            return self.link(index, ChannelSoftmaxGradient(at), ())
        self.total(index, at)
        sums = Sums(tuple(self.totals), stage)
        found = self._made(Finish(sums, (), StatisticsName(self.stats)), (), index)
        self.link(index, SoftmaxGradient(at), (found.vector("shift"),))


def _without_totals(chain: Chain) -> Chain:
    return Chain(tuple(link for link in chain.links if not isinstance(link.stage, Totals)))


def _passed_alone(cutter: TailCutter, index: int) -> None:
    """Convolutions have kernels of their own; pools and reductions open a segment (`TailCutter._incoming`)."""
    raise AssertionError(f"{cutter.pipeline.stages[index].name} is in no chain")


_ENTRIES: dict[type[Stage], Callable[[TailCutter, int], None]] = {
    **dict.fromkeys((s.Conv3d, s.ConvTranspose3d, *POOLS, *REDUCTIONS), _passed_alone),
    **dict.fromkeys((s.Add, s.Subtract, s.Multiply, s.Divide), TailCutter.binary_gradient),
    s.Keep: TailCutter.keep_gradient,
    s.Recall: TailCutter.recall_gradient,
    s.BatchNorm: TailCutter.batch_norm_gradient,
    s.LayerNorm: TailCutter.layer_norm_gradient,
    **dict.fromkeys((s.GroupNorm, s.InstanceNorm), TailCutter.norm_gradient),
    s.Softmax: TailCutter.softmax_gradient,
    s.PReLU: TailCutter.prelu_gradient,
    **dict.fromkeys(
        (
            s.Clamp,
            s.Exp,
            s.GELU,
            s.HardSwish,
            s.HardTanh,
            s.LeakyReLU,
            s.Log,
            s.Mish,
            s.ReLU,
            s.Sigmoid,
            s.SiLU,
            s.Softplus,
            s.Tanh,
        ),
        TailCutter.derivative,
    ),
}
BACK: StageTable[Callable[[TailCutter, int], None]] = StageTable("gradients on the CPU", __name__, _ENTRIES)
