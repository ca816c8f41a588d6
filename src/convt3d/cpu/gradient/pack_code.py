"""Code that packs rows of an array with channels along the lanes: squares of channels and positions are transposed."""

from __future__ import annotations

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, constant, vector

_AT_ONCE = 4  # positions of a last square that are stored under one condition


def pack_row(k: Kernel, looks: bool) -> ir.Function:
    """packed[at * pitch + lane] = from[channels[lane] * channel + at * step], zero for lanes from `lanes` on.

    Positions are stored in their order, and each takes a whole vector: what lies behind its lanes is written again with
    the next, and zero behind the last. So rows must be packed in their order too. `looks`: a number that is not finite
    is counted at `infinite`.
    """
    name = "pack_row_and_look" if looks else "pack_row"
    if name in k.module.globals:
        return k.module.globals[name]
    pointers = ("from", "channels", "packed", "infinite")
    sizes = ("channel", "step", "lanes", "count", "pitch", "adjacent")
    b = k.define(name, [*((word, PTR) for word in pointers), *((word, I64) for word in sizes)])
    _Packer(k, b, looks).write()
    b.ret()
    return b.function


class _Packer:
    def __init__(self, k: Kernel, b: Builder, looks: bool) -> None:
        self.k, self.b, self.looks, self.lanes = k, b, looks, k.lanes
        self.zero = constant(vector(k.number, k.lanes), 0.0)
        self.own = b.first_lanes(k.lanes, b.args["lanes"])

    def write(self) -> None:
        b, a = self.b, self.b.args
        self.channels = [b.mul(b.load(a["channels"], lane, I64), a["channel"]) for lane in range(self.lanes)]
        with b.if_else(b.compare("==", a["adjacent"], 1)) as (adjacent, apart):
            with adjacent:
                seen = self._in_turn(self._adjacent)
                adjacent.values = [seen]
            with apart, b.if_else(b.compare("==", a["step"], 1)) as (rows, strided):
                with rows:
                    rows.values = [self._squares()]
                with strided:
                    strided.values = [self._in_turn(self._gathered)]
                apart.values = []
            apart.values = rows.merged
        if self.looks:
            finite = b.reduce(adjacent.merged[0], b.add)  # zero, unless something is not finite
            with b.if_(b.is_nan(finite)):
                b.fetch_add(a["infinite"])

    def _look(self, seen: ir.Value, value: ir.Value) -> ir.Value:
        """Zero times a finite number is zero, times any other NaN."""
        return self.b.multiply_add(value, self.zero, seen) if self.looks else seen

    def _store(self, value: ir.Value, at: Number) -> ir.Value:
        b = self.b
        value = b.select(self.own, value, self.zero)
        b.store(value, b.args["packed"], b.mul(at, b.args["pitch"]))
        return value

    def _in_turn(self, read: object) -> ir.Value:
        b = self.b
        with b.loop_carrying(0, b.args["count"], 1, [self.zero]) as (at, seen):
            value = self._store(read(at), at)  # type: ignore[operator]
            seen.next = [self._look(seen.values[0], value)]
        return seen.result[0]

    def _adjacent(self, at: Number) -> ir.Value:
        """The lanes of one position lie side by side in memory."""
        b, a, storage = self.b, self.b.args, self.k.storage
        place = b.add(self.channels[0], b.mul(at, a["step"]))
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
        with b.if_else(b.compare(">", left, 0)) as (some, none):
            with some:
                columns, seen = square(whole, left, carried.result[0])
                for first in range(0, self.lanes, _AT_ONCE):
                    with b.if_(b.compare(">", left, first)):
                        for number in range(first, min(first + _AT_ONCE, self.lanes)):
                            self._store(columns[number], b.add(whole, number))
                some.values = [seen]
            with none:
                none.values = [carried.result[0]]
        return some.merged[0]
