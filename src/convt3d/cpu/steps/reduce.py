"""Statistics of a tile, channel by channel, to be combined when all tiles have theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...plan.sweeps import STATISTICS
from ..words import Array, Words
from .base import Step

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.plan import Plan, SweepPlan
    from ..runtime.call import Call

_IN_WORDS = {
    "sum": "sum",
    "max": "maximum",
    "maxexp": "maximum and sum of exponentials",
    "moments": "mean and sum of squared distances",
}


@dataclass(eq=False)
class ReduceCall(Words):
    partials: Array  # (items, C, numbers) in float64


@dataclass(frozen=True)
class Reduce(Step):
    """Buffer (C, D, H, W) -> partial statistics of the tile."""

    kind: str

    call = (ReduceCall,)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.kind,)

    @property
    def statistics(self) -> int:  # type: ignore[override]
        return STATISTICS[self.kind]

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.reduce import emit_reduce

        value = tile.value, tile.length, tile.channels, tile.all_channels
        emit_reduce(tile.k, call[0].partials, self.kind, *value)

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return (ReduceCall(call.partials),)

    def describe(self, plan: Plan, planned: SweepPlan) -> Iterator[str]:
        yield f"{_IN_WORDS[self.kind]}, for each channel of the tile"
