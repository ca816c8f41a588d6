"""Moves rows between the caller's arrays (any type, any strides) and scratch buffers (contiguous numbers)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from ..plan.machine import LINE
from ..words import ArrayCall, DestinationCall, SourceCall
from . import blocks
from .frame import Kernel, Scratch
from .values import Number, Storage, constant, size_of, vector

# Receives (offset in the row, vector of numbers, lanes that count or None for all).
Sink: TypeAlias = "Callable[[Number, ir.Value, Number | None], None]"


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array given by its address and strides."""

    kernel: Kernel
    words: ArrayCall
    storage: Storage

    def row(self, c: Number, d: Number, h: Number) -> Number:
        """Where the row of channel c begins, counted from the first one in the buffers."""
        k = self.kernel
        assert k.sample is not None
        strides = [self.words.b, self.words.c, self.words.d, self.words.h]
        channel = k.b.add(k.first_channel, c)
        return k.dot(*zip((k.sample, channel, d, h), strides, strict=True))


@dataclass(frozen=True)
class Source(ArrayRows):
    """Rows of an array that a step reads."""

    words: SourceCall

    def read(self, row: Number, first: Number, count: Number, sink: Sink, partner: ir.Value | None = None) -> None:
        """Elements first .. first + count of a row, as vectors of numbers, or as pairs of bfloat16 numbers: then
        `partner` tells whether those of the next channel's row come with them, or zeros."""
        k, b, step = self.kernel, self.kernel.b, self.words.w
        start = b.add(row, b.mul(first, step))

        def contiguous(at: Number, lanes: Number | None) -> None:
            sink(at, self.value(b.add(start, at), k.lanes, lanes, partner), lanes)

        with b.if_else(b.compare("==", step, 1)) as (dense, strided):
            with dense:
                in_vectors(k, count, contiguous)
            with strided, b.loop(0, count) as at:
                sink(at, b.splat(self.value(b.add(start, b.mul(at, step)), 1, None, partner), k.lanes), 1)

    def value(self, at: Number, width: int, lanes: Number | None, partner: ir.Value | None) -> ir.Value:
        """Elements side by side, as numbers or as pairs; `lanes` of them are there."""
        b = self.kernel.b

        def numbers(at: Number) -> ir.Value:
            return b.widen(b.load(self.words.data, at, self.storage.memory, width, count=lanes), self.storage)

        own = numbers(at)
        if partner is None:
            return own
        other = numbers(b.add(at, b.select(partner, self.words.c, 0)))
        return b.pair(own, b.select(partner, other, constant(other.type, 0.0)))

    def prefetch(self, row: Number, first: Number, count: Number) -> None:
        """Asks for the same part of the next channel's row, where elements lie side by side."""
        k, b = self.kernel, self.kernel.b
        line, start = LINE // size_of(self.storage.memory), k.dot((1, row), (1, self.words.c), (first, self.words.w))
        with b.if_(b.compare("==", self.words.w, 1)), b.loop(0, count, line) as at:
            b.prefetch(self.words.data, b.add(start, at), self.storage.memory)

    @property
    def adjacent(self) -> ir.Value:
        """Whether channels lie side by side."""
        return self.kernel.b.compare("==", self.words.adjacent, 1)

    def read_channels(
        self,
        row: Number,
        first: Number,
        count: Number,
        together: int,
        channels: Number,
        sink: Callable[[Number], Sink],
        pairs: bool = False,
    ) -> None:
        """The same of the `channels` that are read at a time: sink(channel) takes those of one, counted from the row's,
        in vectors that count as far as the row goes; the other lanes are zero. Of `pairs` it takes those of two."""
        k, b = self.kernel, self.kernel.b
        if together == 1:
            self.read(row, first, count, sink(0), b.compare(">", channels, 1) if pairs else None)
            return
        pointer, step, square = self.words.data, self.words.w, k.square()
        start = b.add(row, b.mul(first, step))
        with b.loop(0, count, k.lanes) as at:
            corner = b.at(pointer, b.add(start, b.mul(at, step)), self.storage.memory)
            left = b.sub(count, at)
            b.call_address(k.call.read_block, blocks.READ, corner, step, channels, left, square)

            def value(c: Number) -> ir.Value:
                return b.load(square, b.mul(c, k.lanes), k.number, k.lanes)

            if pairs:
                with b.loop(0, channels, 2) as c:
                    there = b.compare("<", b.add(c, 1), channels)
                    other = b.select(there, value(b.select(there, b.add(c, 1), c)), zeros(k))
                    sink(b.sdiv(c, 2))(at, b.pair(value(c), other), left)
            else:
                with b.loop(0, channels) as c:
                    own = value(c)
                    sink(c)(at, own, left)


