"""Scratch memory of one tile: steps ask for rooms in it, one after the other."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ..words import Room
from .geometry import AxisSpans
from .machine import Machine

if TYPE_CHECKING:
    from .slab import Blocking, Slab
    from .tiles import Share

_STAGED_NUMBERS = 2048  # in rows on their way to the destination: they stay in the first-level cache
CHECKED_GAP = 64  # numbers behind each room that belong to none, where accesses are checked
UNROLL = 2  # vectors of positions that a chain walks together


class Rooms:
    """What the steps of a tile need, in the order in which they ask; knows the value that stands between them."""

    def __init__(
        self, axes: tuple[AxisSpans, ...], machine: Machine, item: int, channels: int, copies: bool, share: Share
    ) -> None:
        self.axes, self.machine, self.item, self.copies, self.share = axes, machine, item, copies, share
        self.lanes = UNROLL * machine.lanes(item)  # chains walk this many positions at once
        self.beyond = machine.lanes(item)  # written by a last vector of what is loaded
        self.channels = channels  # of the value
        self.step = 0  # geometric steps done
        self.total = 0  # elements
        self.chunk = 0  # of them, those that are used again and again inside a tile
        self.slab: Slab | None = None
        self.woven: Slab | None = None  # of several samples beside each other
        self.blocking: Blocking | None = None
        self.piece: int | None = None  # of a row, where a tile goes through its boxes in pieces
        self.held: list[tuple[int, int]] = []  # channels and pitch of what a part of the channels goes through

    def add(self, channels: int, pitch: int, again: bool = False) -> Room:
        """Room for `channels` of `pitch` elements; `again`: it is used many times inside a tile."""
        begin, size = self.total, round_up(channels * pitch + 4 * self.lanes, 64)
        self.held.append((channels, pitch))
        self.total += size + (CHECKED_GAP if self.machine.check_bounds else 0)
        self.chunk += size if again else 0
        return Room(begin, pitch, size)

    def box(self, step: int, what: str, slack: int = 0) -> Room:
        """For a box (C, D, H, W) that a geometric step reads or writes, or for a piece of a row of it."""
        extent = self.piece or prod(axis.longest(step, what) for axis in self.axes)
        return self.add(self.channels, pitch_of(extent + slack, self.lanes, self.item))

    @property
    def value(self) -> tuple[int, str]:
        """The geometric step, and what of it, whose box the value is."""
        return (self.step - 1, "write") if self.step else (0, "read")


def round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def pitch_of(extent: int, lanes: int, item: int) -> int:
    """At least `extent`, whole vectors, and no large power of two: channels would compete for the same cache sets."""
    pitch = round_up(extent, lanes)
    while pitch * item % 1024 == 0:
        pitch += lanes
    return pitch


def rows_together(width: int) -> int:
    """Rows that are stored together, where they follow each other in memory."""
    return max(1, _STAGED_NUMBERS // max(1, width))
