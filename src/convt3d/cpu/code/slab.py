"""The slab: the inputs a tile of the convolution needs, with zeros where they leave the array.

Rows follow each other without a break, so that positions can be walked across their ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.move import Sink, Source, channels_together, each_channel, fill_zero, in_vectors, to_scratch
from ..ir.values import Number, constant, vector
from ..plan.geometry import READ, READ_COUNT
from ..plan.winograd import HUGE
from ..steps.conv import ConvWords, PacedWords
from ..words import StripsCall
from .planes import (
    Box,
    Inside,
    blocks_of,
    buffered,
    fill_planes,
    integer,
    lies_dense,
    magnitude,
    ones,
    planes_of,
    within,
    zero_after,
)
from .strips import middle, put_strips


def fill_slab(
    k: Kernel,
    conv: ConvWords,
    step: int,
    source: Source | Scratch | Inside,
    groups: Number,
    pairs: bool = False,
    box: Box | None = None,
) -> None:
    """The slab (copies, channels of so many groups, D, H, pitch) from the source's box, zero where the box leaves the
    array; of `pairs`, two channels in each lane.

    Copy s holds the inputs from s on: its rows are the window [s, s + pitch) of the whole row.
    """
    box = box or Box.of_tile(k, step)
    rows_follow, _ = _joined(k, conv, step, source, box)
    with k.b.if_else(k.b.all_true(lies_dense(k, source), k.b.raw.not_(rows_follow))) as (row_by_row, otherwise):
        with row_by_row:
            zero_after(k, conv, groups, pairs)
            fill_planes(k, conv, step, source, groups, 1, pairs, box)
        with otherwise:
            for together in _together(k, source):
                _fill_slab(k, conv, step, source, groups, together, pairs, box)


def _fill_slab(
    k: Kernel,
    conv: ConvWords,
    step: int,
    source: Source | Scratch | Inside,
    groups: Number,
    together: int,
    pairs: bool,
    box: Box,
) -> None:
    """Row by row, or plane by plane, or a channel at once, where rows follow each other on both sides."""
    b = k.b
    slab, channel, pitch = conv.slab.pointer, conv.slab.pitch, conv.row
    depth, height = conv.slab_depth, conv.slab_height
    place, valid, begin = box.place, box.valid, box.begin
    rows_follow, planes_follow = _joined(k, conv, step, source, box)
    # A run is a row, the rows of a plane, or the planes of a channel.
    each = b.select(planes_follow, b.mul(height, pitch), pitch)
    run_place, run_valid = (b.select(planes_follow, axes[0], axes[1]) for axes in (place, valid))
    length = b.select(rows_follow, b.mul(b.select(planes_follow, depth, height), each), pitch)
    with b.loop(0, conv.copies) as s, blocks_of(k, conv, groups, together, pairs) as block:
        first = b.max(s, place[2])
        count = b.max(b.sub(b.min(b.add(s, pitch), b.add(place[2], valid[2])), first), 0)
        count = b.select(rows_follow, b.mul(run_valid, each), count)
        before = b.select(rows_follow, b.mul(run_place, each), b.sub(first, s))
        from_w = b.add(begin[2], b.sub(first, place[2]))
        some = block.count(k)
        base = k.dot((s, conv.copy), (block.slab, channel))
        planes, rows = b.select(planes_follow, 1, depth), b.select(rows_follow, 1, height)
        with b.loop(0, planes) as d, b.loop(0, rows) as h:
            start = b.add(base, b.mul(b.add(b.mul(d, height), h), pitch))
            in_d = b.select(planes_follow, 0, b.sub(d, place[0]))
            in_h = b.select(rows_follow, 0, b.sub(h, place[1]))
            inside = _both(k, in_d, valid[0], in_h, valid[1])
            with each_channel(k, block.most, some) as c:
                _zero_ends(k, slab, b.add(start, b.mul(c, channel)), before, b.select(inside, count, 0), length)
            with b.if_(inside):
                target = b.add(start, before)

                def put(c: Number, target: Number = target) -> Sink:
                    to = b.add(target, b.mul(c, channel))
                    # lanes that do not count are zero
                    return lambda at, value, lanes: to_scratch(k, value, slab, b.add(to, at), lanes)

                at = block.source, b.add(begin[0], in_d), b.add(begin[1], in_h), from_w
                ahead = b.select(rows_follow, 0, count)  # the processor itself fetches what is long
                _read(k, step, source, at, count, ahead, together, block.count_read(k, some), put, pairs)
        # Zeros right of the last row, where rows share theirs.
        with each_channel(k, block.most, some) as c:
            fill_zero(k, slab, k.dot((1, base), (c, channel), (b.mul(depth, height), pitch)), pitch)


def _together(k: Kernel, source: Source | Scratch | Inside) -> Iterable[int]:
    return (1,) if isinstance(source, Inside) else channels_together(k, source)


def _joined(
    k: Kernel, conv: ConvWords, step: int, source: Source | Scratch | Inside, box: Box
) -> tuple[ir.Value, ir.Value]:
    """Whether the rows of a plane follow each other without a gap, in the source and in the slab; and the planes."""
    b, width, height = k.b, conv.row, conv.slab_height
    place, valid = box.place, box.valid
    if not isinstance(source, Source):
        _, rows, row = k.spans(step, READ_COUNT)
        one, plane = 1, b.mul(rows, row)
    else:
        one, row, plane = source.words.w, source.words.h, source.words.d
    whole = (b.compare("==", conv.copies, 1), b.compare("==", place[2], 0), b.compare("==", valid[2], width))
    rows_follow = b.all_true(*whole, b.compare("==", row, b.mul(one, width)))
    all_rows = b.compare("==", valid[1], height), b.compare("==", plane, b.mul(row, height))
    return rows_follow, b.all_true(rows_follow, *all_rows)


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
    source: Source | Scratch | Inside,
    groups: Number,
    pace: int,
    seen: ir.Value | None = None,
    pairs: bool = False,
    box: Box | None = None,
    strips: StripsCall | None = None,
) -> ir.Value | None:
    """The slab of a tile whose positions are several inputs wide; where `seen` has room for a vector of the largest
    magnitudes, the answer is true if all inputs are smaller than HUGE. With `strips`, the source is the largest of the
    pieces that an array lies in.

    Copy s of a row holds inputs s, s + pace, ...; row h of a plane comes h / pace -th among those of its remainder.
    `pace` is that of the width, 0 if it is too wide for shuffles.
    """
    b, words = k.b, integer(k)
    if seen is not None:
        b.store(constant(vector(words, k.lanes), 0), seen, 0)
    zero_after(k, conv, groups, pairs)
    box = middle(k, step, strips) if strips is not None else box or Box.of_tile(k, step)
    if pace:
        with b.if_else(lies_dense(k, source)) as (dense, otherwise):
            with dense:
                fill_planes(k, conv, step, source, groups, pace, pairs, box, seen)
            with otherwise:
                for together in _together(k, source):
                    _fill_rows(k, conv, paced, step, source, groups, pace, together, seen, pairs, box)
    else:
        for together in _together(k, source):
            _fill_rows(k, conv, paced, step, source, groups, pace, together, seen, pairs, box)
    if seen is None:
        return None
    if strips is not None:
        assert isinstance(source, Source)
        put_strips(k, conv, step, source, strips, seen, pace)
    largest = b.reduce(b.load(seen, 0, words, k.lanes), b.max)
    bound = struct.pack("<d", HUGE["float64"]) if k.wide else struct.pack("<f", HUGE["float32"])
    return b.compare("<", largest, constant(words, int.from_bytes(bound, "little")))


def _fill_rows(
    k: Kernel,
    conv: ConvWords,
    paced: PacedWords,
    step: int,
    source: Source | Scratch | Inside,
    groups: Number,
    pace: int,
    together: int,
    seen: ir.Value | None,
    pairs: bool,
    box: Box,
) -> None:
    """Some rows, or one row of some channels, are read before they are sorted by remainders: a row that was written
    just now, at another alignment, would be waited for."""
    b = k.b
    slab, whole, pitch = conv.slab.pointer, paced.row.pointer, conv.row
    place, valid, begin = box.place, box.valid, box.begin
    row_pitch, turns = paced.row.pitch, conv.turns
    per_turn, at_once = b.sdiv(conv.slab_height, turns), k.lanes if together == 1 else 1
    # Of what is read of a row: whole vectors, or number by number.
    length = k.dot((pitch, pace), (k.lanes, pace)) if pace else b.mul(b.sub(pitch, 1), conv.paces[2])
    end = b.add(length, conv.copies)
    with blocks_of(k, conv, groups, together, pairs) as block, planes_of(k, conv) as d, b.loop(0, turns) as turn:
        in_d, some = b.sub(d, place[0]), block.count(k)
        with b.loop(0, per_turn, at_once) as first:
            rows = b.min(at_once, b.sub(per_turn, first))
            with b.loop(0, rows) as more:
                in_h = b.sub(k.dot((b.add(first, more), conv.paces[1]), (1, turn)), place[1])
                inside, buffer = _both(k, in_d, valid[0], in_h, valid[1]), b.mul(more, row_pitch)
                with each_channel(k, block.most, some) as c:
                    there = b.select(inside, valid[2], 0)
                    _zero_ends(k, whole, b.add(buffer, b.mul(c, row_pitch)), place[2], there, end)
                with b.if_(inside):

                    def put(c: Number, buffer: Number = buffer) -> Sink:
                        to = k.dot((1, place[2]), (1, buffer), (c, row_pitch))
                        return lambda at, value, lanes: to_scratch(k, value, whole, b.add(to, at), lanes)

                    at = block.source, b.add(begin[0], in_d), b.add(begin[1], in_h), begin[2]
                    _read(k, step, source, at, valid[2], valid[2], together, block.count_read(k, some), put, pairs)
            with b.loop(0, rows) as more, each_channel(k, block.most, some) as c:
                number = b.add(b.mul(b.add(b.mul(d, turns), turn), per_turn), b.add(first, more))
                target = b.at(slab, k.dot((b.add(block.slab, c), conv.slab.pitch), (number, pitch)), k.number)
                row = b.at(whole, b.mul(b.add(more, c), row_pitch), k.number)
                _sort(k, conv, row, target, pace, seen)


def _sort(k: Kernel, conv: ConvWords, row: ir.Value, target: ir.Value, pace: int, seen: ir.Value | None) -> None:
    """A row into its copies: copy s has inputs s, s + pace, ... Notes the largest magnitude, where it is wanted."""
    b, copies, pitch = k.b, conv.copies, conv.row
    if not pace:
        with b.loop(0, copies) as s, b.loop(0, pitch) as q:
            one = b.load(row, k.dot((1, s), (q, conv.paces[2])), k.number)
            b.store(one, target, k.dot((s, conv.copy), (1, q)))
            if seen is not None:
                largest = b.max(b.load(seen, 0, integer(k)), magnitude(k, one))
                b.store(largest, seen, 0)
        return
    with b.loop(0, copies, pace) as s:
        start = [] if seen is None else [constant(vector(integer(k), k.lanes), 0)]  # no row waits for another
        with b.loop_carrying(0, pitch, k.lanes, start) as (q, largest):
            first = k.dot((1, s), (q, pace))
            parts = [b.load(row, b.add(first, part * k.lanes), k.number, k.lanes) for part in range(pace)]
            for number, sorted_part in enumerate(b.deinterleave(parts)):
                copy = b.add(s, number)
                with b.if_(b.compare("<", copy, copies)):
                    b.store(sorted_part, target, k.dot((copy, conv.copy), (1, q)))
            found = largest.values
            for part in parts if seen is not None else []:
                found = [b.max(found[0], magnitude(k, part))]
            largest.next = found
        if seen is not None:
            b.store(b.max(largest.result[0], b.load(seen, 0, integer(k), k.lanes)), seen, 0)


def _read(
    k: Kernel,
    step: int,
    source: Source | Scratch | Inside,
    at: Sequence[Number],
    count: Number,
    ahead: Number,
    together: int,
    channels: Number,
    put: Callable[[Number], Sink],
    pairs: bool,
) -> None:
    """`count` numbers of a row of the source's box, (channel, depth, height, width) from its corner, and of all
    `channels` that are read at a time: put(channel) takes those of one, or of a pair, counted from the first. So many
    of the next channel are asked for `ahead`."""
    b = k.b
    if isinstance(source, Inside):
        _read_ones(k, count, put(0))
        return
    if isinstance(source, Scratch):
        _read_buffer(k, step, source, at, count, put(0), b.compare(">", channels, 1) if pairs else None)
        return
    c, d, h, w = at
    low = k.spans(step, READ)
    row, first = source.row(c, b.add(low[0], d), b.add(low[1], h)), b.add(low[2], w)
    if together == 1:
        for before in (source.words.c, b.mul(2, source.words.c)) if pairs else (0,):
            source.prefetch(b.add(row, before), first, ahead)
    source.read_channels(row, first, count, together, channels, put, pairs)


def _read_ones(k: Kernel, count: Number, put: Sink) -> None:
    in_vectors(k, count, lambda offset, lanes: put(offset, ones(k, lanes), lanes))


def _both(k: Kernel, d: Number, depth: Number, h: Number, height: Number) -> ir.Value:
    """Whether d and h are places of an array."""
    return k.b.all_true(within(k, d, depth), within(k, h, height))


def _read_buffer(
    k: Kernel,
    step: int,
    buffer: Scratch,
    at: Sequence[Number],
    count: Number,
    put: Sink,
    partner: ir.Value | None,
) -> None:
    """A row of the contiguous buffer (C, D, H, W) that the step before has written; as `Source.read`, of pairs."""
    b = k.b
    c, d, h, w = at
    _, height, width = k.spans(step, READ_COUNT)
    channel = b.add(k.first_channel, c)
    start = k.dot((channel, buffer.pitch), (b.add(b.mul(d, height), h), width), (w, 1))

    in_vectors(k, count, lambda at, lanes: put(at, buffered(k, buffer, b.add(start, at), lanes, partner), lanes))
