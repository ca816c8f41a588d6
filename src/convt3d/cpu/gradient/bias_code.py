"""The kernel of a bias's gradient: sums over all positions of a channel, of any number, with the same error."""

from __future__ import annotations

from llvmlite import ir

from ..code.tile import STORAGE
from ..ir import sums
from ..ir.frame import Kernel
from ..ir.values import F64, Number
from ..plan.machine import Machine
from ..words import SourceCall, SweepCall, Words
from .words import BiasCall, BiasWords

SETS: list[type[Words]] = [BiasWords, SweepCall, SourceCall, BiasCall]


def emit_bias(name: str, dtype: str, machine: Machine) -> Kernel:
    k = Kernel(name, machine, STORAGE[dtype], SETS)
    _Bias(k).write()
    k.b.ret()
    return k


class _Bias:
    def __init__(self, k: Kernel) -> None:
        self.k, self.b = k, k.b
        self.words, _, self.array, self.call = k.sets
        self.parts = len(sums.nothing(k.number, k.lanes))  # of a sum

    def write(self) -> None:
        """A block is as many channels as there are lanes. Side by side they are summed at once, and all blocks of a row
        by the item of the first; else one by one."""
        b, k, w, a = self.b, self.k, self.words, self.array
        with b.drawn_from(k.call.counter, w.items) as item:
            piece, first = b.srem(item, w.pieces), b.mul(b.sdiv(item, w.pieces), k.lanes)
            sample, part = b.sdiv(piece, w.pieces_of_sample), b.srem(piece, w.pieces_of_sample)
            begin = b.mul(part, w.planes)
            planes = b.min(w.planes, b.sub(w.depth, begin))
            corner = k.dot((sample, a.b), (begin, a.d))
            place = b.mul(piece, b.mul(w.channels, self.parts))
            with b.if_else(b.compare("==", a.adjacent, 1)) as (adjacent, apart):
                with adjacent:
                    depth = b.select(b.compare("==", first, 0), planes, 0)
                    with b.loop(0, depth) as d, b.loop(0, w.height) as h, b.loop(0, w.channels, k.lanes) as c:
                        row = b.add(corner, k.dot((d, a.d), (h, a.h), (1, c)))
                        self._side_by_side(row, b.add(place, c), b.sub(w.channels, c))
                with apart, b.loop(first, b.min(b.add(first, k.lanes), w.channels)) as c:
                    found = self._rows(b.add(corner, b.mul(c, a.c)), planes)
                    b.store(sums.total_of_lanes(b, found), self.call.partials, b.add(place, c))

    def _side_by_side(self, row: Number, place: Number, count: Number) -> None:
        """Adds a row to the sums of a block of channels, one in each lane."""
        b, k, w, a = self.b, self.k, self.words, self.array
        places = [b.add(place, b.mul(w.channels, part)) for part in range(self.parts)]
        before = [b.load(self.call.partials, at, F64, k.lanes, count=count) for at in places]
        with b.loop_carrying(0, w.width, 1, before) as (at, found):
            stored = b.load(a.data, b.add(row, b.mul(at, a.w)), k.storage.memory, k.lanes, count=count)
            found.next = sums.plus(b, found.values, b.widen(stored, k.storage))
        for at, value in zip(places, found.result, strict=True):
            b.store(value, self.call.partials, at, count=count)

    def _rows(self, corner: Number, planes: Number) -> list[ir.Value]:
        """A sum in each lane, over rows whose elements lie side by side or apart."""
        b, k, w, a = self.b, self.k, self.words, self.array
        nothing = sums.nothing(k.number, k.lanes)
        with b.loop_carrying(0, planes, 1, nothing) as (d, of_planes):
            with b.loop_carrying(0, w.height, 1, of_planes.values) as (h, of_rows):
                row = b.add(corner, k.dot((d, a.d), (h, a.h)))
                with b.if_else(b.compare("==", a.w, 1)) as (dense, strided):
                    with dense:
                        dense.values = self._row(row, of_rows.values)
                    with strided:
                        with b.loop_carrying(0, w.width, 1, of_rows.values) as (at, one_by_one):
                            lone = b.load(a.data, b.add(row, b.mul(at, a.w)), k.storage.memory, k.lanes, count=1)
                            one_by_one.next = sums.plus(b, one_by_one.values, b.widen(lone, k.storage))
                        strided.values = one_by_one.result
                of_rows.next = dense.merged
            of_planes.next = of_rows.result
        return of_planes.result

    def _row(self, row: Number, before: list[ir.Value]) -> list[ir.Value]:
        b, k, width = self.b, self.k, self.words.width

        def value(at: Number, lanes: Number | None) -> ir.Value:
            stored = b.load(self.array.data, b.add(row, at), k.storage.memory, k.lanes, count=lanes)
            return b.widen(stored, k.storage)

        whole = b.bits("and_", width, -k.lanes)
        with b.loop_carrying(0, whole, k.lanes, before) as (at, carried):
            carried.next = sums.plus(b, carried.values, value(at, None))
        with b.if_else(b.compare("<", whole, width)) as (some, none):
            with some:
                some.values = sums.plus(b, carried.result, value(whole, b.sub(width, whole)))
            with none:
                none.values = carried.result
        return some.merged
