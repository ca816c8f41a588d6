"""Tilings of a sweep: the spans of a tile along each axis, and the scratch memory that one thread needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...plan.sweeps import Sweep
from ..steps.base import Step, Where
from ..words import Room
from .geometry import AxisSpans
from .registers import register_tile
from .rooms import Rooms
from .slab import Blocking, Slab
from .winograd import Method

_PARTS = 4  # parts of channels take one of so many parts of the second-level cache


class Part(NamedTuple):
    """Output channels that the convolution computes together, some groups or some blocks of one, and how many of them
    go through the steps behind it together. Direct summation: the same ones, from the beginning to the end of a tile.
    Winograd's method computes all, since it transforms inputs once for all of them."""

    groups: int
    blocks: int  # of each group
    channels: int


@dataclass(frozen=True)
class Tiling:
    tile: tuple[int, int, int]
    axes: tuple[AxisSpans, AxisSpans, AxisSpans]
    rooms: tuple[tuple[Room, ...], ...]  # of each step, in scratch memory
    method: Method
    slab: Slab | None
    blocking: Blocking | None  # of Winograd's method
    conv_step: int  # the convolution among the geometric steps
    part: Part | None  # where channels can be taken in parts
    scratch: int  # bytes for one thread
    passing: int  # of them, those that a tile goes through once: not what is used again and again inside it
    moved: int  # bytes that go through these: all channels, one part after the other
    near: int  # of them, what stays in a part's share of the cache; none where each part goes through the input again

    @property
    def chunk(self) -> int:
        """Bytes that are used again and again inside a tile."""
        return self.scratch - self.moved

    @property
    def counts(self) -> tuple[int, int, int]:
        d, h, w = (axis.count for axis in self.axes)
        return d, h, w


class Tilings:
    """The tilings of a sweep by one method; what they share is worked out once."""

    def __init__(self, sweep: Sweep, steps: Sequence[Step], where: Where) -> None:
        self.sweep, self.steps, self.where = sweep, steps, where
        along = [[step.along(where, axis) for step in steps] for axis in range(3)]
        self.axes = [tuple(step for step in own if step is not None) for own in along]
        self._spans: dict[tuple[int, int], AxisSpans] = {}
        self._conv = next((at for at, step in enumerate(steps) if step.convolves), None)
        before = steps[: self._conv or 0]
        self._conv_step = sum(step.along(where, 0) is not None for step in before)

    @property
    def periods(self) -> tuple[int, int, int]:
        """Tiles of the destination that are multiples of these begin where a position of the convolution begins, and no
        tile computes phases of which it needs a part. Where few phases are kept, tiles may begin anywhere."""
        found = []
        for steps in self.axes:
            period = 1
            for step in steps:
                period = step.period_after(period)
            found.append(period)
        d, h, w = found
        return d, h, w

    def _along(self, axis: int, tile: int) -> AxisSpans:
        """Shared: many tilings have the same tiles along an axis."""
        if (axis, tile) not in self._spans:
            self._spans[axis, tile] = AxisSpans(self.axes[axis], self.sweep.result[2 + axis], tile)
        return self._spans[axis, tile]

    def of(self, tile: tuple[int, int, int], copies: bool = False) -> Tiling:
        """Spans and scratch for a given tile, with one slab or with a copy for each shift along the width."""
        machine, item, method = self.where.machine, self.where.item, self.where.method
        d, h, w = (self._along(axis, length) for axis, length in enumerate(tile))
        axes = (d, h, w)
        rooms = Rooms(axes, machine, item, self.sweep.shape[1], copies)
        found = tuple(step.scratch(self.where, rooms) for step in self.steps)
        part, kept_out, near = None, 0, 0
        if self._conv is not None and not any(step.couples_channels for step in self.steps[self._conv + 1 :]):
            assert rooms.slab is not None
            pitch = sum(pitch for count, pitch in rooms.held if count == rooms.channels)
            part = self._part(pitch * item)
            behind = pitch if method.direct else pitch - rooms.slab.out_channel
            kept_out = (rooms.channels - part.channels) * behind
            near = 0 if method.direct else rooms.channels * behind
        moved = (rooms.total - rooms.chunk) * item
        sizes = rooms.total * item, moved - kept_out * item, moved, near * item
        return Tiling(tile, axes, found, method, rooms.slab, rooms.blocking, self._conv_step, part, *sizes)

    def _part(self, channel: int) -> Part:
        """As many channels as the second-level cache has room for beside the input; `channel` is bytes of one."""
        where = self.where
        per_out, channels = where.kernel[1], where.out_channels
        tile = register_tile(per_out, where.machine.vector_registers)
        room = where.machine.l2 // _PARTS // channel
        if not where.method.direct:
            return Part(channels // per_out, len(tile.blocks(per_out)), min(channels, max(1, room)))
        if room >= per_out:
            groups = min(channels // per_out, room // per_out)
            return Part(groups, len(tile.blocks(per_out)), groups * per_out)
        blocks = max(1, room // tile.rows)
        return Part(1, blocks, min(per_out, blocks * tile.rows))
