"""Boxes in which a volume is computed: as large as the memory allows, whole shards of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..errors import ArgumentError, described
from ..front.boxes import Boxes, Part
from ..spec.shapes import Box, Range
from ..units import amount

CHUNK = 64  # voxels of a chunk along each axis, inside of a shard
MOST_BYTES = 1 << 27  # of a shard: larger ones save nothing more, and are lost whole when a run is ended
READ_AHEAD, BEHIND = 2, 3  # boxes of the input, and of the result with its encoded form, that are in memory at once
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


def choose(boxes: Boxes, memory: int, raw: int, base: int, chunk: Sequence[int] | None) -> Grid:
    """The grid whose boxes fit in `memory` bytes, of which `base` are taken; `raw` bytes for a voxel on disk."""
    sizes = boxes.output[2:]
    d, h, w = (min(size, given) for size, given in zip(sizes, chunk or (CHUNK,) * 3, strict=True))
    small = (d, h, w)
    least = need(boxes, small, raw, base)
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
            if whole <= MOST_BYTES and need(boxes, larger, raw, base) <= memory:
                shard, growing = larger, True
    return Grid(boxes.output, small, shard)


def need(boxes: Boxes, shard: tuple[int, int, int], raw: int, base: int) -> int:
    """Bytes that a run takes with such boxes, at most."""
    part = boxes.part(_middle(boxes, shard))
    read = prod(take.size for take in part.reads)
    made = prod(high - low for low, high in part.computed)
    item = boxes.dtype.itemsize
    tensors = sum(prod(high - low for low, high in box) for box in part.tensors) * item
    return base + SPARE + READ_AHEAD * read * (item + raw) + tensors + BEHIND * made * item + boxes.scratch(part)


def _middle(boxes: Boxes, shard: tuple[int, int, int]) -> Box:
    """A box that reads as much as any: away from the ends, where there is such."""
    spans = []
    for size, length in zip(boxes.output[2:], shard, strict=True):
        start = size // 2 // length * length if size > 2 * length else 0
        spans.append((start, min(start + length, size)))
    d, h, w = spans
    return (0, boxes.output[1]), d, h, w


def bytes_read(boxes: Boxes, grid: Grid, raw: int) -> int:
    """Of the input, what boxes share counted as often as it is read."""
    seen: dict[Box, Part] = {}
    total = 0
    for _, _, box in grid:
        part = seen.get(box) or boxes.part(box)
        seen[box] = part
        total += prod(take.size for take in part.reads) * raw
    return total
