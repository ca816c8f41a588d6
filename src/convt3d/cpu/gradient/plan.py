"""The plan of a gradient: how positions, channels and taps are cut, and what memory that takes. It depends on shapes, the
type and the machine; not on the number of threads, so that bits do not.

A **tile** of positions is packed and summed at once. Tiles in a row, a **chunk**, are added up where they are summed; the
sums of chunks are added at the end, in their order. The result is cut into **parts** (channels and taps). An item of work
is a part and a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from ...spec.checks import Triple
from ...spec.lazy import lazy
from ..plan.machine import Machine
from ..plan.rooms import CHECKED_GAP, round_up
from ..words import Room, layout
from .problem import Problem
from .registers import Registers, choose_registers
from .words import PartWords, TapWords

Table = npt.NDArray[np.int64]

WINDOW = 64  # tiles whose sums are added to each other before they join the rest of their chunk
POSITIONS = 512  # of a tile, at most: the longest chain of additions
_SLABS = 0.5  # share of the second-level cache that a tile's packed arrays may take
_SUMS = 1 << 20  # bytes of a part's sums
_PARTIALS = 64 << 20  # bytes of the sums of all chunks, at most, unless one chunk alone has more
_ITEMS_OF_A_CORE = 8


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
    """How one of the arrays is packed."""

    pitch: int
    block: int  # elements
    count: int  # blocks of a part, at most
    places: Triple
    steps: Triple
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


@dataclass(frozen=True)
class GradientPlan:
    problem: Problem
    machine: Machine
    registers: Registers
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

    @property
    def key(self) -> str:
        """A text that is equal exactly for equal code."""
        return f"weight gradient | {self.problem.dtype.name} | {self.machine.isa} | {self.registers!r}"

    @property
    def name(self) -> str:
        short = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[self.problem.dtype.name]
        return f"ct3d_{short}_weight_gradient_{self.registers.name}__{self.machine.isa}"

    # ---- blocks of channels ----

    @property
    def numbers_of(self) -> int:
        """Channels of a group that are broadcast."""
        p = self.problem
        return p.small_group if self.registers.lanes_along == "large" else p.large_group

    @property
    def vectors_of(self) -> int:
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

    # ---- memory ----

    @lazy
    def small(self) -> Packed:
        places = self.tile[1:]
        return self._packed(places, (1, 1, 1), self.registers.lanes_along == "small")

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
        """Sums of a block of numbers and a block of vectors, for as many taps as are summed together."""
        r = self.registers
        return r.taps * r.block * r.columns * self.lanes

    @property
    def tap_groups(self) -> int:
        return -(-prod(self.taps) // self.registers.taps)

    @lazy
    def rooms(self) -> tuple[Room, Room, Room]:
        """Of the small array, the large one, and the sums; behind each, a last vector of positions may be written."""
        found, begin = [], 0
        gap = CHECKED_GAP if self.machine.check_bounds else 0
        sums = self.tap_groups * self.number_blocks * self.vector_blocks * self.pair
        for packed in (self.small, self.large):
            size = round_up(packed.count * packed.block + (self.lanes + 1) * max(packed.pitch, self.lanes), 64)
            found.append(Room(begin, packed.block, size))
            begin += size + gap
        found.append(Room(begin, self.pair, round_up(sums, 64)))
        return found[0], found[1], found[2]

    @property
    def scratch(self) -> int:
        """Bytes of one worker."""
        last = self.rooms[-1]
        return (last.offset + last.length + CHECKED_GAP) * self.item

    # ---- tables ----

    @lazy
    def tap_parts(self) -> list[tuple[Triple, Triple]]:
        """The first tap of each, and how many there are along the axes; each is a run of taps."""
        kernel = self.problem.kernel
        found = []
        for d in range(0, kernel[0], self.taps[0]):
            for h in range(0, kernel[1], self.taps[1]):
                for w in range(0, kernel[2], self.taps[2]):
                    corner = d, h, w
                    left = (min(most, size - at) for most, size, at in zip(self.taps, kernel, corner, strict=True))
                    nd, nh, nw = left
                    found.append((corner, (nd, nh, nw)))
        return found

    def tap_table(self) -> Table:
        """Rows of TapWords, for each part of the taps; the last one is repeated until its group is full."""
        rows, large, slabs = [], self.large, self.slabs
        steps = [slab.tap_step for slab in slabs]
        apart = large.plane * steps[0], large.row * steps[1], large.pitch * steps[2]
        for corner, counts in self.tap_parts:
            total = prod(counts)
            for number in range(round_up(total, self.registers.taps)):
                at = np.unravel_index(min(number, total - 1), counts)
                offset = sum(int(k) * step for k, step in zip(at, apart, strict=True))
                rows.append([offset, *(first + int(k) for first, k in zip(corner, at, strict=True))])
        return np.array(rows, np.int64).reshape(-1, len(layout(TapWords, False)[0]))

    @lazy
    def parts(self) -> Table:
        """Rows of PartWords."""
        r, kernel, rows, begin = self.registers, self.problem.kernel, [], 0
        numbers = 0 if r.by_group else self.all_number_blocks
        for group in range(self.outer_groups):
            for v in range(0, self.all_vector_blocks, self.vector_blocks):
                vector_count = min(self.vector_blocks, self.all_vector_blocks - v)
                for n in range(0, self.all_number_blocks, self.number_blocks):
                    number_count = min(self.number_blocks, self.all_number_blocks - n)
                    if r.by_group:
                        number_count *= vector_count
                    pairs = number_count * (1 if r.by_group else vector_count)
                    first = v * self.all_number_blocks if r.by_group else group * numbers + n
                    table = 0
                    for corner, counts in self.tap_parts:
                        tap_count = prod(counts)
                        groups = -(-tap_count // r.taps)
                        tap = (corner[0] * kernel[1] + corner[1]) * kernel[2] + corner[2]
                        length = groups * pairs * self.pair
                        channels = first, number_count, group * self.all_vector_blocks + v, vector_count
                        rows.append([*channels, table, groups, tap_count, tap, *corner, begin, length])
                        table, begin = table + groups * r.taps, begin + length
        return np.array(rows, np.int64).reshape(-1, len(layout(PartWords, False)[0]))

    @property
    def all_sums(self) -> int:
        """Of all parts, in numbers."""
        return int(self.parts[-1, -2] + self.parts[-1, -1])

    @property
    def direct(self) -> bool:
        """Whether an item's sums are the result: nothing is added to them."""
        return self.chunks == 1 and self.tiles <= WINDOW

    @property
    def partials(self) -> int:
        """Bytes of the sums of all chunks."""
        return 0 if self.direct else self.chunks * self.all_sums * self.item

    @property
    def items(self) -> int:
        return len(self.parts) * self.chunks

    def channel_tables(self, small: bool) -> tuple[Table, Table, Table]:
        """Of the vectors of an array: the channel of each lane, how many of them there are, and where they are in the
        result. Absent lanes repeat a channel that is there."""
        p, r, lanes = self.problem, self.registers, self.lanes
        own, of_group = (p.small[1], p.small_group) if small else (p.large[1], p.large_group)
        if r.by_group:
            along = np.arange(round_up(p.large[1], lanes)).reshape(-1, lanes)
            count = np.clip(p.large[1] - along[:, 0], 0, lanes)
            along = np.minimum(along, p.large[1] - 1)
            group, within = np.divmod(along, p.large_group)
            if not small:
                return along, count, (group * p.small_group * p.large_group + within) * p.taps
            # (vectors, blocks, rows, lanes)
            row = np.arange(self.all_number_blocks * r.rows)
            channel = group[:, None] * p.small_group + np.minimum(row, p.small_group - 1)[:, None]
            there = (row < p.small_group) * count[:, None]
            return channel.reshape(-1, lanes), there.reshape(-1), np.tile(row * p.large_group * p.taps, len(along))
        width = r.columns * lanes if (r.lanes_along == "small") == small else r.block
        vectors, wide = (r.columns, lanes) if (r.lanes_along == "small") == small else (1, r.block)
        blocks = -(-of_group // width)
        within = np.arange(blocks * width).reshape(blocks * vectors, wide)
        count = np.clip(of_group - within[:, 0], 0, wide)
        within = np.minimum(within, of_group - 1)
        channel = np.arange(p.groups)[:, None, None] * of_group + within
        assert channel.max() < own
        place = channel * p.large_group * p.taps if small else np.broadcast_to(within * p.taps, channel.shape)
        if wide < lanes:
            channel = np.concatenate([channel, np.repeat(channel[..., -1:], lanes - wide, axis=-1)], axis=-1)
            place = np.concatenate([place, np.repeat(place[..., -1:], lanes - wide, axis=-1)], axis=-1)
        return channel.reshape(-1, lanes), np.tile(count, p.groups), np.ascontiguousarray(place.reshape(-1, lanes))


@lru_cache(maxsize=256)
def make_gradient_plan(problem: Problem, machine: Machine, together: bool = True) -> GradientPlan:
    """`together`: sums of several taps may be formed at once, zeros taking part."""
    r = choose_registers(problem, machine, together)
    whole = GradientPlan(problem, machine, r, (1, 1, 1, 1), problem.kernel, 1 << 40, 1 << 40, 1)
    return _with_chunks(_with_tile(_with_parts(whole)))


def _with_parts(plan: GradientPlan) -> GradientPlan:
    """As many channels and taps as the sums may take memory for."""
    from dataclasses import replace

    numbers, vectors, taps = plan.all_number_blocks, plan.all_vector_blocks, list(plan.problem.kernel)

    def size() -> int:
        groups = -(-prod(taps) // plan.registers.taps)
        return groups * numbers * vectors * plan.pair * plan.item

    while size() > _SUMS and (numbers > 1 or vectors > 1) and not plan.registers.by_group:
        wide, high = vectors * plan.registers.columns * plan.lanes, numbers * plan.registers.block
        if wide >= high and vectors > 1:
            vectors = -(-vectors // 2)
        elif numbers > 1:
            numbers = -(-numbers // 2)
        else:
            vectors = -(-vectors // 2)
    while size() > _SUMS and vectors > 1:
        vectors = -(-vectors // 2)
    for axis in range(3):
        while size() > 4 * _SUMS and taps[axis] > 1:
            taps[axis] = -(-taps[axis] // 2)
    d, h, w = taps
    return replace(plan, number_blocks=numbers, vector_blocks=vectors, taps=(d, h, w))


def _with_tile(plan: GradientPlan) -> GradientPlan:
    """Whole rows first, then planes, then samples, as long as positions are few and slabs fit."""
    from dataclasses import replace

    sizes = (plan.problem.small[0], *plan.problem.small[2:])
    room = _SLABS * plan.machine.l2
    tile = [1, 1, 1, 1]
    for axis in (3, 2, 1, 0):
        def fits(length: int) -> bool:
            tile[axis] = length
            one = replace(plan, tile=tuple(tile))
            slabs = sum(packed.count * packed.block for packed in (one.small, one.large)) * plan.item
            return prod(tile) <= POSITIONS and slabs <= room

        count = next((count for count in range(1, sizes[axis] + 1) if fits(-(-sizes[axis] // count))), sizes[axis])
        tile[axis] = max(1, -(-sizes[axis] // max(count, 1)))
        if tile[axis] < sizes[axis]:
            break
    return replace(plan, tile=tuple(tile))


def _with_chunks(plan: GradientPlan) -> GradientPlan:
    from dataclasses import replace

    parts, tiles = len(plan.parts), plan.tiles
    wanted = -(-_ITEMS_OF_A_CORE * plan.machine.cores // parts)
    wanted = max(wanted, -(-tiles // (WINDOW * WINDOW)))
    most = max(1, _PARTIALS // (plan.all_sums * plan.item))
    return replace(plan, chunks=max(1, min(wanted, most, tiles)))
