"""Statistics of a tile, channel by channel, and the norm along rows: folds whose result is one number."""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from ..plan.passes import STATISTICS
from ..spec.stages import LayerNorm
from . import vecmath
from .chain import finite_or_zero
from .kernel import Kernel
from .move import in_vectors
from .values import Number, constant, vector


def emit_reduce(k: Kernel, kind: str, buffer: str, length: Number, channels: Number, all_channels: Number) -> None:
    """buffer (C, length) -> partials[item][channel][word], where an item has `all_channels`."""
    b, origin, pitch = k.b, k.buffer(buffer), k.param(f"pitch {buffer}")
    partials, words = k.pointer("partials"), STATISTICS[kind]
    assert k.item is not None
    with b.loop(0, channels) as c:
        start = b.mul(c, pitch)
        place = b.mul(b.add(b.mul(k.item, all_channels), b.add(k.first_channel, c)), words)

        def total(of: Callable[[ir.Value], ir.Value], start: Number = start) -> ir.Value:
            return fold(k, origin, start, length, 0.0, lambda s, x: b.add(s, of(x)))

        if kind == "sum":
            results = [total(lambda x: x)]
        elif kind == "moments":
            mean = b.div(total(lambda x: x), b.cast(b.i64(length), k.number))
            results = [mean, total(lambda x: _square(k, b.sub(x, b.splat(mean, k.lanes))))]
        else:
            most = fold(k, origin, start, length, -math.inf, b.max)
            results = [most]
            if kind == "maxexp":
                shift = b.splat(finite_or_zero(b, most), k.lanes)
                results.append(total(lambda x: vecmath.exp(b, b.sub(x, shift))))
        for word, value in enumerate(results):
            b.store(value, partials, b.add(place, word))


def _square(k: Kernel, x: ir.Value) -> ir.Value:
    return k.b.mul(x, x)


def fold(
    k: Kernel,
    origin: ir.Value,
    start: Number,
    length: Number,
    neutral: float,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
) -> ir.Value:
    """Combines `length` numbers in a fixed order; lanes beyond the end count as neutral."""
    b = k.b
    whole = b.bits("and_", length, -k.lanes)
    neutrals = constant(vector(k.number, k.lanes), neutral)
    with b.loop_carrying(0, whole, k.lanes, [neutrals]) as (at, folded):
        folded.next = [combine(folded.values[0], b.load(origin, b.add(start, at), k.number, k.lanes))]
    lanes = b.sub(length, whole)
    last = b.load(origin, b.add(start, whole), k.number, k.lanes)
    tail = combine(folded.result[0], last)
    kept = b.select(b.first_lanes(k.lanes, lanes), tail, folded.result[0])
    return b.reduce(kept, b.max if neutral else b.add)


def emit_row_norm(
    k: Kernel, name: str, stage: LayerNorm, buffer: str, sizes: tuple[Number, ...], channels: Number
) -> None:
    """LayerNorm along the width of buffer (C, D, H, W), in place."""
    b, origin, pitch = k.b, k.buffer(buffer), k.param(f"pitch {buffer}")
    eps = k.constant()
    depth, height, width = sizes
    affine = [k.pointer(f"vector {name}.0.{number}") for number in range(2)] if stage.affine else []
    with b.loop(0, channels) as c, b.loop(0, b.mul(depth, height)) as r:
        start = b.add(b.mul(c, pitch), b.mul(r, width))
        count = b.cast(b.i64(width), k.number)
        mean = b.splat(b.div(fold(k, origin, start, width, 0.0, b.add), count), k.lanes)

        def add_square(total: ir.Value, x: ir.Value, mean: ir.Value = mean) -> ir.Value:
            return b.add(total, _square(k, b.sub(x, mean)))

        variance = b.splat(b.div(fold(k, origin, start, width, 0.0, add_square), count), k.lanes)
        scale = vecmath.rsqrt(b, b.add(variance, eps))

        def put(
            at: Number, lanes: Number | None, start: Number = start, mean: ir.Value = mean, scale: ir.Value = scale
        ) -> None:
            place = b.add(start, at)
            value = b.mul(b.sub(b.load(origin, place, k.number, k.lanes), mean), scale)
            if affine:
                weight, bias = (b.load(pointer, at, k.number, k.lanes, count=lanes) for pointer in affine)
                value = b.fma(value, weight, bias)
            b.store(value, origin, place, count=lanes)

        in_vectors(k, width, put)
