"""One sweep of an execution: what its steps ask for to fill their words, and those words again for the next call, in
which only addresses are others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...plan.names import OUTPUT, ArrayName, OperandName
from ...spec.lazy import lazy
from ..plan.machine import LINE
from ..plan.plan import Plan
from ..plan.rooms import rows_together
from ..words import DestinationCall, SourceCall, StripsCall, SweepCall, VectorCall, Words
from .bind import BEFORE, COUNTER, Binding
from .blocks import channels_adjacent, transposing_code
from .build import Code
from .regions import faults
from .team import launch

if TYPE_CHECKING:
    from .execute import Run

Array = npt.NDArray[Any]
Asked: TypeAlias = "tuple[str, ArrayName | None]"  # how a step asks for an array: what for, and its name

_LAYOUTS = 64  # of arrays, for which a sweep's words are kept
_SCRATCH: Asked = ("scratch", None)


class Filled(NamedTuple):
    """The table of a call that was."""

    template: Array
    places: tuple[tuple[int, Asked], ...]  # words that are addresses of a call's own arrays
    counter: int  # the word that is the counter's address
    blocks: Code | None  # held, for the table points to it


_ALL = 1 << 31  # more groups, and more blocks, than there are


class Call:
    """One sweep of an execution: what its steps ask for to fill their words."""

    def __init__(self, run: Run, binding: Binding) -> None:
        self.run, self.binding, self.machine = run, binding, run.plan.machine
        sweep = binding.planned.sweep
        self._dest = None if sweep.dest is None else run.dest(sweep.dest, sweep.result)
        self._blocks: Code | None = None  # code for arrays whose channels lie side by side, held until the call is over
        self._asked: list[tuple[Array | int, Asked]] = []  # what steps were given, and how they asked for it

    def repeat(self, scratch: Array, threads: int) -> bool:
        """Runs it by the words of a call before, for arrays of the same layout: only addresses are filled in. False
        where there was none."""
        binding = self.binding
        known = binding.filled.get(self._layout())
        if known is None:
            return False
        table, held = known.template.copy(), []
        for at, how in known.places:
            value = scratch if how is _SCRATCH else self._given(how)
            held.append(value)
            table[at] = value if type(value) is int else value.ctypes.data  # type: ignore[union-attr]
        address = table.ctypes.data
        table[known.counter] = address + 8 * COUNTER
        launch(binding.native["run"], address + 8 * BEFORE, threads)
        del held
        return True

    def _layout(self) -> Hashable:
        """All that the words of a call depend on but addresses."""
        run, streamed = self.run, self.binding.planned.streamed
        own = [(each.shape, each.strides) for each in (*run.arrays.values(), *run.operands)]
        place = self._dest.ctypes.data % LINE if streamed and self._dest is not None else 0
        return place, tuple(own)

    def _given(self, how: Asked) -> Array | int:
        """What a step asked for, in this call."""
        word, name = how
        if word == "array":
            return self.run.array(name)  # type: ignore[arg-type]
        if word == "vector":
            return self._vector(name)  # type: ignore[arg-type]
        found: Array | int = getattr(self, word)
        return found

    def _remember(self, call: Sequence[Words], table: Array, scratch: Array) -> None:
        """Keeps the words for the next call, if it is known where each array among them came from."""
        binding = self.binding
        if self.machine.check_bounds or self.run.strips is not None or len(binding.filled) >= _LAYOUTS:
            return
        asked: dict[int, set[Asked]] = {id(scratch): {_SCRATCH}}
        for value, how in self._asked:
            asked.setdefault(id(value), set()).add(how)
        values = [value for words in call for value in words.__dict__.values()]
        first, places = len(table) - len(values), []
        for at, value in enumerate(values):
            ways = asked.get(id(value), set())
            if len(ways) > 1 or not (ways or type(value) is int or value is binding.no_bias):
                return
            places += [(first + at, how) for how in ways]
        template = table.copy()
        binding.filled[self._layout()] = Filled(template, tuple(places), first, self._blocks)

    def launch(self, scratch: Array, threads: int) -> list[Words]:
        """Runs it; the words that it filled."""
        binding, checked = self.binding, self.machine.check_bounds
        steps = [words for step in binding.planned.structure.steps for words in step.bind_call(self)]
        read, write = (self._blocks.addresses[way] for way in ("read", "write")) if self._blocks else (0, 0)
        if checked:
            scratch[...] = 0xFF  # NaN: what nobody wrote shows
        with faults(binding.planned.structure.name) if checked else nullcontext(0) as noted:
            call: list[Words] = [SweepCall(scratch if checked else 0, scratch, read, write, noted), *steps]
            table, address = binding.table(call)
            self._remember(call, table, scratch)
            launch(binding.native["run"], address, threads)
            del table
        return call

    def _tell(self, value: Array | int, word: str, name: ArrayName | None = None) -> Any:
        """Notes what a step is given. A value in the place of the result is the result."""
        self._asked.append((value, (word, OUTPUT if name in self.run.plan.aliases else name)))
        return value

    def array(self, name: ArrayName) -> SourceCall:
        """Address and strides. Axes of size 1 are repeated where the value is larger."""
        array = self._tell(self.run.array(name), "array", name)
        return SourceCall(array, *self._strides(array))

    def _strides(self, array: Array) -> tuple[int, ...]:
        """In elements; and whether channels lie side by side."""
        item, shape, strides = array.itemsize, array.shape, array.strides
        steps = [stride // item if size > 1 else 0 for stride, size in zip(strides, shape, strict=True)]
        # A value that is not of the caller's type is contiguous, or, with one voxel, as good as that.
        adjacent = item == self.run.plan.dtype.itemsize and channels_adjacent(shape, strides, item)
        if adjacent:
            self._blocks = transposing_code(self.run.plan.dtype.name, self.machine)
        return *steps, int(adjacent)

    def destination(self) -> DestinationCall:
        """Also how the result goes there: rows that one store may run through, whether stores go past the caches,
        whether vectors may go there directly, as they come, and channels that are stored together."""
        dest, planned, tiling = self._dest, self.binding.planned, self.binding.tiling
        assert dest is not None
        b, c, d, h, step, adjacent = self._strides(dest)
        item, width, whole_rows = dest.itemsize, dest.shape[4], tiling.axes[2].count == 1
        dense = not adjacent and (width == 1 or dest.strides[4] == item)
        streamed, direct = False, dense
        if planned.streamed and (dense or adjacent):
            vector, address = self.machine.lanes(self.run.number.itemsize) * item, dest.ctypes.data
            begins = 0 if whole_rows else tiling.tile[2] * item
            if dense:  # no line is written in two parts
                vector = max(vector, LINE)
            if adjacent:  # shares of channels begin inside a voxel
                begins = tiling.share.channels * item if tiling.share.number > 1 else 0
            gaps = [gap for gap, size in zip(dest.strides, dest.shape, strict=True) if size > 1 and gap != item]
            aligned = all(place % vector == 0 for place in (address, *gaps, begins))
            streamed = address % item == 0 and (dense or aligned)
            direct = dense and aligned
        follow = dense and whole_rows and dest.strides[3] == width * item
        return DestinationCall(
            self._tell(dest, "array", self.binding.planned.sweep.dest),
            b,
            c,
            d,
            h,
            w=1 if dense else step,  # also where rows have one element: stores run through them
            rows=rows_together(width) if follow else 1,
            streamed=int(streamed),
            direct=int(direct),
            channels=dest.shape[1] if adjacent else 1,
        )

    def vector(self, name: ArrayName) -> VectorCall:
        """Numbers for each channel: operands are the same for all samples, statistics are not."""
        vector = self._tell(self._vector(name), "vector", name)
        return VectorCall(vector, vector.shape[1] if vector.ndim == 2 else 0)

    def _vector(self, name: ArrayName) -> Array:
        run = self.run
        vector = run.numbers(name)
        if vector.shape == (1,):  # a slope that serves all channels
            vector = np.repeat(vector, max(shape[1] for shape in run.plan.simplified.values))
        return vector

    @property
    def weights(self) -> Array | int:
        weights = self.run.weights  # it holds them
        found: Array | int = self._tell(weights.weights if self.machine.check_bounds else weights.address, "weights")
        return found

    @property
    def bias(self) -> Array:
        plan = self.run.plan
        assert isinstance(plan, Plan)
        places = plan.conv_operands[1:]
        if not places:
            return self.binding.no_bias
        found: Array = self._tell(self.run.numbers(OperandName(places[0])), "bias")
        return found

    @property
    def part(self) -> tuple[int, int, int]:
        """Groups, blocks and channels that go together; all, where channels lie side by side in the destination."""
        dest = self._dest
        if dest is not None and self._strides(dest)[-1]:
            return _ALL, _ALL, _ALL
        return self.binding.tiling.part or (_ALL, _ALL, _ALL)

    def part_of_box(self, source: SourceCall) -> int:
        """Channels of the first step's box that the first-level cache has room for beside what is made of them; all,
        where channels lie side by side."""
        if source.adjacent or (self._dest is not None and self._strides(self._dest)[-1]):
            return _ALL
        (box, *_), *_ = self.binding.tiling.rooms
        return max(1, self.machine.l1d // 2 // (box.pitch * self.run.number.itemsize))

    @property
    def skipped(self) -> Array:
        found: Array = self._tell(self.run.skipped, "skipped")
        return found

    @property
    def strips(self) -> StripsCall:
        assert self.run.strips is not None
        return self.run.strips

    @property
    def partials(self) -> Array:
        """(B, tiles, C, numbers) of statistics."""
        found: Array = self._tell(self._partials, "partials")
        return found

    @lazy
    def _partials(self) -> Array:
        sweep, binding = self.binding.planned.sweep, self.binding
        return np.empty((sweep.shape[0], len(binding.voxels), sweep.result[1], binding.statistics))
