"""Code that packs the arrays of a tile, channels along the lanes: squares of channels and positions are transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, constant, size_of, vector
from ..words import SourceCall
from .words import PackedWords

if TYPE_CHECKING:
    from .code import Gradient

_AT_ONCE = 4  # positions of a last square that are stored under one condition
_FEW = 4

# Fetched ahead: processors do so by themselves, but not for as many rows at once as there are lanes, nor over gaps.
_BYTES_AHEAD, _POSITIONS_AHEAD = 512, 64

# What makes a number infinite that Winograd's method cannot take: HUGE of cpu/plan/winograd.py times this overflows.
_TOO_LARGE = {False: 2.0**78, True: 2.0**544}


def pack_small(g: Gradient) -> None:
    """Positions behind the last, where Winograd's method takes pairs, are zeros."""
    b, k, packed, array = g.b, g.k, g.small, g.small_array
    winograd = g.structure.schemes is not None
    whole = [b.bits("and_", b.add(count, 1), -2) if winograd else count for count in g.count]
    packer = pack_row(k, _few(g, packed), g.structure.zeros, winograd)
    with g.each_vector(packed) as (channels, lanes, start, s), b.loop(0, whole[0]) as d, b.loop(0, whole[1]) as h:
        row = b.add(start, k.dot((d, packed.plane), (h, packed.row)))
        at = b.add(g.first[0], d), b.add(g.first[1], h), g.first[2]
        there = b.bits("and_", b.compare("<", d, g.count[0]), b.compare("<", h, g.count[1]))
        with b.if_else(there) as (inside, outside):
            with inside:
                _pack(g, packed, array, packer, channels, lanes, (s, *at), row, 1, g.count[2])
                if winograd:
                    _zeros(g, packed, row, g.count[2], whole[2])
            with outside:
                if winograd:
                    _zeros(g, packed, row, 0, whole[2])


def pack_large(g: Gradient) -> None:
    """Places outside of the array are zeros, or, where every tap keeps to its positions, nobody reads them."""
    b, k, w, packed, slab, array = g.b, g.k, g.words, g.large, g.slab, g.large_array
    zeros, winograd = g.structure.zeros, g.structure.schemes is not None
    packer = pack_row(k, _few(g, packed), winograd, winograd)
    corner = g.part.corner_d, g.part.corner_h, g.part.corner_w
    origin = [
        b.add(b.sub(b.mul(at, stride), padding), b.mul(tap, dilation))
        for at, stride, padding, tap, dilation in zip(g.first, w.strides, w.paddings, corner, w.dilations, strict=True)
    ]

    def place_of(axis: int, run: Number, at: Number) -> tuple[Number, Number]:
        """Place in the slab, and index in the array."""
        x = b.add(origin[axis], k.dot((run, slab.run_steps[axis]), (at, slab.place_steps[axis])))
        return b.add(b.mul(run, slab.run_lengths[axis]), at), x

    def inside(x: Number, axis: int) -> ir.Value:
        return b.raw.icmp_unsigned("<", b.i64(x), b.i64(w.large_sizes[axis]))

    def one_row(run: Number, row: Number, x_d: Number, x_h: Number) -> None:
        length, step, size = slab.run_lengths[2], slab.place_steps[2], w.large_sizes[2]
        first, x_w = place_of(2, run, 0)

        def places_to(x: Number) -> Number:
            """Places of the run whose index is below x."""
            return b.min(b.sdiv(b.add(b.max(b.sub(x, x_w), 0), b.sub(step, 1)), step), length)

        before, behind = places_to(0), places_to(size)
        if zeros:
            _zeros(g, packed, row, first, b.add(first, before))
        place = b.add(row, b.mul(b.add(first, before), packed.pitch))
        at = x_d, x_h, b.add(x_w, b.mul(before, step))
        _pack(g, packed, array, packer, channels, lanes, (s, *at), place, step, b.sub(behind, before))
        if zeros:
            _zeros(g, packed, row, b.add(first, behind), b.add(first, length))

    with (
        g.each_vector(packed) as (channels, lanes, start, s),
        b.loop(0, slab.runs[0]) as run_d,
        b.loop(0, slab.run_lengths[0]) as at_d,
        b.loop(0, slab.runs[1]) as run_h,
        b.loop(0, slab.run_lengths[1]) as at_h,
    ):
        (d, x_d), (h, x_h) = place_of(0, run_d, at_d), place_of(1, run_h, at_h)
        row = b.add(start, k.dot((d, packed.plane), (h, packed.row)))
        with b.if_else(b.bits("and_", inside(x_d, 0), inside(x_h, 1))) as (there, outside):
            with there, b.loop(0, slab.runs[2]) as run_w:
                one_row(run_w, row, x_d, x_h)
            with outside:
                if zeros:
                    _zeros(g, packed, row, 0, b.mul(slab.runs[2], slab.run_lengths[2]))


