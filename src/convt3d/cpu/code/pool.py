"""Pools a tile: windows are folded over depth and height row by row, then along the width.

Where each window starts and stops, cut at the array's ends, comes in tables; so do the counts an average divides by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from ..ir import sums
from ..ir.frame import Kernel, Scratch
from ..ir.values import F64, I64, Number, constant, vector, width_of
from ..plan.geometry import READ, READ_COUNT, WRITE, WRITE_COUNT
from ..steps.argmax import ArgmaxWords
from ..steps.pool import PoolWords
from .interleave import Planar
from .reduce import fold

Combine: TypeAlias = Callable[..., ir.Value]


class Window:
    """The fold over a window: what loops carry, how a value joins, and the sum or maximum as a number."""

    def __init__(self, k: Kernel, average: bool) -> None:
        self.k, self.average = k, average

    def start(self, lanes: int) -> list[ir.Value]:
        number = self.k.number
        return sums.nothing(number, lanes) if self.average else [constant(vector(number, lanes), -math.inf)]

    def join(self, parts: Sequence[ir.Value], value: ir.Value) -> list[ir.Value]:
        return sums.plus(self.k.b, parts, value) if self.average else [self.k.b.max(parts[0], value)]

    def folded(self, parts: Sequence[ir.Value], count: Number) -> ir.Value:
        return self._mean(sums.total(self.k.b, parts), count) if self.average else parts[0]

    def over_lanes(self, parts: Sequence[ir.Value], count: Number) -> ir.Value:
        """One number of all lanes."""
        b = self.k.b
        return self._mean(sums.total_of_lanes(b, parts), count) if self.average else b.reduce(parts[0], b.max)

    def _mean(self, total: ir.Value, count: Number) -> ir.Value:
        """Divided before it is rounded: the sum of large numbers may be none of this type."""
        b, number = self.k.b, self.k.number
        return b.cast(sums.divided(b, total, b.splat(b.cast(count, F64), width_of(total.type)), number), number)


def emit_pool(
    k: Kernel,
    words: PoolWords,
    step: int,
    source: Scratch,
    channels: Number,
    average: bool,
    pairs: bool,
    whole: bool | ir.Value,
) -> None:
    """source (C, D, H, W) -> pooled buffer; `pairs`: windows of 2 along the width side by side, without padding;
    `whole`: one window is all of the width."""
    b = k.b
    low, size, first, count = (k.spans(step, word) for word in (READ, READ_COUNT, WRITE, WRITE_COUNT))
    origin, target, row = source.pointer, words.pooled.pointer, words.row.pointer
    window = Window(k, average)
    with b.loop(0, channels) as c, b.loop(0, count[0]) as d:
        d_range, d_count = window_range(k, words, 0, b.add(first[0], d), low[0])
        with b.loop(0, count[1]) as h:
            h_range, h_count = window_range(k, words, 1, b.add(first[1], h), low[1])
            # A pair of rows is added as it is: their halves never overflow.
            divisor = b.mul(b.mul(d_count, h_count), 2 if pairs else 1) if average else 1
            base = b.mul(c, source.pitch)
            with b.loop(0, size[2], k.lanes) as at:
                with b.loop_carrying(*d_range, 1, window.start(k.lanes)) as (in_d, outer):
                    with b.loop_carrying(*h_range, 1, outer.values) as (in_h, inner):
                        place = k.dot((1, base), (b.add(b.mul(in_d, size[1]), in_h), size[2]), (at, 1))
                        inner.next = window.join(inner.values, b.load(origin, place, k.number, k.lanes))
                    outer.next = inner.result
                b.store(window.folded(outer.result, divisor), row, at)
            out = k.dot((c, words.pooled.pitch), (b.add(b.mul(d, count[1]), h), count[2]))
            if pairs:
                _pairs(k, row, target, out, count[2], b.add if average else b.max)
            else:
                line = _Line(words, row, target, out, size[2], first[2], low[2], count[2])
                if isinstance(whole, bool):
                    (_whole_row if whole else _windows)(k, line, window)
                else:
                    with b.if_else(b.compare("!=", whole, 0)) as (one, some):
                        with one:
                            _whole_row(k, line, window)
                        with some:
                            _windows(k, line, window)


def emit_phase_pool(k: Kernel, pooled: Scratch, planar: Planar, channels: Number, average: bool) -> Planar:
    """Phase-planar buffer -> pooled phase-planar buffer: output t is the fold of the stride's phases at input t."""
    b, conv = k.b, planar.conv
    origin, target = planar.buffer.pointer, pooled.pointer
    phase, plane, strides, left, periods = conv.phase, conv.plane, conv.strides, conv.together, planar.phases
    window = Window(k, average)
    divisor = b.mul(b.mul(strides[0], strides[1]), strides[2])
    depth, length = planar.extent(k)
    with b.loop(0, channels) as c, b.loop(0, left[0]) as p, b.loop(0, left[1]) as q, b.loop(0, left[2]) as r:
        first = [b.mul(at, stride) for at, stride in zip((p, q, r), strides, strict=True)]
        number = b.add(b.mul(b.add(b.mul(p, left[1]), q), left[2]), r)
        row = b.mul(c, planar.buffer.pitch)
        out = k.dot((c, pooled.pitch), (number, phase))
        with b.loop(0, depth) as d, b.loop(0, length, k.lanes) as at:
            place = b.add(b.mul(d, plane), at)
            with b.loop_carrying(0, strides[0], 1, window.start(k.lanes)) as (i, outer):
                along_d = b.mul(b.add(first[0], i), periods[1])
                with b.loop_carrying(0, strides[1], 1, outer.values) as (j, middle):
                    along_h = b.mul(b.add(along_d, b.add(first[1], j)), periods[2])
                    with b.loop_carrying(0, strides[2], 1, middle.values) as (n, inner):
                        at_phase = b.mul(b.add(along_h, b.add(first[2], n)), phase)
                        value = b.load(origin, b.add(b.add(row, at_phase), place), k.number, k.lanes)
                        inner.next = window.join(inner.values, value)
                    middle.next = inner.result
                outer.next = middle.result
            b.store(window.folded(outer.result, divisor), target, b.add(out, place))
    return Planar(pooled, conv, planar.step, left, left, conv.together_places, conv.pooled_phases)


