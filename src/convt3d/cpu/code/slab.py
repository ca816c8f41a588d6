"""The slab: the inputs a tile of the convolution needs, with zeros where they leave the array.

Rows follow each other without a break, so that positions can be walked across their ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.move import Sink, Source, channels_together, each_channel, fill_zero, in_vectors, to_scratch
from ..ir.values import I32, I64, Number, constant, vector, width_of
from ..plan.geometry import FROM, PLACE, READ, READ_COUNT, VALID
from ..plan.winograd import HUGE
from ..steps.conv import ConvWords, PacedWords


def fill_slab(k: Kernel, conv: ConvWords, step: int, source: Source | Scratch, pairs: bool = False) -> None:
    """The slab (copies, Cin, D, H, pitch) from the source's box, zero where the box leaves the array; of `pairs`, two
    channels in each lane.

    Copy s holds the inputs from s on: its rows are the window [s, s + pitch) of the whole row.
    """
    for together in channels_together(k, source):
        _fill_slab(k, conv, step, source, together, pairs)


def _fill_slab(k: Kernel, conv: ConvWords, step: int, source: Source | Scratch, together: int, pairs: bool) -> None:
    b = k.b
    slab, channel, pitch = conv.slab.pointer, conv.slab.pitch, conv.row
    depth, height = conv.slab_depth, conv.slab_height
    place, valid, begin = k.spans(step, PLACE), k.spans(step, VALID), k.spans(step, FROM)
    channels = conv.in_channels
    with b.loop(0, conv.copies) as s, b.loop(0, channels, together) as block:
        first = b.max(s, place[2])
        count = b.max(b.sub(b.min(b.add(s, pitch), b.add(place[2], valid[2])), first), 0)
        from_w = b.add(begin[2], b.sub(first, place[2]))
        some = b.min(together, b.sub(channels, block))
        base = b.mul(s, conv.copy) if pairs else k.dot((s, conv.copy), (block, channel))

        def place_of(c: Number, block: Number = block) -> tuple[Number, ir.Value | None]:
            if not pairs:
                return b.mul(c, channel), None
            number, second = _pair(k, conv, b.add(block, c))
            return b.mul(number, channel), second

        with b.loop(0, depth) as d, b.loop(0, height) as h:
            start = b.add(base, b.mul(b.add(b.mul(d, height), h), pitch))
            in_d, in_h = b.sub(d, place[0]), b.sub(h, place[1])
            inside = _both(k, in_d, valid[0], in_h, valid[1])
            before = b.sub(first, s)
            with each_channel(k, together, some) as c:
                own, second = place_of(c)
                with _unless(k, second):
                    _zero_ends(k, slab, b.add(start, own), before, b.select(inside, count, 0), pitch)
            with b.if_(inside):
                target = b.add(start, before)

                def put(c: Number, target: Number = target) -> Sink:
                    own, second = place_of(c)
                    to = b.add(target, own)
                    # lanes that do not count are zero
                    return lambda at, value, lanes: _put(k, value, slab, b.add(to, at), lanes, second)

                at = block, b.add(begin[0], in_d), b.add(begin[1], in_h), from_w
                _read(k, step, source, at, count, together, some, put)
        with each_channel(k, together, some) as c:
            rows = b.mul(depth, height)
            own, second = place_of(c)
            with _unless(k, second):
                fill_zero(k, slab, k.dot((1, base), (1, own), (rows, pitch)), pitch)


def _pair(k: Kernel, conv: ConvWords, channel: Number) -> tuple[Number, ir.Value]:
    """The pair of an input channel among those of all groups, and whether it is the second of it."""
    b = k.b
    of_group = b.sdiv(conv.in_channels, conv.groups)
    group = b.sdiv(channel, of_group)
    own = b.sub(channel, b.mul(group, of_group))
    return b.add(b.mul(group, conv.in_group), b.sdiv(own, 2)), b.compare("==", b.bits("and_", own, 1), 1)


def _unless(k: Kernel, second: ir.Value | None) -> AbstractContextManager[None]:
    """The second channel of a pair finds zeros where the first has put them."""
    return nullcontext() if second is None else k.b.if_(k.b.bits("xor", second, 1))


def _put(k: Kernel, value: ir.Value, slab: ir.Value, at: Number, lanes: Number | None, second: ir.Value | None) -> None:
    """A vector into the slab, as `to_scratch`. Of a pair the first channel takes the lower half of each lane and leaves
    zeros in the upper one, which the second takes."""
    b = k.b
    if second is not None:
        value = b.lane(value, 0) if lanes == 1 else value
        pattern = b.bitcast(value, I32)
        first = b.bits("and_", b.bitcast(b.load(slab, at, k.number, width_of(value.type)), I32), 0xFFFF)
        value = b.bitcast(b.select(second, b.bits("or_", first, pattern), b.bits("lshr", pattern, 16)), k.number)
    to_scratch(k, value, slab, at, lanes)


def _zero_ends(k: Kernel, row: ir.Value, start: Number, before: Number, count: Number, length: Number) -> None:
    """Zeros around the `count` numbers that a row has; all of it, where it has none. They come before the numbers, of
    which a vector may reach beyond its end or, as these do, over the next row's beginning."""
    b = k.b
    after = b.add(before, count)
    fill_zero(k, row, start, before)
    fill_zero(k, row, b.add(start, after), b.sub(length, after))


