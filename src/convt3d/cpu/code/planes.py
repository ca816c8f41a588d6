"""Fills the slab plane by plane, from rows whose elements lie side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.move import Source, fill_zero, zeros
from ..ir.values import I1, I32, I64, Number, constant, vector
from ..plan.geometry import FROM, PLACE, READ, READ_COUNT, VALID
from ..steps.conv import ConvWords


class Inside:
    """A source that is 1 wherever the array has a voxel: the slab of it tells what is inside."""


@dataclass(frozen=True)
class Box:
    """What the slab takes of the box that a tile reads, along depth, height and width."""

    place: tuple[Number, Number, Number]  # in the slab
    valid: tuple[Number, Number, Number]  # inputs
    begin: tuple[Number, Number, Number]  # the first of them, in the box

    @staticmethod
    def of_tile(k: Kernel, step: int) -> Box:
        """All of it."""
        return Box(k.spans(step, PLACE), k.spans(step, VALID), k.spans(step, FROM))


@dataclass(frozen=True)
class Block:
    """Channels of the slab that are filled together, and those of the input that are read for them: as many, or two for
    each."""

    slab: Number  # the first of the slab's
    source: Number  # the first of the input's
    number: Number  # of the slab's first one in its group
    channels: Number  # of the slab, in its group
    source_channels: Number  # of the input, in its group
    most: int  # channels of the slab
    pairs: bool

    def count(self, k: Kernel) -> Number:
        """Channels of the slab."""
        return k.b.min(self.most, k.b.sub(self.channels, self.number))

    def count_read(self, k: Kernel, count: Number) -> Number:
        """Channels of the input."""
        b = k.b
        return b.min(2 * self.most, b.sub(self.source_channels, b.mul(self.number, 2))) if self.pairs else count


@contextmanager
def blocks_of(k: Kernel, conv: ConvWords, groups: Number, together: int, pairs: bool) -> Iterator[Block]:
    """All channels of the slab, which has so many groups, where `together` of the input's are read at a time. No pair
    and no block of pairs is of two groups."""
    b = k.b
    if not pairs:
        channels = b.mul(groups, conv.in_group)
        with b.loop(0, channels, together) as block:
            yield Block(block, block, block, channels, channels, together, pairs)
        return
    most, of_group = max(1, together // 2), b.sdiv(conv.in_channels, conv.groups)
    with b.loop(0, groups) as group, b.loop(0, conv.in_group, most) as number:
        slab, source = k.dot((group, conv.in_group), (1, number)), k.dot((group, of_group), (number, 2))
        yield Block(slab, source, number, conv.in_group, of_group, most, pairs)


def zero_after(k: Kernel, conv: ConvWords, groups: Number, pairs: bool) -> None:
    """Zeros right of the last row, where rows share theirs."""
    b, rows = k.b, k.b.mul(conv.slab_depth, conv.slab_height)
    with b.loop(0, conv.copies) as s, blocks_of(k, conv, groups, 1, pairs) as block:
        fill_zero(
            k, conv.slab.pointer, k.dot((s, conv.copy), (block.slab, conv.slab.pitch), (rows, conv.row)), conv.row
        )


def lies_dense(k: Kernel, source: Source | Scratch | Inside) -> ir.Value:
    """Whether the elements of a row lie side by side."""
    return constant(I1, 1) if not isinstance(source, Source) else k.b.compare("==", source.words.w, 1)


def fill_planes(
    k: Kernel,
    conv: ConvWords,
    step: int,
    source: Source | Scratch | Inside,
    groups: Number,
    pace: int,
    pairs: bool,
    box: Box,
    seen: ir.Value | None = None,
) -> None:
    """Plane by plane, of rows whose elements lie side by side: the same vectors of all its rows, the last ones first.
    What a last vector writes beyond its row are zeros, and the next row's numbers come after them.

    A vector of each copy is sorted out of `pace` vectors: copy s + e has the numbers e, e + pace, ... of what begins at
    s. Where a row begins with zeros, its first number belongs to another copy and place.
    """
    b, pitch, lanes = k.b, conv.row, k.lanes
    place, valid, begin = box.place, box.valid, box.begin
    high, turns = conv.paces[1], conv.turns
    per_turn = b.sdiv(conv.slab_height, turns)
    with blocks_of(k, conv, groups, 1, pairs) as block, planes_of(k, conv) as d, b.loop(0, turns) as turn:
        in_d = b.sub(d, place[0])
        ahead = b.sub(place[1], turn)  # rows of zeros, counted as those of the input
        low = b.min(b.sdiv(b.add(b.max(ahead, 0), b.sub(high, 1)), high), per_turn)
        end = b.max(b.sdiv(b.add(b.max(b.add(ahead, valid[1]), 0), b.sub(high, 1)), high), low)
        end = b.select(within(k, in_d, valid[0]), b.min(end, per_turn), low)
        base = k.dot((block.slab, conv.slab.pitch), (b.mul(b.add(b.mul(d, turns), turn), per_turn), pitch))
        rows = _Rows.of(k, conv, step, source, block, pairs, box, in_d)
        in_h = b.add(begin[1], b.sub(b.add(b.mul(low, high), turn), place[1]))
        with b.loop(0, conv.copies, pace) as s:
            first = b.max(s, place[2])
            window = b.min(k.dot((1, s), (pitch, pace)), b.add(place[2], valid[2]))
            count = b.max(b.sub(window, first), 0)
            vectors = b.sdiv(b.add(count, pace * lanes - 1), pace * lanes)
            turned, moved = b.srem(b.sub(first, s), pace), b.sdiv(b.sub(first, s), pace)
            targets = []  # of each of the sorted vectors: copy, where its rows begin, and its first number in a row
            for e in range(pace):
                over = b.compare(">=", b.add(turned, e), pace)
                copy = b.add(s, b.sub(b.add(turned, e), b.select(over, pace, 0)))
                to, front = b.add(base, b.mul(copy, conv.copy)), b.add(moved, b.select(over, 1, 0))
                targets.append((copy, to, front))
                with b.if_(b.compare("<", copy, conv.copies)):
                    _zero_around(k, to, (low, end, per_turn), (front, b.add(front, b.mul(vectors, lanes))), conv)
            start = rows.place(in_h, b.add(begin[2], b.sub(first, place[2])))
            with b.loop(0, vectors) as done:
                j = b.sub(b.sub(vectors, 1), done)
                at, to = b.mul(j, pace * lanes), b.mul(j, lanes)
                left = b.sub(count, at)
                lengths = [b.sub(left, e * lanes) for e in range(pace)]
                with b.if_else(b.compare(">=", left, pace * lanes)) as (whole, part):
                    with whole:
                        _sort_rows(k, conv, rows, (low, end), b.add(start, at), to, targets, [None] * pace, seen)
                    with part:
                        _sort_rows(k, conv, rows, (low, end), b.add(start, at), to, targets, lengths, seen)


_SHORT = 4  # vectors of a row: below, zeros everywhere cost less than those around its numbers


def _zero_around(
    k: Kernel,
    to: Number,
    rows: tuple[Number, Number, Number],
    numbers: tuple[Number, Number],
    conv: ConvWords,
) -> None:
    """Zeros in a plane around the numbers that come there, or in all of it: `rows` are the first that has some, the one
    behind the last and the number of all, `numbers` begin and end of these in a row."""
    b, slab, pitch, (low, end, count), (front, behind) = k.b, conv.slab.pointer, conv.row, rows, numbers
    with b.if_else(b.compare("<=", pitch, _SHORT * k.lanes)) as (short, long):
        with short:
            fill_zero(k, slab, to, b.mul(count, pitch))
        with long:
            fill_zero(k, slab, to, b.mul(low, pitch))
            some = b.one_true(b.compare(">", front, 0), b.compare("<", behind, pitch))
            with b.if_(some), b.loop(low, end) as r:
                row = b.add(to, b.mul(r, pitch))
                fill_zero(k, slab, row, front)
                fill_zero(k, slab, b.add(row, behind), b.sub(pitch, behind))
            fill_zero(k, slab, b.add(to, b.mul(end, pitch)), b.mul(b.sub(count, end), pitch))


def _sort_rows(
    k: Kernel,
    conv: ConvWords,
    rows: _Rows,
    between: tuple[Number, Number],
    start: Number,
    to: Number,
    targets: list[tuple[Number, Number, Number]],
    lengths: Sequence[Number | None],
    seen: ir.Value | None,
) -> None:
    """Vectors at one place of all rows into the copies; of the input, so many lanes of each are there."""
    b = k.b
    carried = [] if seen is None else [b.load(seen, 0, integer(k), k.lanes)]
    with b.loop_carrying(*between, 1, carried) as (r, largest):
        row = b.add(start, b.mul(b.sub(r, between[0]), rows.apart))
        for e in range(len(lengths)):
            rows.ask(b.add(row, e * k.lanes))
        parts = [rows.load(b.add(row, e * k.lanes), length) for e, length in enumerate(lengths)]
        for (copy, base, front), value in zip(targets, b.deinterleave(parts), strict=True):
            with b.if_(b.compare("<", copy, conv.copies)):
                b.store(value, conv.slab.pointer, k.dot((1, base), (r, conv.row), (1, front), (1, to)))
        largest.next = [reduce(b.max, [magnitude(k, part) for part in parts], *largest.values)] if carried else []
    if seen is not None:
        b.store(largest.result[0], seen, 0)


@dataclass(frozen=True)
class _Rows:
    """The rows of one plane of the source, whose elements lie side by side."""

    load: Callable[[Number, Number | None], ir.Value]  # a vector at a place, so many lanes of it
    ask: Callable[[Number], None]  # for what lies at the same place of the plane that is read next
    place: Callable[[Number, Number], Number]  # of an element: height, width in the box
    apart: Number  # elements from one row that goes to a plane of the slab to the next

    @classmethod
    def of(
        cls,
        k: Kernel,
        conv: ConvWords,
        step: int,
        source: Source | Scratch | Inside,
        block: Block,
        pairs: bool,
        box: Box,
        in_d: Number,
    ) -> _Rows:
        """Of the plane that is `in_d` behind the first of the box."""
        b, low = k.b, k.spans(step, READ)
        d, high = b.add(box.begin[0], in_d), conv.paces[1]
        if isinstance(source, Inside):
            return cls(lambda at, lanes: ones(k, lanes), lambda at: None, lambda h, w: 0, 0)
        partner = b.compare(">", block.count_read(k, block.count(k)), 1) if pairs else None
        if isinstance(source, Scratch):
            _, height, width = k.spans(step, READ_COUNT)
            start = k.dot((b.add(k.first_channel, block.source), source.pitch), (b.mul(d, height), width))
            return cls(
                lambda at, lanes: buffered(k, source, at, lanes, partner),
                lambda at: None,
                lambda h, w: k.dot((1, start), (h, width), (1, w)),
                b.mul(high, width),
            )
        onwards = _to_next_plane(k, conv, source, pairs, box, in_d)
        return cls(
            lambda at, lanes: source.value(at, k.lanes, lanes, partner),
            lambda at: b.prefetch(source.words.data, b.add(at, onwards), source.storage.memory),
            lambda h, w: b.add(source.row(block.source, b.add(low[0], d), b.add(low[1], h)), b.add(low[2], w)),
            b.mul(high, source.words.h),
        )


def _to_next_plane(k: Kernel, conv: ConvWords, source: Source, pairs: bool, box: Box, in_d: Number) -> Number:
    """Elements from a plane to the one that is read next: of the same channel, or the first one of the next channel."""
    b, words = k.b, source.words
    deep = b.select(b.compare("==", conv.planes, 1), conv.paces[0], 1)
    back = b.mul(b.sub(in_d, b.srem(in_d, deep)), words.d)
    last = b.compare(">=", b.add(in_d, deep), box.valid[0])
    return b.select(last, b.sub(b.mul(2 if pairs else 1, words.c), back), b.mul(deep, words.d))


@contextmanager
def planes_of(k: Kernel, conv: ConvWords) -> Iterator[Number]:
    """Those of the slab that a tap meets at some position."""
    b, pace = k.b, conv.paces[0]
    end = conv.slab_depth
    with b.loop(0, end, pace) as first, b.loop(first, b.min(b.add(first, conv.planes), end)) as d:
        yield d


def integer(k: Kernel) -> ir.Type:
    return I64 if k.wide else I32


def magnitude(k: Kernel, value: ir.Value) -> ir.Value:
    """As an integer: NaN and infinity are above all numbers."""
    pattern = k.b.bitcast(value, integer(k))
    return k.b.bits("and_", pattern, constant(pattern.type, (1 << (63 if k.wide else 31)) - 1))


def within(k: Kernel, index: Number, count: Number) -> ir.Value:
    """0 <= index < count"""
    return k.b.raw.icmp_unsigned("<", k.b.i64(index), k.b.i64(count))


def buffered(k: Kernel, buffer: Scratch, at: Number, lanes: Number | None, partner: ir.Value | None) -> ir.Value:
    """A vector of a buffer; as `Source.value`, of pairs."""
    b, own = k.b, k.b.load(buffer.pointer, at, k.number, k.lanes, count=lanes)
    if partner is None:
        return own
    place = b.add(at, b.mul(b.select(partner, 1, 0), buffer.pitch))
    return b.pair(own, b.select(partner, b.load(buffer.pointer, place, k.number, k.lanes, count=lanes), zeros(k)))


def ones(k: Kernel, lanes: Number | None) -> ir.Value:
    """So many ones, or a vector of them, and zeros."""
    one = constant(vector(k.number, k.lanes), 1.0)
    return one if lanes is None else k.b.select(k.b.first_lanes(k.lanes, lanes), one, zeros(k))
