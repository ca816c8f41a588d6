"""Cuts a pipeline into sweeps, and each sweep into steps that work on one tile while it is in cache.

A sweep walks over tiles of its destination. For each tile it loads a box of its source and applies steps until the
tile is stored. A stage that needs all voxels of a channel (softmax over space, instance norm) ends a sweep: partial
statistics of the tiles are combined, and the next sweep uses them. No code depends on sizes: equal structures share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from ..spec import stages as s
from ..spec.backends import StageTable
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline, Trace
from ..spec.rewrite import pool_over_phases
from ..spec.shapes import Shape
from ..spec.stage import Stage
from ..spec.stages import CHANNELS
from .names import INPUT, OUTPUT, ArrayName, OperandName, StatisticsName, ValueName

# --- steps of a sweep -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """One stage of a chain and the arrays it reads."""

    stage: Stage
    arrays: tuple[ArrayName, ...] = ()

    @property
    def takes_tensor(self) -> bool:
        """Whether it reads an array of the value's shape, which stands in a buffer of its own."""
        return getattr(self.stage, "other", None) == "tensor"

    @property
    def collapses_channels(self) -> bool:
        return isinstance(self.stage, (s.Sum, s.Mean, s.Max, s.LogSumExp))


@dataclass(frozen=True, eq=False, repr=False)
class Affine(Stage):
    """(value - stat0) * stat1 + stat2 with one number for each sample and channel: how statistics are applied."""


@dataclass(frozen=True)
class Op:
    """A step of a sweep, whatever computes it."""

    needs_whole_rows: ClassVar[bool] = False
    is_local: ClassVar[bool] = True  # voxel by voxel of equal places: its result may replace what it reads
    links: ClassVar[tuple[Link, ...]] = ()

    @property
    def couples_channels(self) -> bool:
        """Whether it needs more than one channel at once."""
        return any(link.stage.couples & CHANNELS for link in self.links)

    def runs(self, pipeline: Pipeline) -> list[Link]:
        """Its stages as they run, with the arrays they read."""
        return list(self.links)


@dataclass(frozen=True)
class Windowed(Op):
    """A step that reads windows of what it is given."""

    is_local = False
    stage: int  # index in the pipeline

    def runs(self, pipeline: Pipeline) -> list[Link]:
        return [Link(pipeline.stages[self.stage])]


@dataclass(frozen=True)
class Conv(Windowed):
    """Input slab -> phase-planar buffer (C, phases, positions)."""

    def runs(self, pipeline: Pipeline) -> list[Link]:
        return [Link(pipeline.conv, operands_of(pipeline, self.stage))]


@dataclass(frozen=True)
class Pad(Windowed):
    """A box of the source, with copies of its voxels where it leaves the array: the first step of its sweep."""


@dataclass(frozen=True)
class Interleave(Op):
    """Phase-planar buffer -> buffer (C, D, H, W)."""


@dataclass(frozen=True)
class Chain(Op):
    """Pointwise and channel-wise stages, in place on (C, positions)."""

    links: tuple[Link, ...]  # type: ignore[misc]


@dataclass(frozen=True)
class Pool(Windowed):
    """Buffer (C, D, H, W) -> pooled buffer."""


@dataclass(frozen=True)
class PhasePool(Windowed):
    """Phase-planar buffer -> pooled one: the windows hold each phase of the stride once, so phases are folded voxel by
    voxel. The result is phase-planar still, with one phase for each input of a position."""


@dataclass(frozen=True)
class RowNorm(Op):
    """LayerNorm along the width, in place; tiles hold whole rows."""

    needs_whole_rows = True
    stage: s.LayerNorm
    arrays: tuple[ArrayName, ...]

    def runs(self, pipeline: Pipeline) -> list[Link]:
        return [Link(self.stage, self.arrays)]


STATISTICS = {"sum": 1, "max": 1, "maxexp": 2, "moments": 2}  # numbers for each channel of a tile


