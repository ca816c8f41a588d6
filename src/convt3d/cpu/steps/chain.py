"""Pointwise and channel-wise stages, in place on (C, positions); and LayerNorm along the width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ...plan.sweeps import Link
from ...plan.tail_links import Derivative, Totals
from ...spec.stage import Stage
from ...spec.stages import CHANNELS, Keep
from ..plan.rooms import Rooms
from ..words import Array, Buffer, Room, SourceCall, VectorCall, Words
from .base import Step, Where
from .reduce import ReduceCall

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.bind import Binding
    from ..runtime.call import Call


@dataclass(eq=False)
class ConstantWords(Words):
    constants: Array  # the numbers of a stage


@dataclass(eq=False)
class TensorWords(Words):
    box: Buffer  # of an array of the value's shape


@dataclass(eq=False)
class KeepWords(Words):
    kept: Buffer  # the value at the positions that are walked together


@dataclass(eq=False)
class TotalsWords(Words):
    sums: Buffer  # of the tile, for each channel


def scalars(stage: Stage) -> list[tuple[str, float]]:
    """The numbers of a stage, which kernels read from a table, in order; a derivative has those of its stage."""
    stage = stage.of if isinstance(stage, Derivative) else stage
    values = [(field.name, getattr(stage, field.name)) for field in fields(stage)]
    return [(name, value) for name, value in values if isinstance(value, float)]


def _constants(stage: Stage, number: str) -> ConstantWords:
    with np.errstate(over="ignore"):
        return ConstantWords(np.array([value for _, value in scalars(stage)], dtype=number))


def _stage_key(stage: Stage) -> str:
    values = [getattr(stage, field.name) for field in fields(stage)]
    shown = ["#" if isinstance(v, float) else _stage_key(v) if isinstance(v, Stage) else repr(v) for v in values]
    return f"{stage.name}({','.join(shown)})"


def _link_key(link: Link) -> str:
    return _stage_key(link.stage) + ",".join(array.kind for array in link.arrays)


def _link_words(link: Link) -> type[Words] | None:
    """The set of words that a link has; none has two."""
    if link.takes_tensor:
        return TensorWords
    if isinstance(link.stage, Keep):
        return KeepWords
    if isinstance(link.stage, Totals):
        return TotalsWords
    return ConstantWords if scalars(link.stage) else None


def describe_link(plan: Plan, link: Link) -> str:
    return repr(link.stage) + (f" with {', '.join(map(plan.array_name, link.arrays))}" if link.arrays else "")


@dataclass(frozen=True)
class Chain(Step):
    links: tuple[Link, ...]

    @property
    def words(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return tuple(words for link in self.links if (words := _link_words(link)))

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        arrays = [SourceCall if link.takes_tensor else VectorCall for link in self.links for _ in link.arrays]
        return (*arrays, ReduceCall) if self.statistics else tuple(arrays)

    @property
    def key(self) -> str:
        return f"Chain({' '.join(map(_link_key, self.links))})"

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(link.stage.name.lower() for link in self.links)

    @property
    def statistics(self) -> int:  # type: ignore[override]
        return sum(len(link.stage.factors) for link in self.links if isinstance(link.stage, Totals))

    @property
    def couples_channels(self) -> bool:  # type: ignore[override]
        return any(link.stage.couples & CHANNELS for link in self.links)

    @property
    def elementwise(self) -> bool:
        """Whether no voxel meets another, and nothing is left but the value."""
        return not (self.couples_channels or self.statistics)

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        found = []
        for link in self.links:
            if link.takes_tensor:
                found.append(rooms.box(*rooms.value, rooms.beyond))
            elif isinstance(link.stage, Keep):
                found.append(rooms.add(rooms.channels, rooms.lanes))
            elif isinstance(link.stage, Totals):  # float64, or two of them where numbers are float64
                found.append(rooms.add(rooms.channels * len(link.stage.factors), 2 * where.lanes))
        if any(link.collapses_channels for link in self.links):
            rooms.channels = 1
        return tuple(found)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.chain import Links, emit_chain
        from ..code.tails import clear_totals, store_totals

        own, given = self.of_links(words, call)
        for link, room, array in zip(self.links, own, given, strict=True):
            if link.takes_tensor:
                tile.load_box(tile.array(array[0], link.arrays[0].kind), room.box)
        links = Links(tile.k, own, given, tile.channels)
        totals = [(at, link.stage) for at, link in enumerate(self.links) if isinstance(link.stage, Totals)]
        for at, stage in totals:
            clear_totals(links, at, stage)
        left = emit_chain(tile.k, links, self.links, tile.value, tile.runs)
        if left is not tile.channels:  # they were all there, and one is left
            tile.all_channels = tile.channels = left
        first = 0
        for at, stage in totals:
            store_totals(links, at, stage, first, self.statistics, call[-1].partials, tile.all_channels)
            first += len(stage.factors)

    def of_links(self, words: Any, call: Any) -> tuple[list[Any], list[list[Any]]]:
        """Its sets of words, as each link has them."""
        sets, arrays = iter(words), iter(call)
        own = [next(sets) if _link_words(link) else None for link in self.links]
        return own, [[next(arrays) for _ in link.arrays] for link in self.links]

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        left = iter(rooms)
        found: list[Words] = []
        for link in self.links:
            words = _link_words(link)
            if words is ConstantWords:
                found.append(_constants(link.stage, binding.number))
            elif words is not None:
                found.append(words(next(left)))  # type: ignore[call-arg]  # the three that have one buffer
        return tuple(found)

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        arrays = [
            call.array(array) if link.takes_tensor else call.vector(array)
            for link in self.links
            for array in link.arrays
        ]
        return (*arrays, ReduceCall(call.partials)) if self.statistics else tuple(arrays)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        return (describe_link(plan, link) for link in self.links)


@dataclass(frozen=True)
class RowNorm(Step):
    """LayerNorm along the width, in place; tiles hold whole rows."""

    link: Link

    words = (ConstantWords,)
    names = ("rownorm",)
    needs_whole_rows = True

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (VectorCall,) * len(self.link.arrays)

    @property
    def key(self) -> str:
        return f"RowNorm({_link_key(self.link)})"

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.reduce import emit_row_norm

        affine = [vector.data for vector in call]
        emit_row_norm(tile.k, words[0].constants, affine, tile.value, tile.sizes, tile.channels)

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        return (_constants(self.link.stage, binding.number),)

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return tuple(map(call.vector, self.link.arrays))

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield describe_link(plan, self.link)
