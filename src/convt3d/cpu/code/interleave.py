"""Puts the phases of a tile together: phase-planar (C, phases, positions) -> rows along the width, in natural order.

Output o = n * q + j along each axis, where n is the number of phases, lies in phase j at position q.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.move import Destination, Sink, in_vectors, to_scratch
from ..ir.values import I64, Number
from ..plan.geometry import POSITION, POSITION_COUNT, WRITE, WRITE_COUNT
from ..steps.conv import ConvWords


@dataclass(frozen=True)
class Planar:
    """A buffer (C, phases, D, plane): the convolution's result, or that of a pool over the phases of its stride."""

    buffer: Scratch
    conv: ConvWords
    step: int  # of the convolution, whose positions it has
    phases: tuple[Number, Number, Number]  # along the axes
    kept: tuple[Number, Number, Number]  # phases that have a place of their own
    places: tuple[ir.Value, ir.Value, ir.Value]  # tables: of a phase among those that are kept
    count: Number  # of all that are kept
    beside: Number = 1  # samples that stand next to each other

    @classmethod
    def of_convolution(cls, conv: ConvWords, step: int, beside: Number = 1) -> Planar:
        return cls(conv.phased, conv, step, conv.periods, conv.kept, conv.places, conv.phases, beside)

    def place(self, k: Kernel, axis: int, phase: Number) -> ir.Value:
        """Of a phase among those that are kept."""
        return k.b.load(self.places[axis], phase, I64)

    def extent(self, k: Kernel) -> tuple[Number, Number]:
        """Runs of positions, one a plane or one for all planes, and what counts in each."""
        b, conv = k.b, self.conv
        depth, height, width = k.spans(self.step, POSITION_COUNT)
        length = b.add(b.mul(b.sub(height, 1), conv.row), b.mul(width, self.beside))
        merged = b.compare("==", conv.merged, 1)
        all_planes = b.add(b.mul(b.sub(depth, 1), conv.plane), length)
        return b.select(merged, 1, depth), b.select(merged, all_planes, length)


def interleave(
    k: Kernel, planar: Planar, step: int, phases_w: int, channels: Number, buffer: Scratch, target: Destination | None
) -> None:
    """Rows of the tile into a buffer (C, D, H, W), or through it into an array. `phases_w` 0: too many for shuffles."""
    b = k.b
    conv, phased, pitch = planar.conv, planar.buffer.pointer, planar.buffer.pitch
    low, count, first = k.spans(step, WRITE), k.spans(step, WRITE_COUNT), k.spans(planar.step, POSITION)
    strides = planar.phases

    def row_start(c: Number, d: Number, h: Number) -> Number:
        """Of row h of the box, the first of its phases along the width."""
        t_d, j_d = _split(k, b.add(low[0], d), strides[0], first[0])
        t_h, j_h = _split(k, b.add(low[1], h), strides[1], first[1])
        _, *kept = planar.kept
        phase = b.mul(b.add(b.mul(planar.place(k, 0, j_d), kept[0]), planar.place(k, 1, j_h)), kept[1])
        return k.dot((c, pitch), (phase, conv.phase), (t_d, conv.plane), (t_h, conv.row))

    def row(c: Number, d: Number, h: Number, put: Sink) -> None:
        start = row_start(c, d, h)
        _row(k, planar, phases_w, strides[2], phased, start, low[2], first[2], count[2], put)

    def into(place: Number) -> Sink:
        return lambda at, value, lanes: to_scratch(k, value, buffer.pointer, b.add(place, at), lanes)

    if target is None:
        with b.loop(0, channels) as c, b.loop(0, count[0]) as d, b.loop(0, count[1]) as h:
            place = k.dot((c, buffer.pitch), (b.add(b.mul(d, count[1]), h), count[2]))
            row(c, d, h, into(place))
        return

    together = target.words.channels

    def row_by_row() -> None:
        with (
            b.loop(0, channels, together) as c,
            b.loop(0, count[0]) as d,
            b.if_else(target.direct) as (direct, by_rows),
        ):
            with direct, b.loop(0, count[1]) as h:
                place = target.row(c, b.add(low[0], d), b.add(low[1], h))
                row(c, d, h, lambda at, value, lanes: target.put(place, b.add(low[2], at), value, lanes))
            with by_rows, target.rows_together(count[1]) as (h, rows):
                with b.loop(0, b.min(together, channels)) as channel, b.loop(0, rows) as more:
                    to = k.dot((channel, buffer.pitch), (more, count[2]))
                    row(b.add(c, channel), d, b.add(h, more), into(to))
                place = target.row(c, b.add(low[0], d), b.add(low[1], h))
                target.write(place, low[2], buffer.pointer, 0, buffer.pitch, channels, b.mul(rows, count[2]))

    if phases_w == 1:
        with b.if_else(_joined(k, planar, target, count)) as (at_once, apart):
            with at_once, b.loop(0, channels, together) as c, b.loop(0, count[0]) as d:
                place, length = target.row(c, b.add(low[0], d), low[1]), b.mul(count[1], count[2])
                target.write(place, low[2], phased, row_start(c, d, 0), pitch, channels, length)
            with apart:
                row_by_row()
    else:
        row_by_row()


