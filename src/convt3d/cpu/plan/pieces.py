"""A convolution in pieces: some taps and some input channels are summed after the others, each from a slab of its own,
so that no slab is larger than the caches, however far apart taps lie and however many channels there are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod

from .geometry import Walk, phases


@dataclass(frozen=True)
class Pieces:
    """Which inputs share a slab. It holds for every size of the arrays: the order of sums does not depend on them."""

    apart: bool  # shifts between which others lie are in different pieces
    shifts: int  # at most, of one piece along an axis
    channels: int  # of a group, as they are multiplied

    def intervals(self, walk: Walk) -> tuple[tuple[int, int], ...]:
        """The shifts of an axis, cut: first and last of each."""
        return _intervals(self, walk)

    def longest(self, walk: Walk) -> int:
        """Shifts of the longest interval."""
        return max(high - low + 1 for low, high in self.intervals(walk))

    def blocks(self, in_group: int) -> list[tuple[int, int]]:
        """Channels of a group: first and number of each block."""
        return [(first, min(self.channels, in_group - first)) for first in range(0, in_group, self.channels)]

    def boxes(self, walks: tuple[Walk, Walk, Walk]) -> Iterator[tuple[tuple[int, int], ...]]:
        """Intervals along depth, height and width."""
        return product(*(self.intervals(walk) for walk in walks))

    def count(self, walks: tuple[Walk, Walk, Walk]) -> int:
        """Of these boxes."""
        return prod(len(self.intervals(walk)) for walk in walks)

    def low(self, walk: Walk, shift: int) -> int:
        """The first shift of the interval that a shift is in."""
        lows = [low for low, _ in self.intervals(walk)]
        return lows[bisect_right(lows, walk.clipped(shift)) - 1]


@lru_cache(maxsize=1024)
def _intervals(pieces: Pieces, walk: Walk) -> tuple[tuple[int, int], ...]:
    shifts = sorted({walk.clipped(shift) for phase in phases(walk) for shift in phase.shifts})
    found = [[shifts[0], shifts[0]]]
    for before, shift in pairwise(shifts):
        if shift - found[-1][0] >= pieces.shifts or (pieces.apart and shift - before > 1):
            found.append([shift, shift])
        found[-1][1] = shift
    return tuple((low, high) for low, high in found)


_SHIFTS, _CHANNELS = 8, 128  # of a piece where whole axes, or all channels, are too much
_ANY = 1 << 62


def ways_to_cut(walks: tuple[Walk, Walk, Walk], in_group: int) -> list[Pieces]:
    """What may be tried where the slab of a whole convolution is too large."""
    dilated = Pieces(True, _ANY, 1).count(walks) > 1
    long = any(walk.shift_range[1] - walk.shift_range[0] >= _SHIFTS for walk in walks) and not dilated
    found: list[Pieces] = []
    if dilated:
        found.append(Pieces(True, _ANY, in_group))
    if in_group > _CHANNELS:
        found.append(Pieces(dilated, _ANY, _CHANNELS))
    if long:
        found.append(Pieces(False, _SHIFTS, min(in_group, _CHANNELS)))
    return found
