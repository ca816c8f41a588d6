"""A kernel with the words of its table that a plan knows; a call adds the others and runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spec.lazy import lazy
from ..plan.machine import Machine
from ..runtime.blocks import channels_adjacent
from ..runtime.compiled import compiled
from ..runtime.regions import faults
from ..runtime.team import launch
from ..words import SourceCall, SweepCall, Words, call_numbers

Array = npt.NDArray[Any]

# Words before the table, among which the counter of items has a cache line of its own.
_BEFORE, _COUNTER = 16, 8


@dataclass(eq=False)
class BoundKernel:
    name: str
    key: str  # determines the code
    write_ir: Callable[[], str]
    sets: Sequence[Words]  # that the plan fills; they hold the arrays that the table points to
    machine: Machine

    @lazy
    def _known(self) -> npt.NDArray[np.int64]:
        """What stands before the table, and its words that the plan fills."""
        numbers = [number for words in self.sets for number in words.numbers(self.machine.check_bounds)]
        return np.array([0] * _BEFORE + numbers, np.int64)

    def launch(self, call: Sequence[Words], scratch: Array, threads: int) -> None:
        """Runs it with the sets of words of one call, which SweepCall precedes."""
        checked = self.machine.check_bounds
        if checked:
            scratch[...] = 0xFF  # NaN: what nobody wrote shows
        code = compiled(self.key, self.write_ir, ("run",), self.machine, name=self.name)
        with faults(self.name) if checked else nullcontext(0) as noted:
            words = call_numbers([SweepCall(scratch, scratch, 0, 0, noted), *call], checked)
            at = len(self._known)
            table = np.empty(at + len(words), np.int64)
            table[:at], table[at:] = self._known, words
            address = table.ctypes.data
            table[_COUNTER], table[at] = 0, address + 8 * _COUNTER
            if checked:
                table[at + 1 : at + 3] = address + 8 * _COUNTER, address + 8 * (_COUNTER + 1)
            launch(code["run"], address + 8 * _BEFORE, threads)


def source_call(array: Array) -> SourceCall:
    """Address and strides of an array (B, C, D, H, W)."""
    item = array.itemsize
    steps = [stride // item if size > 1 else 0 for stride, size in zip(array.strides, array.shape, strict=True)]
    b, c, d, h, w = steps
    return SourceCall(array, b, c, d, h, w, int(channels_adjacent(array.shape, array.strides, item)))
