"""Cuts the way back of a gradient, through the stages behind a convolution, into sweeps that start from its result.

A sweep goes through the stages again, tile by tile, keeps the values that derivatives take, puts the gradient that came
in their place and takes it back stage by stage. A norm over space needs sums over all voxels of a channel: a sweep of
its own makes them, and the next one goes the whole way again. Nothing but the gradient is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..spec import stages as s
from ..spec.backends import StageTable
from ..spec.pipeline import Pipeline, Trace
from ..spec.stage import Stage
from .names import INPUT, OUTPUT, CallerName, StatisticsName, ValueName
from .sweeps import LOWER, Affine, Chain, Cutter, Finish, Reduce, Sweep
from .tail_links import (
    ArgmaxPool,
    BatchNormGradient,
    ChannelSoftmaxGradient,
    Derivative,
    Incoming,
    NormGradient,
    QuotientGradient,
    SoftmaxGradient,
    Sums,
    Totals,
    TrainedBatchNorm,
    Unit,
    UnitGradient,
)

GRADIENT = CallerName("gradient")  # the one that comes in


# --- cutting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """Stages that a gradient passes together, `first` to before `last`, by their places in the pipeline. Values are
    computed again from value `start`, which enters stage `start`."""

    start: int
    first: int
    last: int


@dataclass(frozen=True)
class Places:
    """Of the largest values in the windows of a max-pool, by its place in the pipeline."""

    start: int
    pool: int


PLACES = ValueName(0)  # the array that they are written to, integers as wide as numbers of the arithmetic


def cut_places(pipeline: Pipeline, trace: Trace, places: Places) -> tuple[Sweep, ...]:
    """From value `start` to the places of a pool."""
    cutter = TailCutter(pipeline, trace, Segment(places.start, places.pool, places.pool), [False] * len(pipeline.slots))
    return cutter.run_to_places()


def cut_forward(pipeline: Pipeline, trace: Trace, start: int) -> tuple[Sweep, ...]:
    """From value `start` to the result."""
    count = len(pipeline.stages)
    return TailCutter(pipeline, trace, Segment(start, count, count), [False] * len(pipeline.slots)).run_forward()


def cut_tail(pipeline: Pipeline, trace: Trace, segment: Segment, wanted: Sequence[bool]) -> tuple[Sweep, ...]:
    """From the gradient of value `last` to that of value `first`; `wanted` operands get gradients, too."""
    return TailCutter(pipeline, trace, segment, wanted).run()


NORMS = (s.LayerNorm, s.GroupNorm, s.InstanceNorm, TrainedBatchNorm)  # by statistics of the value itself


def can_pass(stage: Stage, wanted: Sequence[bool]) -> bool:
    """Whether a gradient passes the stage by our kernels; `wanted`: of which operands one is asked for."""
    if isinstance(stage, s.Binary):
        if stage.other != "channel" and not isinstance(stage.other, float):
            return False
        return not (isinstance(stage, s.Divide) and stage.reverse and any(wanted))
    if isinstance(stage, s.LayerNorm):
        return stage.over == "channels"
    if isinstance(stage, s.Softmax):
        return stage.over in ("channels", "spatial") and stage.scale is None and stage.shift is None
    return isinstance(stage, NORMS) or BACK.entries.get(type(stage), _passed_alone) is not _passed_alone


def can_repeat(stage: Stage) -> bool:
    """Whether the stage is computed again on the way to a later one."""
    if isinstance(stage, (s.MaxPool3d, s.AvgPool3d)):
        return True
    if isinstance(stage, (s.Sum, s.Mean)):
        return stage.over == "channels"
    return can_pass(stage, ())


def needs(stage: Stage, wanted: bool) -> str:
    """Values that the gradient of a stage takes: "v" enters it, "r" leaves it, "u" is a norm's before its weights."""
    if isinstance(stage, s.Binary):
        reverse = isinstance(stage, s.Divide) and stage.reverse
        return "v" if reverse or (wanted and isinstance(stage, (s.Multiply, s.Divide))) else ""
    if isinstance(stage, NORMS):
        return "u"
    if isinstance(stage, s.BatchNorm):
        return "v" if wanted else ""
    return "r" if isinstance(stage, (s.ReLU, s.Sigmoid, s.Tanh, s.Exp, s.Softmax)) else "v"


