"""Statistics of a tile, channel by channel, and the norm along rows: folds whose result is one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from ...plan.sweeps import STATISTICS
from ..ir import sums, vecmath
from ..ir.frame import Kernel, Scratch
from ..ir.move import in_vectors
from ..ir.values import F64, Number, constant, vector
from .chain import finite_or_zero


def emit_reduce(
    k: Kernel,
    partials: ir.Value,
    kind: str,
    buffer: Scratch,
    length: Number,
    channels: Number,
    all_channels: Number,
) -> None:
    """buffer (C, length) -> partials[item][channel][word] in float64, where an item has `all_channels`."""
    b, origin, pitch = k.b, buffer.pointer, buffer.pitch
    words = STATISTICS[kind]
    assert k.item is not None
    with b.loop(0, channels) as c:
        start = b.mul(c, pitch)
        place = b.mul(b.add(b.mul(k.item, all_channels), b.add(k.first_channel, c)), words)
        if kind == "sum":
            results = [total(k, origin, start, length, lambda x: x)]
        elif kind == "moments":
            results = [*moments(k, origin, start, length)]
        else:
            lowest = constant(vector(k.number, k.lanes), -math.inf)
            most = b.reduce(fold(k, origin, start, length, [lowest], lambda m, x: [b.max(m[0], x)])[0], b.max)
            results = [most]
            if kind == "maxexp":
                shift = b.splat(finite_or_zero(b, most), k.lanes)
                results.append(total(k, origin, start, length, lambda x, shift=shift: vecmath.exp(b, b.sub(x, shift))))
        for word, value in enumerate(results):
            b.store(b.cast(value, F64), partials, b.add(place, word))


def total(k: Kernel, origin: ir.Value, start: Number, length: Number, of: Callable[..., ir.Value]) -> ir.Value:
    """The sum of a function of `length` numbers, in float64."""
    nothing = sums.nothing(k.number, k.lanes)
    parts = fold(k, origin, start, length, nothing, lambda parts, x: sums.plus(k.b, parts, of(x)))
    return sums.total_of_lanes(k.b, parts)


def moments(k: Kernel, origin: ir.Value, start: Number, length: Number) -> tuple[ir.Value, ir.Value]:
    """Mean of `length` numbers, and the sum of squared distances from it, in float64."""
    b = k.b
    mean = b.div(total(k, origin, start, length, lambda x: x), b.cast(b.i64(length), F64))
    center = b.splat(mean, k.lanes)

    def add_square(parts: Sequence[ir.Value], x: ir.Value) -> list[ir.Value]:
        return sums.plus_square(b, parts, b.sub(b.cast(x, F64), center))

    parts = fold(k, origin, start, length, sums.nothing(k.number, k.lanes), add_square)
    return mean, sums.total_of_lanes(b, parts)


def fold(
    k: Kernel,
    origin: ir.Value,
    start: Number,
    length: Number,
    initial: Sequence[ir.Value],
    combine: Callable[[Sequence[ir.Value], ir.Value], list[ir.Value]],
) -> list[ir.Value]:
    """Combines `length` numbers with vectors of results, in a fixed order; lanes beyond the end change nothing."""
    b = k.b
    whole = b.bits("and_", length, -k.lanes)
    with b.loop_carrying(0, whole, k.lanes, initial) as (at, folded):
        folded.next = combine(folded.values, b.load(origin, b.add(start, at), k.number, k.lanes))
    last = b.load(origin, b.add(start, whole), k.number, k.lanes)
    there = b.first_lanes(k.lanes, b.sub(length, whole))
    pairs = zip(combine(folded.result, last), folded.result, strict=True)
    return [b.select(there, after, before) for after, before in pairs]


def emit_row_norm(
    k: Kernel,
    constants: ir.Value,
    affine: Sequence[ir.Value],
    buffer: Scratch,
    sizes: tuple[Number, ...],
    channels: Number,
) -> None:
    """LayerNorm along the width of buffer (C, D, H, W), in place; `affine`: weights and biases, or nothing."""
    b, origin, pitch = k.b, buffer.pointer, buffer.pitch
    eps = b.cast(b.lane(k.constant(constants, 0), 0), F64)
    depth, height, width = sizes
    with b.loop(0, channels) as c, b.loop(0, b.mul(depth, height)) as r:
        start = b.add(b.mul(c, pitch), b.mul(r, width))
        exact, squares = moments(k, origin, start, width)
        scale = vecmath.rsqrt(b, b.add(b.div(squares, b.cast(b.i64(width), F64)), eps))
        mean = b.cast(exact, k.number)
        rest = b.mul(b.sub(b.cast(mean, F64), exact), scale)  # the mean lies between two numbers

        def put(
            at: Number,
            lanes: Number | None,
            start: Number = start,
            norm: Sequence[ir.Value] = [b.splat(b.cast(word, k.number), k.lanes) for word in (mean, scale, rest)],
        ) -> None:
            place = b.add(start, at)
            mean, scale, rest = norm
            value = b.fma(b.sub(b.load(origin, place, k.number, k.lanes), mean), scale, rest)
            if affine:
                weight, bias = (b.load(pointer, at, k.number, k.lanes, count=lanes) for pointer in affine)
                value = b.fma(value, weight, bias)
            b.store(value, origin, place, count=lanes)

        in_vectors(k, width, put)