def fill_paced_slab(
    k: Kernel,
    conv: ConvWords,
    paced: PacedWords,
    step: int,
    source: Source | Scratch,
    pace: int,
    seen: ir.Value | None = None,
    pairs: bool = False,
) -> ir.Value | None:
    """The slab of a tile whose positions are several inputs wide; where `seen` has room for a vector of the largest
    magnitudes, the answer is true if all inputs are smaller than HUGE.

    Copy s of a row holds inputs s, s + pace, ...; row h of a plane comes h / pace -th among those of its remainder.
    `pace` is that of the width, 0 if it is too wide for shuffles.
    """
    b, slab, pitch = k.b, conv.slab.pointer, conv.row
    words = _integer(k)
    if seen is not None:
        b.store(constant(vector(words, k.lanes), 0), seen, 0)
    rows = b.mul(conv.slab_depth, conv.slab_height)
    with (
        b.loop(0, conv.copies) as s,
        b.loop(0, b.mul(conv.groups, conv.in_group) if pairs else conv.in_channels) as c,
    ):
        after = k.dot((s, conv.copy), (c, conv.slab.pitch), (rows, pitch))
        fill_zero(k, slab, after, pitch)  # zeros right of the last row, where rows share theirs
    for together in channels_together(k, source):
        _fill_rows(k, conv, paced, step, source, pace, together, seen, pairs)
    if seen is None:
        return None
    largest = b.reduce(b.load(seen, 0, words, k.lanes), b.max)
    bound = struct.pack("<d", HUGE["float64"]) if k.wide else struct.pack("<f", HUGE["float32"])
    return b.compare("<", largest, constant(words, int.from_bytes(bound, "little")))


def _fill_rows(
    k: Kernel,
    conv: ConvWords,
    paced: PacedWords,
    step: int,
    source: Source | Scratch,
    pace: int,
    together: int,
    seen: ir.Value | None,
    pairs: bool,
) -> None:
    """Some rows, or one row of some channels, are read before they are sorted by remainders: a row that was written
    just now, at another alignment, would be waited for."""
    b = k.b
    slab, whole, pitch = conv.slab.pointer, paced.row.pointer, conv.row
    place, valid, begin = k.spans(step, PLACE), k.spans(step, VALID), k.spans(step, FROM)
    channels, row_pitch, turns = conv.in_channels, paced.row.pitch, conv.turns
    per_turn, at_once = b.sdiv(conv.slab_height, turns), k.lanes if together == 1 else 1
    # Of what is read of a row: whole vectors, or number by number.
    length = k.dot((pitch, pace), (k.lanes, pace)) if pace else b.mul(b.sub(pitch, 1), conv.paces[2])
    end = b.add(length, conv.copies)
    with b.loop(0, channels, together) as block, _planes(k, conv) as d, b.loop(0, turns) as turn:
        in_d, some = b.sub(d, place[0]), b.min(together, b.sub(channels, block))
        with b.loop(0, per_turn, at_once) as first:
            rows = b.min(at_once, b.sub(per_turn, first))
            with b.loop(0, rows) as more:
                in_h = b.sub(k.dot((b.add(first, more), conv.paces[1]), (1, turn)), place[1])
                inside, buffer = _both(k, in_d, valid[0], in_h, valid[1]), b.mul(more, row_pitch)
                with each_channel(k, together, some) as c:
                    there = b.select(inside, valid[2], 0)
                    _zero_ends(k, whole, b.add(buffer, b.mul(c, row_pitch)), place[2], there, end)
                with b.if_(inside):

                    def put(c: Number, buffer: Number = buffer) -> Sink:
                        to = k.dot((1, place[2]), (1, buffer), (c, row_pitch))
                        return lambda at, value, lanes: to_scratch(k, value, whole, b.add(to, at), lanes)

                    at = block, b.add(begin[0], in_d), b.add(begin[1], in_h), begin[2]
                    _read(k, step, source, at, valid[2], together, some, put)
            with b.loop(0, rows) as more, each_channel(k, together, some) as c:
                number = b.add(b.mul(b.add(b.mul(d, turns), turn), per_turn), b.add(first, more))
                channel, second = b.add(block, c), None
                if pairs:
                    channel, second = _pair(k, conv, channel)
                target = b.at(slab, k.dot((channel, conv.slab.pitch), (number, pitch)), k.number)
                row = b.at(whole, b.mul(b.add(more, c), row_pitch), k.number)
                _sort(k, conv, row, target, pace, seen, second)


