"""Moves rows between the caller's arrays (any type, any strides) and scratch buffers (contiguous numbers)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from .kernel import Kernel
from .values import Number, Storage, constant, vector

# Receives (offset in the row, vector of numbers, lanes that count or None for all).
Sink: TypeAlias = "Callable[[Number, ir.Value, Number | None], None]"


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array given by a pointer and element strides, all parameters named after it."""

    kernel: Kernel
    name: str
    storage: Storage

    def row(self, c: Number, d: Number, h: Number) -> Number:
        k = self.kernel
        assert k.sample is not None
        strides = [k.param(f"{self.name} {axis}") for axis in "bcdh"]
        return k.dot(*zip((k.sample, c, d, h), strides, strict=True))

    def read(self, row: Number, first: Number, count: Number, sink: Sink) -> None:
        """Elements first .. first + count of a row, as vectors of numbers."""
        k, b = self.kernel, self.kernel.b
        pointer, step = k.pointer(self.name), k.param(f"{self.name} w")
        start = b.add(row, b.mul(first, step))

        def contiguous(at: Number, lanes: Number | None) -> None:
            sink(
                at,
                b.widen(b.load(pointer, b.add(start, at), self.storage.memory, k.lanes, count=lanes), self.storage),
                lanes,
            )

        with b.if_else(b.compare("==", step, 1)) as (dense, strided):
            with dense:
                in_vectors(k, count, contiguous)
            with strided, b.loop(0, count) as at:
                one = b.load(pointer, b.add(start, b.mul(at, step)), self.storage.memory)
                sink(at, b.splat(b.widen(one, self.storage), k.lanes), 1)

    def write(self, row: Number, at: Number, value: ir.Value, lanes: Number | None) -> None:
        """A vector of numbers to elements at, at + 1, ... of a row; only the first `lanes` of them where given."""
        k, b = self.kernel, self.kernel.b
        pointer, step = k.pointer(self.name), k.param(f"{self.name} w")
        stored = b.narrow(value, self.storage)
        with b.if_else(b.compare("==", step, 1)) as (dense, strided):
            with dense:
                b.store(stored, pointer, b.add(row, at), count=lanes)
            with strided:
                spill = k.spill()
                b.store(stored, spill, 0)
                with b.loop(0, k.lanes if lanes is None else lanes) as lane:
                    one = b.load(spill, lane, self.storage.memory)
                    b.store(one, pointer, b.add(row, b.mul(b.add(at, lane), step)))


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


def load_box(
    k: Kernel, source: ArrayRows, low: tuple[Number, ...], counts: tuple[Number, ...], buffer: str, channels: Number
) -> None:
    """A box of an array into a contiguous buffer (C, D, H, W)."""
    b = k.b
    target, pitch = k.buffer(buffer), k.param(f"pitch {buffer}")
    depth, height, width = counts
    with b.loop(0, channels) as c, b.loop(0, depth) as d, b.loop(0, height) as h:
        start = k.dot((c, pitch), (b.add(b.mul(d, height), h), width))
        row = source.row(c, b.add(low[0], d), b.add(low[1], h))

        def put(at: Number, value: ir.Value, lanes: Number | None, start: Number = start) -> None:
            to_scratch(k, value, target, b.add(start, at), lanes)

        source.read(row, low[2], width, put)


def store_box(
    k: Kernel, buffer: str, dest: ArrayRows, low: tuple[Number, ...], counts: tuple[Number, ...], channels: Number
) -> None:
    """A contiguous buffer (C, D, H, W) into a box of an array."""
    b = k.b
    origin, pitch = k.buffer(buffer), k.param(f"pitch {buffer}")
    depth, height, width = counts
    with b.loop(0, channels) as c, b.loop(0, depth) as d, b.loop(0, height) as h:
        start = k.dot((c, pitch), (b.add(b.mul(d, height), h), width))
        row = dest.row(c, b.add(low[0], d), b.add(low[1], h))

        def put(at: Number, lanes: Number | None, start: Number = start, row: Number = row) -> None:
            value = b.load(origin, b.add(start, at), k.number, k.lanes)
            dest.write(row, b.add(low[2], at), value, lanes)

        in_vectors(k, width, put)
