"""The slab of an array that lies in several pieces: filled from the largest, then strips are put around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from llvmlite import ir

from ..ir.frame import Kernel
from ..ir.move import Source
from ..ir.values import I64, PTR, Number
from ..plan.geometry import READ
from ..steps.conv import ConvWords
from ..words import PieceRow, StripsCall, row_length
from .planes import Box, integer, magnitude, within

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


def put_strips(k: Kernel, conv: ConvWords, step: int, source: Source, strips: StripsCall, seen: ir.Value) -> None:
    """Their voxels into a slab that has zeros there, one by one: they are few."""
    b, box = k.b, Box.of_tile(k, step)
    with b.loop(1, strips.count) as number:
        strip = _piece(k, strips, number)
        skipped, count, begin = _part(k, step, strip)
        place = [b.add(at, more) for at, more in zip(box.place, skipped, strict=True)]
        corner = k.dot((k.sample, strip.b), *zip(begin, (strip.d, strip.h, strip.w), strict=True))
        met = b.all_true(*(b.compare(">", size, 0) for size in count[:2]))
        with b.if_(met), b.loop(0, count[2]) as w, b.loop(0, conv.copies) as copy:
            # Copy s holds inputs s, s + pace, ...
            across, pace = b.sub(b.add(place[2], w), copy), conv.paces[2]
            column = b.sdiv(across, pace)
            held = b.all_true(b.compare("==", b.srem(across, pace), 0), within(k, column, conv.row))
            with b.if_(held):
                to = k.dot((copy, conv.copy), (1, column))
                _put_column(k, conv, source, strip, (count, place), b.add(corner, b.mul(w, strip.w)), to, seen)


def _put_column(
    k: Kernel,
    conv: ConvWords,
    source: Source,
    strip: PieceRow,
    where: tuple[Sequence[Number], Sequence[Number]],
    corner: Number,
    to: Number,
    seen: ir.Value,
) -> None:
    """Voxels of all channels, planes and rows at one place of the width."""
    b, (count, place), pace = k.b, where, conv.paces[1]
    data, memory = b.raw.inttoptr(strip.data, PTR), source.storage.memory
    per_turn = b.sdiv(conv.slab_height, conv.turns)
    with b.loop(0, conv.turns) as turn:
        # Rows that leave this remainder: the first of them, and how many there are.
        ahead = b.srem(b.add(b.sub(turn, b.srem(place[1], pace)), pace), pace)
        rows = b.sdiv(b.add(b.sub(count[1], ahead), b.sub(pace, 1)), pace)
        first = b.add(b.mul(turn, per_turn), b.sdiv(b.add(place[1], ahead), pace))
        some = b.select(b.compare(">", rows, 0), conv.in_channels, 0)
        with b.loop(0, some) as c, b.loop(0, count[0]) as d:
            start = k.dot((1, corner), (c, strip.c), (d, strip.d), (ahead, strip.h))
            plane = b.mul(b.add(place[0], d), b.mul(conv.turns, per_turn))
            target = k.dot((1, to), (c, conv.slab.pitch), (b.add(plane, first), conv.row))
            largest = b.load(seen, 0, integer(k))
            with b.loop_carrying(0, rows, 1, [largest]) as (r, carried):
                at = b.add(start, b.mul(r, b.mul(strip.h, pace)))
                value = b.widen(b.load(data, at, memory), source.storage)
                b.store(value, conv.slab.pointer, b.add(target, b.mul(r, conv.row)))
                carried.next = [b.max(carried.values[0], magnitude(k, value))]
            b.store(carried.result[0], seen, 0)
