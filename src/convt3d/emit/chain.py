"""Pointwise and channel-wise stages on a tile: (C, positions) in place, lanes along positions: channels are vertical.

A stage becomes steps: a Map changes each value, a Fold runs over the channels of a position, a Collapse puts a fold's
result in place of all channels. Consecutive maps and the fold after them share one walk over the channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from ..plan.passes import Affine, Link
from ..plan.structure import scalars
from ..plan.tiles import UNROLL
from ..spec.stage import Stage
from ..spec.stages import (
    GELU,
    Add,
    BatchNorm,
    Clamp,
    Divide,
    Exp,
    HardSwish,
    HardTanh,
    Keep,
    LayerNorm,
    LeakyReLU,
    Log,
    LogSumExp,
    Max,
    Mean,
    Mish,
    Multiply,
    PReLU,
    Recall,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Subtract,
    Sum,
    Tanh,
)
from . import vecmath
from .kernel import Kernel
from .values import Number, constant, vector


@dataclass
class Map:
    """value -> value; `column` tells channel and place."""

    change: Callable[[ir.Value, Column], ir.Value]


@dataclass
class Fold:
    """Combines all channels of a position; `finish` turns the total into what later maps use."""

    start: float
    combine: Callable[[ir.Value, ir.Value, int], ir.Value]
    finish: Callable[[ir.Value, int], ir.Value]
    result: list[ir.Value]  # one for each of the UNROLL vectors, filled when the fold is done


@dataclass
class Collapse:
    fold: Fold


Step: TypeAlias = Map | Fold | Collapse


@dataclass
class Column:
    """Where a value stands: channel, which of the vectors walked together, and its offset in a run."""

    channel: Number
    turn: int
    at: Number


class Links:
    """Access to what the links of one chain read: constants, vectors, tensors and kept values."""

    def __init__(self, k: Kernel, name: str, channels: Number) -> None:
        self.k, self.name, self.channels = k, name, channels
        self.kept: dict[str, str] = {}

    def channel_count(self) -> ir.Value:
        """The number of channels as a vector of numbers."""
        return self.k.b.splat(self.k.b.cast(self.k.b.i64(self.channels), self.k.number), self.k.lanes)

    def constants(self, stage: Stage) -> dict[str, ir.Value]:
        return {name: self.k.constant() for name, _ in scalars(stage)}

    def vector(self, link: int, number: int) -> Callable[[Column], ir.Value]:
        """One number for each channel, from an operand or from the sample's statistics."""
        k, b = self.k, self.k.b
        name = f"vector {self.name}.{link}.{number}"
        pointer, per_sample = k.pointer(name), k.param(f"{name} b")
        assert k.sample is not None
        base = b.at(pointer, b.add(b.mul(k.sample, per_sample), k.first_channel), k.number)
        return lambda column: b.splat(b.load(base, column.channel, k.number), k.lanes)

    def tensor(self, link: int) -> Callable[[Column], ir.Value]:
        """An array of the value's shape, already in a buffer."""
        k, b = self.k, self.k.b
        buffer, pitch = k.buffer(f"{self.name}.{link}"), k.param(f"pitch {self.name}.{link}")
        return lambda column: b.load(buffer, b.add(b.mul(column.channel, pitch), column.at), k.number, k.lanes)

    def keep(self, label: str, link: int) -> Callable[[ir.Value, Column], ir.Value]:
        self.kept[label] = f"{self.name}.{link}"

        def store(value: ir.Value, column: Column) -> ir.Value:
            self.k.b.store(value, *self._kept(label, column))
            return value

        return store

    def again(self, label: str) -> Callable[[Column], ir.Value]:
        return lambda column: self.k.b.load(*self._kept(label, column), self.k.number, self.k.lanes)

    def _kept(self, label: str, column: Column) -> tuple[ir.Value, Number]:
        k = self.k
        place = k.dot((column.channel, UNROLL * k.lanes), (column.turn, k.lanes))
        return k.buffer(self.kept[label]), place


def emit_chain(k: Kernel, name: str, links: tuple[Link, ...], buffer: str, runs: Runs, channels: Number) -> Number:
    """Applies the links to a buffer; returns how many channels it has afterwards."""
    context = Links(k, name, channels)
    steps: list[Step] = []
    for at, link in enumerate(links):
        own = STEPS[type(link.stage)](context, at, link.stage)
        context.channels = 1 if any(isinstance(step, Collapse) for step in own) else context.channels
        steps += own
    with runs() as (base, length), k.b.loop(0, length, UNROLL * k.lanes) as at:
        _walk(k, steps, buffer, k.b.add(base, at), channels)
    return context.channels


Runs: TypeAlias = Callable[[], Any]  # a context manager that yields (offset, length) of contiguous positions