@dataclass(frozen=True)
class Reduce(Op):
    """Partial statistics of the tile for each channel: "sum", "max", "maxexp" (max, sum of exp) or "moments"."""

    kind: str


def operands_of(pipeline: Pipeline, stage: int) -> tuple[OperandName, ...]:
    """Names of the arrays that a stage of the pipeline is given."""
    return tuple(OperandName(at) for at, slot in enumerate(pipeline.slots) if slot.stage == stage)


@dataclass(frozen=True)
class Finish:
    """What is done with the statistics of a sweep once all tiles have theirs."""

    stage: Stage
    arrays: tuple[OperandName, ...]
    result: StatisticsName | ValueName  # for Affine, or the next value (B, C, 1, 1, 1)


@dataclass(frozen=True)
class Sweep:
    source: ArrayName
    shape: Shape  # of what enters: the source, repeated along size-1 axes where the value is larger, or padded
    ops: tuple[Op, ...]
    result: Shape
    dest: ArrayName | None  # None when only statistics are wanted
    finish: Finish | None = None


# --- cutting ----------------------------------------------------------------------------------------------------------


def cut(pipeline: Pipeline, trace: Trace, conv_apart: bool = False) -> tuple[Sweep, ...]:
    """The sweeps of a simplified pipeline. `conv_apart`: what a pool before the convolution makes is stored, and none
    of it is made twice."""
    return Cutter(pipeline, trace, conv_apart).run()


