"""The kernel of a weight's gradient: for each item that a worker draws, tiles are packed and summed, sums handed on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from ..code.tile import STORAGE
from ..ir import sums
from ..ir.frame import Kernel
from ..ir.values import I64, Number
from ..plan.machine import Machine
from ..words import SourceCall, SweepCall, Words, row_length
from .direct_code import sum_directly
from .outer_code import outer_kernel
from .pack_code import pack_large, pack_small
from .structure import Structure
from .winograd_code import sum_by_winograd, taps_of_points
from .words import DirectWords, GradientCall, GradientWords, PackedWords, PartWords, SlabWords, WinogradWords
from .write_code import write_result


def plan_sets(structure: Structure) -> list[type[Words]]:
    """The sets of words that a plan fills."""
    method = WinogradWords if structure.schemes else DirectWords
    return [GradientWords, PackedWords, PackedWords, SlabWords, method]


CALL_SETS: list[type[Words]] = [SweepCall, GradientCall, SourceCall, SourceCall]


def emit_gradient(structure: Structure, machine: Machine) -> Kernel:
    k = Kernel(structure.name, machine, STORAGE[structure.dtype], [*plan_sets(structure), *CALL_SETS])
    Gradient(k, structure).write()
    k.b.ret()
    return k


class Gradient:
    """What all parts of the code need: the words, and the current part and tile."""

    def __init__(self, k: Kernel, structure: Structure) -> None:
        self.k, self.b, self.structure, self.r = k, k.b, structure, structure.registers
        self.words: GradientWords
        self.call: GradientCall
        self.words, self.small, self.large, self.slab, self.method = k.sets[:5]
        self.call, self.small_array, self.large_array = k.sets[6:]
        along_small = self.r.lanes_along == "small"
        self.numbers, self.vectors = (self.large, self.small) if along_small else (self.small, self.large)
        self.pair = self.r.taps * self.r.block * self.r.columns * k.lanes  # sums of a block of each, in a slot

    def write(self) -> None:
        k, b, w = self.k, self.b, self.words
        with b.drawn_from(k.call.counter, w.items) as item:
            number, chunk = b.sdiv(item, w.chunks), b.srem(item, w.chunks)
            self.part: PartWords = k.row(PartWords, b, b.at(w.parts, b.mul(number, row_length(PartWords)), I64))
            self.pairs = b.mul(self.part.vector_count, self.part.number_count)
            if self.r.by_group:
                self.pairs = self.part.number_count
            first, behind = (b.sdiv(b.mul(w.tiles, at), w.chunks) for at in (chunk, b.add(chunk, 1)))
            with b.loop(first, behind) as tile:
                within = b.sub(tile, first)
                turn = b.srem(within, w.window)
                self._tile(tile, turn)
                last = b.compare("==", b.add(tile, 1), behind)
                ends = b.bits("or_", b.compare("==", b.add(turn, 1), w.window), last)
                with b.if_(b.bits("and_", ends, b.compare("==", w.handed_on, 1))):
                    self._hand_on(chunk, b.compare("<", within, w.window))
            self._finish(number)

    def _tile(self, tile: ir.Value, before: ir.Value) -> None:
        b, w = self.b, self.words
        rest, at = tile, []
        for count in reversed(w.tile_counts):
            at.append(b.srem(rest, count))
            rest = b.sdiv(rest, count)
        self.first = [b.mul(index, size) for index, size in zip(reversed(at), w.tile_sizes, strict=True)]
        left = (b.sub(whole, first) for whole, first in zip(w.sizes, self.first, strict=True))
        self.count = [b.min(size, rest) for size, rest in zip(w.tile_sizes, left, strict=True)]
        self.sample = b.mul(rest, w.tile_samples)
        self.samples = b.min(w.tile_samples, b.sub(w.samples, self.sample))
        pack_small(self)
        pack_large(self)
        (sum_by_winograd if self.structure.schemes else sum_directly)(self, self.method, before)

    @contextmanager
    def each_vector(self, packed: PackedWords) -> Iterator[tuple[ir.Value, ir.Value, Number, ir.Value]]:
        """Vectors of channels of the part, and samples of the tile: the channels of the lanes, how many there are, the
        place in the packed array, and the sample."""
        b, k, part, r = self.b, self.k, self.part, self.r
        first, count, vectors = part.vector, part.vector_count, r.columns
        if packed is self.numbers:
            first, count, vectors = part.number, part.number_count, r.rows if r.by_group else 1
        with b.loop(0, count) as block, b.loop(0, vectors) as vector:
            number = b.add(b.mul(b.add(first, block), vectors), vector)
            channels = b.at(packed.channels, b.mul(number, k.lanes), I64)
            lanes = b.load(packed.counts, number, I64)
            with b.if_(b.compare(">", lanes, 0)), b.loop(0, self.samples) as s:
                start = k.dot((block, packed.packed.pitch), (vector, k.lanes), (s, packed.sample))
                yield channels, lanes, start, s

    def products(
        self,
        numbers: ir.Value,
        vectors: ir.Value,
        number_block: Number,
        vector_block: Number,
        taps: ir.Value,
        slot: Number,
        box: tuple[Number, ...],
        before: Number,
    ) -> None:
        """The micro-kernel for all pairs of blocks; `box` is its box, with the steps of numbers and of vectors."""
        b, k, r, part = self.b, self.k, self.r, self.part
        per_vector = b.sdiv(part.number_count, part.vector_count) if r.by_group else part.number_count
        start = b.mul(b.mul(slot, self.pairs), self.pair)

        def blocks(columns: int, v: Number) -> None:
            pair = b.mul(v, per_vector)
            own = b.at(numbers, b.mul(pair if r.by_group else 0, number_block), k.number)
            along = b.at(vectors, b.mul(v, vector_block), k.number)
            target = b.at(self.words.sums.pointer, b.add(start, b.mul(pair, self.pair)), k.number)
            more = before, per_vector, number_block
            b.call(outer_kernel(k, r, columns), own, along, target, taps, *box, *more)

        with b.loop(0, part.vector_count) as v:
            if r.rest == r.columns:
                blocks(r.columns, v)
            else:
                of_group = b.srem(b.add(part.vector, v), self.words.vector_blocks)
                with b.if_else(b.compare("==", b.add(of_group, 1), self.words.vector_blocks)) as (ends, whole):
                    with ends:
                        blocks(r.rest, v)
                    with whole:
                        blocks(r.columns, v)

    # ---- the end of an item ----

    def _partial(self, chunk: Number) -> Number:
        """Where the sums of this part and a chunk lie among those of all."""
        return self.k.dot((chunk, self.words.all_sums), (1, self.part.begin))

    def _hand_on(self, chunk: Number, first: ir.Value) -> None:
        """The sums of a window join those of the chunk."""
        b, k, own = self.b, self.k, self.words.sums.pointer
        partial = b.at(self.call.partials, self._partial(chunk), k.number)
        with b.if_else(first) as (alone, joined):
            for arm, joins in ((alone, False), (joined, True)):
                with arm, b.loop(0, self.part.length, k.lanes) as at:
                    value = b.load(own, at, k.number, k.lanes)
                    if joins:
                        value = b.add(b.load(partial, at, k.number, k.lanes), value)
                    b.store(value, partial, at)

    def _finish(self, number: ir.Value) -> None:
        """Whoever sums the last chunk of a part adds all its chunks, in their order, and writes the result."""
        b, k, w = self.b, self.k, self.words
        b.fence(x86=False)
        arrived = b.fetch_add(b.at(self.call.arrived, number, I64))
        with b.if_(b.compare("==", b.add(arrived, 1), w.chunks)):
            b.fence(x86=False)
            with b.if_(b.compare("==", w.handed_on, 1)), b.loop(0, self.part.length, k.lanes) as at:
                with b.loop_carrying(0, w.chunks, 1, sums.nothing(k.number, k.lanes)) as (chunk, total):
                    value = b.load(self.call.partials, b.add(self._partial(chunk), at), k.number, k.lanes)
                    total.next = sums.plus(b, total.values, value)
                b.store(b.cast(sums.total(b, total.result), k.number), w.sums.pointer, at)
            if self.structure.schemes:
                taps_of_points(self, self.method)
            write_result(self)
