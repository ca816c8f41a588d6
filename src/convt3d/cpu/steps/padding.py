"""The first step of a sweep whose source is padded: a box of the padded array, put together from the source's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...plan.names import ArrayName
from ...spec.stages.padding import Pad
from ..plan.rooms import Rooms
from ..words import Arrays, Buffer, Room, Size, SourceCall, Words
from .arrays import describe_load
from .base import Step, Where

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.bind import Binding
    from ..runtime.call import Call


@dataclass(eq=False)
class PadWords(Words):
    box: Buffer
    sources: Arrays  # of each place of a padded axis, the voxel it holds
    before: Size  # places of a row in front of the array's own
    width: Size  # of the array


@dataclass(frozen=True)
class PaddedLoad(Step):
    """A box of an array, padded -> buffer (C, D, H, W)."""

    reads: str  # kind of the array
    source: ArrayName = field(repr=False, compare=False)
    stage: int = field(repr=False, compare=False)  # index in the pipeline

    words = (PadWords,)
    call = (SourceCall,)
    names = ("pad",)

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        return (rooms.box(0, "read", rooms.beyond),)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.padding import load_padded

        load_padded(tile.k, words[0], tile.array(call[0], self.reads), tile.low, tile.sizes, tile.channels)
        tile.value = words[0].box

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        where = binding.where
        pad, shape = where.pipeline.stages[self.stage], where.trace.values[self.stage]
        assert isinstance(pad, Pad)
        sources = tuple(pad.sources(axis, shape[2 + axis]) for axis in range(3))
        (box,) = rooms
        return (PadWords(box, sources, pad.sides[2][0], shape[4]),)

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return (call.array(self.source),)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield f"{describe_load(plan, planned)}, padded: {plan.rewritten.pipeline.stages[self.stage]!r}"
