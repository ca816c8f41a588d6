"""Boxes in which a volume is computed: as large as the memory allows, whole shards of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..cpu.plan.cores import get_num_threads
from ..errors import ArgumentError, described
from ..front.boxes import Boxes, Part
from ..spec.shapes import Box, Range
from ..units import amount
from .source import Source

CHUNK = 64  # voxels of a chunk along each axis, inside of a shard
MOST_BYTES = 1 << 27  # of a shard: larger ones save nothing more, and are lost whole when a run is ended
READ_AHEAD = 2  # boxes of the input that are in memory at once
BEHIND = 4  # boxes of the result: computed, written, its encoded chunks, and these in one piece
CODED = 3  # a chunk that is decoded or encoded: its numbers, its bytes, and a copy in between
SPARE = 96 << 20  # what the interpreter and its libraries take beside that, for each run


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


def choose(boxes: Boxes, memory: int, source: Source, base: int, chunk: Sequence[int] | None) -> Grid:
    """The grid whose boxes fit in `memory` bytes, of which `base` are taken."""
    sizes = boxes.output[2:]
    d, h, w = (min(size, given) for size, given in zip(sizes, chunk or (CHUNK,) * 3, strict=True))
    small = (d, h, w)
    least = need(Grid(boxes.output, small, small), boxes, source, base)
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
            whole = prod(larger) * boxes.output[1] * boxes.dtype.itemsize
            if whole <= MOST_BYTES and need(Grid(boxes.output, small, larger), boxes, source, base) <= memory:
                shard, growing = larger, True
    return Grid(boxes.output, small, shard)


def need(grid: Grid, boxes: Boxes, source: Source, base: int) -> int:
    """Bytes that a run takes with such boxes, at most."""
    part = boxes.part(_middle(boxes, grid.shard))
    item = boxes.dtype.itemsize
    read = prod(take.size for take in part.reads) * (item + source.item)
    made = prod(high - low for low, high in part.computed) * item
    tensors = sum(prod(high - low for low, high in box) for box in part.tensors) * item
    touched = prod(
        min(-(-take.size // step) + 1, -(-size // step))
        for take, step, size in zip(part.reads, source.chunk[1:], source.shape[1:], strict=True)
    )
    decoded = min(get_num_threads(), touched) * prod(source.chunk) * source.item
    chunks = prod(-(-length // step) for length, step in zip(grid.shard, grid.chunk, strict=True))
    encoded = min(get_num_threads(), chunks) * boxes.output[1] * prod(grid.chunk) * item
    coded = CODED * (decoded + encoded)
    return base + SPARE + READ_AHEAD * read + tensors + BEHIND * made + coded + boxes.scratch(part)


def _middle(boxes: Boxes, shard: tuple[int, int, int]) -> Box:
    """A box that reads as much as any: away from the ends, where there is such."""
    spans = []
    for size, length in zip(boxes.output[2:], shard, strict=True):
        start = size // 2 // length * length if size > 2 * length else 0
        spans.append((start, min(start + length, size)))
    d, h, w = spans
    return (0, boxes.output[1]), d, h, w


def bytes_read(boxes: Boxes, grid: Grid, source: Source) -> int:
    """Of the input, what boxes share counted as often as it is read."""
    seen: dict[Box, Part] = {}
    total = 0
    for _, _, box in grid:
        part = seen.get(box) or boxes.part(box)
        seen[box] = part
        total += prod(take.size for take in part.reads) * source.item
    return total
