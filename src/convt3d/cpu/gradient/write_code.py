"""Code that writes the sums of a part into the result: taps lie side by side there, channels along the lanes here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.values import I64, Number
from ..words import row_length
from .words import TapWords

if TYPE_CHECKING:
    from .code import Gradient


def write_result(g: Gradient) -> None:
    """Squares of taps and lanes are transposed, for each number and each vector of channels."""
    b, k, r, part, lanes = g.b, g.k, g.r, g.part, g.k.lanes
    per_vector = b.sdiv(part.number_count, part.vector_count) if r.by_group else part.number_count
    taps = b.at(g.words.tap_table, b.mul(part.taps, row_length(TapWords)), I64)
    last, apart = b.sub(part.tap_count, 1), b.mul(g.pairs, g.pair)

    def sums_of(tap: Number) -> Number:
        """Where those of a tap begin."""
        one = k.row(TapWords, b, b.at(taps, b.mul(b.min(tap, last), row_length(TapWords)), I64))
        return b.add(b.mul(one.slot, apart), one.within)

    with b.loop(0, part.vector_count) as v, b.loop(0, per_vector) as n, b.loop(0, r.block) as row:
        pair = b.add(b.mul(v, per_vector), n)
        if r.by_group:
            vector, lane = b.add(b.mul(b.add(part.number, pair), r.rows), row), 0
        else:
            vector, lane = b.add(part.number, n), row
        place = b.add(b.load(g.numbers.places, b.add(b.mul(vector, lanes), lane), I64), part.tap)
        with b.if_(b.compare(">", b.load(g.numbers.counts, vector, I64), lane)), b.loop(0, r.columns) as column:
            # (pairs of blocks, parts of a block, taps, rows, columns, lanes)
            sub, within = b.sdiv(row, r.rows), b.srem(row, r.rows)
            start = k.dot((pair, g.pair), (sub, r.taps * r.rows * r.columns * lanes))
            start = b.add(start, k.dot((within, r.columns * lanes), (column, lanes)))
            along = k.dot((b.add(part.vector, v), r.columns), (column, 1))
            count = b.load(g.vectors.counts, along, I64)
            with b.if_(b.compare(">", count, 0)), b.loop(0, part.tap_count, lanes) as tap:
                starts = [b.add(start, sums_of(b.add(tap, at))) for at in range(lanes)]
                rows = [b.load(g.words.sums.pointer, at, k.number, lanes) for at in starts]
                left = b.sub(part.tap_count, tap)
                for number, value in enumerate(b.interleave(rows)):
                    with b.if_(b.compare(">", count, number)):
                        own = b.load(g.vectors.places, b.add(b.mul(along, lanes), number), I64)
                        to = b.add(b.add(place, own), tap)
                        b.store(b.narrow(value, k.storage), g.call.result, to, count=left)
