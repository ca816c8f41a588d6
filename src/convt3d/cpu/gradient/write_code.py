"""Code that writes the sums of a part into the result: taps lie side by side there, channels along the lanes here."""

from __future__ import annotations

from ..ir.frame import Kernel
from ..ir.values import I64, Number
from .registers import Registers
from .words import GradientCall, GradientWords, PackedWords, PartWords


def write_result(
    k: Kernel,
    r: Registers,
    part: PartWords,
    words: GradientWords,
    numbers: PackedWords,
    vectors: PackedWords,
    call: GradientCall,
) -> None:
    """Squares of taps and lanes are transposed, for each number and each vector of channels."""
    b, lanes = k.b, k.lanes
    pairs = part.number_count if r.by_group else b.mul(part.number_count, part.vector_count)
    per_vector = b.sdiv(part.number_count, part.vector_count) if r.by_group else part.number_count
    vectors_of_numbers = r.rows if r.by_group else 1
    pair = r.taps * r.block * r.columns * lanes
    last = b.sub(part.tap_count, 1)

    def sums_of(tap: Number) -> Number:
        """Where those of a tap begin, of the first pair of blocks."""
        return k.dot((b.mul(b.sdiv(tap, r.taps), pairs), pair), (b.srem(tap, r.taps), r.rows * r.columns * lanes))

    with b.loop(0, part.vector_count) as v, b.loop(0, per_vector) as n, b.loop(0, r.block) as row:
        block = b.add(b.mul(v, per_vector), n)
        own = b.add(part.number, block if r.by_group else n)
        number = b.add(b.mul(own, vectors_of_numbers), row if r.by_group else 0)  # of its vector in the tables
        there = b.load(numbers.counts, number, I64)
        there = b.compare(">", there, 0 if r.by_group else row)
        with b.if_(there), b.loop(0, r.columns) as column:
            vector = k.dot((b.add(part.vector, v), r.columns), (column, 1))
            place = b.load(numbers.places, number if r.by_group else b.add(b.mul(number, lanes), row), I64)
            place = b.add(place, part.tap)
            # (sub-blocks, taps, rows, columns, lanes)
            sub, within = b.sdiv(row, r.rows), b.srem(row, r.rows)
            start = k.dot((block, pair), (sub, r.taps * r.rows * r.columns * lanes))
            start = b.add(start, k.dot((within, r.columns * lanes), (column, lanes)))
            count = b.load(vectors.counts, vector, I64)
            with b.if_(b.compare(">", count, 0)), b.loop(0, part.tap_count, lanes) as tap:
                rows = [
                    b.load(words.sums.pointer, b.add(start, sums_of(b.min(b.add(tap, at), last))), k.number, lanes)
                    for at in range(lanes)
                ]
                left = b.sub(part.tap_count, tap)
                for lane, value in enumerate(b.interleave(rows)):
                    with b.if_(b.compare(">", count, lane)):
                        own_place = b.load(vectors.places, b.add(b.mul(vector, lanes), lane), I64)
                        to = b.add(b.add(place, own_place), tap)
                        b.store(b.narrow(value, k.storage), call.result, to, count=left)
