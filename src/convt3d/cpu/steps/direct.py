"""The convolution by direct summation: every phase is a dense correlation, done as a small matrix product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..plan.conv_cost import direct_cost, rows_cost, sums_rows
from ..plan.geometry import phases
from ..plan.rooms import Rooms
from ..plan.slab import Slab, SlabPlaces
from ..words import Array, Buffer, DestinationCall, Room, Size, Sizes, SourceCall, Words, layout
from .base import Where
from .conv import BesideWords, ConvCall, Convolution, ConvWords, PacedWords
from .pieces import PiecesWords, bind_pieces

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..plan.tiles import Tiling
    from ..runtime.bind import Binding
    from ..runtime.call import Call


SUMMED = 512  # steps that are summed on their own before they join the rest
HEIGHTS = range(2, 8)  # taps along the height whose weights fit the registers


@dataclass(eq=False)
class PhaseWords(Words):
    """A row of the table of phases that have taps."""

    phase: Size  # its place
    steps: Size  # a tap and an input channel each
    offset: Size  # of its first step in the table of offsets
    weight: Size  # of its first step in the packed weights
    taps: Size  # along the depth
    shift: Size  # of the first of these
    apart: Size  # distance from one to the next
    height: Size  # taps along the height


@dataclass(eq=False)
class DirectWords(Words):
    phase_table: Array
    in_depth: Size
    share_groups: Size  # whose output channels are computed together
    share_blocks: Size  # of each of these groups


@dataclass(eq=False)
class MaskWords(Words):
    inside: Buffer  # (copies, D, H, row) like a channel of the slab: 1 inside the array, 0 around it
    places: Array  # in it, of each step


@dataclass(eq=False)
class PanelWords(Words):
    panels: Buffer  # of positions, of all input channels of a group: those at work, and those that come next
    positions: Sizes  # of the whole array


@dataclass(eq=False)
class DirectCall(ConvCall):
    part_groups: Size  # that are convolved together
    part_blocks: Size


@dataclass(frozen=True)
class DirectConvolution(Convolution):
    pace: int | None  # of the width, where a position is several inputs wide along some axis; 0: too wide for shuffles
    writes: str  # kind of the destination, where nothing else is done with the result; "": a buffer
    heights: tuple[int, ...]  # where rows are summed together: numbers of taps along the height that phases have
    high: int  # there, inputs from one row of positions to the next
    pointwise: bool  # each position meets one input, which need not be copied into a slab
    in_pieces: bool = False  # taps and input channels come one after the other

    pairs: ClassVar[bool] = False  # a lane of slab and weights holds two channels
    masked: ClassVar[bool] = False  # products with what surrounds the array are left out

    @property
    def words(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        more: tuple[type[Words], ...] = (PanelWords,) if self.pointwise else () if self.pace is None else (PacedWords,)
        more += ((PiecesWords,) if self.in_pieces else ()) + ((BesideWords,) if self.beside else ())
        return (ConvWords, DirectWords, *more)

    @property
    def shares_channels(self) -> bool:  # type: ignore[override]
        return self.in_parts and bool(self.reads)

    @property
    def reads_for_all_blocks(self) -> bool:  # type: ignore[override]
        return self.pointwise

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        source: tuple[type[Words], ...] = (SourceCall,) if self.reads else ()
        return (DirectCall, *source, *((DestinationCall,) if self.writes else ()))

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        slab, room = self.slab(where, rooms, self.pointwise)
        if self.pointwise:
            panels = rooms.add(2 * where.in_group, panels_together(where) * self.tile.columns * where.lanes, again=True)
            return (room, panels, self.phased(where, rooms, slab))
        row = () if self.pace is None else (self.row(where, rooms, slab),)
        inside = (rooms.add(slab.copies, slab.channel),) if self.masked else ()
        return (room, *row, *inside, self.phased(where, rooms, slab), *self.beside_rooms(rooms))

    def cost(self, where: Where, tiling: Tiling) -> tuple[float, float]:
        by_rows = self.heights and sums_rows(where, tiling)
        return (rows_cost if by_rows else direct_cost)(where, tiling), 0.0

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.conv import emit_direct

        emit_direct(tile, self, words, call)

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        where, slab = binding.where, binding.tiling.slab
        assert slab is not None
        rooms, beside = (rooms[:-2], self.bind_beside(binding, rooms[-2:])) if self.beside else (rooms, ())
        table, offsets, count = _tables(where, binding.tiling.woven or slab)
        conv = self.bind_slab(
            binding,
            {"slab": rooms[0], "phased": rooms[-1]},
            offsets=offsets,
            weights_group=count * where.packed_out,
        )
        share = binding.tiling.share
        own = DirectWords(table, where.method.walks[0].axis.size, share.groups, share.blocks)
        if self.pointwise:
            return conv, own, PanelWords(rooms[1], tuple(walk.positions for walk in where.method.walks))
        paced = () if self.pace is None else (PacedWords(rooms[1]),)
        pieces = (bind_pieces(where.method.walks, where.pieces, where.in_group, table),) if where.pieces else ()
        return (conv, own, *paced, *pieces, *beside)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield from super().describe(plan, planned)
        if self.in_pieces:
            yield "taps and input channels come in pieces, each from a slab of its own"

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        groups, blocks, _ = call.part
        stored = (call.destination(),) if self.writes else ()
        return DirectCall(call.weights, call.bias, groups, blocks), *self.bind_reads(call), *stored


def rows_together(where: Where) -> tuple[int, ...]:
    """The numbers of taps along the height that phases have, where rows are summed together: each channel has its own
    taps, and neighbouring rows meet the same inputs."""
    alone = where.kernel[0] == where.groups and where.kernel[1] == 1
    alone = alone and not (where.pairs or where.masked or where.pieces)
    if not alone or prod(where.kernel[2:]) > SUMMED:
        return ()
    walk = where.method.walks[1]
    rows = phases(walk)
    next_to_each_other = all(high - low == 1 for phase in rows for high, low in pairwise(phase.shifts))
    heights = {len(phase.taps) for phase in rows}
    return tuple(sorted(heights)) if next_to_each_other and max(heights) in HEIGHTS else ()


def meets_one_input(where: Where) -> bool:
    """Whether each position meets the input at its own place, and no other."""
    walks = where.method.walks
    inside = all(walk.shift_range == (0, 0) and walk.positions <= walk.axis.size for walk in walks)
    otherwise = where.pairs or where.masked or where.pieces or where.beside > 1
    return inside and all(walk.pace == 1 for walk in walks) and not otherwise


_RUN = 512  # bytes of a channel: where channels are a power of two apart, shorter pieces wait for few cache sets


def panels_together(where: Where) -> int:
    """Panels that make a run of each channel, while two such runs of all inputs stay in half of the second-level
    cache."""
    panel = where.register_tile.columns * where.lanes * where.item
    return max(1, min(-(-_RUN // panel), where.machine.l2 // 4 // (where.in_group * panel)))


@dataclass(frozen=True)
class PairedConvolution(DirectConvolution):
    """The same of bfloat16 numbers: two channels lie side by side in each lane, and one instruction multiplies and adds
    both, in float32."""

    pairs = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"pairs{self.tile.rows}x{self.tile.columns}",)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield from super().describe(plan, planned)
        yield "products of pairs of input channels, exact, and added up in float32"


@dataclass(frozen=True)
class TiledConvolution(PairedConvolution):
    """The same by products of tiles, 16 output channels and 16 positions at once."""

    deep: int = 16  # pairs of channels of one product

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"tiles{self.deep}x{self.tile.columns}",)


@dataclass(frozen=True)
class MaskedConvolution(DirectConvolution):
    """The same for weights that are not finite: times a zero around the array they would give NaN, where the meaning
    has no product at all. A product counts only where the input is inside."""

    masked = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"masked{self.tile.rows}x{self.tile.columns}",)

    @property
    def words(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (*super().words, MaskWords)

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        where, slab = binding.where, binding.tiling.slab
        assert slab is not None
        *others, inside, phased = rooms
        one_channel = replace(slab, copy=slab.channel, channel=0)
        _, places, _ = _tables(where, one_channel)
        return (*super().bind(binding, (*others, phased)), MaskWords(inside, places))

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield from super().describe(plan, planned)
        yield "products with zeros around the array are left out"


def _tables(where: Where, slab: Slab) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """The rows of PhaseWords, the offset in the slab of every step, and how many steps there are."""
    method, in_group, per_out = where.method, where.in_group, where.packed_out
    places = SlabPlaces(method, slab, where.pieces)
    axes = [phases(walk) for walk in method.walks]
    # All phases at once, since there may be thousands: sizes (phases of D, H, W), places (taps of D, H, W).
    counts = [np.array([len(phase.taps) for phase in axis]) for axis in axes]
    taps = counts[0][:, None, None] * counts[1][:, None] * counts[2]
    starts = (np.cumsum(taps) - taps.reshape(-1)).reshape(taps.shape)
    phase = np.ix_(*(np.repeat(np.arange(len(count)), count) for count in counts))
    number = np.ix_(*(np.concatenate([np.arange(n) for n in count]) for count in counts))
    shifted = np.ix_(
        *(
            np.array([place(shift) for phase in axis for shift in phase.shifts])
            for axis, place in zip(axes, (places.depth, places.height, places.width), strict=True)
        )
    )
    at = starts[phase] + (number[0] * counts[1][phase[1]] + number[1]) * counts[2][phase[2]] + number[2]
    offsets = np.empty(at.size, np.int64)
    offsets[at] = shifted[0] + shifted[1] + shifted[2]

    kept = [np.array([walk.place(one.phase) for one in axis]) for walk, axis in zip(method.walks, axes, strict=True)]
    numbers = (kept[0][:, None, None] * method.walks[1].kept + kept[1][:, None]) * method.walks[2].kept + kept[2]
    first = np.array([phase.shifts[0] for phase in axes[0]])
    apart = np.array([phase.shifts[0] - phase.shifts[1] if len(phase.shifts) > 1 else 1 for phase in axes[0]])
    steps, begin = taps * in_group, starts * in_group
    columns = {
        "phase": numbers,
        "steps": steps,
        "offset": begin,
        "weight": begin * per_out,
        "taps": counts[0][:, None, None],
        "shift": first[:, None, None],
        "apart": apart[:, None, None],
        "height": counts[1][:, None],
    }
    rows = [np.broadcast_to(columns[field.name], taps.shape).reshape(-1) for field in layout(PhaseWords, False)[0]]
    table = np.stack(rows, axis=-1).astype(np.int64)
    channel = np.arange(in_group) % (where.pieces.channels if where.pieces else in_group) * slab.channel
    return table, np.append((offsets[:, None] + channel).reshape(-1), 0), offsets.size * in_group
