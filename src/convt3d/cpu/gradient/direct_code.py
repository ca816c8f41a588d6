"""Direct summation: for each tap, products of all positions of a tile that it takes into the large array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.frame import AXES
from ..ir.values import I64, Number
from ..words import row_length
from .words import DirectWords, TapWords

if TYPE_CHECKING:
    from .code import Gradient


def sum_directly(g: Gradient, words: DirectWords, before: Number) -> None:
    """Adds a tile to the sums, which are new where nothing was summed `before`; box by box, for short chains."""
    b, part, r = g.b, g.part, g.r
    table = b.at(g.words.tap_table, b.mul(part.taps, row_length(TapWords)), I64)
    with b.loop(0, g.count[0], words.box[0]) as d, b.loop(0, g.count[1], words.box[1]) as h:
        place = d, h, 0
        left = (b.sub(count, at) for count, at in zip(g.count, place, strict=True))
        count = [b.min(box, rest) for box, rest in zip(words.box, left, strict=True)]
        earlier = b.add(before, b.add(d, h))
        with b.loop(0, part.tap_groups) as group:
            taps = b.at(table, b.mul(group, r.taps * row_length(TapWords)), I64)
            tap = g.k.row(TapWords, b, taps)
            first, counts = (list(place), count) if g.structure.zeros else _clipped(g, words, tap, place, count)
            small, large = (g.k.dot(*zip(first, packed.steps, strict=True)) for packed in (g.small, g.large))
            if r.taps == 1:
                large = b.add(large, tap.offset)
            number, vector = (large, small) if r.lanes_along == "small" else (small, large)
            steps = [step for packed in (g.numbers, g.vectors) for step in (packed.sample, *packed.steps)]
            box = (g.samples, *counts, *steps)
            sources = (
                b.at(g.numbers.packed.pointer, number, g.k.number),
                b.at(g.vectors.packed.pointer, vector, g.k.number),
            )
            g.products(*sources, g.numbers.packed.pitch, g.vectors.packed.pitch, taps, group, box, earlier)


def _clipped(
    g: Gradient, words: DirectWords, tap: TapWords, place: tuple[Number, ...], count: list[Number]
) -> tuple[list[Number], list[Number]]:
    """The positions of a box that a tap has: the first, counted from the tile's, and how many along each axis."""
    b, found, counts = g.b, [], []
    for axis, index in zip(AXES, (tap.d, tap.h, tap.w), strict=True):
        low, high = (
            b.sub(b.load(words.ranges[axis], b.add(b.mul(index, 2), end), I64), g.first[axis]) for end in (0, 1)
        )
        first = b.max(low, place[axis])
        found.append(first)
        counts.append(b.sub(b.min(high, b.add(place[axis], count[axis])), first))
    return found, counts
