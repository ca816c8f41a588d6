"""The way back of a gradient through a pool: from windows to the voxels they were made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...plan.names import ArrayName
from ...spec.stages import AvgPool3d, MaxPool3d
from ..plan.geometry import AxisStep, Spread
from ..plan.rooms import Rooms, round_up
from ..words import Array, Arrays, Buffer, Room, Sizes, SourceCall, Words
from .base import Step, Where

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..runtime.bind import Binding
    from ..runtime.call import Call

_MOST_REPEATS = 4


def _pool(where: Where, stage: int) -> MaxPool3d | AvgPool3d:
    pool = where.pipeline.stages[stage]
    assert isinstance(pool, (MaxPool3d, AvgPool3d))
    return pool


@dataclass(frozen=True)
class _Spread(Step):
    stage: int = field(repr=False, compare=False)  # the pool's place in the pipeline

    def along(self, where: Where, axis: int) -> AxisStep:
        return Spread(_pool(where, self.stage).axes(where.trace.values[self.stage])[axis])


@dataclass(eq=False)
class SharesWords(Words):
    spread: Buffer  # the result
    row: Buffer  # shares of the windows of a row
    repeated: Buffer  # and as often as they have voxels there, where all have the same number
    windows: Arrays  # of each voxel: first window, end
    divisors: Arrays  # of each window, as integers
    width_divisors: Array  # those along the width, as numbers


@dataclass(frozen=True)
class SpreadShares(_Spread):
    """Buffer (C, D, H, W) of an average pool's gradient -> that of its input."""

    repeats: int  # along the width windows of so many voxels lie side by side; 0: no such thing

    words = (SharesWords,)
    names = ("shares",)

    @classmethod
    def of_stage(cls, where: Where, stage: int) -> SpreadShares:
        pool = _pool(where, stage)
        kernel, stride, padding = (triple[2] for triple in pool.triples)
        side_by_side = kernel == stride <= _MOST_REPEATS and padding == 0 and not pool.ceil_mode
        return cls(stage, kernel if side_by_side else 0)

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        width = rooms.axes[2]
        row = round_up(width.longest(rooms.step, "read") + 2, rooms.lanes) + rooms.lanes
        spread = rooms.box(rooms.step, "write", rooms.beyond)
        rooms.step += 1
        return spread, rooms.add(1, row), rooms.add(1, max(row * self.repeats, rooms.lanes))

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.spread import emit_shares

        emit_shares(tile.k, words[0], tile.step, tile.value, tile.channels, self.repeats)
        tile.value, tile.step = words[0].spread, tile.step + 1

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        pool = _pool(binding.where, self.stage)
        assert isinstance(pool, AvgPool3d)
        axes = pool.axes(binding.where.trace.values[self.stage])
        divisors = [np.ascontiguousarray(axis.windows(pool.count_include_pad)[:, 2]) for axis in axes]
        if pool.divisor_override is not None:
            for table, divisor in zip(divisors, (pool.divisor_override, 1, 1), strict=True):
                table[:] = divisor
        lanes = np.ones(2 * binding.where.lanes)  # beyond the last
        along = np.concatenate([divisors[2], lanes]).astype(binding.number)
        windows = tuple(axis.windows_of() for axis in axes)
        spread, row, repeated = rooms
        return (SharesWords(spread, row, repeated, windows, tuple(divisors), along),)


@dataclass(eq=False)
class PlacesWords(Words):
    spread: Buffer  # the result
    places: Buffer  # a box of these
    sizes: Sizes  # of the array that was pooled


@dataclass(frozen=True)
class SpreadToPlaces(_Spread):
    """Buffer (C, D, H, W) of a max-pool's gradient -> that of its input, by the places of the largest values."""

    places: ArrayName = field(repr=False, compare=False)

    words = (PlacesWords,)
    call = (SourceCall,)
    names = ("places",)

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        places = rooms.box(rooms.step, "read", rooms.beyond)
        spread = rooms.box(rooms.step, "write", rooms.beyond)
        rooms.step += 1
        return spread, places

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.spread import emit_to_places

        tile.load_box(tile.array(call[0], self.places.kind), words[0].places)
        emit_to_places(tile.k, words[0], tile.step, tile.value, tile.channels)
        tile.value, tile.step = words[0].spread, tile.step + 1

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        spread, places = rooms
        return (PlacesWords(spread, places, binding.where.trace.values[self.stage][2:]),)

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return (call.array(self.places),)