def _few(g: Gradient, packed: PackedWords) -> int:
    """Channels of a block, where they are so few that positions are packed without gaps; else 0."""
    few = packed is g.numbers and not g.r.by_group and g.r.block <= min(_FEW, g.k.lanes // 2)
    return g.r.block if few else 0


def _pack(
    g: Gradient,
    packed: PackedWords,
    array: SourceCall,
    packer: ir.Function,
    channels: ir.Value,
    lanes: ir.Value,
    at: tuple[Number, ...],
    place: Number,
    step: Number,
    count: Number,
) -> None:
    """`count` positions from `at` (sample of the tile, depth, height, width), every `step`-th."""
    b, k = g.b, g.k
    sample, d, h, w = at
    source = k.dot((b.add(g.sample, sample), array.b), (d, array.d), (h, array.h), (w, array.w))
    origin, target = b.at(array.data, source, k.storage.memory), b.at(packed.packed.pointer, place, k.number)
    sizes = array.c, b.mul(array.w, step), lanes, count, packed.pitch, array.adjacent
    b.call(packer, origin, channels, target, g.call.unfit, *sizes)


def _zeros(g: Gradient, packed: PackedWords, row: Number, first: Number, behind: Number) -> None:
    """Places of a row, in the vector of channels that `row` is of."""
    b, zero = g.b, constant(vector(g.k.number, g.k.lanes), 0.0)
    with b.loop(first, behind) as at:
        b.store(zero, packed.packed.pointer, b.add(row, b.mul(at, packed.pitch)))


def pack_row(k: Kernel, few: int, looks: bool, winograd: bool) -> ir.Function:
    """packed[at * pitch + lane] = from[channels[lane] * channel + at * step], zero for lanes from `lanes` on.

    Positions are stored in their order, and each takes a whole vector: what lies behind its lanes is written again with
    the next, and zero behind the last. So rows must be packed in their order too. Of `few` channels whole vectors of
    positions are interleaved. `looks`: numbers that are not finite, or too large for Winograd's method, are counted at
    `unfit`.
    """
    name = f"pack_row_{few}{'_and_look' if looks else ''}"
    if name not in k.module.globals:
        pointers = ("from", "channels", "packed", "unfit")
        sizes = ("channel", "step", "lanes", "count", "pitch", "adjacent")
        b = k.define(name, [*((word, PTR) for word in pointers), *((word, I64) for word in sizes)])
        _Packer(k, b, few, looks, winograd).write()
        b.ret()
    return k.module.globals[name]


class _Packer:
    def __init__(self, k: Kernel, b: Builder, few: int, looks: bool, winograd: bool) -> None:
        self.k, self.b, self.few, self.looks, self.winograd, self.lanes = k, b, few, looks, winograd, k.lanes
        self.zero = constant(vector(k.number, k.lanes), 0.0)
        self.own = b.first_lanes(k.lanes, b.args["lanes"])

    def write(self) -> None:
        b, a = self.b, self.b.args
        self.channels = [b.mul(b.load(a["channels"], lane, I64), a["channel"]) for lane in range(self.lanes)]
        with b.if_else(b.compare("==", a["adjacent"], 1)) as (adjacent, apart):
            with adjacent:
                adjacent.values = [self._in_turn(self._adjacent, 0, self.zero)]
            with apart:
                with b.if_else(b.compare("==", a["step"], 1)) as (rows, strided):
                    with rows:
                        rows.values = [self._interleaved() if self.few else self._squares()]
                    with strided:
                        strided.values = [self._in_turn(self._gathered, 0, self.zero)]
                apart.values = rows.merged
        if self.looks:
            with b.if_(b.is_nan(b.reduce(adjacent.merged[0], b.add))):
                b.fetch_add(a["unfit"])

    def _look(self, seen: ir.Value, value: ir.Value) -> ir.Value:
        """Zero times a finite number is zero, times any other NaN."""
        b = self.b
        if not self.looks:
            return seen
        if self.winograd:
            value = b.mul(value, constant(value.type, _TOO_LARGE[self.k.wide]))
        return b.multiply_add(value, self.zero, seen)

    def _store(self, value: ir.Value, at: Number) -> None:
        b = self.b
        b.store(b.select(self.own, value, self.zero), b.args["packed"], b.mul(at, b.args["pitch"]))

    def _in_turn(self, read: Callable[[Number], ir.Value], first: Number, before: ir.Value) -> ir.Value:
        """Position by position, from the first."""
        b = self.b
        with b.loop_carrying(first, b.args["count"], 1, [before]) as (at, seen):
            value = read(at)
            self._store(value, at)
            seen.next = [self._look(seen.values[0], value)]
        return seen.result[0]

    def _adjacent(self, at: Number) -> ir.Value:
        """The lanes of one position lie side by side in memory."""
        b, a, storage = self.b, self.b.args, self.k.storage
        place = b.add(self.channels[0], b.mul(at, a["step"]))
        b.prefetch(a["from"], b.add(place, b.mul(a["step"], _POSITIONS_AHEAD)), storage.memory)
        with b.if_else(b.compare(">=", a["lanes"], self.lanes)) as (whole, part):
            with whole:
                whole.values = [b.load(a["from"], place, storage.memory, self.lanes)]
            with part:
                part.values = [b.load(a["from"], place, storage.memory, self.lanes, count=a["lanes"])]
        return b.widen(whole.merged[0], storage)

    def _gathered(self, at: Number) -> ir.Value:
        b, a, storage = self.b, self.b.args, self.k.storage
        places = [b.add(channel, b.mul(at, a["step"])) for channel in self.channels]
        return b.widen(b.join([b.load(a["from"], place, storage.memory) for place in places]), storage)

    def _squares(self) -> ir.Value:
        """Positions side by side: as many as there are lanes, of as many channels."""
        b, a, storage = self.b, self.b.args, self.k.storage

        def square(at: Number, left: Number | None, seen: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            rows = []
            for channel in self.channels:
                stored = b.load(a["from"], b.add(channel, at), storage.memory, self.lanes, count=left)
                ahead = b.add(b.add(channel, at), _BYTES_AHEAD // size_of(storage.memory))
                b.prefetch(a["from"], ahead, storage.memory)
                rows.append(b.widen(stored, storage))
                seen = self._look(seen, rows[-1])
            return b.interleave(rows), seen

        whole = b.bits("and_", a["count"], -self.lanes)
        with b.loop_carrying(0, whole, self.lanes, [self.zero]) as (at, carried):
            columns, seen = square(at, None, carried.values[0])
            for number, column in enumerate(columns):
                self._store(column, b.add(at, number))
            carried.next = [seen]
        left = b.sub(a["count"], whole)
        with b.if_else(b.compare(">", left, self.lanes // 4)) as (some, few):
            with some:
                columns, seen = square(whole, left, carried.result[0])
                for first in range(0, self.lanes, _AT_ONCE):
                    with b.if_(b.compare(">", left, first)):
                        for number in range(first, min(first + _AT_ONCE, self.lanes)):
                            self._store(columns[number], b.add(whole, number))
                some.values = [seen]
            with few:
                few.values = [self._in_turn(self._gathered, whole, carried.result[0])]
        return some.merged[0]

    def _interleaved(self) -> ir.Value:
        """Positions side by side, of few channels; a last vector of them is zero behind the row."""
        b, a, storage = self.b, self.b.args, self.k.storage

        def some(at: Number, left: Number | None, seen: ir.Value) -> ir.Value:
            rows = []
            for channel in self.channels[: self.few]:
                stored = b.load(a["from"], b.add(channel, at), storage.memory, self.lanes, count=left)
                rows.append(b.widen(stored, storage))
                seen = self._look(seen, rows[-1])
            for number, value in enumerate(b.interleave(rows)):
                b.store(value, a["packed"], b.add(b.mul(at, self.few), number * self.lanes))
            return seen

        whole = b.bits("and_", a["count"], -self.lanes)
        with b.loop_carrying(0, whole, self.lanes, [self.zero]) as (at, carried):
            carried.next = [some(at, None, carried.values[0])]
        with b.if_else(b.compare("<", whole, a["count"])) as (part, none):
            with part:
                part.values = [some(whole, b.sub(a["count"], whole), carried.result[0])]
            with none:
                none.values = carried.result
        return part.merged[0]
