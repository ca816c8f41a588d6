"""Elementwise stages from array to array: a vector is loaded, changed and stored, with no scratch memory between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

from llvmlite import ir

from ..ir.frame import Kernel
from ..ir.move import ArrayRows, Destination, Source
from ..ir.values import Number
from ..steps.elementwise import Elementwise
from .chain import Column, Links, Map, Run, steps_of_links
from .tile import Tile


class _Registers(Links):
    """What links read where a run of one channel's voxels goes through registers."""

    def __init__(
        self, k: Kernel, words: Sequence[Any], call: Sequence[Any], channel: Number, rows: dict[int, Row]
    ) -> None:
        super().__init__(k, words, call, 1)
        self.channel, self.rows = channel, rows
        self.values: dict[str, ir.Value] = {}  # kept ones, of the vector that is computed
        self.lanes: Number | None = None  # of it, those that count, or all

    def vector(self, link: int, number: int) -> Callable[[Column], ir.Value]:
        value = super().vector(link, number)(Column(self.channel, 0, 0, Run(0, 0)))
        return lambda column: value

    def tensor(self, link: int) -> Callable[[Column], ir.Value]:
        return lambda column: self.rows[link](column.at, self.lanes)

    def keep(self, label: str, link: int) -> Callable[[ir.Value, Column], ir.Value]:
        def keep(value: ir.Value, column: Column) -> ir.Value:
            self.values[label] = value
            return value

        return keep

    def again(self, label: str) -> Callable[[Column], ir.Value]:
        return lambda column: self.values[label]


Row = Callable[[Number, "Number | None"], ir.Value]  # (offset in a run, lanes that count) -> a vector of numbers


def emit_elementwise(tile: Tile, step: Elementwise, share: Any, words: list[Any], call: list[Any]) -> None:
    k, b, links = tile.k, tile.k.b, step.chain.links
    own, given = step.chain.of_links(words[1], call[1])
    source, dest = tile.array(call[0][0], step.load.reads), tile.destination(call[2][0], step.store.writes)
    tensors = {at: tile.array(given[at][0], link.arrays[0].kind) for at, link in enumerate(links) if link.takes_tensor}
    arrays: list[ArrayRows] = [source, dest, *tensors.values()]

    def straight(c: Number, d: Number, h: Number, count: Number) -> None:
        """One run of voxels of a channel."""
        rows = {at: _row_of(k, array, tile, c, d, h) for at, array in tensors.items()}
        context, read = _Registers(k, own, given, c, rows), _row_of(k, source, tile, c, d, h)
        maps = steps_of_links(context, links)
        row = _place(k, dest, tile, c, d, h)

        def vector(at: Number, lanes: Number | None) -> None:
            context.lanes = lanes
            value = read(at, lanes)
            for change in maps:
                assert isinstance(change, Map)
                value = change.change(value, Column(c, 0, at, Run(at, count)))
            dest.put(row, at, value, lanes)

        ahead = b.to_boundary(dest.words.data, row, dest.storage.memory, k.lanes)  # past the caches: whole lines
        ahead = b.min(b.select(dest.streamed, ahead, 0), count)
        whole = b.add(ahead, b.bits("and_", b.sub(count, ahead), -k.lanes))
        with b.loop(ahead, whole, k.lanes) as at:
            vector(at, None)
        with b.loop(0, 2) as end:  # what stands before and behind
            last = b.compare("==", end, 1)
            start, stop = b.select(last, whole, 0), b.select(last, count, ahead)
            with b.if_(b.compare("<", start, stop)):
                vector(start, b.sub(stop, start))

    assert k.share is not None
    with b.if_else(_dense(k, arrays, dest)) as (dense, apart):
        with dense:
            k.first_channel = b.mul(k.share, share.channels)
            channels = b.min(share.channels, b.sub(tile.channels, k.first_channel))
            depth, height, run = _runs(k, tile, arrays)
            with b.loop(0, channels) as c, b.loop(0, depth) as d, b.loop(0, height) as h:
                straight(c, d, h, run)
            k.first_channel = 0
        with apart, _pieces(k, share.voxels) as piece:
            for each, its_words, its_call in zip((step.load, step.chain, step.store), words, call, strict=True):
                each.emit(piece, its_words, its_call)


class _Piece(Tile):
    """Some voxels of a row of a tile."""

    def __init__(self, k: Kernel, around: ExitStack, low: tuple[Number, ...], width: Number) -> None:
        super().__init__(k, around)
        self._low, self._width = low, width

    @property
    def low(self) -> tuple[Number, Number, Number]:
        d, h, w = self._low
        return d, h, w

    @property
    def sizes(self) -> tuple[Number, Number, Number]:
        return 1, 1, self._width


@contextmanager
def _pieces(k: Kernel, most: Number) -> Iterator[_Piece]:
    """The rows of a tile that fall to this share, in pieces of at most so many voxels."""
    b = k.b
    with ExitStack() as around:
        tile = Tile(k, around)
        (first_d, first_h, first_w), (depth, height, width) = tile.low, tile.sizes
        row = around.enter_context(b.loop(k.share, b.mul(depth, height), k.sweep.shares))
        at = around.enter_context(b.loop(0, width, most))
        low = b.add(first_d, b.sdiv(row, height)), b.add(first_h, b.srem(row, height)), b.add(first_w, at)
        yield _Piece(k, around, low, b.min(most, b.sub(width, at)))


def _place(k: Kernel, array: ArrayRows, tile: Tile, c: Number, d: Number, h: Number) -> Number:
    """Where a row of the tile begins, in an array whose elements lie side by side."""
    low = tile.low
    return k.b.add(array.row(c, k.b.add(low[0], d), k.b.add(low[1], h)), k.b.mul(low[2], array.words.w))


def _row_of(k: Kernel, source: Source, tile: Tile, c: Number, d: Number, h: Number) -> Row:
    b, start = k.b, _place(k, source, tile, c, d, h)

    def read(at: Number, lanes: Number | None) -> ir.Value:
        stored = b.load(source.words.data, b.add(start, at), source.storage.memory, k.lanes, count=lanes)
        return b.widen(stored, source.storage)

    return read


def _dense(k: Kernel, arrays: Sequence[ArrayRows], dest: Destination) -> ir.Value:
    """Whether elements of a row lie side by side, in all arrays."""
    b = k.b
    each = [b.compare("==", array.words.w, 1) for array in arrays]
    return reduce(lambda one, other: b.bits("and_", one, other), each, b.compare("==", dest.words.channels, 1))


def _runs(k: Kernel, tile: Tile, arrays: Sequence[ArrayRows]) -> tuple[Number, Number, Number]:
    """(depth, height, width) of the tile with the axes joined that follow each other without a gap in all arrays."""
    b = k.b
    depth, height, width = tile.sizes

    def gapless(size: Number, strides: Sequence[Number], inner: Number) -> ir.Value:
        each = [b.compare("==", stride, inner) for stride in strides]
        follow = reduce(lambda one, other: b.bits("and_", one, other), each)
        return b.bits("or_", b.compare("==", size, 1), follow)

    plane = b.mul(height, width)
    rows_follow = gapless(height, [array.words.h for array in arrays], width)
    planes_follow = b.bits("and_", rows_follow, gapless(depth, [array.words.d for array in arrays], plane))
    run = b.select(planes_follow, b.mul(depth, plane), b.select(rows_follow, plane, width))
    return b.select(planes_follow, 1, depth), b.select(rows_follow, 1, height), run
