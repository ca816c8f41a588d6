"""The steps at both ends of a sweep: a box of an array into scratch memory, and from there to the destination."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...plan.names import ArrayName
from ..plan.rooms import Rooms
from ..words import Buffer, DestinationCall, Room, Size, SourceCall, Words
from .base import Step, Where

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.bind import Binding
    from ..runtime.call import Call


@dataclass(eq=False)
class LoadWords(Words):
    box: Buffer


@dataclass(eq=False)
class PartCall(Words):
    part: Size  # channels that go through the sweep together


@dataclass(frozen=True)
class Load(Step):
    """A box of an array -> buffer (C, D, H, W)."""

    reads: str  # kind of the array
    in_parts: bool  # all steps of the sweep take some channels at a time
    source: ArrayName = field(repr=False, compare=False)

    words = (LoadWords,)

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (SourceCall, PartCall) if self.in_parts else (SourceCall,)

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        return (rooms.box(0, "read", rooms.beyond),)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        if self.in_parts:
            tile.take_channels(call[1].part)
        tile.load(tile.array(call[0], self.reads), words[0].box)

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        return (LoadWords(*rooms),)

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        source = call.array(self.source)
        return (source, PartCall(call.part_of_box(source))) if self.in_parts else (source,)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield describe_load(plan, planned)


@dataclass(frozen=True)
class Store(Step):
    """Buffer (C, D, H, W) -> a box of the destination."""

    writes: str  # kind of the array
    dest: ArrayName = field(repr=False, compare=False)

    call = (DestinationCall,)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        tile.store(tile.destination(call[0], self.writes))

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return (call.destination(),)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield describe_store(plan, planned)


def describe_load(plan: Plan, planned: SweepPlan) -> str:
    box = "x".join(str(axis.longest(0, "read")) for axis in planned.tiling.axes)
    return f"load {box} voxels of {plan.array_name(planned.sweep.source)}"


def describe_store(plan: Plan, planned: SweepPlan) -> str:
    assert planned.sweep.dest is not None
    return f"store in {plan.array_name(planned.sweep.dest)}" + (", past the caches" if planned.streamed else "")