class Cutter:
    def __init__(self, pipeline: Pipeline, trace: Trace, conv_apart: bool = False) -> None:
        self.pipeline, self.trace, self.conv_apart = pipeline, trace, conv_apart
        self.sweeps: list[Sweep] = []
        self.source: ArrayName = INPUT
        self.shape = trace.values[0]
        self.ops: list[Op] = []
        self.values = 0
        self.stats = 0
        self.kept: dict[str, ArrayName] = {"x": INPUT}
        self.local = _local_labels(pipeline, trace)
        self.phase_pool = pool_over_phases(pipeline)
        self.planar = False  # whether the value stands in the convolution's phase-planar buffer

    def run(self) -> tuple[Sweep, ...]:
        for index, stage in enumerate(self.pipeline.stages):
            lower = Cutter.pad if isinstance(stage, s.padding.Pad) else LOWER[type(stage)]
            lower(self, index)
        self._natural()
        self._end(self.trace.output, OUTPUT)
        return tuple(self.sweeps)

    def operands(self, index: int) -> tuple[OperandName, ...]:
        return operands_of(self.pipeline, index)

    def _natural(self) -> None:
        """Steps from here on need (C, D, H, W)."""
        if self.planar:
            self.ops.append(Interleave())
            self.planar = False

    def _end(self, result: Shape, dest: ArrayName | None, finish: Finish | None = None) -> None:
        self.sweeps.append(Sweep(self.source, self.shape, tuple(self.ops), result, dest, finish))
        self.ops = []

    def _new_value(self) -> ValueName:
        self.values += 1
        return ValueName(self.values - 1)

    def store(self, shape: Shape) -> ValueName:
        """Ends the sweep with the current value in memory; the next one starts from it."""
        self._natural()
        name = self._new_value()
        self._end(shape, name)
        self.source, self.shape = name, shape
        return name

    def link(self, index: int, stage: Stage | None = None, arrays: tuple[ArrayName, ...] | None = None) -> None:
        chosen = Link(stage or self.pipeline.stages[index], self.operands(index) if arrays is None else arrays)
        if self.ops and isinstance(self.ops[-1], Chain):
            self.ops[-1] = Chain((*self.ops[-1].links, chosen))
        else:
            self.ops.append(Chain((chosen,)))

    def conv(self, index: int) -> None:
        self._whole_rows(index)
        if self.conv_apart and any(isinstance(op, Pool) for op in self.ops):
            self.store(self.trace.values[index])
        self.ops.append(Conv(index))
        self.planar = True

    def pad(self, index: int) -> None:
        """Copies may lie anywhere in the array: it is read where it is stored."""
        if self.ops or self.shape != self.trace.values[index]:
            self.store(self.trace.values[index])
        self.shape = self.trace.values[index + 1]
        self.ops.append(Pad(index))

    def pool(self, index: int) -> None:
        self._whole_rows(index)
        if index == self.phase_pool and self.planar:
            self.ops.append(PhasePool(index))
            return
        self._natural()
        self.ops.append(Pool(index))

    def _whole_rows(self, index: int) -> None:
        """A window reads parts of rows; a norm along the width before it needs whole ones, so its sweep ends here."""
        if any(op.needs_whole_rows for op in self.ops):
            self.store(self.trace.values[index])

    def binary(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.Binary)
        if stage.label in self.local:
            return self.link(index)
        if stage.label is None and stage.other != "tensor":
            return self.link(index)
        wanted = self.trace.values[index + 1]
        if self.trace.values[index] != wanted:  # the other value is larger: start anew from this one, repeated
            if self.ops or self.shape != self.trace.values[index]:
                self.store(self.trace.values[index])
            self.shape = wanted
        self._natural()
        arrays: tuple[ArrayName, ...] = (self.kept[stage.label],) if stage.label else self.operands(index)
        self.link(index, replace(stage, other="tensor"), arrays)

    def keep(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.Keep)
        if stage.label in self.local:
            self.link(index)
        elif not self.ops and self.shape == self.trace.values[index]:
            self.kept[stage.label] = self.source  # the sweep starts here: its source is the value
        else:
            self.kept[stage.label] = self.store(self.trace.values[index])

    def recall(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.Recall)
        if stage.label in self.local:
            return self.link(index)
        # The value it replaces has a name and is used later: where this one is stored, so is that one.
        self.ops, self.planar = [], False
        self.source, self.shape = self.kept[stage.label], self.trace.values[index + 1]

    def layer_norm(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.LayerNorm)
        if stage.over == "channels":
            return self.link(index)
        self._natural()
        self.ops.append(RowNorm(stage, self.operands(index)))

    def reduction(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, (s.Sum, s.Mean, s.Max, s.LogSumExp))
        if stage.over == "channels":
            return self.link(index)
        self._natural()
        kind = {s.Sum: "sum", s.Mean: "sum", s.Max: "max", s.LogSumExp: "maxexp"}[type(stage)]
        finish = Finish(stage, (), self._new_value())
        if not self._at_its_end(kind, finish):
            self.ops.append(Reduce(kind))
            self._end(self.trace.values[index], None, finish)
        self.source, self.shape = finish.result, self.trace.values[index + 1]

    def softmax(self, index: int) -> None:
        stage = self.pipeline.stages[index]
        assert isinstance(stage, s.Softmax)
        if stage.over == "channels":
            return self.link(index)
        if stage.shift is not None:  # the exponential is stored: no second one is needed
            if stage.shift:
                self.link(index, s.Subtract(stage.shift), ())
            self.link(index, s.Exp(), ())
        found = self.statistics(index, "maxexp" if stage.shift is None else "sum")
        if stage.shift is None:
            self.link(index, s.Subtract("channel"), (found.vector("shift"),))
            self.link(index, s.Exp(), ())
        self.link(index, s.Multiply("channel"), (found.vector("scale"),))

    def norm(self, index: int) -> None:
        found = self.statistics(index, "moments")
        self.link(index, Affine(), (found.vector("shift"), found.vector("scale"), found.vector("offset")))

    def statistics(self, index: int, kind: str) -> StatisticsName:
        self._natural()
        result = StatisticsName(self.stats)
        finish = Finish(self.pipeline.stages[index], self.operands(index), result)
        self.stats += 1
        if self._at_its_end(kind, finish):
            return result
        self.ops.append(Reduce(kind))
        value = self._new_value()
        self._end(self.trace.values[index], value, finish)
        self.source, self.shape = value, self.trace.values[index]
        return result

    def _at_its_end(self, kind: str, finish: Finish) -> bool:
        """Whether the sweep that has just stored the value, which is kept, can take its statistics as well."""
        last = self.sweeps[-1] if self.sweeps else None
        if self.ops or last is None or last.finish or (last.dest, last.result) != (self.source, self.shape):
            return False
        self.sweeps[-1] = replace(last, ops=(*last.ops, Reduce(kind)), finish=finish)
        return True