def _walk(k: Kernel, steps: list[Step], buffer: str, at: Number, channels: Number) -> None:
    pending: list[Map] = []
    for step in steps:
        if isinstance(step, Map):
            pending.append(step)
        elif isinstance(step, Fold):
            _over_channels(k, pending, step, buffer, at, channels)
            pending = []
        else:
            for turn, value in enumerate(step.fold.result):
                k.b.store(value, k.buffer(buffer), k.b.add(at, turn * k.lanes))
            channels = 1
    if pending:
        _over_channels(k, pending, None, buffer, at, channels)


def _over_channels(k: Kernel, maps: list[Map], fold: Fold | None, buffer: str, at: Number, channels: Number) -> None:
    """One walk: load, map, store if mapped, fold."""
    b, pointer, pitch = k.b, k.buffer(buffer), k.param(f"pitch {buffer}")
    start = [constant(vector(k.number, k.lanes), fold.start)] * UNROLL if fold else []
    with b.loop_carrying(0, channels, 1, start) as (c, totals):
        totals.next = []
        for turn in range(UNROLL):
            place = b.add(at, turn * k.lanes)
            column = Column(c, turn, place)
            where = b.add(b.mul(c, pitch), place)
            value = b.load(pointer, where, k.number, k.lanes)
            for step in maps:
                value = step.change(value, column)
            if maps:
                b.store(value, pointer, where)
            if fold:
                totals.next.append(fold.combine(totals.values[turn], value, turn))
    if fold:
        fold.result[:] = [fold.finish(total, turn) for turn, total in enumerate(totals.result)]


# --- the stages -------------------------------------------------------------------------------------------------------

Emitter: TypeAlias = Callable[[Links, int, Any], list[Step]]
STEPS: dict[type[Stage], Emitter] = {}


def emits(*stages: type[Stage]) -> Callable[[Emitter], Emitter]:
    def register(emitter: Emitter) -> Emitter:
        STEPS.update(dict.fromkeys(stages, emitter))
        return emitter

    return register


def _pointwise(function: Callable[..., ir.Value]) -> Emitter:
    """A stage that is a function of the value and its constants, passed by name."""

    def emitter(context: Links, link: int, stage: Stage) -> list[Step]:
        constants = context.constants(stage)
        return [Map(lambda value, column: function(context.k.b, value, **constants))]

    return emitter


STEPS[Exp] = _pointwise(vecmath.exp)
STEPS[Log] = _pointwise(vecmath.log)
STEPS[Sigmoid] = _pointwise(vecmath.sigmoid)
STEPS[Tanh] = _pointwise(vecmath.tanh)
STEPS[SiLU] = _pointwise(vecmath.silu)
STEPS[Mish] = _pointwise(vecmath.mish)
STEPS[HardSwish] = _pointwise(vecmath.hardswish)
STEPS[Softplus] = _pointwise(vecmath.softplus)
STEPS[ReLU] = _pointwise(lambda b, x: b.max(x, 0.0))
STEPS[LeakyReLU] = _pointwise(
    lambda b, x, negative_slope: b.select(b.compare(">", x, 0.0), x, b.mul(x, negative_slope))
)
STEPS[HardTanh] = _pointwise(lambda b, x, min_val, max_val: b.min(b.max(x, min_val), max_val))


@emits(Clamp)
def clamp(context: Links, link: int, stage: Clamp) -> list[Step]:
    bounds = context.constants(stage)

    def change(value: ir.Value, column: Column) -> ir.Value:
        b = context.k.b
        value = b.max(value, bounds["min"]) if "min" in bounds else value
        return b.min(value, bounds["max"]) if "max" in bounds else value

    return [Map(change)]


@emits(GELU)
def gelu(context: Links, link: int, stage: GELU) -> list[Step]:
    function = vecmath.gelu_tanh if stage.approximate == "tanh" else vecmath.gelu
    return [Map(lambda value, column: function(context.k.b, value))]


@emits(Add, Subtract, Multiply, Divide)
def binary(context: Links, link: int, stage: Any) -> list[Step]:
    b = context.k.b
    operation = {Add: b.add, Subtract: b.sub, Multiply: b.mul, Divide: b.div}[type(stage)]
    if isinstance(stage.other, float):
        number = context.constants(stage)["other"]
        return [Map(lambda value, column: operation(*stage.sides(value, number)))]
    if stage.other == "channel":
        other = context.vector(link, 0)
    elif stage.other == "tensor":
        other = context.tensor(link)
    else:
        other = context.again(stage.other)
    return [Map(lambda value, column: operation(*stage.sides(value, other(column))))]


@emits(Keep)
def keep(context: Links, link: int, stage: Keep) -> list[Step]:
    return [Map(context.keep(stage.label, link))]


@emits(Recall)
def recall(context: Links, link: int, stage: Recall) -> list[Step]:
    kept = context.again(stage.label)
    return [Map(lambda value, column: kept(column))]


