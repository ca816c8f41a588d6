"""The plan of a gradient: how positions, channels and taps are cut, and what memory that takes.

A **tile** of positions is packed and summed at once. Tiles in a row, a **chunk**, are added up where they are summed;
the sums of chunks are added at the end, in their order. The result is cut into **parts**, some channels and taps each.
An item of work is a part and a chunk. All of it depends on shapes, the type and the machine, and not on the number of
threads: so the result has the same bits for any.

Bounded are chains of additions, by the constants here, and memory, by those of cpu/gradient/choose.py: the arrays of a
tile, the sums of a part, and those of all chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ...spec.checks import Triple
from ...spec.lazy import lazy
from ..plan.machine import Machine
from ..plan.rooms import CHECKED_GAP, round_up
from ..words import Room
from .pieces import Method
from .problem import Problem
from .registers import Registers
from .structure import Structure

WINDOW = 64  # sums that are added to each other before they join the next
POSITIONS = 512  # that are summed one after the other, at most


@dataclass(frozen=True)
class Slab:
    """The places of the large array that a tile meets, along one axis: all of a range, or, where strides or dilations
    are long, those of each tap one after the other."""

    tile: int
    taps: int
    stride: int
    dilation: int

    @property
    def sparse(self) -> bool:
        return self.taps * self.tile < self._range

    @property
    def _range(self) -> int:
        return (self.tile - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    @property
    def places(self) -> int:
        return min(self.taps * self.tile, self._range)

    @property
    def position_step(self) -> int:
        """Places from one position to the next."""
        return 1 if self.sparse else self.stride

    @property
    def tap_step(self) -> int:
        return self.tile if self.sparse else self.dilation


@dataclass(frozen=True)
class Packed:
    """How one of the arrays is packed: (blocks, samples, D, H, W, pitch)."""

    pitch: int
    block: int  # elements
    count: int  # blocks of a part, at most
    places: Triple
    position_steps: Triple  # in places
    vectors: int  # of a block

    @property
    def row(self) -> int:
        return self.places[2] * self.pitch

    @property
    def plane(self) -> int:
        return self.places[1] * self.row

    @property
    def sample(self) -> int:
        return self.places[0] * self.plane

    @property
    def steps(self) -> Triple:
        """Elements from one position to the next, along the axes."""
        d, h, w = self.position_steps
        return d * self.plane, h * self.row, w * self.pitch


@dataclass(frozen=True)
class GradientPlan:
    problem: Problem
    machine: Machine
    registers: Registers
    method: Method | None  # None: direct summation
    tile: tuple[int, int, int, int]  # samples, and positions along the axes
    taps: Triple  # of a part
    number_blocks: int  # of a part
    vector_blocks: int
    chunks: int

    @property
    def item(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.problem.dtype.accumulate).itemsize

    @property
    def lanes(self) -> int:
        return self.machine.lanes(self.item)

    @lazy
    def structure(self) -> Structure:
        schemes = self.method.schemes if self.method else None
        return Structure(self.problem.dtype.name, self.machine.isa, self.registers, schemes)

    # ---- channels ----

    @property
    def numbers_of(self) -> int:
        """Channels of a group that are broadcast."""
        p = self.problem
        return p.small_group if self.registers.lanes_along == "large" else p.large_group

    @property
    def vectors_of(self) -> int:
        """Channels that lie along the lanes: of a group, or of all."""
        p, r = self.problem, self.registers
        return p.large[1] if r.by_group else p.large_group if r.lanes_along == "large" else p.small_group

    @property
    def outer_groups(self) -> int:
        """Groups that are computed one by one."""
        return 1 if self.registers.by_group else self.problem.groups

    @property
    def all_number_blocks(self) -> int:
        """Of a group."""
        return -(-self.numbers_of // self.registers.block)

    @property
    def all_vector_blocks(self) -> int:
        return -(-self.vectors_of // (self.lanes * self.registers.columns))

    # ---- positions ----

    @lazy
    def slabs(self) -> tuple[Slab, Slab, Slab]:
        p = self.problem
        d, h, w = (Slab(*one) for one in zip(self.tile[1:], self.taps, p.stride, p.dilation, strict=True))
        return d, h, w

    @lazy
    def tile_counts(self) -> tuple[int, int, int, int]:
        sizes = (self.problem.small[0], *self.problem.small[2:])
        b, d, h, w = (-(-size // tile) for size, tile in zip(sizes, self.tile, strict=True))
        return b, d, h, w

    @property
    def tiles(self) -> int:
        return prod(self.tile_counts)

    @lazy
    def box(self) -> Triple:
        """Positions that are summed at a time: whole rows, then planes."""
        b, d, h, w = self.tile
        height = max(1, min(h, POSITIONS // (b * w)))
        return (max(1, min(d, POSITIONS // (b * w * h))) if height == h else 1), height, w

    @property
    def window(self) -> int:
        """Tiles that are summed before their sums are handed on."""
        boxes = prod(-(-size // box) for size, box in zip(self.tile[1:], self.box, strict=True))
        return max(1, WINDOW if self.method else WINDOW // boxes)

    # ---- memory ----

    @lazy
    def small(self) -> Packed:
        return self._packed(self.tile[1:], (1, 1, 1), self.registers.lanes_along == "small")

    @lazy
    def large(self) -> Packed:
        d, h, w = self.slabs
        places, steps = (d.places, h.places, w.places), (d.position_step, h.position_step, w.position_step)
        return self._packed(places, steps, self.registers.lanes_along == "large")

    def _packed(self, places: Triple, steps: Triple, along_lanes: bool) -> Packed:
        r, lanes = self.registers, self.lanes
        if along_lanes:
            pitch, count, vectors = r.columns * lanes, self.vector_blocks, r.columns
        elif r.by_group:
            pitch, count, vectors = r.rows * lanes, self.number_blocks * self.vector_blocks, r.rows
        else:
            pitch, count, vectors = r.block, self.number_blocks, 1
        block = round_up(self.tile[0] * prod(places) * pitch, lanes)
        return Packed(pitch, block, count, places, steps, vectors)

    @property
    def pair(self) -> int:
        """Sums of a block of numbers and a block of vectors, in one slot."""
        r = self.registers
        return r.taps * r.block * r.columns * self.lanes

    @property
    def slots(self) -> int:
        """Of a part: groups of taps, or points."""
        return self.method.points if self.method else -(-prod(self.taps) // self.registers.taps)

    @property
    def steps(self) -> int:
        """Of a point: pairs of positions of a tile, or positions where a tap is alone."""
        if self.method is None:
            return 0
        paces = [min(piece.pace for piece in axis) for axis in self.method.axes]
        return self.tile[0] * prod(-(-size // pace) for size, pace in zip(self.tile[1:], paces, strict=True))

    @property
    def points(self) -> tuple[int, int]:
        """Elements from one point to the next, of numbers and of vectors. Points of a sheet are written at once, and do
        not compete for the same cache sets if they are an odd number of vectors apart."""
        r, lanes = self.registers, self.lanes
        steps = self.steps + -(-lanes // r.block)  # the last one is stored as a whole vector
        numbers, vectors = (
            (count * -(-steps * pitch // lanes) | 1) * lanes
            for count, pitch in ((self.number_blocks, r.block), (self.vector_blocks, r.columns * lanes))
        )
        return numbers, vectors

    @lazy
    def rooms(self) -> tuple[Room, Room, Room, Room, Room]:
        """Of the small array, the large one, the sums, and points of numbers and vectors; behind each but the sums, a
        last vector of positions may be written."""
        found: list[Room] = []

        def add(pitch: int, size: int) -> None:
            begin = found[-1].offset + found[-1].length + gap if found else 0
            found.append(Room(begin, pitch, round_up(size, 64)))

        gap, lanes = CHECKED_GAP if self.machine.check_bounds else 0, self.lanes
        for packed in (self.small, self.large):
            add(packed.block, packed.count * packed.block + (lanes + 1) * max(packed.pitch, lanes))
        add(self.pair, self.slots * self.number_blocks * self.vector_blocks * self.pair)
        _, high, wide = self.method.axes if self.method else ((), (), ())
        points = max((h.points * w.points for h, w in product(high, wide)), default=0)  # of a sheet
        for point, count in zip(self.points, (self.number_blocks, self.vector_blocks), strict=True):
            add(point // count // lanes * lanes, points * point)
        a, b, c, d, e = found
        return a, b, c, d, e

    @property
    def scratch(self) -> int:
        """Bytes of one worker."""
        last = self.rooms[-1]
        return (last.offset + last.length + CHECKED_GAP) * self.item

    @lazy
    def tap_parts(self) -> tuple[tuple[Triple, Triple], ...]:
        """Of each part of the taps its first tap, and how many there are along the axes: a run of consecutive ones."""
        kernel, found = self.problem.kernel, []
        along = (range(0, size, part) for size, part in zip(kernel, self.taps, strict=True))
        for d, h, w in product(*along):
            left = (min(part, size - at) for part, size, at in zip(self.taps, kernel, (d, h, w), strict=True))
            found.append(((d, h, w), tuple(left)))
        return tuple(found)  # type: ignore[arg-type]

    @lazy
    def all_sums(self) -> int:
        """Of all parts, in numbers."""
        pairs = self.outer_groups * self.all_vector_blocks * self.all_number_blocks
        slots = [-(-prod(counts) // self.registers.taps) for _, counts in self.tap_parts]
        return pairs * self.pair * (self.method.points if self.method else sum(slots))

    @property
    def handed_on(self) -> bool:
        """Whether sums of an item join others before they are the result."""
        return self.chunks > 1 or self.tiles > self.window

    @property
    def partials(self) -> int:
        """Bytes of the sums of all chunks."""
        return self.chunks * self.all_sums * self.item if self.handed_on else 0

    @property
    def part_count(self) -> int:
        channels = -(-self.all_number_blocks // self.number_blocks) * -(-self.all_vector_blocks // self.vector_blocks)
        return self.outer_groups * channels * len(self.tap_parts)

    @property
    def items(self) -> int:
        return self.part_count * self.chunks
