"""The kernel of a weight's gradient: for each item a worker draws, tiles are packed and summed, and sums handed on."""

from __future__ import annotations

from llvmlite import ir

from ..code.tile import STORAGE
from ..ir import sums
from ..ir.frame import AXES, Kernel
from ..ir.move import fill_zero
from ..ir.values import I64, Number
from ..plan.machine import Machine
from ..words import SourceCall, SweepCall, row_length
from .outer_code import outer_kernel
from .pack_code import pack_row
from .plan import WINDOW
from .registers import Registers
from .words import GradientCall, GradientWords, PackedWords, PartWords, SlabWords, TapWords
from .write_code import write_result

SETS = (GradientWords, PackedWords, PackedWords, SlabWords, SweepCall, GradientCall, SourceCall, SourceCall)


def emit_gradient(name: str, dtype: str, registers: Registers, machine: Machine) -> Kernel:
    k = Kernel(name, machine, STORAGE[dtype], SETS)
    _Gradient(k, registers).write()
    k.b.fence(x86=False)
    k.b.ret()
    return k


class _Gradient:
    def __init__(self, k: Kernel, r: Registers) -> None:
        self.k, self.b, self.r = k, k.b, r
        self.words, self.small, self.large, self.slab, _, self.call, self.small_array, self.large_array = k.sets
        along_small = r.lanes_along == "small"
        self.numbers, self.vectors = (self.large, self.small) if along_small else (self.small, self.large)
        self.pair = r.taps * r.block * r.columns * k.lanes  # sums of a block of numbers and one of vectors
        self.packers = pack_row(k, False), pack_row(k, not r.alone)

    def write(self) -> None:
        k, b, w = self.k, self.b, self.words
        with b.drawn_from(k.call.counter, w.items) as item:
            number, chunk = b.sdiv(item, w.chunks), b.srem(item, w.chunks)
            self.part = k.row(PartWords, b, b.at(w.parts, b.mul(number, row_length(PartWords)), I64))
            first, behind = (b.sdiv(b.mul(w.tiles, at), w.chunks) for at in (chunk, b.add(chunk, 1)))
            partial = b.at(self.call.partials, self._partial(chunk), k.number)
            with b.loop(first, behind) as tile:
                within = b.sub(tile, first)
                window = b.srem(within, WINDOW)
                self._tile(tile, window)
                ends = b.bits(
                    "or_", b.compare("==", window, WINDOW - 1), b.compare("==", b.add(tile, 1), behind)
                )
                handed_on = b.compare(">", w.tiles, WINDOW)
                handed_on = b.bits("or_", handed_on, b.compare(">", w.chunks, 1))
                with b.if_(b.bits("and_", ends, handed_on)):
                    self._hand_on(partial, b.compare("<", within, WINDOW))
            self._finish(number)

    def _partial(self, chunk: Number) -> Number:
        """Where the sums of this part and a chunk lie among those of all."""
        b, part = self.b, self.part
        return b.add(b.mul(chunk, self.words.all_sums), part.begin)

    # ---- a tile ----

    def _tile(self, tile: ir.Value, window: ir.Value) -> None:
        b, w = self.b, self.words
        rest, at = tile, []
        for count in reversed(w.tile_counts):
            at.append(b.srem(rest, count))
            rest = b.sdiv(rest, count)
        self.first = [b.mul(index, size) for index, size in zip(reversed(at), w.tile_sizes, strict=True)]
        self.count = [
            b.min(size, b.sub(whole, first))
            for size, whole, first in zip(w.tile_sizes, w.sizes, self.first, strict=True)
        ]
        self.sample = b.mul(rest, w.tile_samples)
        self.samples = b.min(w.tile_samples, b.sub(w.samples, self.sample))
        self._pack_small()
        self._pack_large()
        self._sum(window)

    def _blocks(self, packed: PackedWords) -> tuple[Number, Number, int]:
        """The first block of the part, how many there are, and the vectors of each."""
        part, r = self.part, self.r
        if packed is self.vectors:
            return part.vector, part.vector_count, r.columns
        return part.number, part.number_count, r.rows if r.by_group else 1

    def _pack_small(self) -> None:
        b, k, packed, array = self.b, self.k, self.small, self.small_array
        first, count, vectors = self._blocks(packed)
        with b.loop(0, count) as block, b.loop(0, vectors) as vector, b.loop(0, self.samples) as s:
            channels, lanes, start = self._vector_of(packed, first, block, vectors, vector, s)
            with b.loop(0, self.count[0]) as d, b.loop(0, self.count[1]) as h:
                place = k.dot((d, packed.plane), (h, packed.row))
                source = k.dot(
                    (b.add(self.sample, s), array.b),
                    (b.add(self.first[0], d), array.d),
                    (b.add(self.first[1], h), array.h),
                    (self.first[2], array.w),
                )
                self._pack(packed, array, self.packers[1], channels, lanes, source, b.add(start, place), 1, self.count[2])

    def _vector_of(
        self, packed: PackedWords, first: Number, block: Number, vectors: int, vector: Number, sample: Number
    ) -> tuple[ir.Value, ir.Value, Number]:
        """Table of channels, lanes that are, and where a vector of a sample begins."""
        b, k = self.b, self.k
        number = b.add(b.mul(b.add(first, block), vectors), vector)
        start = k.dot((block, packed.packed.pitch), (vector, k.lanes), (sample, packed.sample))
        channels = b.at(packed.channels, b.mul(number, k.lanes), I64)
        return channels, b.load(packed.counts, number, I64), start

    def _pack(
        self,
        packed: PackedWords,
        array: SourceCall,
        packer: ir.Function,
        channels: ir.Value,
        lanes: ir.Value,
        source: Number,
        place: Number,
        step: Number,
        count: Number,
    ) -> None:
        b, k = self.b, self.k
        origin = b.at(array.data, source, k.storage.memory)
        target = b.at(packed.packed.pointer, place, k.number)
        sizes = array.c, b.mul(array.w, step), lanes, count, packed.pitch, self._adjacent(packed, array)
        b.call(packer, origin, channels, target, self.call.infinite, *sizes)

    def _adjacent(self, packed: PackedWords, array: SourceCall) -> Number:
        """Channels of lanes follow each other, unless they belong to different groups."""
        return 0 if self.r.by_group and packed is self.numbers else array.adjacent

    def _pack_large(self) -> None:
        """Places outside of the array are zeros, or, where every tap keeps to its positions, nobody reads them."""
        b, k, w, packed, slab, array = self.b, self.k, self.words, self.large, self.slab, self.large_array
        first, count, vectors = self._blocks(packed)
        corner = self.part.corner_d, self.part.corner_h, self.part.corner_w
        origin = [
            b.add(b.sub(b.mul(at, stride), padding), b.mul(tap, dilation))
            for at, stride, padding, tap, dilation in zip(
                self.first, w.strides, w.paddings, corner, w.dilations, strict=True
            )
        ]

        def inside(x: Number, axis: int) -> ir.Value:
            return b.raw.icmp_unsigned("<", b.i64(x), b.i64(w.large_sizes[axis]))

        def place_of(axis: int, run: Number, at: Number) -> tuple[Number, Number]:
            """Place in the slab, and index in the array."""
            x = b.add(origin[axis], k.dot((run, slab.run_steps[axis]), (at, slab.place_steps[axis])))
            return b.add(b.mul(run, slab.run_lengths[axis]), at), x

        with b.loop(0, count) as block, b.loop(0, vectors) as vector, b.loop(0, self.samples) as s:
            channels, lanes, start = self._vector_of(packed, first, block, vectors, vector, s)
            with (
                b.loop(0, slab.runs[0]) as run_d,
                b.loop(0, slab.run_lengths[0]) as at_d,
                b.loop(0, slab.runs[1]) as run_h,
                b.loop(0, slab.run_lengths[1]) as at_h,
            ):
                (d, x_d), (h, x_h) = place_of(0, run_d, at_d), place_of(1, run_h, at_h)
                row = b.add(start, k.dot((d, packed.plane), (h, packed.row)))
                there = b.bits("and_", inside(x_d, 0), inside(x_h, 1))
                if not self.r.alone:
                    with b.if_(b.bits("xor", there, ir.Constant(there.type, 1))):
                        self._zeros(packed, row, 0, b.mul(slab.runs[2], slab.run_lengths[2]))
                with b.if_(there), b.loop(0, slab.runs[2]) as run_w:
                    length, step = slab.run_lengths[2], slab.place_steps[2]
                    w0, x_w = place_of(2, run_w, 0)
                    before = b.min(length, b.sdiv(b.add(b.max(b.sub(0, x_w), 0), b.sub(step, 1)), step))
                    end = b.sdiv(b.add(b.max(b.sub(w.large_sizes[2], x_w), 0), b.sub(step, 1)), step)
                    behind = b.max(b.min(length, end), before)
                    source = k.dot(
                        (b.add(self.sample, s), array.b),
                        (x_d, array.d),
                        (x_h, array.h),
                        (b.add(x_w, b.mul(before, step)), array.w),
                    )
                    if not self.r.alone:
                        self._zeros(packed, row, w0, before)
                    place = b.add(row, b.mul(b.add(w0, before), packed.pitch))
                    some = b.sub(behind, before)
                    self._pack(packed, array, self.packers[0], channels, lanes, source, place, step, some)
                    if not self.r.alone:
                        self._zeros(packed, row, b.add(w0, behind), b.sub(length, behind))

    def _zeros(self, packed: PackedWords, row: Number, first: Number, count: Number) -> None:
        """Of the vector of channels that `row` is of."""
        b, k = self.b, self.k
        with b.loop(0, count) as at:
            fill_zero(k, packed.packed.pointer, b.add(row, b.mul(b.add(first, at), packed.pitch)), 1)

    # ---- sums ----

    def _sum(self, window: ir.Value) -> None:
        b, k, w, r, part = self.b, self.k, self.words, self.r, self.part
        table = b.at(w.tap_table, b.mul(part.taps, row_length(TapWords)), I64)
        pairs = part.number_count if r.by_group else b.mul(part.number_count, part.vector_count)
        with b.loop(0, part.tap_groups) as group:
            taps = b.at(table, b.mul(group, r.taps * row_length(TapWords)), I64)
            tap = k.row(TapWords, b, taps)
            first, count = [0, 0, 0], self.count
            if r.alone:
                first, count = self._clipped(tap)
            small = k.dot((first[0], self.small.plane), (first[1], self.small.row), (first[2], self.small.pitch))
            large = k.dot(*zip(first, self.large.steps, strict=True))
            if r.alone:
                large = b.add(large, tap.offset)
            sums = b.mul(b.mul(group, pairs), self.pair)
            box = self.samples, *count
            number, vector = (large, small) if r.lanes_along == "small" else (small, large)
            self._blocks_of_sums(taps, box, number, vector, sums, window)

    def _clipped(self, tap: TapWords) -> tuple[list[Number], list[Number]]:
        """The positions of the tile that a tap has: the first, counted from the tile's, and how many along each axis."""
        b = self.b
        found, counts = [], []
        for axis, index in zip(AXES, (tap.d, tap.h, tap.w), strict=True):
            low, high = (b.load(self.words.ranges[axis], b.add(b.mul(index, 2), end), I64) for end in (0, 1))
            first = b.max(b.sub(low, self.first[axis]), 0)
            found.append(first)
            counts.append(b.sub(b.min(b.sub(high, self.first[axis]), self.count[axis]), first))
        return found, counts

    def _blocks_of_sums(
        self, taps: ir.Value, box: tuple[Number, ...], number: Number, vector: Number, sums: Number, window: Number
    ) -> None:
        b, k, r, part = self.b, self.k, self.r, self.part
        steps: list[Number] = []
        for packed in (self.numbers, self.vectors):
            steps += [packed.sample, *packed.steps]
        per_vector = b.sdiv(part.number_count, part.vector_count) if r.by_group else part.number_count

        def blocks(columns: int, v: Number) -> None:
            kernel = outer_kernel(k, r, columns)
            along = b.at(self.vectors.packed.pointer, b.add(vector, b.mul(v, self.vectors.packed.pitch)), k.number)
            with b.loop(0, per_vector) as n:
                block = b.add(b.mul(v, per_vector), n)
                own = block if r.by_group else n
                start = b.add(number, b.mul(own, self.numbers.packed.pitch))
                for sub in range(r.block // r.rows):
                    at = b.at(self.numbers.packed.pointer, b.add(start, sub * r.rows), k.number)
                    place = b.add(sums, b.add(b.mul(block, self.pair), sub * r.taps * r.rows * r.columns * k.lanes))
                    target = b.at(self.words.sums.pointer, place, k.number)
                    b.call(kernel, at, along, target, taps, *box, *steps, window)

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

    # ---- the end ----

    def _hand_on(self, partial: ir.Value, first: ir.Value) -> None:
        """The sums of a window join those of the chunk."""
        b, k, own = self.b, self.k, self.words.sums.pointer
        with b.loop(0, self.part.length, k.lanes) as at:
            value = b.load(own, at, k.number, k.lanes)
            with b.if_else(first) as (alone, joined):
                with alone:
                    alone.values = [value]
                with joined:
                    joined.values = [b.add(b.load(partial, at, k.number, k.lanes), value)]
            b.store(alone.merged[0], partial, at)

    def _finish(self, number: ir.Value) -> None:
        """Whoever sums the last chunk of a part adds all its chunks, in their order, and writes the result."""
        b, k, w = self.b, self.k, self.words
        b.fence(x86=False)
        before = b.fetch_add(b.at(self.call.arrived, number, I64))
        with b.if_(b.compare("==", b.add(before, 1), w.chunks)):
            b.fence(x86=False)
            handed_on = b.bits("or_", b.compare(">", w.tiles, WINDOW), b.compare(">", w.chunks, 1))
            with b.if_(handed_on), b.loop(0, self.part.length, k.lanes) as at:
                with b.loop_carrying(0, w.chunks, 1, sums.nothing(k.number, k.lanes)) as (chunk, total):
                    place = b.add(self._partial(chunk), at)
                    value = b.load(self.call.partials, place, k.number, k.lanes)
                    total.next = sums.plus(b, total.values, value)
                b.store(b.cast(sums.total(b, total.result), k.number), w.sums.pointer, at)
            write_result(k, self.r, self.part, w, self.numbers, self.vectors, self.call)