@contextmanager
def _planes(k: Kernel, conv: ConvWords) -> Iterator[Number]:
    """Those of the slab that a tap meets at some position."""
    b, pace = k.b, conv.paces[0]
    end = conv.slab_depth
    with b.loop(0, end, pace) as first, b.loop(first, b.min(b.add(first, conv.planes), end)) as d:
        yield d


def _sort(
    k: Kernel,
    conv: ConvWords,
    row: ir.Value,
    target: ir.Value,
    pace: int,
    seen: ir.Value | None,
    second: ir.Value | None,
) -> None:
    """A row into its copies: copy s has inputs s, s + pace, ... Notes the largest magnitude, where it is wanted."""
    b, copies, pitch = k.b, conv.copies, conv.row
    if not pace:
        with b.loop(0, copies) as s, b.loop(0, pitch) as q:
            one = b.load(row, k.dot((1, s), (q, conv.paces[2])), k.number)
            _put(k, one, target, k.dot((s, conv.copy), (1, q)), None, second)
        return
    with b.loop(0, copies, pace) as s:
        start = [] if seen is None else [b.load(seen, 0, _integer(k), k.lanes)]
        with b.loop_carrying(0, pitch, k.lanes, start) as (q, largest):
            first = k.dot((1, s), (q, pace))
            parts = [b.load(row, b.add(first, part * k.lanes), k.number, k.lanes) for part in range(pace)]
            for number, sorted_part in enumerate(b.deinterleave(parts)):
                copy = b.add(s, number)
                with b.if_(b.compare("<", copy, copies)):
                    _put(k, sorted_part, target, k.dot((copy, conv.copy), (1, q)), None, second)
            found = largest.values
            for part in parts if seen is not None else []:
                found = [b.max(found[0], _magnitude(k, part))]
            largest.next = found
        if seen is not None:
            b.store(largest.result[0], seen, 0)


def _integer(k: Kernel) -> ir.Type:
    return I64 if k.wide else I32


def _magnitude(k: Kernel, value: ir.Value) -> ir.Value:
    """As an integer: NaN and infinity are above all numbers."""
    pattern = k.b.bitcast(value, _integer(k))
    return k.b.bits("and_", pattern, constant(pattern.type, (1 << (63 if k.wide else 31)) - 1))


def _read(
    k: Kernel,
    step: int,
    source: Source | Scratch,
    at: Sequence[Number],
    count: Number,
    together: int,
    channels: Number,
    put: Callable[[Number], Sink],
) -> None:
    """`count` numbers of a row of the source's box, (channel, depth, height, width) from its corner, and of all
    `channels` that are read at a time: put(channel) takes those of one, counted from the first."""
    b = k.b
    if isinstance(source, Scratch):
        _read_buffer(k, step, source, at, count, put(0))
        return
    c, d, h, w = at
    low = k.spans(step, READ)
    row, first = source.row(c, b.add(low[0], d), b.add(low[1], h)), b.add(low[2], w)
    if together == 1:
        source.prefetch(row, first, count)
    source.read_channels(row, first, count, together, channels, put)


def _both(k: Kernel, d: Number, depth: Number, h: Number, height: Number) -> ir.Value:
    """Whether d and h are places of an array."""
    return k.b.bits("and_", _within(k, d, depth), _within(k, h, height))


def _within(k: Kernel, index: Number, count: Number) -> ir.Value:
    """0 <= index < count"""
    return k.b.raw.icmp_unsigned("<", k.b.i64(index), k.b.i64(count))


def _read_buffer(k: Kernel, step: int, buffer: Scratch, at: Sequence[Number], count: Number, put: Sink) -> None:
    """A row of the contiguous buffer (C, D, H, W) that the step before has written."""
    b = k.b
    c, d, h, w = at
    _, height, width = k.spans(step, READ_COUNT)
    start = k.dot((c, buffer.pitch), (b.add(b.mul(d, height), h), width), (w, 1))
    origin = buffer.pointer

    def copy(offset: Number, lanes: Number | None) -> None:
        put(offset, b.load(origin, b.add(start, offset), k.number, k.lanes, count=lanes), lanes)

    in_vectors(k, count, copy)
