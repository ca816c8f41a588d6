"""Pointwise and channel-wise stages on a tile: (C, positions) in place, lanes along positions: channels are vertical.

A stage becomes steps: a Map changes each value, a Fold runs over the channels of a position, a Collapse puts a fold's
result in place of all channels. Consecutive maps and the fold after them share one walk over the channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from ...plan.sweeps import Affine, Link
from ...spec import stages
from ...spec.backends import StageTable
from ...spec.stage import Stage
from ..ir import sums, vecmath
from ..ir.frame import Kernel, Scratch
from ..ir.values import F64, Number, constant, vector
from ..plan.rooms import UNROLL
from ..steps.chain import scalars


@dataclass
class Map:
    """value -> value; `column` tells channel and place."""

    change: Callable[[ir.Value, Column], ir.Value]


@dataclass
class Fold:
    """Combines all channels of a position; `finish` turns what the walk carried into what later maps use."""

    start: list[ir.Value]
    combine: Callable[[Sequence[ir.Value], ir.Value, int], list[ir.Value]]
    finish: Callable[[Sequence[ir.Value], int], ir.Value]
    result: list[ir.Value]  # one for each of the UNROLL vectors, filled when the fold is done
    join: Callable[[Sequence[ir.Value], ir.Value], list[ir.Value]] | None = None  # of a plain sum over some channels


@dataclass
class Collapse:
    fold: Fold


Step: TypeAlias = Map | Fold | Collapse

PLAINLY = 8  # channels whose squares are added in the type of numbers, before they join a sum that loses nothing


@dataclass
class Run:
    """Contiguous positions that are walked: the first of the vectors walked together, and how many there are."""

    at: Number
    length: Number


@dataclass
class Column:
    """Where a value stands: channel, which of the vectors walked together, and its offset in a run."""

    channel: Number
    turn: int
    at: Number
    run: Run


class Links:
    """Access to what the links of one chain read: constants, vectors, tensors and kept values."""

    def __init__(self, k: Kernel, words: Sequence[Any], call: Sequence[Any], channels: Number) -> None:
        """`words` and `call` are what each link of the step declares."""
        self.k, self.words, self.call, self.channels = k, words, call, channels
        self.kept: dict[str, Scratch] = {}
        self.deviations: dict[str, Fold] = {}  # of norms over channels whose gradient is taken

    def channel_count(self) -> ir.Value:
        """The number of channels in float64."""
        return self.k.b.cast(self.k.b.i64(self.channels), F64)

    def constants(self, link: int, stage: Stage) -> dict[str, ir.Value]:
        names = [name for name, _ in scalars(stage)]
        return {name: self.k.constant(self.words[link].constants, at) for at, name in enumerate(names)}

    def vector(self, link: int, number: int) -> Callable[[Column], ir.Value]:
        """One number for each channel, from an operand or from the sample's statistics."""
        k, b, vector = self.k, self.k.b, self.call[link][number]
        assert k.sample is not None
        base = b.at(vector.data, b.add(b.mul(k.sample, vector.b), k.first_channel), k.number)
        return lambda column: b.splat(b.load(base, column.channel, k.number), k.lanes)

    def tensor(self, link: int) -> Callable[[Column], ir.Value]:
        """An array of the value's shape, already in a buffer."""
        k, b, box = self.k, self.k.b, self.words[link].box
        return lambda column: b.load(box.pointer, b.add(b.mul(column.channel, box.pitch), column.at), k.number, k.lanes)

    def keep(self, label: str, link: int) -> Callable[[ir.Value, Column], ir.Value]:
        self.kept[label] = self.words[link].kept

        def store(value: ir.Value, column: Column) -> ir.Value:
            self.k.b.store(value, *self._kept(label, column))
            return value

        return store

    def again(self, label: str) -> Callable[[Column], ir.Value]:
        return lambda column: self.k.b.load(*self._kept(label, column), self.k.number, self.k.lanes)

    def _kept(self, label: str, column: Column) -> tuple[ir.Value, Number]:
        k = self.k
        place = k.dot((column.channel, UNROLL * k.lanes), (column.turn, k.lanes))
        return self.kept[label].pointer, place


def steps_of_links(context: Links, links: tuple[Link, ...]) -> list[Step]:
    """What the links do, in order; the context counts the channels that are left."""
    from .tails import TAILS  # which are written with what stands here

    inner: dict[type[Stage], Emitter] = {Affine: affine, **TAILS}
    steps: list[Step] = []
    for at, link in enumerate(links):
        own = (inner.get(type(link.stage)) or CPU[type(link.stage)])(context, at, link.stage)
        context.channels = 1 if any(isinstance(step, Collapse) for step in own) else context.channels
        steps += own
    return steps


