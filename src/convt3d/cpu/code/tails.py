"""Links of a chain that take a gradient back through a stage, and the sums over voxels that operands get."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...plan import tail_links as way
from ...spec import stages
from ...spec.stage import Stage
from ..ir import derivatives, sums, vecmath
from ..ir.values import F64, Number, constant, vector
from .chain import Column, Emitter, Fold, Links, Map, Step, layer_norm, second

# What the derivative of a stage is: a function of the gradient, of the value kept for it, and of its constants.
DERIVATIVES: dict[type[Stage], Callable[..., ir.Value]] = {
    stages.Clamp: derivatives.clamp,
    stages.Exp: derivatives.exp,
    stages.HardSwish: derivatives.hardswish,
    stages.HardTanh: derivatives.hardtanh,
    stages.LeakyReLU: derivatives.leaky_relu,
    stages.Log: derivatives.log,
    stages.Mish: derivatives.mish,
    stages.ReLU: derivatives.relu,
    stages.Sigmoid: derivatives.sigmoid,
    stages.SiLU: derivatives.silu,
    stages.Softplus: derivatives.softplus,
    stages.Tanh: derivatives.tanh,
}


def incoming(context: Links, link: int, stage: way.Incoming) -> list[Step]:
    gradient = context.tensor(link)
    return [Map(lambda value, column: gradient(column))]


def derivative(context: Links, link: int, stage: way.Derivative) -> list[Step]:
    b, kept, of = context.k.b, context.again(stage.at), stage.of
    if isinstance(of, stages.PReLU):
        slope = context.vector(link, 0)
        return [Map(lambda g, column: derivatives.leaky_relu(b, g, kept(column), slope(column)))]
    if isinstance(of, stages.GELU):
        function = derivatives.gelu_tanh if of.approximate == "tanh" else derivatives.gelu
    else:
        function = DERIVATIVES[type(of)]
    constants = context.constants(link, stage)
    return [Map(lambda g, column: function(b, g, kept(column), **constants))]


def unit(context: Links, link: int, stage: way.Unit) -> list[Step]:
    """The deviation is remembered for the way back."""
    steps = layer_norm(context, link, stages.LayerNorm("channels", stage.eps))
    _, deviation, _ = steps
    assert isinstance(deviation, Fold)
    context.deviations[stage.at] = deviation
    return steps


def _sums_with(
    context: Links, at: str, both: bool, finish: Callable[[Sequence[ir.Value], int], ir.Value]
) -> tuple[list[Step], dict[int, ir.Value]]:
    """Steps that sum the gradient times the kept value over channels, and, with `both`, the gradient first; and where
    the kept value is found while they walk."""
    k, b, kept = context.k, context.k.b, context.again(at)
    here: dict[int, ir.Value] = {}

    def look(g: ir.Value, column: Column) -> ir.Value:
        here[column.turn] = kept(column)
        return g

    nothing = sums.nothing(k.number, k.lanes)
    size = len(nothing)

    def combine(parts: Sequence[ir.Value], g: ir.Value, turn: int) -> list[ir.Value]:
        plain = sums.plus(b, parts[:size], g) if both else []
        return [*plain, *sums.plus(b, parts[-size:], b.mul(g, here[turn]))]

    fold = Fold(nothing * (2 if both else 1), combine, finish, [])
    return [Map(look), fold], here


def unit_gradient(context: Links, link: int, stage: way.UnitGradient) -> list[Step]:
    k, b, kept = context.k, context.k.b, context.again(stage.at)
    count, deviation = context.channel_count(), context.deviations[stage.at]
    along: dict[int, ir.Value] = {}  # mean(gradient * unit)

    def finish(parts: Sequence[ir.Value], turn: int) -> ir.Value:
        half = len(parts) // 2
        means = [sums.divided(b, sums.total(b, each), count, k.number) for each in (parts[:half], parts[half:])]
        mean, along[turn] = (b.cast(each, k.number) for each in means)
        return mean

    steps, _ = _sums_with(context, stage.at, True, finish)
    fold = steps[-1]
    assert isinstance(fold, Fold)

    def change(g: ir.Value, column: Column) -> ir.Value:
        turn = column.turn
        centred = b.fma(b.neg(kept(column)), along[turn], b.sub(g, fold.result[turn]))
        return b.mul(centred, deviation.result[turn])

    return [*steps, Map(change)]


def channel_softmax_gradient(context: Links, link: int, stage: way.ChannelSoftmaxGradient) -> list[Step]:
    k, b, kept = context.k, context.k.b, context.again(stage.at)
    steps, _ = _sums_with(context, stage.at, False, lambda parts, turn: b.cast(sums.total(b, parts), k.number))
    fold = steps[-1]
    assert isinstance(fold, Fold)
    return [*steps, Map(lambda g, column: b.mul(b.sub(g, fold.result[column.turn]), kept(column)))]


def norm_gradient(context: Links, link: int, stage: way.NormGradient) -> list[Step]:
    b, kept = context.k.b, context.again(stage.at)
    scale, shift, offset = (context.vector(link, number) for number in range(3))
    return [Map(lambda g, column: b.fma(kept(column), offset(column), b.fma(g, scale(column), shift(column))))]


def softmax_gradient(context: Links, link: int, stage: way.SoftmaxGradient) -> list[Step]:
    b, kept, shift = context.k.b, context.again(stage.at), context.vector(link, 0)
    return [Map(lambda g, column: b.mul(b.sub(g, shift(column)), kept(column)))]


def batch_norm_gradient(context: Links, link: int, stage: way.BatchNormGradient) -> list[Step]:
    b, eps = context.k.b, context.constants(link, stage)["eps"]
    variance, *weight = (context.vector(link, number) for number in range(len(context.call[link])))

    def change(g: ir.Value, column: Column) -> ir.Value:
        scale = vecmath.rsqrt(b, b.add(variance(column), eps))
        return b.mul(g, b.mul(scale, weight[0](column)) if weight else scale)

    return [Map(change)]


def quotient_gradient(context: Links, link: int, stage: way.QuotientGradient) -> list[Step]:
    b, kept = context.k.b, context.again(stage.at)
    other = second(context, link, stage, stage.other)

    def change(g: ir.Value, column: Column) -> ir.Value:
        left, value = other(column), kept(column)
        return b.div(b.mul(b.neg(g), left), b.mul(value, value))

    return [Map(change)]


def peaks(context: Links, link: int, stage: way.Peaks) -> list[Step]:
    b, most = context.k.b, context.tensor(link)
    return [Map(lambda value, column: _ones(context, b.compare("==", value, most(column))))]


def peak_gradient(context: Links, link: int, stage: way.PeakGradient) -> list[Step]:
    """As PyTorch has it: NaN and infinite gradients are multiplied by 0."""
    b, most, kept = context.k.b, context.tensor(link), context.again(stage.at)
    return [Map(lambda g, column: b.mul(g, _ones(context, b.compare("==", kept(column), most(column)))))]


def _ones(context: Links, where: ir.Value) -> ir.Value:
    """1 where it holds, else 0."""
    one, zero = (constant(vector(context.k.number, context.k.lanes), number) for number in (1.0, 0.0))
    return context.k.b.select(where, one, zero)


def log_sum_exp_gradient(context: Links, link: int, stage: way.LogSumExpGradient) -> list[Step]:
    b, result, kept = context.k.b, context.tensor(link), context.again(stage.at)
    return [Map(lambda g, column: b.mul(g, vecmath.exp(b, b.sub(kept(column), result(column)))))]


def totals(context: Links, link: int, stage: way.Totals) -> list[Step]:
    """Sums of float64 in the room of this link, one in each lane: (factors, C, parts of a sum, lanes)."""
    k, b, room = context.k, context.k.b, context.words[link].sums
    kept = [context.again(factor) if factor else None for factor in stage.factors]
    parts = len(sums.nothing(k.number, k.lanes))

    def change(g: ir.Value, column: Column) -> ir.Value:
        left = b.sub(column.run.length, b.add(column.run.at, column.turn * k.lanes))
        there = b.first_lanes(k.lanes, left)
        for number, factor in enumerate(kept):
            value = factor(column) if factor else None
            term = g if value is None else (b.div if stage.divided else b.mul)(g, value)
            if stage.below:
                term = b.select(b.compare(">", value, 0.0), 0.0, term)
            places = [_place(context, column.channel, number, part) for part in range(parts)]
            before = [b.load(room.pointer, place, F64, k.lanes) for place in places]
            after = sums.plus(b, before, b.select(there, term, 0.0))
            for place, total in zip(places, after, strict=True):
                b.store(total, room.pointer, place)
        return g

    return [Map(change)]


def _place(context: Links, channel: Number, number: int, part: int) -> Number:
    """Of a sum in its room, in numbers of float64."""
    k = context.k
    parts = len(sums.nothing(k.number, k.lanes))
    return k.dot((number, k.b.mul(context.channels, parts * k.lanes)), (channel, parts * k.lanes), (part, k.lanes))


def clear_totals(context: Links, link: int, stage: way.Totals) -> None:
    """Before the chain."""
    k, b, room = context.k, context.k.b, context.words[link].sums
    parts = len(sums.nothing(k.number, k.lanes))
    vectors = b.mul(context.channels, parts * len(stage.factors))
    with b.loop(0, b.mul(vectors, k.lanes), k.lanes) as at:
        b.store(constant(vector(F64, k.lanes), 0.0), room.pointer, at)


def store_totals(
    context: Links, link: int, stage: way.Totals, first: int, words: int, partials: ir.Value, all_channels: Number
) -> None:
    """Behind the chain: partials[item][channel][first, ...] of `words`, in float64; an item has `all_channels`."""
    k, b, room = context.k, context.k.b, context.words[link].sums
    parts = len(sums.nothing(k.number, k.lanes))
    assert k.item is not None
    with b.loop(0, context.channels) as c:
        place = b.mul(b.add(b.mul(k.item, all_channels), b.add(k.first_channel, c)), words)
        for number in range(len(stage.factors)):
            own = [b.load(room.pointer, _place(context, c, number, part), F64, k.lanes) for part in range(parts)]
            b.store(sums.total_of_lanes(b, own), partials, b.add(place, first + number))


TAILS: dict[type[Stage], Emitter] = {
    way.Incoming: incoming,
    way.Derivative: derivative,
    way.Unit: unit,
    way.UnitGradient: unit_gradient,
    way.NormGradient: norm_gradient,
    way.BatchNormGradient: batch_norm_gradient,
    way.SoftmaxGradient: softmax_gradient,
    way.ChannelSoftmaxGradient: channel_softmax_gradient,
    way.QuotientGradient: quotient_gradient,
    way.Peaks: peaks,
    way.PeakGradient: peak_gradient,
    way.LogSumExpGradient: log_sum_exp_gradient,
    way.Totals: totals,
}