def _joined(k: Kernel, planar: Planar, target: Destination, count: tuple[Number, ...]) -> ir.Value:
    """Whether the rows of a plane follow each other without a gap, here and in the array."""
    b, words = k.b, target.words
    pairs = (
        (planar.phases[0], 1),
        (planar.phases[1], 1),
        (planar.conv.row, count[2]),
        (words.h, b.mul(words.w, count[2])),
    )
    return b.all_true(*(b.compare("==", *pair) for pair in pairs))


def _split(k: Kernel, o: Number, stride: Number, first: Number) -> tuple[Number, Number]:
    """Position (from the tile's first) and phase of output o."""
    t = k.b.sdiv(o, stride)
    return k.b.sub(t, first), k.b.sub(o, k.b.mul(t, stride))


def _row(
    k: Kernel,
    planar: Planar,
    phases_w: int,
    stride: Number,
    phased: ir.Value,
    start: Number,
    low: Number,
    first: Number,
    count: Number,
    put: Sink,
) -> None:
    b = k.b
    if phases_w == 1:
        in_vectors(k, count, lambda at, n: put(at, b.load(phased, b.add(start, at), k.number, k.lanes), n))
        return
    phase = planar.conv.phase
    if not phases_w:
        with b.loop(0, count) as at:
            t, j = _split(k, b.add(low, at), stride, first)
            value = b.load(phased, k.dot((1, start), (planar.place(k, 2, j), phase), (t, 1)), k.number)
            put(at, b.splat(value, k.lanes), 1)
        return
    # The row begins in some phase; after the last phase follows the first, one position on.
    begin = b.sub(low, b.mul(first, phases_w))
    rows = []
    for turn in range(phases_w):
        j = b.add(begin, turn)
        over = b.compare(">=", j, phases_w)
        rows.append(b.add(start, b.select(over, b.add(b.mul(b.sub(j, phases_w), phase), 1), b.mul(j, phase))))
    with b.loop(0, count, phases_w * k.lanes) as at:
        t = b.sdiv(at, phases_w)
        together = [b.load(phased, b.add(row, t), k.number, k.lanes) for row in rows]
        left = b.sub(count, at)
        for part, value in enumerate(b.interleave(together)):
            left_here = b.sub(left, part * k.lanes)
            with b.if_else(b.compare(">=", left_here, k.lanes)) as (whole, some):
                with whole:
                    put(b.add(at, part * k.lanes), value, None)
                with some, b.if_(b.compare(">", left_here, 0)):
                    put(b.add(at, part * k.lanes), value, left_here)
