"""Tilings of a sweep: the spans of a tile along each axis, and the scratch memory that one thread needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ...plan.sweeps import Sweep
from ...spec.lazy import lazy
from ..steps.base import Step, Where
from ..words import Room
from .geometry import AxisSpans
from .registers import RegisterTile
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


class Share(NamedTuple):
    """Output channels that threads take one from the other, like tiles: some groups or some blocks of one. A thread
    has memory for one share, and of the inputs, it has those of these groups."""

    groups: int
    blocks: int  # of each group
    channels: int
    number: int  # of shares


@dataclass(frozen=True)
class Tiling:
    tile: tuple[int, int, int]
    axes: tuple[AxisSpans, AxisSpans, AxisSpans]
    rooms: tuple[tuple[Room, ...], ...]  # of each step, in scratch memory
    method: Method
    slab: Slab | None
    woven: Slab | None  # of several samples beside each other
    blocking: Blocking | None  # of Winograd's method
    copies: bool  # one for each shift along the width
    conv_step: int  # the convolution among the geometric steps
    share: Share
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
    def items(self) -> int:
        """Of a sample: tiles of shares of its channels."""
        return prod(self.counts) * self.share.number

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
        self.shared = steps[0].shares_channels
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

    def of(self, tile: tuple[int, int, int], copies: bool = False, shares: int = 1) -> Tiling:
        """Spans and scratch for a given tile, with one slab or with a copy for each shift along the width; channels in
        `shares`, where they can be shared."""
        machine, item, method = self.where.machine, self.where.item, self.where.method
        d, h, w = (self._along(axis, length) for axis, length in enumerate(tile))
        axes = (d, h, w)
        share = self._share(shares)
        rooms = Rooms(axes, machine, item, self.sweep.shape[1], copies, share)
        found = tuple(step.scratch(self.where, rooms) for step in self.steps)
        part, kept_out, near = None, 0, 0
        if self._conv is not None and not self._couples_behind:
            assert rooms.slab is not None
            pitch = sum(pitch for count, pitch in rooms.held if count == rooms.channels)
            inputs = self.where.in_group * rooms.slab.copies * rooms.slab.channel * item
            part = self._part(pitch * item, inputs, share)
            behind = pitch if method.direct else pitch - rooms.slab.out_channel
            kept_out = (rooms.channels - part.channels) * behind
            near = 0 if method.direct else rooms.channels * behind
        moved = (rooms.total - rooms.chunk) * item
        sizes = rooms.total * item, moved - kept_out * item, moved, near * item
        made = rooms.slab, rooms.woven, rooms.blocking, copies
        return Tiling(tile, axes, found, method, *made, self._conv_step, share, part, *sizes)

    def _share(self, shares: int) -> Share:
        """Groups never meet: a share has as many as fill a vector's worth of channels, which lie side by side in some
        arrays. Blocks of a group need all of its inputs, each share anew."""
        where = self.where
        if self._conv is None:
            channels = -(-self.sweep.shape[1] // (shares if self.shared else 1))
            return Share(where.groups, 1, channels, -(-self.sweep.shape[1] // channels))
        per_out, groups, tile = where.kernel[1], where.groups, self._tile
        blocks = len(tile.blocks(per_out))
        if not self.shared:
            return Share(groups, blocks, groups * per_out, 1)
        if groups > 1:
            together = min(groups, -(-where.lanes // per_out))
            return Share(together, blocks, together * per_out, -(-groups // together))
        each = -(-blocks // shares)
        return Share(1, each, min(per_out, each * tile.rows), -(-blocks // each))

    def _part(self, channel: int, inputs: int, share: Share) -> Part:
        """As many channels as the second-level cache has room for beside the input; `channel` is bytes of one, `inputs`
        of what a group of them meets."""
        where = self.where
        per_out, channels = where.kernel[1], share.channels
        tile, room = self._tile, where.machine.l2 // _PARTS // channel
        if not where.method.direct:
            return Part(channels // per_out, len(tile.blocks(per_out)), min(channels, max(1, room)))
        if self.steps[self._conv or 0].reads_for_all_blocks:
            groups = min(share.groups, max(1, room // per_out))
            return Part(groups, share.blocks, min(groups * per_out, channels))
        # While one group is computed, the next is fetched.
        if share.groups > 1 and inputs + 2 * per_out * channel > where.machine.l1d:
            return Part(1, share.blocks, min(per_out, channels))
        if room >= per_out:
            groups = min(share.groups, room // per_out)
            return Part(groups, share.blocks, min(groups * per_out, channels))
        blocks = min(share.blocks, max(1, room // tile.rows))
        return Part(1, blocks, min(channels, blocks * tile.rows))

    @lazy
    def _couples_behind(self) -> bool:
        """Whether a step behind the convolution needs more than one channel at once."""
        return any(step.couples_channels for step in self.steps[(self._conv or 0) + 1 :])

    @lazy
    def _tile(self) -> RegisterTile:
        return self.where.register_tile
