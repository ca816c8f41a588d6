"""What both methods of the convolution share: the slab of its inputs, and the phase-planar buffer of its outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...plan.names import ArrayName
from ...spec.shapes import ConvAxis
from ..plan.geometry import AxisStep, phases
from ..plan.registers import RegisterTile
from ..plan.rooms import Rooms, round_up
from ..plan.slab import Slab, slab_of
from ..words import Array, Arrays, Buffer, Room, Size, Sizes, SourceCall, Words
from .arrays import describe_load
from .base import Step, Where
from .interleave import by_shuffles

if TYPE_CHECKING:
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.bind import Binding
    from ..runtime.call import Call


@dataclass(eq=False)
class ConvWords(Words):
    """Slab (copies, Cin, D, H, row) and result (Cout, phases, D, plane)."""

    slab: Buffer
    row: Size  # of the slab: elements from one row to the next
    slab_depth: Size
    slab_height: Size
    turns: Size  # remainders of rows modulo the pace that are kept
    planes: Size  # the same of planes
    copies: Size
    copy: Size  # elements from one copy to the next
    phased: Buffer
    phase: Size  # elements from one phase to the next
    plane: Size  # elements from one depth to the next
    merged: Size  # 1: planes follow each other without a gap
    in_channels: Size
    out_channels: Size
    in_group: Size  # as the slab holds them
    out_group: Size
    groups: Size
    biased: Size  # 1: there is a bias
    phases: Size  # that have a place of their own
    pooled_phases: Size  # the same after a pool over the phases of the stride, of which `together` are left
    phases_with_taps: Size
    strides: Sizes
    periods: Sizes  # phases along each axis
    kept: Sizes  # those that have a place of their own
    places: Arrays  # of every phase among these
    together: Sizes  # outputs of a phase of the stride at one position
    together_places: Arrays
    paces: Sizes  # inputs from one position to the next
    weights_group: Size  # elements of the packed weights of a group
    offsets: Array  # in the slab, of each step


@dataclass(eq=False)
class PacedWords(Words):
    """Where a position is several inputs wide."""

    row: Buffer  # of one input row of some channels, before it is sorted


@dataclass(eq=False)
class BesideWords(Words):
    """Where a tile convolves several samples: slab and result as above, with the numbers that the samples have at a
    place next to each other."""

    most: Size  # samples of a tile
    batch: Size
    slab: Buffer
    row: Size
    copy: Size
    phased: Buffer
    phase: Size
    plane: Size


@dataclass(eq=False)
class ConvCall(Words):
    weights: Array  # packed
    bias: Array


@dataclass(frozen=True)
class Convolution(Step):
    """Input slab -> phase-planar buffer."""

    tile: RegisterTile
    blocks: int  # full blocks of output channels in a group
    reads: str  # kind of the array it reads; "": the buffer of the step before
    in_parts: bool  # steps behind it take some channels at a time
    source: ArrayName = field(repr=False, compare=False)
    beside: bool  # several samples are convolved together

    convolves = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"conv{self.tile.rows}x{self.tile.columns}",)

    def along(self, where: Where, axis: int) -> AxisStep:
        return where.method.walks[axis]

    def slab(self, where: Where, rooms: Rooms, spare: bool = False) -> tuple[Slab, Room]:
        """`spare`: most calls do without it."""
        channels, pieces = rooms.share.groups * where.in_group, where.pieces
        if pieces:  # of one group
            channels = min(where.in_group, pieces.channels)
        of_tile = rooms.axes, rooms.step, rooms.lanes, rooms.item
        slab = slab_of(where.method.walks, *of_tile, channels, rooms.copies, pieces)
        rooms.slab = slab
        if self.beside:
            of_tile = rooms.axes, rooms.step, where.lanes, rooms.item  # no chain walks it
            rooms.woven = slab_of(where.method.walks, *of_tile, channels, rooms.copies, beside=where.beside)
        return slab, rooms.add(channels * slab.copies, slab.channel, again=spare)

    def row(self, where: Where, rooms: Rooms, slab: Slab) -> Room:
        """Of one input row of some channels, before it is sorted by remainders modulo the pace."""
        pace = by_shuffles(where.method.walks[2].pace)
        length = (
            slab.row + (pace + 1) * rooms.lanes if pace else (slab.pitch - 1) * where.method.walks[2].pace + slab.copies
        )
        return rooms.add(where.lanes, round_up(length, rooms.lanes) + rooms.lanes)

    def phased(self, where: Where, rooms: Rooms, slab: Slab) -> Room:
        rooms.channels, rooms.step = rooms.share.channels, rooms.step + 1
        rooms.held.clear()
        return rooms.add(rooms.channels, slab.out_channel)

    def beside_rooms(self, rooms: Rooms) -> tuple[Room, ...]:
        """Where samples stand beside each other: slab and result, after `phased`."""
        slab = rooms.woven
        if slab is None:
            return ()
        inputs = rooms.add(slab.copy // slab.channel * slab.copies, slab.channel)
        outputs = rooms.add(rooms.channels, slab.out_channel)
        rooms.held.pop(-2)  # all of it is needed for any part of the channels
        return inputs, outputs

    def bind_beside(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[BesideWords, ...]:
        slab = binding.tiling.woven
        if slab is None:
            return ()
        inputs, outputs = rooms
        batch = binding.plan.trace.values[0][0]
        sizes = {"row": slab.pitch, "copy": slab.copy, "phase": slab.phase, "plane": slab.plane}
        return (BesideWords(most=slab.beside, batch=batch, slab=inputs, phased=outputs, **sizes),)

    def bind_slab(self, binding: Binding, rooms: dict[str, Room], **words: Any) -> ConvWords:
        """`words` are those that depend on the method."""
        where, slab, walks = binding.where, binding.tiling.slab, binding.where.method.walks
        assert slab is not None
        return ConvWords(
            row=slab.pitch,
            slab_depth=slab.depth,
            slab_height=slab.height,
            turns=slab.turns,
            planes=slab.planes,
            copies=slab.copies,
            copy=slab.copy,
            phase=slab.phase,
            plane=slab.plane,
            merged=int(slab.merged),
            in_channels=where.kernel[0],
            out_channels=where.out_channels,
            in_group=where.in_group,
            out_group=where.kernel[1],
            groups=where.groups,
            biased=int(where.pipeline.conv.bias),
            phases=prod(walk.kept for walk in walks),
            pooled_phases=prod(walk.together for walk in walks),
            phases_with_taps=prod(len(phases(walk)) for walk in walks),
            strides=tuple(walk.axis.stride for walk in walks),
            periods=tuple(walk.period for walk in walks),
            kept=tuple(walk.kept for walk in walks),
            places=tuple(walk.places() for walk in walks),
            together=tuple(walk.together for walk in walks),
            together_places=tuple(np.arange(walk.together) for walk in walks),
            paces=tuple(walk.pace for walk in walks),
            **rooms,
            **words,
        )

    def bind_reads(self, call: Call) -> tuple[SourceCall, ...]:
        return (call.array(self.source),) if self.reads else ()

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        if self.reads:
            yield describe_load(plan, planned)
        yield "put them into a slab, with zeros around them"
        pipeline, trace = plan.rewritten.pipeline, plan.simplified
        at = pipeline.conv_index
        axes = pipeline.conv.axes(trace.values[at], trace.operands[at][0])
        counts = [_tap_counts(axis) for axis in axes]
        fewest, most = prod(low for low, _ in counts), prod(high for _, high in counts)
        taps = f"{most}" if fewest == most else f"{fewest} to {most}"
        channels = trace.values[at][1] // pipeline.conv.groups
        count = prod(axis.outputs_per_input for axis in axes)
        yield f"{pipeline.conv!r}: phases {count}, taps of a phase {taps}, channels of a tap {channels}"


def _tap_counts(axis: ConvAxis) -> tuple[int, int]:
    """Taps of the phase that has fewest along an axis, and of the one that has most."""
    phases = axis.outputs_per_input
    taps = Counter(axis.offset(k) % phases for k in range(axis.kernel))
    return min(taps.values()) if len(taps) == phases else 0, max(taps.values())