@emits(PReLU)
def prelu(context: Links, link: int, stage: PReLU) -> list[Step]:
    b, slope = context.k.b, context.vector(link, 0)
    return [Map(lambda x, column: b.select(b.compare(">", x, 0.0), x, b.mul(x, slope(column))))]


@emits(BatchNorm)
def batch_norm(context: Links, link: int, stage: BatchNorm) -> list[Step]:
    b, eps = context.k.b, context.constants(stage)["eps"]
    mean, variance, *affine = (context.vector(link, number) for number in range(4 if stage.affine else 2))

    def change(value: ir.Value, column: Column) -> ir.Value:
        scale = vecmath.rsqrt(b, b.add(variance(column), eps))
        scale = b.mul(scale, affine[0](column)) if affine else scale
        shift = b.mul(mean(column), scale)
        return b.fma(value, scale, b.sub(affine[1](column), shift) if affine else b.neg(shift))

    return [Map(change)]


@emits(Affine)
def affine(context: Links, link: int, stage: Affine) -> list[Step]:
    b = context.k.b
    shift, scale, offset = (context.vector(link, number) for number in range(3))
    return [Map(lambda value, column: b.fma(b.sub(value, shift(column)), scale(column), offset(column)))]


def _total(context: Links, finish: Callable[[ir.Value], ir.Value] = lambda total: total) -> Fold:
    return Fold(0.0, lambda total, value, turn: context.k.b.add(total, value), lambda total, turn: finish(total), [])


def _largest(context: Links, finish: Callable[[ir.Value], ir.Value] = lambda most: most) -> Fold:
    return Fold(-math.inf, lambda most, value, turn: context.k.b.max(most, value), lambda most, turn: finish(most), [])


@emits(LayerNorm)
def layer_norm(context: Links, link: int, stage: LayerNorm) -> list[Step]:
    b, eps = context.k.b, context.constants(stage)["eps"]
    count = context.channel_count()
    mean = _total(context, lambda total: b.div(total, count))

    def add_square(total: ir.Value, value: ir.Value, turn: int) -> ir.Value:
        distance = b.sub(value, mean.result[turn])
        return b.fma(distance, distance, total)

    deviation = Fold(0.0, add_square, lambda total, turn: vecmath.rsqrt(b, b.add(b.div(total, count), eps)), [])
    weights = [context.vector(link, number) for number in range(2)] if stage.affine else []

    def change(value: ir.Value, column: Column) -> ir.Value:
        value = b.mul(b.sub(value, mean.result[column.turn]), deviation.result[column.turn])
        return b.fma(value, weights[0](column), weights[1](column)) if weights else value

    return [mean, deviation, Map(change)]


@emits(Softmax)
def softmax(context: Links, link: int, stage: Softmax) -> list[Step]:
    b, constants = context.k.b, context.constants(stage)
    most = _largest(context)
    total = _total(context, lambda total: b.div(constants.get("scale", 1.0), total))

    def exponential(value: ir.Value, column: Column) -> ir.Value:
        shift = constants["shift"] if "shift" in constants else most.result[column.turn]
        return vecmath.exp(b, b.sub(value, shift))

    factor = context.vector(link, 0) if stage.scale == "channel" else None

    def divided(value: ir.Value, column: Column) -> ir.Value:
        value = b.mul(value, total.result[column.turn])
        return b.mul(value, factor(column)) if factor else value

    steps: list[Step] = [] if "shift" in constants else [most]
    return [*steps, Map(exponential), total, Map(divided)]


@emits(Sum, Mean, Max)
def reduction(context: Links, link: int, stage: Any) -> list[Step]:
    count = context.channel_count()
    if isinstance(stage, Max):
        fold = _largest(context)
    elif isinstance(stage, Sum):
        fold = _total(context)
    else:
        fold = _total(context, lambda total: context.k.b.div(total, count))
    return [fold, Collapse(fold)]


@emits(LogSumExp)
def log_sum_exp(context: Links, link: int, stage: LogSumExp) -> list[Step]:
    b = context.k.b
    most = _largest(context, lambda largest: finite_or_zero(b, largest))

    def add_exponential(total: ir.Value, value: ir.Value, turn: int) -> ir.Value:
        return b.add(total, vecmath.exp(b, b.sub(value, most.result[turn])))

    def finish(total: ir.Value, turn: int) -> ir.Value:
        return b.add(most.result[turn], vecmath.log(b, total))

    total = Fold(0.0, add_exponential, finish, [])
    return [most, total, Collapse(total)]


def finite_or_zero(b: Any, x: ir.Value) -> ir.Value:
    """An infinite maximum is not subtracted: exp of the values then gives 0 or inf, as it must."""
    return b.select(b.compare("==", b.intrinsic("llvm.fabs", x), math.inf), 0.0, x)
