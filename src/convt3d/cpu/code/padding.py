"""Loads a box of a padded array: rows are found by tables, and what a row has of its own is read as it lies there."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.frame import Kernel
from ..ir.move import Sink, Source, channels_together, to_scratch
from ..ir.values import I64, Number
from ..steps.padding import PadWords


def load_padded(
    k: Kernel, words: PadWords, source: Source, low: tuple[Number, ...], counts: tuple[Number, ...], channels: Number
) -> None:
    """Into a contiguous buffer (C, D, H, W). Rows are written from left to right: a vector may write beyond what
    counts, and the next one is written over it."""
    b = k.b
    (depth, height, width), table = counts, words.sources
    left = b.min(b.max(b.sub(words.before, low[2]), 0), width)  # copies in front of the row's own voxels
    right = b.max(b.min(b.sub(b.add(words.before, words.width), low[2]), width), left)  # and behind them
    for together in channels_together(k, source):
        with b.loop(0, channels, together) as first, b.loop(0, depth) as d, b.loop(0, height) as h:
            start = k.dot((first, words.box.pitch), (b.add(b.mul(d, height), h), width))
            own_d, own_h = (b.load(table[axis], b.add(low[axis], at), I64) for axis, at in enumerate((d, h)))
            some = b.min(together, b.sub(channels, first))
            row = _Row(k, words, source, source.row(first, own_d, own_h), together, some, start)
            row.copies(low[2], 0, left)
            with b.if_(b.compare("<", left, right)):
                row.read(left, b.sub(b.add(low[2], left), words.before), b.sub(right, left))
            row.copies(low[2], right, width)


@dataclass(frozen=True)
class _Row:
    """A row of the source, and its place in the buffer."""

    k: Kernel
    words: PadWords
    source: Source
    row: Number
    together: int
    channels: Number
    start: Number

    def read(self, place: Number, begin: Number, count: Number) -> None:
        """`count` voxels from `begin` on, to `place` of the buffer's row."""
        self.source.read_channels(self.row, begin, count, self.together, self.channels, lambda c: self._into(place, c))

    def _into(self, place: Number, c: Number) -> Sink:
        b, box = self.k.b, self.words.box
        to = b.add(b.add(self.start, place), b.mul(c, box.pitch))
        return lambda at, value, lanes: to_scratch(self.k, value, box.pointer, b.add(to, at), lanes)

    def copies(self, low: Number, begin: Number, end: Number) -> None:
        """Voxels that the table names, one by one."""
        b = self.k.b
        with b.loop(begin, end) as at:
            self.read(at, b.load(self.words.sources[2], b.add(low, at), I64), 1)
