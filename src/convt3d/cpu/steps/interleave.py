"""The phases of a tile put together into rows; straight into the destination where nothing follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..plan.rooms import Rooms, round_up, rows_together
from ..words import Buffer, DestinationCall, Room, Words
from .arrays import describe_store
from .base import Step, Where

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.bind import Binding
    from ..runtime.call import Call

_MOST_SHUFFLED = 8


def by_shuffles(phases: int) -> int:
    """Rows are put together with vectors up to so many phases; 0 stands for any number above."""
    return phases if phases <= _MOST_SHUFFLED else 0


@dataclass(eq=False)
class InterleaveWords(Words):
    rows: Buffer


@dataclass(frozen=True)
class Interleave(Step):
    """Phase-planar buffer -> buffer (C, D, H, W), or the destination."""

    phases: int  # along the width, where shuffles put them together
    writes: str  # kind of the destination; "": a buffer

    words = (InterleaveWords,)

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (DestinationCall,) if self.writes else ()

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        if not self.writes:
            return (rooms.box(*rooms.value),)
        # Some rows at a time, or one of all channels, go to the destination.
        _, height, width = (axis.longest(*rooms.value) for axis in rooms.axes)
        rows, pitch = min(height, rows_together(width)), round_up(width, rooms.lanes)
        room = rooms.add(max(rooms.channels, rows), pitch, again=True)
        rooms.held.pop()
        return (room,)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        tile.interleave(self.phases, words[0].rows, tile.destination(call[0], self.writes) if self.writes else None)

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        return (InterleaveWords(*rooms),)

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return (call.destination(),) if self.writes else ()

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield "put the phases together into rows"
        if self.writes:
            yield describe_store(plan, planned)
