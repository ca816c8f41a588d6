"""Chunks of a result, from those of its input; and which pieces of which chunks a box is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from math import prod
from typing import TypeAlias

from ..front.boxes import Boxes, Take
from ..spec.shapes import Box, Range

Chunks: TypeAlias = tuple[tuple[int, ...], ...]
_Along: TypeAlias = tuple[int, Range, Range]  # along one axis: the chunk, the part of it, its place in the box


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


@dataclass(frozen=True)
class Strip:
    """Part of an array that is put together from others, where the largest of them is."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Piece:
    source: tuple[int, ...] | Strip  # a chunk by its numbers, or several of them
    inside: tuple[Range, ...]  # the part of it
    place: tuple[Range, ...]  # in what it is a piece of


def pieces(chunks: Chunks, takes: Sequence[Take]) -> tuple[Piece, ...]:
    """What a box, given by takes along all axes, is put together from before it is ordered: whole chunks, and strips of
    those beside them.

    A strip beside a chunk holds all that the box takes along later axes. So a box that chunks surround on all sides has
    two strips along each axis, not the 26 pieces of its neighbours; and a strip along the depth is put together from
    strips along height and width that the box there takes itself.
    """
    own = [_along(lengths, take.ranges) for lengths, take in zip(chunks, takes, strict=True)]
    return _alone(chunks, _gather(chunks, own, (), ()), 0)


def _gather(
    chunks: Chunks, own: Sequence[Sequence[_Along]], at: tuple[int, ...], ranges: tuple[Range, ...]
) -> Iterator[Piece]:
    """All that is taken along the axes from `at` on, of one chunk along those before: these `ranges` of it."""
    axis, first = len(at), tuple((0, high - low) for low, high in ranges)
    if axis == len(chunks):
        yield Piece(at, ranges, first)
        return
    whole = any(part == (0, chunks[axis][number]) for number, part, _ in own[axis])
    for number, part, place in own[axis]:
        length = chunks[axis][number]
        if whole and part != (0, length):  # beside a chunk that is taken whole
            thin = (0, part[1] - part[0])
            found = _gather(chunks, own, (*at, number), (*ranges, (0, length)))
            cut = [Piece(p.source, _with(p.inside, axis, part), _with(p.place, axis, thin)) for p in found]
            rest = tuple((0, sum(high - low for _, (low, high), _ in each)) for each in own[axis + 1 :])
            strip = Strip(tuple(high for _, high in (*first, thin, *rest)), _alone(chunks, cut, 1))
            yield Piece(strip, (*first, thin, *rest), (*first, place, *rest))
        else:
            for p in _gather(chunks, own, (*at, number), (*ranges, part)):
                yield Piece(p.source, p.inside, _with(p.place, axis, place))


def _alone(chunks: Chunks, found: Iterable[Piece], most: int) -> tuple[Piece, ...]:
    """With parts of chunks, where there are more than that, as strips of their own: only they are sent, not chunks."""
    listed = tuple(found)

    def is_part(p: Piece) -> bool:
        if isinstance(p.source, Strip):
            return False
        return any(part != (0, own[n]) for part, own, n in zip(p.inside, chunks, p.source, strict=True))

    if sum(map(is_part, listed)) <= most:
        return listed
    return tuple(_as_strip(p) if is_part(p) else p for p in listed)


def _as_strip(p: Piece) -> Piece:
    shape = tuple(high - low for low, high in p.inside)
    every = tuple((0, size) for size in shape)
    return Piece(Strip(shape, (Piece(p.source, p.inside, every),)), every, p.place)


def _with(ranges: tuple[Range, ...], axis: int, part: Range) -> tuple[Range, ...]:
    return (*ranges[:axis], part, *ranges[axis + 1 :])


def _along(lengths: Sequence[int], ranges: Sequence[Range]) -> list[_Along]:
    starts = [0, *accumulate(lengths)]
    found, place = [], 0
    for low, high in ranges:
        number = bisect_right(starts, low) - 1
        while low < high:
            end = min(high, starts[number + 1])
            if end > low:
                begin = starts[number]
                found.append((number, (low - begin, end - begin), (place, place + end - low)))
                place += end - low
                low = end
            number += 1
    return found


def takes_of(box: Box, shape: Sequence[int]) -> list[Take]:
    """The part of a tensor of the value's shape, repeated along axes of size 1, that fills a box."""
    return [Take(((0, 1),) if size == 1 else (part,)) for part, size in zip(box, shape[1:], strict=True)]