def emit_chain(k: Kernel, context: Links, links: tuple[Link, ...], buffer: Scratch, runs: Runs) -> Number:
    """Applies the links to a buffer; returns how many channels it has afterwards."""
    channels = context.channels
    steps = steps_of_links(context, links)
    with runs() as (base, length), k.b.loop(0, length, UNROLL * k.lanes) as at:
        _walk(k, steps, buffer, k.b.add(base, at), Run(at, length), channels)
    return context.channels


Runs: TypeAlias = Callable[[], Any]  # a context manager that yields (offset, length) of contiguous positions


def _walk(k: Kernel, steps: list[Step], buffer: Scratch, at: Number, run: Run, channels: Number) -> None:
    pending: list[Map] = []
    for step in steps:
        if isinstance(step, Map):
            pending.append(step)
        elif isinstance(step, Fold):
            _over_channels(k, pending, step, buffer, at, run, channels)
            pending = []
        else:
            for turn, value in enumerate(step.fold.result):
                k.b.store(value, buffer.pointer, k.b.add(at, turn * k.lanes))
            channels = 1
    if pending:
        _over_channels(k, pending, None, buffer, at, run, channels)


def _over_channels(
    k: Kernel, maps: list[Map], fold: Fold | None, buffer: Scratch, at: Number, run: Run, channels: Number
) -> None:
    """One walk: load, map, store if mapped, fold."""
    b, pointer, pitch = k.b, buffer.pointer, buffer.pitch

    def visit(c: Number, carried: Sequence[ir.Value]) -> list[ir.Value]:
        """What is carried on from channel c."""
        following: list[ir.Value] = []
        for turn, own in enumerate(_turns(carried)):
            place = b.add(at, turn * k.lanes)
            column = Column(c, turn, place, run)
            where = b.add(b.mul(c, pitch), place)
            value = b.load(pointer, where, k.number, k.lanes)
            for step in maps:
                value = step.change(value, column)
            if maps:
                b.store(value, pointer, where)
            if fold:
                following += fold.combine(own, value, turn)
        return following

    step = PLAINLY if fold and fold.join else 1
    with b.loop_carrying(0, channels, step, fold.start * UNROLL if fold else []) as (c, totals):
        if fold and fold.join:
            zeros = [constant(vector(k.number, k.lanes), 0.0)] * UNROLL
            with b.loop_carrying(c, b.min(b.add(c, step), channels), 1, zeros) as (each, some):
                some.next = visit(each, some.values)
            pairs = zip(_turns(totals.values), some.result, strict=True)
            totals.next = [part for own, plain in pairs for part in fold.join(own, plain)]
        else:
            totals.next = visit(c, totals.values)
    if fold:
        fold.result[:] = [fold.finish(own, turn) for turn, own in enumerate(_turns(totals.result))]


def _turns(carried: Sequence[ir.Value]) -> list[Sequence[ir.Value]]:
    """What belongs to each of the vectors walked together."""
    each = len(carried) // UNROLL
    return [carried[turn * each : (turn + 1) * each] for turn in range(UNROLL)]


# --- the stages -------------------------------------------------------------------------------------------------------

Emitter: TypeAlias = Callable[[Links, int, Any], list[Step]]
CPU: StageTable[Emitter] = StageTable("CPU", __name__)


@CPU.of(
    stages.ConvTranspose3d, stages.Conv3d, stages.MaxPool3d, stages.AvgPool3d, stages.GroupNorm, stages.InstanceNorm
)
def step_of_its_own(context: Links, link: int, stage: Stage) -> list[Step]:
    """These are steps of a sweep (plan/sweeps.py), or end it with statistics that an Affine applies."""
    raise AssertionError(f"{stage.name} is no link of a chain")


def _pointwise(function: Callable[..., ir.Value]) -> Emitter:
    """A stage that is a function of the value and its constants, passed by name."""

    def emitter(context: Links, link: int, stage: Stage) -> list[Step]:
        constants = context.constants(link, stage)
        return [Map(lambda value, column: function(context.k.b, value, **constants))]

    return emitter


