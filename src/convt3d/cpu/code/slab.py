"""The slab: the inputs a tile of the convolution needs, with zeros where they leave the array.

Rows follow each other without a break, so that positions can be walked across their ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.move import Sink, Source, channels_together, each_channel, fill_zero, in_vectors, to_scratch
from ..ir.values import I32, I64, Number, constant, vector
from ..plan.geometry import FROM, PLACE, READ, READ_COUNT, VALID
from ..plan.winograd import HUGE
from ..steps.conv import ConvWords, PacedWords


def fill_slab(k: Kernel, conv: ConvWords, step: int, source: Source | Scratch) -> None:
    """The slab (copies, Cin, D, H, pitch) from the source's box, zero where the box leaves the array.

    Copy s holds the inputs from s on: its rows are the window [s, s + pitch) of the whole row.
    """
    for together in channels_together(k, source):
        _fill_slab(k, conv, step, source, together)


def _fill_slab(k: Kernel, conv: ConvWords, step: int, source: Source | Scratch, together: int) -> None:
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
        base = k.dot((s, conv.copy), (block, channel))
        with b.loop(0, depth) as d, b.loop(0, height) as h:
            start = b.add(base, b.mul(b.add(b.mul(d, height), h), pitch))
            with each_channel(k, together, some) as c:
                fill_zero(k, slab, b.add(start, b.mul(c, channel)), pitch)
            in_d, in_h = b.sub(d, place[0]), b.sub(h, place[1])
            inside = b.bits("and_", _within(k, in_d, valid[0]), _within(k, in_h, valid[1]))
            with b.if_(inside):
                target = b.add(start, b.sub(first, s))

                def put(c: Number, target: Number = target) -> Sink:
                    to = b.add(target, b.mul(c, channel))
                    # lanes that do not count are zero
                    return lambda at, value, lanes: to_scratch(k, value, slab, b.add(to, at), lanes)

                at = block, b.add(begin[0], in_d), b.add(begin[1], in_h), from_w
                _read(k, step, source, at, count, together, some, put)
        with each_channel(k, together, some) as c:
            fill_zero(k, slab, k.dot((1, base), (c, channel), (b.mul(depth, height), pitch)), pitch)


def fill_paced_slab(
    k: Kernel,
    conv: ConvWords,
    paced: PacedWords,
    step: int,
    source: Source | Scratch,
    pace: int,
    seen: ir.Value | None = None,
) -> ir.Value | None:
    """The slab of a tile whose positions are several inputs wide; where `seen` has room for a vector of the largest
    magnitudes, the answer is true if all inputs are smaller than HUGE.

    Copy s of a row holds inputs s, s + pace, ...; row h of a plane comes h / pace -th among those of its remainder.
    `pace` is that of the width, 0 if it is too wide for shuffles.
    """
    b, slab, pitch = k.b, conv.slab.pointer, conv.row
    words = I64 if k.wide else I32
    if seen is not None:
        b.store(constant(vector(words, k.lanes), 0), seen, 0)
    rows = b.mul(conv.slab_depth, conv.slab_height)
    with b.loop(0, conv.copies) as s, b.loop(0, conv.in_channels) as c:
        after = k.dot((s, conv.copy), (c, conv.slab.pitch), (rows, pitch))
        fill_zero(k, slab, after, pitch)  # zeros right of the last row, where rows share theirs
    for together in channels_together(k, source):
        _fill_rows(k, conv, paced, step, source, pace, together, seen)
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
) -> None:
    """Row by row: read, looked at, and sorted by remainders."""
    b = k.b
    slab, whole, pitch = conv.slab.pointer, paced.row.pointer, conv.row
    place, valid, begin = k.spans(step, PLACE), k.spans(step, VALID), k.spans(step, FROM)
    channels, row_pitch, turns = conv.in_channels, paced.row.pitch, conv.paces[1]
    per_turn, length = b.sdiv(conv.slab_height, turns), b.mul(pitch, pace or conv.paces[2])
    with b.loop(0, channels, together) as block, b.loop(0, conv.slab_depth) as d, b.loop(0, turns) as turn:
        in_d, some = b.sub(d, place[0]), b.min(together, b.sub(channels, block))
        with b.loop(0, per_turn) as at_turn:
            in_h = b.sub(b.add(b.mul(at_turn, turns), turn), place[1])
            inside = b.bits("and_", _within(k, in_d, valid[0]), _within(k, in_h, valid[1]))
            with each_channel(k, together, some) as c:
                fill_zero(k, whole, b.mul(c, row_pitch), b.add(length, conv.copies))
            with b.if_(inside):

                def put(c: Number) -> Sink:
                    to = b.add(place[2], b.mul(c, row_pitch))
                    return lambda at, value, lanes: to_scratch(k, value, whole, b.add(to, at), lanes)

                at = block, b.add(begin[0], in_d), b.add(begin[1], in_h), begin[2]
                _read(k, step, source, at, valid[2], together, some, put)
                if seen is not None:
                    with each_channel(k, together, some) as c:
                        row = b.at(whole, b.mul(c, row_pitch), k.number)
                        _note_largest(k, seen, row, b.add(place[2], valid[2]))
            row = b.add(b.mul(b.add(b.mul(d, turns), turn), per_turn), at_turn)
            with each_channel(k, together, some) as c, b.loop(0, conv.copies) as s:
                target = k.dot((b.add(block, c), conv.slab.pitch), (row, pitch), (s, conv.copy))
                if pace:
                    _every(k, whole, k.dot((c, row_pitch), (1, s)), pace, slab, target, pitch)
                else:
                    with b.loop(0, pitch) as q:
                        one = b.load(whole, k.dot((c, row_pitch), (1, s), (q, conv.paces[2])), k.number)
                        b.store(one, slab, b.add(target, q))


def _every(k: Kernel, row: ir.Value, start: Number, pace: int, target: ir.Value, to: Number, count: Number) -> None:
    """Every pace-th number of a row, side by side."""
    b = k.b
    with b.loop(0, count, k.lanes) as q:
        first = k.dot((1, start), (q, pace))
        parts = [b.load(row, b.add(first, part * k.lanes), k.number, k.lanes) for part in range(pace)]
        b.store(b.deinterleave(parts)[0], target, b.add(to, q))


def _note_largest(k: Kernel, seen: ir.Value, row: ir.Value, count: Number) -> None:
    """Remembers the largest magnitude seen, as an integer: NaN and infinity are above all numbers."""
    b = k.b
    words, sign = (I64, 63) if k.wide else (I32, 31)
    with b.loop_carrying(0, count, k.lanes, [b.load(seen, 0, words, k.lanes)]) as (at, largest):
        pattern = b.bitcast(b.load(row, at, k.number, k.lanes), words)
        magnitude = b.bits("and_", pattern, constant(pattern.type, (1 << sign) - 1))
        largest.next = [b.max(largest.values[0], magnitude)]
    b.store(largest.result[0], seen, 0)


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
    source.read_channels(row, first, count, together, channels, put)


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