@dataclass(frozen=True)
class Destination(ArrayRows):
    """Rows of the array that a sweep writes."""

    words: DestinationCall

    @contextmanager
    def rows_together(self, height: Number) -> Iterator[tuple[ir.Value, Number]]:
        """Row numbers below `height`, and how many rows from there on are written together."""
        b, together = self.kernel.b, self.words.rows
        with b.loop(0, height, together) as h:
            yield h, b.min(together, b.sub(height, h))

    def put(self, row: Number, at: Number, value: ir.Value, lanes: Number | None) -> None:
        """A vector of numbers to elements at, at + 1, ... of a row of an array that takes them directly; only the first
        `lanes` of them where given."""
        b = self.kernel.b
        place, stored = b.add(row, at), b.narrow(value, self.storage)
        if lanes is None:
            self._store(stored, place)
        else:
            b.store(stored, self.words.data, place, count=lanes)

    def _store(self, stored: ir.Value, place: Number) -> None:
        """A whole vector, as the array wants it."""
        b, pointer = self.kernel.b, self.words.data
        with b.if_else(self.streamed) as (past, through):
            with past:
                b.store_past_caches(stored, pointer, place)
            with through:
                b.store(stored, pointer, place)

    @property
    def direct(self) -> ir.Value:
        """Whether the array takes vectors as they come."""
        return self.kernel.b.compare("==", self.words.direct, 1)

    @property
    def streamed(self) -> ir.Value:
        """Whether the array is written past the caches."""
        return self.kernel.b.compare("==", self.words.streamed, 1)

    def write(
        self,
        row: Number,
        first: Number,
        source: ir.Value,
        start: Number,
        pitch: Number,
        channels: Number,
        count: Number,
    ) -> None:
        """`count` elements of a row, and of those that follow it without a gap, from a scratch buffer; where channels
        are adjacent those of all channels, which are `pitch` apart in the buffer."""
        k, b = self.kernel, self.kernel.b
        place = b.add(row, b.mul(first, self.words.w))
        with b.if_else(b.compare("==", self.words.channels, 1)) as (one, all_of_them):
            with one:
                self._write_channel(place, b.at(source, start, k.number), count)
            with all_of_them:
                self._write_channels(place, b.at(source, start, k.number), pitch, channels, count)

    def _write_channel(self, place: Number, source: ir.Value, count: Number) -> None:
        """`count` numbers to consecutive places, or, where the elements of a row are apart, to those of one row."""
        k, b = self.kernel, self.kernel.b
        pointer, step = self.words.data, self.words.w

        def value(at: Number) -> ir.Value:
            return b.narrow(b.load(source, at, k.number, k.lanes), self.storage)

        def put(at: Number, lanes: Number | None) -> None:
            b.store(value(at), pointer, b.add(place, at), count=lanes)

        with b.if_else(b.compare("==", step, 1)) as (contiguous, strided):
            with contiguous, b.if_else(self.streamed) as (past, through):
                with past:  # whole lines: a part of one would be fetched, and written on its own
                    line = max(k.lanes, LINE // size_of(self.storage.memory))
                    ahead = b.min(b.to_boundary(pointer, place, self.storage.memory, line), count)
                    whole = b.add(ahead, b.bits("and_", b.sub(count, ahead), -line))
                    in_vectors(k, ahead, put)
                    with b.loop(ahead, whole, line) as first:
                        for part in range(0, line, k.lanes):
                            at = b.add(first, part)
                            b.store_past_caches(value(at), pointer, b.add(place, at))
                    in_vectors(k, b.sub(count, whole), lambda at, lanes: put(b.add(whole, at), lanes))
                with through:
                    in_vectors(k, count, put)
            with strided, b.loop(0, count) as at:
                one = b.narrow(b.load(source, at, k.number), self.storage)
                b.store(one, pointer, b.add(place, b.mul(at, step)))

    def _write_channels(self, place: Number, source: ir.Value, pitch: Number, channels: Number, count: Number) -> None:
        """The same in all channels, which lie side by side in the array: squares of channels and elements are
        transposed."""
        k, b = self.kernel, self.kernel.b
        step, streamed = self.words.w, self.words.streamed
        with b.loop(0, count, k.lanes) as at, b.loop(0, channels, k.lanes) as c:
            corner = b.at(source, k.dot((c, pitch), (1, at)), k.number)
            to = b.at(self.words.data, k.dot((1, place), (at, step), (1, c)), self.storage.memory)
            some = pitch, b.sub(channels, c), b.sub(count, at)
            b.call_address(k.call.write_block, blocks.WRITE, corner, *some, to, step, streamed)


def in_vectors(k: Kernel, count: Number, body: Callable[[Number, Number | None], None]) -> None:
    """body(offset, None) for each whole vector of a row, then body(offset, lanes) for what is left."""
    b = k.b
    whole = b.bits("and_", count, -k.lanes)
    with b.loop(0, whole, k.lanes) as at:
        body(at, None)
    with b.if_(b.compare("<", whole, count)):
        body(whole, b.sub(count, whole))


def to_scratch(k: Kernel, value: ir.Value, pointer: ir.Value, at: Number, lanes: Number | None) -> None:
    """A vector into a buffer. More lanes than count may be written, since rows follow in order; a lone one is not."""
    k.b.store(k.b.lane(value, 0) if lanes == 1 else value, pointer, at)


def zeros(k: Kernel) -> ir.Value:
    return constant(vector(k.number, k.lanes), 0.0)


def fill_zero(k: Kernel, pointer: ir.Value, start: Number, count: Number) -> None:
    """Whole vectors of zeros over `count` elements: up to one vector more is written, scratch has room for it."""
    with k.b.loop(0, count, k.lanes) as at:
        k.b.store(zeros(k), pointer, k.b.add(start, at))


def channels_together(k: Kernel, source: Source | Scratch) -> Iterator[int]:
    """How many channels are read at a time, as many as a vector has lanes where they lie side by side: code is written
    for each number, and one of them runs."""
    if isinstance(source, Scratch):
        yield 1
        return
    with k.b.if_else(source.adjacent) as (many, one):
        with many:
            yield k.lanes
        with one:
            yield 1


@contextmanager
def each_channel(k: Kernel, together: int, some: Number) -> Iterator[Number]:
    """Numbers of `some` channels that are read at a time."""
    if together == 1:
        yield 0
    else:
        with k.b.loop(0, some) as c:
            yield c


def load_box(
    k: Kernel, source: Source, low: tuple[Number, ...], counts: tuple[Number, ...], buffer: Scratch, channels: Number
) -> None:
    """A box of an array into a contiguous buffer (C, D, H, W)."""
    b = k.b
    target, pitch = buffer.pointer, buffer.pitch
    depth, height, width = counts

    for together in channels_together(k, source):
        with b.loop(0, channels, together) as first, b.loop(0, depth) as d, b.loop(0, height) as h:
            start = k.dot((first, pitch), (b.add(b.mul(d, height), h), width))

            def into(c: Number, start: Number = start) -> Sink:
                place = b.add(start, b.mul(c, pitch))
                return lambda at, value, lanes: to_scratch(k, value, target, b.add(place, at), lanes)

            row, some = source.row(first, b.add(low[0], d), b.add(low[1], h)), b.min(together, b.sub(channels, first))
            source.read_channels(row, low[2], width, together, some, into)


def store_box(
    k: Kernel,
    buffer: Scratch,
    dest: Destination,
    low: tuple[Number, ...],
    counts: tuple[Number, ...],
    channels: Number,
) -> None:
    """A contiguous buffer (C, D, H, W) into a box of an array."""
    b = k.b
    origin, pitch = buffer.pointer, buffer.pitch
    depth, height, width = counts
    together = dest.words.channels
    with b.loop(0, channels, together) as c, b.loop(0, depth) as d, dest.rows_together(height) as (h, rows):
        start = k.dot((c, pitch), (b.add(b.mul(d, height), h), width))
        row = dest.row(c, b.add(low[0], d), b.add(low[1], h))
        dest.write(row, low[2], origin, start, pitch, channels, b.mul(rows, width))