CPU.of(stages.Exp)(_pointwise(vecmath.exp))
CPU.of(stages.Log)(_pointwise(vecmath.log))
CPU.of(stages.Sigmoid)(_pointwise(vecmath.sigmoid))
CPU.of(stages.Tanh)(_pointwise(vecmath.tanh))
CPU.of(stages.SiLU)(_pointwise(vecmath.silu))
CPU.of(stages.Mish)(_pointwise(vecmath.mish))
CPU.of(stages.HardSwish)(_pointwise(vecmath.hardswish))
CPU.of(stages.Softplus)(_pointwise(vecmath.softplus))
CPU.of(stages.ReLU)(_pointwise(lambda b, x: b.max(x, 0.0)))
CPU.of(stages.LeakyReLU)(
    _pointwise(lambda b, x, negative_slope: b.select(b.compare(">", x, 0.0), x, b.mul(x, negative_slope)))
)
CPU.of(stages.HardTanh)(_pointwise(lambda b, x, min_val, max_val: b.min(b.max(x, min_val), max_val)))


@CPU.of(stages.Clamp)
def clamp(context: Links, link: int, stage: stages.Clamp) -> list[Step]:
    bounds = context.constants(link, stage)

    def change(value: ir.Value, column: Column) -> ir.Value:
        b = context.k.b
        value = b.max(value, bounds["min"]) if "min" in bounds else value
        return b.min(value, bounds["max"]) if "max" in bounds else value

    return [Map(change)]


@CPU.of(stages.GELU)
def gelu(context: Links, link: int, stage: stages.GELU) -> list[Step]:
    function = vecmath.gelu_tanh if stage.approximate == "tanh" else vecmath.gelu
    return [Map(lambda value, column: function(context.k.b, value))]


@CPU.of(stages.Add, stages.Subtract, stages.Multiply, stages.Divide)
def binary(context: Links, link: int, stage: Any) -> list[Step]:
    b = context.k.b
    operation = {stages.Add: b.add, stages.Subtract: b.sub, stages.Multiply: b.mul, stages.Divide: b.div}[type(stage)]
    other = second(context, link, stage, stage.other)
    return [Map(lambda value, column: operation(*stage.sides(value, other(column))))]


def second(context: Links, link: int, stage: Stage, other: float | str) -> Callable[[Column], ir.Value]:
    """The second value of an arithmetic stage."""
    if isinstance(other, float):
        number = context.constants(link, stage)["other"]
        return lambda column: number
    if other == "channel":
        return context.vector(link, 0)
    return context.tensor(link) if other == "tensor" else context.again(other)


@CPU.of(stages.Keep)
def keep(context: Links, link: int, stage: stages.Keep) -> list[Step]:
    return [Map(context.keep(stage.label, link))]


@CPU.of(stages.Recall)
def recall(context: Links, link: int, stage: stages.Recall) -> list[Step]:
    kept = context.again(stage.label)
    return [Map(lambda value, column: kept(column))]


@CPU.of(stages.PReLU)
def prelu(context: Links, link: int, stage: stages.PReLU) -> list[Step]:
    b, slope = context.k.b, context.vector(link, 0)
    return [Map(lambda x, column: b.select(b.compare(">", x, 0.0), x, b.mul(x, slope(column))))]


@CPU.of(stages.BatchNorm)
def batch_norm(context: Links, link: int, stage: stages.BatchNorm) -> list[Step]:
    b, eps = context.k.b, context.constants(link, stage)["eps"]
    mean, variance, *affine = (context.vector(link, number) for number in range(4 if stage.affine else 2))

    def change(value: ir.Value, column: Column) -> ir.Value:
        scale = vecmath.rsqrt(b, b.add(variance(column), eps))
        scale = b.mul(scale, affine[0](column)) if affine else scale
        shift = b.mul(mean(column), scale)
        return b.fma(value, scale, b.sub(affine[1](column), shift) if affine else b.neg(shift))

    return [Map(change)]


def affine(context: Links, link: int, stage: Affine) -> list[Step]:
    b = context.k.b
    shift, scale, offset = (context.vector(link, number) for number in range(3))
    return [Map(lambda value, column: b.fma(b.sub(value, shift(column)), scale(column), offset(column)))]


def _summed(
    context: Links,
    finish: Callable[[ir.Value, int], ir.Value],
    of: Callable[[ir.Value, int], ir.Value] = lambda value, turn: value,
) -> Fold:
    """A sum over channels, which is finished from float64."""
    k = context.k
    return Fold(
        sums.nothing(k.number, k.lanes),
        lambda parts, value, turn: sums.plus(k.b, parts, of(value, turn)),
        lambda parts, turn: finish(sums.total(k.b, parts), turn),
        [],
    )


