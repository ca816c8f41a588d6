"""The places of the largest values in the windows of a max-pool: where its gradient goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...spec.stages import MaxPool3d
from ..plan.geometry import AxisStep, Windows
from ..plan.rooms import Rooms, round_up
from ..words import Arrays, Buffer, Room, Sizes, Words
from .base import Step, Where

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..runtime.bind import Binding


@dataclass(eq=False)
class ArgmaxWords(Words):
    places: Buffer  # the result
    row: Buffer  # largest values over depth and height
    rows: Buffer  # and the rows they are in
    windows: Arrays  # of each output: first input, end
    sizes: Sizes  # of the array that is pooled


@dataclass(frozen=True)
class Argmax(Step):
    """Buffer (C, D, H, W) -> places, integers in a buffer of numbers."""

    stage: int = field(repr=False, compare=False)  # the pool's place in the pipeline

    words = (ArgmaxWords,)
    names = ("argmax",)

    def of(self, where: Where) -> MaxPool3d:
        stage = where.pipeline.stages[self.stage]
        assert isinstance(stage, MaxPool3d)
        return stage

    def along(self, where: Where, axis: int) -> AxisStep:
        return Windows(self.of(where).axes(where.trace.values[self.stage])[axis])

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        places = rooms.box(rooms.step, "write")
        longest = round_up(rooms.axes[2].longest(rooms.step, "read"), rooms.lanes) + rooms.lanes
        rooms.step += 1
        return places, rooms.add(1, longest), rooms.add(1, longest)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.argmax import emit_argmax

        emit_argmax(tile.k, words[0], tile.step, tile.value, tile.channels)
        tile.value, tile.step = words[0].places, tile.step + 1

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        shape = binding.where.trace.values[self.stage]
        windows = tuple(axis.windows(False) for axis in self.of(binding.where).axes(shape))
        places, row, rows = rooms
        return (ArgmaxWords(places, row, rows, windows, shape[2:]),)
