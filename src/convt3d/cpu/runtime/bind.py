"""A sweep of a plan with its kernel, and all of the kernel's table that does not change from call to call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...spec.lazy import lazy
from ...spec.stages import Conv3d
from ..plan.geometry import STEP_WORDS
from ..plan.plan import Plan, SweepPlan
from ..plan.tail_plan import TailPlan
from ..plan.tiles import Tiling
from ..steps.base import Where
from ..words import SweepWords, Words, call_numbers, places
from .build import Code
from .kernels import kernel
from .packing import WeightLayout

if TYPE_CHECKING:
    from .call import Filled

_SHARED_FROM = 1_000_000  # operations

# Words before the table, among which the counter of tiles has a cache line of its own.
BEFORE, COUNTER = 16, 8


@dataclass
class Binding:
    plan: Plan | TailPlan
    planned: SweepPlan

    @property
    def where(self) -> Where:
        return self.planned.where

    @property
    def tiling(self) -> Tiling:
        return self.planned.tiling

    @property
    def number(self) -> str:
        """The type of arithmetic."""
        return self.plan.dtype.accumulate

    @lazy
    def native(self) -> Code:
        return kernel(self.planned.structure, self.plan.machine)

    @lazy
    def filled(self) -> dict[Hashable, Filled]:
        """Words of calls that were, by the layout of their arrays."""
        return {}

    @lazy
    def items(self) -> int:
        return self.tiling.items * -(-self.plan.trace.values[0][0] // self.where.beside)

    @lazy
    def worth_sharing(self) -> bool:
        """Whether the sweep takes longer than it takes to wake another thread, some ten microseconds."""
        return self.plan.operations > _SHARED_FROM

    @lazy
    def voxels(self) -> npt.NDArray[np.float64]:
        """Voxels of each tile, in the order of items."""
        axes = []
        for axis in self.tiling.axes:
            ranges = [axis.spans(number)[-1].write for number in range(axis.count)]
            axes.append(np.array([high - low for low, high in ranges], dtype=np.float64))
        return (axes[0][:, None, None] * axes[1][:, None] * axes[2]).reshape(-1)

    @lazy
    def statistics(self) -> int:
        """Numbers that a tile leaves for each channel; 0 when the sweep makes none."""
        return sum(step.statistics for step in self.planned.structure.steps)

    @lazy
    def weights(self) -> WeightLayout | None:
        tile = self.planned.register_tile
        if tile is None:
            return None
        where = self.where
        by_output, pairs = isinstance(where.pipeline.conv, Conv3d), where.together > 1
        return WeightLayout.of(where.groups, where.method, tile, self.number, by_output, pairs, where.deep)

    @lazy
    def no_bias(self) -> npt.NDArray[np.floating]:
        return np.zeros(self.where.out_channels, self.number)

    @lazy
    def sets(self) -> tuple[Words, ...]:
        """The words that the plan fills; they hold the arrays that the table points to."""
        tiling = self.tiling
        sweep = SweepWords(
            items=self.items,
            shares=tiling.share.number,
            channels=self.planned.sweep.shape[1],
            row_words=len(tiling.axes[0].spans(0)) * STEP_WORDS,
            tiles=tiling.counts,
            tables=tuple(axis.table() for axis in tiling.axes),
            scratch_size=tiling.scratch // np.dtype(self.number).itemsize,
        )
        steps = zip(self.planned.structure.steps, tiling.rooms, strict=True)
        return (sweep, *(words for step, rooms in steps for words in step.bind(self, rooms)))

    @lazy
    def _template(self) -> npt.NDArray[np.int64]:
        """What stands before the table, the words of the plan, and room for those of a call."""
        structure, checked = self.planned.structure, self.plan.machine.check_bounds
        declared, given = structure.words, [type(words) for words in self.sets]
        if declared != given:
            raise TypeError(f"steps declare {declared} and give {given}")
        known = [number for words in self.sets for number in words.numbers(checked)]
        return np.array([0] * BEFORE + known + [0] * self._call_size, dtype=np.int64)

    def table(self, call: Sequence[Words]) -> tuple[npt.NDArray[np.int64], int]:
        """The table of one call, an array to be kept alive as `call` is, and its address. The counter of tiles, which
        the first set of a call points to, lies before the table."""
        checked, template = self.plan.machine.check_bounds, self._template
        if tuple(map(type, call)) != self._call_types:  # a kernel must never see a pointer that nobody set
            raise TypeError(f"steps declare {self._call_types} and give {tuple(map(type, call))}")
        table = template.copy()
        known = len(template) - self._call_size
        table[known:] = call_numbers(call, checked)
        address = table.ctypes.data
        table[known] = address + 8 * COUNTER
        if checked:
            table[known + 1 : known + 3] = address + 8 * COUNTER, address + 8 * (COUNTER + 1)
        return table, address + 8 * BEFORE

    @lazy
    def _call_types(self) -> tuple[type[Words], ...]:
        return tuple(self.planned.structure.call_words)

    @lazy
    def _call_size(self) -> int:
        return places(self.planned.structure.call_words, self.plan.machine.check_bounds)[-1]
