"""Pools of a tile: over windows of a box, or over the phases of the convolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...spec.stages import AvgPool3d, MaxPool3d
from ..plan.geometry import AxisStep, Windows
from ..plan.rooms import Rooms, pitch_of, round_up
from ..words import Arrays, Buffer, Room, Size, Words
from .base import Step, Where

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.bind import Binding


@dataclass(eq=False)
class PoolWords(Words):
    pooled: Buffer
    row: Buffer  # windows folded over depth and height
    windows: Arrays  # of each output: first input, end, and the count an average divides by


@dataclass(eq=False)
class WidthWords(Words):
    whole: Size  # 1: one window is all of the width


@dataclass(eq=False)
class PhasePoolWords(Words):
    pooled: Buffer


@dataclass(frozen=True)
class _Pool(Step):
    average: bool
    stage: int = field(repr=False, compare=False)  # index in the pipeline

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("avgpool" if self.average else "maxpool",)

    def of(self, where: Where) -> MaxPool3d | AvgPool3d:
        stage = where.pipeline.stages[self.stage]
        assert isinstance(stage, (MaxPool3d, AvgPool3d))
        return stage

    def along(self, where: Where, axis: int) -> AxisStep:
        return Windows(self.of(where).axes(where.trace.values[self.stage])[axis])

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield repr(plan.rewritten.pipeline.stages[self.stage])


@dataclass(frozen=True)
class Pool(_Pool):
    """Buffer (C, D, H, W) -> pooled buffer."""

    pairs: bool  # windows of 2 along the width, side by side, without padding
    whole: bool | None  # one window is all of the width; None: code for both, as libraries for C have it

    @property
    def words(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (PoolWords, WidthWords) if self.whole is None else (PoolWords,)

    @classmethod
    def of_stage(cls, where: Where, stage: int) -> Pool:
        pool = where.pipeline.stages[stage]
        assert isinstance(pool, (MaxPool3d, AvgPool3d))
        kernel, stride, padding = (triple[2] for triple in pool.triples)
        counted = getattr(pool, "divisor_override", None) is None
        pairs = (kernel, stride, padding, pool.ceil_mode, counted) == (2, 2, 0, False, True)
        average, side_by_side = isinstance(pool, AvgPool3d), (stride, padding) == (kernel, 0) and not pairs
        whole = side_by_side and kernel == where.trace.values[stage][4]
        unknown = where.plain and average and side_by_side and not whole  # a maximum is the same either way
        return cls(average, stage, pairs, None if unknown else whole)

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        pooled = rooms.box(rooms.step, "write")
        row = rooms.add(1, round_up(rooms.axes[2].longest(rooms.step, "read"), rooms.lanes) + rooms.lanes)
        rooms.step += 1
        return pooled, row

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.pool import emit_pool

        whole = words[1].whole if self.whole is None else self.whole
        emit_pool(tile.k, words[0], tile.step, tile.value, tile.channels, self.average, self.pairs, whole)
        tile.value, tile.step = words[0].pooled, tile.step + 1

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        pooled, row = rooms
        own = PoolWords(pooled, row, self._windows(binding.where))
        return (own, WidthWords(0)) if self.whole is None else (own,)

    def _windows(self, where: Where) -> tuple[npt.NDArray[np.int64], ...]:
        pool = self.of(where)
        include, override = False, None
        if isinstance(pool, AvgPool3d):
            include, override = pool.count_include_pad, pool.divisor_override
        found = [axis.windows(include) for axis in pool.axes(where.trace.values[self.stage])]
        if override is not None:
            for table, divisor in zip(found, (override, 1, 1), strict=True):
                table[:, 2] = divisor
        return tuple(found)


@dataclass(frozen=True)
class PhasePool(_Pool):
    """Phase-planar buffer -> pooled phase-planar buffer."""

    words = (PhasePoolWords,)

    @classmethod
    def of_stage(cls, where: Where, stage: int) -> PhasePool:
        return cls(isinstance(where.pipeline.stages[stage], AvgPool3d), stage)

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        assert rooms.slab is not None
        rooms.step += 1
        extent = prod(walk.together for walk in where.method.walks) * rooms.slab.phase
        return (rooms.add(rooms.channels, pitch_of(extent, rooms.lanes, rooms.item)),)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.pool import emit_phase_pool

        assert tile.planar is not None
        tile.planar = emit_phase_pool(tile.k, words[0].pooled, tile.planar, tile.channels, self.average)
        tile.value, tile.step = words[0].pooled, tile.step + 1

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        return (PhasePoolWords(*rooms),)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield f"{plan.rewritten.pipeline.stages[self.stage]!r} over the phases of each position"