def _largest(context: Links, finish: Callable[[ir.Value], ir.Value] = lambda most: most) -> Fold:
    k = context.k
    lowest = constant(vector(k.number, k.lanes), -math.inf)
    return Fold([lowest], lambda most, value, turn: [k.b.max(most[0], value)], lambda most, turn: finish(most[0]), [])


@CPU.of(stages.LayerNorm)
def layer_norm(context: Links, link: int, stage: stages.LayerNorm) -> list[Step]:
    """The mean has two parts: subtracting both from values near it is exact, however large it is."""
    k, b, eps = context.k, context.k.b, context.constants(link, stage)["eps"]
    count = context.channel_count()
    rest: dict[int, ir.Value] = {}  # of the mean, then of the mean after division by the deviation

    def finish_mean(total: ir.Value, turn: int) -> ir.Value:
        near, rest[turn] = sums.mean(b, total, count, k.number)
        return near

    def add_square(plain: Sequence[ir.Value], value: ir.Value, turn: int) -> list[ir.Value]:
        distance = b.sub(value, mean.result[turn])
        return [b.fma(distance, distance, plain[0])]

    def finish_deviation(total: ir.Value, turn: int) -> ir.Value:
        left = rest[turn]
        variance = b.fma(b.neg(left), left, sums.divided(b, total, count, k.number))
        scale = vecmath.rsqrt(b, b.add(b.cast(variance, k.number), eps))
        rest[turn] = b.mul(b.cast(b.neg(left), k.number), scale)
        return scale

    mean, deviation = _summed(context, finish_mean), _summed(context, finish_deviation)
    deviation.combine, deviation.join = add_square, lambda parts, plain: sums.plus(b, parts, plain)
    weights = [context.vector(link, number) for number in range(2)] if stage.affine else []

    def change(value: ir.Value, column: Column) -> ir.Value:
        turn = column.turn
        value = b.fma(b.sub(value, mean.result[turn]), deviation.result[turn], rest[turn])
        return b.fma(value, weights[0](column), weights[1](column)) if weights else value

    return [mean, deviation, Map(change)]


@CPU.of(stages.Softmax)
def softmax(context: Links, link: int, stage: stages.Softmax) -> list[Step]:
    k, b, constants = context.k, context.k.b, context.constants(link, stage)
    most = _largest(context)
    total = _summed(context, lambda total, turn: b.div(constants.get("scale", 1.0), b.cast(total, k.number)))

    def exponential(value: ir.Value, column: Column) -> ir.Value:
        shift = constants["shift"] if "shift" in constants else most.result[column.turn]
        return vecmath.exp(b, b.sub(value, shift))

    factor = context.vector(link, 0) if stage.scale == "channel" else None

    def divided(value: ir.Value, column: Column) -> ir.Value:
        value = b.mul(value, total.result[column.turn])
        return b.mul(value, factor(column)) if factor else value

    steps: list[Step] = [] if "shift" in constants else [most]
    return [*steps, Map(exponential), total, Map(divided)]


@CPU.of(stages.Sum, stages.Mean, stages.Max)
def reduction(context: Links, link: int, stage: Any) -> list[Step]:
    k, b, count = context.k, context.k.b, context.channel_count()
    if isinstance(stage, stages.Max):
        fold = _largest(context)
    elif isinstance(stage, stages.Sum):
        fold = _summed(context, lambda total, turn: b.cast(total, k.number))
    else:
        fold = _summed(context, lambda total, turn: b.cast(sums.divided(b, total, count, k.number), k.number))
    return [fold, Collapse(fold)]


@CPU.of(stages.LogSumExp)
def log_sum_exp(context: Links, link: int, stage: stages.LogSumExp) -> list[Step]:
    k, b = context.k, context.k.b
    most = _largest(context, lambda largest: finite_or_zero(b, largest))

    def exponential(value: ir.Value, turn: int) -> ir.Value:
        return vecmath.exp(b, b.sub(value, most.result[turn]))

    def finish(total: ir.Value, turn: int) -> ir.Value:
        return b.add(most.result[turn], vecmath.log(b, b.cast(total, k.number)))

    total = _summed(context, finish, exponential)
    return [most, total, Collapse(total)]


def finite_or_zero(b: Any, x: ir.Value) -> ir.Value:
    """An infinite maximum is not subtracted: exp of the values then gives 0 or inf, as it must."""
    return b.select(b.compare("==", b.intrinsic("llvm.fabs", x), math.inf), 0.0, x)