def window_range(
    k: Kernel, words: PoolWords | ArgmaxWords, axis: int, o: Number, low: Number
) -> tuple[tuple[Number, Number], Number]:
    """Range of window o, from the tile's first input, and the number it contributes to an average's divisor."""
    b, table = k.b, words.windows[axis]
    begin, end, count = (b.load(table, b.add(b.mul(o, 3), word), I64) for word in range(3))
    return (b.sub(begin, low), b.sub(end, low)), count


def _pairs(k: Kernel, row: ir.Value, target: ir.Value, out: Number, count: Number, combine: Combine) -> None:
    b = k.b
    with b.loop(0, count, k.lanes) as at:
        both = [b.load(row, b.add(b.mul(at, 2), half * k.lanes), k.number, k.lanes) for half in range(2)]
        b.store(combine(*b.deinterleave(both)), target, b.add(out, at))


@dataclass(frozen=True)
class _Line:
    """A row of `length` numbers, pooled along depth and height, and its `count` outputs from `first` on, at `out`."""

    words: PoolWords
    row: ir.Value
    target: ir.Value
    out: Number
    length: Number
    first: Number
    low: Number
    count: Number


def _whole_row(k: Kernel, line: _Line, window: Window) -> None:
    _, w_count = window_range(k, line.words, 2, line.first, line.low)
    parts = fold(k, line.row, 0, line.length, window.start(k.lanes), window.join)
    k.b.store(window.over_lanes(parts, w_count), line.target, line.out)


def _windows(k: Kernel, line: _Line, window: Window) -> None:
    b = k.b
    with b.loop(0, line.count) as at:
        w_range, w_count = window_range(k, line.words, 2, b.add(line.first, at), line.low)
        with b.loop_carrying(*w_range, 1, window.start(1)) as (i, along):
            along.next = window.join(along.values, b.load(line.row, i, k.number))
        b.store(window.folded(along.result, w_count), line.target, b.add(line.out, at))
