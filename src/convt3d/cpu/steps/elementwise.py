"""A sweep of elementwise stages alone: from array to array in registers, in the order of memory.

Memory is fastest in long runs: an item is a large box of one channel, or of a few. Where elements of a row do not lie
side by side (channels last), the items share the rows of a box instead, and take all channels of some voxels at a time
through scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..plan.rooms import Rooms, round_up
from ..words import Room, Size, Words
from .arrays import Load, Store
from .base import Step, Where
from .chain import Chain

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.bind import Binding
    from ..runtime.call import Call

_PIECES = 4  # of the second-level cache, that voxels with all their channels may take


@dataclass(eq=False)
class ShareWords(Words):
    channels: Size  # of an item
    voxels: Size  # of a row, that go through scratch memory together


@dataclass(frozen=True)
class Elementwise(Step):
    """Load, chain and store in one, for a chain in which no voxel meets another."""

    load: Load
    chain: Chain
    store: Store

    shares_channels = in_order = True

    @property
    def _all(self) -> tuple[Step, Step, Step]:
        return self.load, self.chain, self.store

    @property
    def words(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (ShareWords, *chain.from_iterable(step.words for step in self._all))

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return tuple(chain.from_iterable(step.call for step in self._all))

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.chain.names

    @property
    def key(self) -> str:
        return f"Elementwise({', '.join(step.key for step in self._all)})"

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        rooms.piece = _piece(where, rooms.channels, rooms.axes[2].tile)
        return tuple(chain.from_iterable(step.scratch(where, rooms) for step in self._all))

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.elementwise import emit_elementwise

        share, *rest = words
        emit_elementwise(tile, self, share, *_shared_out(self._all, rest, call))

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        tiling = binding.tiling
        piece = _piece(binding.where, binding.planned.sweep.shape[1], tiling.tile[2])
        own = ShareWords(tiling.share.channels, piece)
        return (own, *self.load.bind(binding, rooms[:1]), *self.chain.bind(binding, rooms[1:]))

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return tuple(chain.from_iterable(step.bind_call(call) for step in self._all))

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        return chain.from_iterable(step.describe(plan, planned) for step in self._all)


def _piece(where: Where, channels: int, width: int) -> int:
    """Voxels of a row that go through scratch memory together, with all their channels."""
    room = where.machine.l2 // _PIECES // (channels * where.item)
    return min(width, round_up(max(1, room), where.lanes))


def _shared_out(steps: tuple[Step, ...], words: Any, call: Any) -> tuple[list[Any], list[Any]]:
    """The sets of words of several steps -> those of each."""
    sets, calls = iter(words), iter(call)
    return [[next(sets) for _ in step.words] for step in steps], [[next(calls) for _ in step.call] for step in steps]
