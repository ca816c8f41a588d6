"""Several samples convolved together: where positions are few, one sample fills neither the vectors nor the time that
its weights take to come. The numbers that samples have at a place of slab and result stand next to each other, so that
a tap is a constant offset as before, and every weight serves all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

from ..ir.frame import Kernel
from ..ir.values import Number
from ..plan.geometry import POSITION_COUNT
from ..steps.conv import BesideWords, ConvWords


class Samples:
    """Those of a tile. Each is filled into the slab as if it were alone, and its result is taken out likewise."""

    def __init__(self, k: Kernel, conv: ConvWords, words: BesideWords) -> None:
        b = k.b
        assert k.sample is not None
        assert k.item is not None
        self.k, self.conv, self.words = k, conv, words
        self.first = b.mul(k.sample, words.most)
        self.count = b.min(words.most, b.sub(words.batch, self.first))
        self.tiles = b.mul(b.mul(*k.sweep.tiles[:2]), k.sweep.tiles[2])
        self.tile = b.sub(k.item, b.mul(k.sample, self.tiles))
        self.woven = woven = copy(conv)
        woven.slab, woven.row, woven.copy = words.slab, words.row, words.copy
        woven.phased, woven.phase, woven.plane = words.phased, words.phase, words.plane

    @contextmanager
    def each(self) -> Iterator[Number]:
        """Runs the body for one sample after the other."""
        k, b = self.k, self.k.b
        with b.loop(0, self.count) as number:
            k.sample = b.i64(b.add(self.first, number))
            k.item = b.i64(b.add(b.mul(k.sample, self.tiles), self.tile))
            yield number

    def weave(self, sample: Number, channels: Number) -> None:
        """The slab of a sample into that of all."""
        k, b, conv, woven, most = self.k, self.k.b, self.conv, self.woven, self.words.most
        length = b.mul(b.add(b.mul(conv.slab_depth, conv.slab_height), 1), conv.row)
        with b.loop(0, conv.copies) as s, b.loop(0, channels) as c:
            own = b.at(conv.slab.pointer, k.dot((s, conv.copy), (c, conv.slab.pitch)), k.number)
            start = k.dot((s, woven.copy), (c, woven.slab.pitch), (1, sample))
            to = b.at(woven.slab.pointer, start, k.number)
            with b.loop(0, length) as at:
                b.store(b.load(own, at, k.number), to, b.mul(at, most))

    @contextmanager
    def each_result(self, step: int, first: Number, channels: Number) -> Iterator[None]:
        """Runs the body for one sample after the other, with so many channels of its result in the buffer."""
        k, b, conv, woven, most = self.k, self.k.b, self.conv, self.woven, self.words.most
        depth, height, width = k.spans(step, POSITION_COUNT)
        length = k.dot((b.sub(height, 1), conv.row), (width, 1))
        with self.each() as sample:
            with b.loop(0, channels) as more, b.loop(0, conv.phases) as phase, b.loop(0, depth) as d:
                c = b.add(first, more)
                start = k.dot((c, woven.phased.pitch), (phase, woven.phase), (d, woven.plane), (1, sample))
                place = k.dot((c, conv.phased.pitch), (phase, conv.phase), (d, conv.plane))
                own = b.at(woven.phased.pointer, start, k.number)
                to = b.at(conv.phased.pointer, place, k.number)
                with b.loop(0, length) as at:
                    b.store(b.load(own, b.mul(at, most), k.number), to, at)
            yield
