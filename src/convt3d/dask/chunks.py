"""Chunks of a result, from those of its input; and which pieces of which chunks a box is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, product
from math import prod
from typing import TypeAlias

from ..front.boxes import Boxes, Take
from ..spec.shapes import Box, Range

Chunks: TypeAlias = tuple[tuple[int, ...], ...]
Piece: TypeAlias = tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]  # chunk, part of it, place in the box


def result_chunks(boxes: Boxes, chunks: Chunks, limit: int) -> Chunks:
    """Chunks of the result that lie where those of the input do, as nearly as its algorithm likes; cut along the depth,
    then the height, where they would have more than `limit` bytes. Samples are cut as they were, channels are not."""
    sizes = boxes.output
    axes = [_scaled(chunks[2 + axis], sizes[2 + axis], boxes.periods[axis]) for axis in range(3)]
    bytes_of = max(chunks[0], default=1) * sizes[1] * boxes.dtype.itemsize
    for axis in (0, 1):
        longest = [max(own) for own in axes]
        parts = -(-bytes_of * prod(longest) // limit)
        if parts > 1:
            axes[axis] = _cut(axes[axis], -(-longest[axis] // parts), boxes.periods[axis])
    return chunks[0], (sizes[1],), *axes


def _scaled(chunks: Sequence[int], size: int, period: int) -> tuple[int, ...]:
    """Borders at the same share of the axis, at multiples of the period."""
    total = sum(chunks)
    borders = {int(Fraction(border * size, total)) // period * period for border in accumulate(chunks[:-1])}
    return _lengths(sorted({0, size, *borders}))


def _cut(chunks: Sequence[int], most: int, period: int) -> tuple[int, ...]:
    step = max(most // period * period, period)
    borders = [0]
    for length in chunks:
        start = borders[-1]
        borders += [*range(start + step, start + length, step), start + length]
    return _lengths(borders)


def _lengths(borders: Sequence[int]) -> tuple[int, ...]:
    return tuple(high - low for low, high in pairwise(borders))


def spans(lengths: Sequence[int]) -> list[Range]:
    return list(pairwise(accumulate(lengths, initial=0)))


def pieces(chunks: Chunks, samples: Range, takes: Sequence[Take]) -> Iterator[Piece]:
    """Of an array with these chunks: what samples and takes of the other axes are put together from, before they are
    ordered."""
    own = [_along(chunks[0], (samples,)), *(_along(c, take.ranges) for c, take in zip(chunks[1:], takes, strict=True))]
    for combination in product(*own):
        numbers, parts, places = zip(*combination, strict=True)
        yield tuple(numbers), tuple(parts), tuple(places)


def _along(lengths: Sequence[int], ranges: Sequence[Range]) -> list[tuple[int, slice, slice]]:
    starts = [0, *accumulate(lengths)]
    found, place = [], 0
    for low, high in ranges:
        number = bisect_right(starts, low) - 1
        while low < high:
            end = min(high, starts[number + 1])
            if end > low:
                begin = starts[number]
                found.append((number, slice(low - begin, end - begin), slice(place, place + end - low)))
                place += end - low
                low = end
            number += 1
    return found


def takes_of(box: Box, shape: Sequence[int]) -> list[Take]:
    """The part of a tensor of the value's shape, repeated along axes of size 1, that fills a box."""
    return [Take(((0, 1),) if size == 1 else (part,)) for part, size in zip(box, shape[1:], strict=True)]
