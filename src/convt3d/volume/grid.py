"""Boxes in which a volume is computed: as large as the memory allows, whole shards of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..cpu.plan.cores import get_num_threads
from ..errors import ArgumentError, described
from ..front.chain import Chain
from ..spec.shapes import Box, Range
from ..units import amount
from .source import Source

CHUNK = 64  # voxels of a chunk along each axis, inside of a shard
MOST_BYTES = 1 << 27  # of a shard: larger ones save nothing more, and are lost whole when a run is ended
READ_AHEAD = 2  # boxes of the input that are in memory at once
BEHIND = 4  # boxes of the result: computed, written, its encoded chunks, and these in one piece
CODED = 3  # a chunk that is decoded or encoded: its numbers, its bytes, and a copy in between
SPARE = 128 << 20  # what the interpreter and its libraries take beside that, kernels while they are compiled too
MARGIN = 24 << 20  # that is left, so that a run which goes on, in a process that begins larger, has enough


@dataclass(frozen=True)
class Grid:
    """Boxes of a result (B, C, D, H, W), each of them one shard."""

    output: tuple[int, ...]
    chunk: tuple[int, int, int]
    shard: tuple[int, int, int]

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], int, Box]]:
        """Coordinates of the shard, sample and box, in the order they are computed."""
        counts = [range(-(-size // step)) for size, step in zip(self.output[2:], self.shard, strict=True)]
        for sample, *at in product(range(self.output[0]), *counts):
            d, h, w = (self._span(axis, number) for axis, number in enumerate(at))
            yield (sample, 0, *at), sample, ((0, self.output[1]), d, h, w)

    def __len__(self) -> int:
        sizes = zip(self.output[2:], self.shard, strict=True)
        return self.output[0] * prod(-(-size // step) for size, step in sizes)

    def _span(self, axis: int, number: int) -> Range:
        step = self.shard[axis]
        return number * step, min((number + 1) * step, self.output[2 + axis])


def choose(chain: Chain, memory: int, source: Source, base: int, chunk: Sequence[int] | None) -> Grid:
    """The grid whose boxes fit in `memory` bytes, of which `base` are taken."""
    sizes, item = chain.output[2:], chain.result.dtype.itemsize
    d, h, w = (min(size, given) for size, given in zip(sizes, chunk or (CHUNK,) * 3, strict=True))
    small = (d, h, w)
    least = need(Grid(chain.output, small, small), chain, source, base) + MARGIN
    if least > memory:
        received = described(amount(memory))
        rule = f"must be at least {amount(least)}: a chunk of {' x '.join(map(str, small))} voxels, what it reads, and "
        rule += "the program itself"
        raise ArgumentError("volume", "--memory", received, rule, "Give more memory, or smaller --chunks")
    shard, growing = small, True
    while growing:
        growing = False
        for axis in (2, 1, 0):
            if shard[axis] >= sizes[axis]:
                continue
            d, h, w = (length + small[axis] * (at == axis) for at, length in enumerate(shard))
            larger = (d, h, w)
            whole = prod(larger) * chain.output[1] * item
            grown = Grid(chain.output, small, larger)
            if whole <= MOST_BYTES and need(grown, chain, source, base) + MARGIN <= memory:
                shard, growing = larger, True
    return Grid(chain.output, small, shard)


def need(grid: Grid, chain: Chain, source: Source, base: int) -> int:
    """Bytes that a run takes with such boxes, at most."""
    return base + SPARE + max(_need_of(box, grid, chain, source) for box in _typical(grid))


def _need_of(box: Box, grid: Grid, chain: Chain, source: Source) -> int:
    part = chain.part(box)
    takes, item = chain.reads(part), chain.result.dtype.itemsize
    read = prod(take.size for take in takes) * (chain.source.dtype.itemsize + source.item)
    made = prod(high - low for low, high in box) * item
    computed = sum(prod(high - low for low, high in piece.part.computed) for piece in part.steps[-1][1]) * item
    touched = prod(
        min(-(-take.size // step) + len(take.ranges), -(-size // step))
        for take, step, size in zip(takes, source.chunk[1:], source.shape[1:], strict=True)
    )
    decoded = min(get_num_threads(), touched) * prod(source.chunk) * source.item
    chunks = prod(-(-length // step) for length, step in zip(grid.shard, grid.chunk, strict=True))
    encoded = min(get_num_threads(), chunks) * chain.output[1] * prod(grid.chunk) * item
    coded = CODED * (decoded + encoded)
    needed: int = READ_AHEAD * read + BEHIND * max(made, computed) + coded + chain.held(part)
    return needed


def _typical(grid: Grid) -> Iterator[Box]:
    """Boxes that read as much as any: at both ends and away from them, where there are such."""
    for share in (0, 1, 2):
        spans = []
        for size, length in zip(grid.output[2:], grid.shard, strict=True):
            number = (-(-size // length) - 1) * share // 2
            spans.append((number * length, min((number + 1) * length, size)))
        d, h, w = spans
        yield (0, grid.output[1]), d, h, w


def bytes_read(chain: Chain, grid: Grid, source: Source) -> int:
    """Of the input, what boxes share counted as often as it is read; what is read along an axis depends on the place
    along it alone."""
    sizes = [sum(chain.reads(chain.part(box))[1 + axis].size for box in _along(grid, axis)) for axis in range(3)]
    voxels: int = prod(sizes)
    return grid.output[0] * chain.source.shape[1] * voxels * source.item


def _along(grid: Grid, axis: int) -> Iterator[Box]:
    """The first boxes of a row along an axis."""
    size, length = grid.output[2 + axis], grid.shard[axis]
    first = [(0, min(step, size)) for step, size in zip(grid.shard, grid.output[2:], strict=True)]
    for start in range(0, size, length):
        d, h, w = ((start, min(start + length, size)) if other == axis else part for other, part in enumerate(first))
        yield (0, grid.output[1]), d, h, w