def output_values(sweeps: tuple[Sweep, ...], output: Shape, dtype: DType) -> tuple[ArrayName, ...]:
    """Values that may be kept in the output array: of its shape and type, and read only by the next sweep, which works
    voxel by voxel, so that nothing is overwritten before it is read."""
    if dtype.name != dtype.accumulate:
        return ()
    found = []
    for number, producer in enumerate(sweeps):
        name = producer.dest
        if name is None or name == OUTPUT or producer.result != output:
            continue
        readers = [sweep for sweep in sweeps if name == sweep.source]
        tensors = [array for sweep in sweeps for op in sweep.ops for link in op.links for array in link.arrays]
        local = all(op.is_local for sweep in readers for op in sweep.ops)
        at_once = readers == [sweep for sweep in sweeps[number + 1 : number + 2] if name == sweep.source]
        if local and at_once and name not in tensors and all(sweep.shape == output for sweep in readers):
            found.append(name)
    return tuple(found)


def _local_labels(pipeline: Pipeline, trace: Trace) -> frozenset[str]:
    """Labels whose uses all lie in the chain of their Keep: only pointwise and channel-wise stages of equal shape."""
    keeps = {stage.label: at for at, stage in enumerate(pipeline.stages) if isinstance(stage, s.Keep)}
    local = frozenset(keeps)
    while True:  # a label that is stored cuts the chains of others
        found = frozenset(label for label in local if _is_local(pipeline, trace, label, keeps[label], local))
        if found == local:
            return local
        local = found


def _is_local(pipeline: Pipeline, trace: Trace, label: str, start: int, local: frozenset[str]) -> bool:
    uses = [at for at, stage in enumerate(pipeline.stages) if stage.uses == label]
    between = range(start + 1, max(uses, default=start) + 1)
    return all(_stays_in_chain(pipeline.stages[at], trace, at, local) for at in between)


def _stays_in_chain(stage: Stage, trace: Trace, index: int, local: frozenset[str]) -> bool:
    if isinstance(stage, s.Keep):
        return stage.label in local
    if getattr(stage, "other", None) == "tensor" or (stage.uses and stage.uses not in local):
        return False  # these need (C, D, H, W) and may cut the chain
    if trace.values[index] != trace.values[index + 1] or isinstance(stage, s.Convolution):
        return False
    return not stage.couples & {"depth", "height", "width"}


LOWER: StageTable[Callable[[Cutter, int], None]] = StageTable(
    "sweeps",
    __name__,
    {
        **dict.fromkeys((s.Conv3d, s.ConvTranspose3d), Cutter.conv),
        s.Keep: Cutter.keep,
        s.Recall: Cutter.recall,
        s.LayerNorm: Cutter.layer_norm,
        s.Softmax: Cutter.softmax,
        **dict.fromkeys((s.MaxPool3d, s.AvgPool3d), Cutter.pool),
        **dict.fromkeys((s.GroupNorm, s.InstanceNorm), Cutter.norm),
        **dict.fromkeys((s.Sum, s.Mean, s.Max, s.LogSumExp), Cutter.reduction),
        **dict.fromkeys((s.Add, s.Subtract, s.Multiply, s.Divide), Cutter.binary),
        **dict.fromkeys(
            (
                s.BatchNorm,
                s.Clamp,
                s.Exp,
                s.GELU,
                s.HardSwish,
                s.HardTanh,
                s.LeakyReLU,
                s.Log,
                s.Mish,
                s.PReLU,
                s.ReLU,
                s.Sigmoid,
                s.SiLU,
                s.Softplus,
                s.Tanh,
            ),
            Cutter.link,
        ),
    },
)
