"""The slab of an array that lies in several pieces: filled from the largest, then strips are put around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from ..ir.frame import Kernel
from ..ir.move import Source
from ..ir.values import I64, PTR, Number
from ..plan.geometry import READ
from ..steps.conv import ConvWords
from ..words import PieceRow, StripsCall, row_length
from .planes import Box, integer, magnitude

_Triple: TypeAlias = "tuple[Number, Number, Number]"


def middle(k: Kernel, step: int, strips: StripsCall) -> Box:
    """What the slab takes of the piece that the source gives: its voxels are counted from its own beginning."""
    box, low = Box.of_tile(k, step), k.spans(step, READ)
    place, valid, begin = _part(k, step, _piece(k, strips, 0))
    d, h, w = (k.b.sub(first, start) for first, start in zip(begin, low, strict=True))
    a, b, c = (k.b.add(at, skipped) for at, skipped in zip(box.place, place, strict=True))
    return Box((a, b, c), valid, (d, h, w))


def _piece(k: Kernel, strips: StripsCall, number: Number) -> PieceRow:
    return k.row(PieceRow, k.b, k.b.at(strips.pieces, k.b.mul(number, row_length(PieceRow)), I64))


def _part(k: Kernel, step: int, piece: PieceRow) -> tuple[_Triple, _Triple, _Triple]:
    """Of a piece, along each axis: voxels of the tile in front of it, those it has, the first of these."""
    b, box = k.b, Box.of_tile(k, step)
    low, high = (piece.low_d, piece.low_h, piece.low_w), (piece.high_d, piece.high_h, piece.high_w)
    found = []
    for start, begin, valid, first, end in zip(k.spans(step, READ), box.begin, box.valid, low, high, strict=True):
        tile = b.add(start, begin)
        skipped = b.min(b.max(b.sub(first, tile), 0), valid)
        count = b.max(b.sub(b.min(b.sub(end, tile), valid), skipped), 0)
        found.append((skipped, count, b.sub(b.add(tile, skipped), first)))
    skips, counts, firsts = zip(*found, strict=True)
    return skips, counts, firsts


_FEW = 4  # columns: more are put row by row


def put_strips(
    k: Kernel, conv: ConvWords, step: int, source: Source, strips: StripsCall, seen: ir.Value, pace: int
) -> None:
    """Their voxels into a slab that has zeros there: rows in vectors, thin strips voxel by voxel. `pace` is that of the
    width, 0 if it is too wide for shuffles."""
    b, box = k.b, Box.of_tile(k, step)
    with b.loop(1, strips.count) as number:
        strip = _piece(k, strips, number)
        skipped, count, begin = _part(k, step, strip)
        place = [b.add(at, more) for at, more in zip(box.place, skipped, strict=True)]
        corner = k.dot((k.sample, strip.b), *zip(begin, (strip.d, strip.h, strip.w), strict=True))
        met = b.all_true(*(b.compare(">", size, 0) for size in count))
        with b.if_(met), b.loop(0, conv.copies) as copy:
            first, column, columns = _columns(k, conv, copy, place[2], count[2])
            start, to = b.add(corner, b.mul(first, strip.w)), k.dot((copy, conv.copy), (1, column))
            put = _Rows(k, conv, source, strip, count, place, seen)
            if pace:
                long = b.all_true(b.compare("==", strip.w, 1), b.compare(">", columns, _FEW))
                with b.if_else(long) as (by_rows, otherwise):
                    with by_rows:
                        put.by_rows(start, to, columns, b.sub(count[2], first), pace)
                    with otherwise:
                        put.by_columns(start, to, columns)
            else:
                put.by_columns(start, to, columns)


def _columns(k: Kernel, conv: ConvWords, copy: Number, place: Number, count: Number) -> _Triple:
    """Of a row of `count` inputs from `place` on, those that a copy has, which holds inputs copy, copy + pace, ...: the
    first, its column, and how many there are."""
    b, pace = k.b, conv.paces[2]
    behind = b.max(b.sub(place, copy), 0)
    first = b.add(b.max(b.sub(copy, place), 0), b.srem(b.sub(pace, b.srem(behind, pace)), pace))
    column = b.sdiv(b.add(behind, b.sub(pace, 1)), pace)
    columns = b.sdiv(b.max(b.sub(b.add(count, b.sub(pace, 1)), first), 0), pace)
    return first, column, b.min(columns, b.sub(conv.row, column))


@dataclass(frozen=True)
class _Rows:
    """All channels, planes and rows of what a tile takes of a strip."""

    k: Kernel
    conv: ConvWords
    source: Source
    strip: PieceRow
    count: Sequence[Number]  # voxels along each axis
    place: Sequence[Number]  # in the slab
    seen: ir.Value

    @contextmanager
    def _planes(self, start: Number, to: Number) -> Iterator[tuple[Number, Number, Number]]:
        """Rows that leave one remainder, of each plane: how many, and where the first is read and put."""
        k, b, conv, strip, pace = self.k, self.k.b, self.conv, self.strip, self.conv.paces[1]
        per_turn = b.sdiv(conv.slab_height, conv.turns)
        with b.loop(0, conv.turns) as turn:
            ahead = b.srem(b.add(b.sub(turn, b.srem(self.place[1], pace)), pace), pace)
            rows = b.sdiv(b.add(b.sub(self.count[1], ahead), b.sub(pace, 1)), pace)
            first = b.add(b.mul(turn, per_turn), b.sdiv(b.add(self.place[1], ahead), pace))
            some = b.select(b.compare(">", rows, 0), conv.in_channels, 0)
            with b.loop(0, some) as c, b.loop(0, self.count[0]) as d:
                plane = b.mul(b.add(self.place[0], d), b.mul(conv.turns, per_turn))
                target = k.dot((1, to), (c, conv.slab.pitch), (b.add(plane, first), conv.row))
                yield rows, k.dot((1, start), (c, strip.c), (d, strip.d), (ahead, strip.h)), target

    @property
    def _apart(self) -> Number:
        """From one of these rows to the next."""
        return self.k.b.mul(self.strip.h, self.conv.paces[1])

    def by_columns(self, start: Number, to: Number, columns: Number) -> None:
        k, b, conv, strip = self.k, self.k.b, self.conv, self.strip
        data, storage = b.raw.inttoptr(strip.data, PTR), self.source.storage
        with b.loop(0, columns) as column:
            from_ = b.add(start, b.mul(column, b.mul(strip.w, conv.paces[2])))
            with self._planes(from_, b.add(to, column)) as (rows, at, target):
                largest = b.load(self.seen, 0, integer(k))
                with b.loop_carrying(0, rows, 1, [largest]) as (r, carried):
                    value = b.widen(b.load(data, b.add(at, b.mul(r, self._apart)), storage.memory), storage)
                    b.store(value, conv.slab.pointer, b.add(target, b.mul(r, conv.row)))
                    carried.next = [b.max(carried.values[0], magnitude(k, value))]
                b.store(carried.result[0], self.seen, 0)

    def by_rows(self, start: Number, to: Number, columns: Number, length: Number, pace: int) -> None:
        """Vectors whose numbers lie side by side, of rows that have `length` of them from the first on."""
        k, b, conv, lanes = self.k, self.k.b, self.conv, self.k.lanes
        data, storage = b.raw.inttoptr(self.strip.data, PTR), self.source.storage
        with self._planes(start, to) as (rows, at, target), b.loop(0, columns, lanes) as j:
            ahead = b.mul(j, pace)
            left, some = b.sub(length, ahead), b.sub(columns, j)
            largest = b.load(self.seen, 0, integer(k), lanes)
            with b.loop_carrying(0, rows, 1, [largest]) as (r, carried):
                row = b.add(b.add(at, ahead), b.mul(r, self._apart))
                parts = [
                    b.widen(
                        b.load(data, b.add(row, e * lanes), storage.memory, lanes, count=b.sub(left, e * lanes)),
                        storage,
                    )
                    for e in range(pace)
                ]
                own = b.deinterleave(parts)[0]
                b.store(own, conv.slab.pointer, k.dot((1, target), (r, conv.row), (1, j)), count=some)
                carried.next = [b.max(carried.values[0], magnitude(k, own))]
            b.store(carried.result[0], self.seen, 0)