class TailCutter(Cutter):
    def __init__(self, pipeline: Pipeline, trace: Trace, segment: Segment, wanted: Sequence[bool]) -> None:
        super().__init__(pipeline, trace)
        self.segment = segment
        self.source, self.shape = INPUT, trace.values[segment.start]
        self.wanted = {
            index: [want for slot, want in zip(pipeline.slots, wanted, strict=True) if slot.stage == index]
            for index in range(len(pipeline.stages))
        }
        self.statistics_of: dict[int, StatisticsName] = {}  # of norms and softmaxes, by stage
        self.totals: list[Totals] = []  # of the sweep that is being cut

    def _to_segment(self) -> None:
        for index in range(self.segment.start, self.segment.first):
            if isinstance(self.pipeline.stages[index], TrainedBatchNorm):
                self._again(index, True)
            else:
                LOWER[type(self.pipeline.stages[index])](self, index)

    def run_forward(self) -> tuple[Sweep, ...]:
        self._to_segment()
        self._end(self.trace.output, OUTPUT)
        return tuple(self.sweeps)

    def run_to_places(self) -> tuple[Sweep, ...]:
        self._to_segment()
        pool = self.segment.first
        self.ops.append(ArgmaxPool(pool))
        self._end(self.trace.values[pool + 1], PLACES)
        return tuple(self.sweeps)

    def run(self) -> tuple[Sweep, ...]:
        segment, stages = self.segment, self.pipeline.stages
        self._to_segment()
        own = range(segment.first, segment.last)
        needed = {index: needs(stages[index], any(self.wanted[index])) for index in own}
        values = {index + "vr".index(word) for index, word in needed.items() if word in ("v", "r")}
        last = max([*values, *(index for index, word in needed.items() if word == "u")], default=-1)
        for index in range(max(segment.start, segment.first), segment.last + 1):
            if index in values:
                self.link(index, s.Keep(value_name(index)), ())
            if index < segment.last and (index < last or needed[index] == "u"):
                self._again(index, index < last)
        self.link(0, Incoming(), (GRADIENT,))
        for index in reversed(own):
            if isinstance(stages[index], TrainedBatchNorm):
                self.norm_gradient(index)
            else:
                BACK[type(stages[index])](self, index)
        self._end(self.trace.values[segment.first], OUTPUT)
        return tuple(self.sweeps)

    def _again(self, index: int, whole: bool) -> None:
        """Goes through a stage; a norm keeps its value before the weights, which are applied where it is gone through
        as a whole."""
        stage = self.pipeline.stages[index]
        if not isinstance(stage, NORMS):
            return LOWER[type(stage)](self, index)
        if isinstance(stage, s.LayerNorm):
            self.link(index, Unit(stage.eps, unit_name(index)), ())
            self.link(index, s.Keep(unit_name(index)), ())
        else:
            found = self.statistics(index, "moments")
            self.link(index, Affine(), (found.vector("shift"), found.vector("scale"), found.vector("offset")))
            if index >= self.segment.first:
                self.link(index, s.Keep(unit_name(index)), ())
        if stage.affine and whole:
            weight, bias = self.operands(index)[-2:]
            self.link(index, s.Multiply("channel"), (weight,))
            self.link(index, s.Add("channel"), (bias,))

    def statistics(self, index: int, kind: str) -> StatisticsName:
        """A sweep that makes nothing else; what was done so far is done again in the next. Statistics of a norm are
        those without its weights."""
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

    def total(self, index: int, *factors: str, below: bool = False) -> None:
        totals = Totals(index, factors, below)
        self.totals.append(totals)
        self.link(index, totals, ())

    # --- the way back, by stage

    def derivative(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        at = value_name(index + (needs(stage, False) == "r"))
        self.link(index, Derivative(stage, at))

    def prelu_gradient(self, index: int) -> None:
        if any(self.wanted[index]):
            self.total(index, value_name(index), below=True)
        self.derivative(index)

    def add_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        if any(self.wanted[index]):
            self.total(index, "")
        if isinstance(stage, s.Subtract) and stage.reverse:
            self.link(index, s.Multiply(-1.0), ())

    def multiply_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, (s.Multiply, s.Divide))
        if any(self.wanted[index]):
            self.total(index, value_name(index))
        if isinstance(stage, s.Divide) and stage.reverse:
            self.link(index, QuotientGradient(stage.other, value_name(index)))
        else:
            self.link(index)

    def batch_norm_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.BatchNorm)
        if any(self.wanted[index]):
            self.total(index, value_name(index), "")
        _, variance, *affine = self.operands(index)
        self.link(index, BatchNormGradient(stage.eps), (variance, *affine[:1]))

    def layer_norm_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.LayerNorm)
        if any(self.wanted[index]):
            self.total(index, unit_name(index), "")
        if stage.affine:
            self.link(index, s.Multiply("channel"), self.operands(index)[:1])
        self.link(index, UnitGradient(unit_name(index)), ())

    def norm_gradient(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        self.total(index, unit_name(index), "")
        sums = Sums(tuple(self.totals), stage, self.statistics_of[index])
        result = StatisticsName(self.stats)
        weight = self.operands(index)[-2:-1]  # of weight and bias, or of none
        weight = weight if getattr(stage, "affine", False) else ()
        found = self._made(Finish(sums, weight, result), (), index)
        vectors = found.vector("scale"), found.vector("shift"), found.vector("offset")
        self.link(index, NormGradient(unit_name(index)), vectors)

    def softmax_gradient(self, index: int) -> None:
        stage, at = self.pipeline.stages[index], value_name(index + 1)
        assert isinstance(stage, s.Softmax)
        if stage.over == "channels":
            return self.link(index, ChannelSoftmaxGradient(at), ())
        self.total(index, at)
        sums = Sums(tuple(self.totals), stage)
        found = self._made(Finish(sums, (), StatisticsName(self.stats)), (), index)
        self.link(index, SoftmaxGradient(at), (found.vector("shift"),))


def _without_totals(chain: Chain) -> Chain:
    return Chain(tuple(link for link in chain.links if not isinstance(link.stage, Totals)))


def value_name(number: int) -> str:
    """Of the value that enters stage `number`, while it is kept."""
    return f"v{number}"


def unit_name(index: int) -> str:
    """Of a norm's value before its weights."""
    return f"u{index}"


def _passed_alone(cutter: TailCutter, index: int) -> None:
    """A gradient passes these between two segments: convolutions by kernels of their own, max-pools by places."""
    raise AssertionError(f"{cutter.pipeline.stages[index].name} is in no segment")


_ENTRIES: dict[type[Stage], Callable[[TailCutter, int], None]] = {
    **dict.fromkeys((s.Conv3d, s.ConvTranspose3d, s.MaxPool3d), _passed_alone),
    **dict.fromkeys((s.Add, s.Subtract), TailCutter.add_gradient),
    **dict.fromkeys((s.Multiply, s.Divide), TailCutter.multiply_gradient),
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
_REASONS: dict[type[Stage], str] = {
    **dict.fromkeys((s.AvgPool3d, s.Sum, s.Mean), "its gradient is spread by PyTorch"),
    **dict.fromkeys((s.Max, s.LogSumExp), "a pipeline with it is left to PyTorch"),
    **dict.fromkeys((s.Keep, s.Recall), "a pipeline that uses a value again is left to PyTorch"),
}
for _kind, _reason in _REASONS.items():
    BACK.unsupported(_kind, _reason)
