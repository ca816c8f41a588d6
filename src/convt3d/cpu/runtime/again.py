"""An execution done again, for other arrays of the same layout: all that a call fills in is where they lie.

A small call spends most of its time in finding out what to do. What was found out are the tables of its sweeps, in
which only a few words are the addresses of arrays: the caller's, and those that sweeps leave for the next ones. Each
call takes a table that no other call uses, and gives it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...plan.names import ArrayName
from ..plan.cores import get_num_threads
from ..plan.machine import LINE
from ..words import Words
from .bind import BEFORE, COUNTER, Binding
from .memory import empty, shared_scratch
from .team import launch

Array = npt.NDArray[Any]

_FIRST = 2  # number of the input


class Standing(NamedTuple):
    """A table of its own, with scratch memory, for native code that fills in the addresses itself, a call at a time."""

    function: int
    table: int  # its argument
    threads: int
    counter: int  # address of the word that is 0 when a call begins
    places: list[tuple[int, int]]  # words for an address, and which: of the input, the result, and further arrays
    marks: tuple[int, int]  # address and number of the words that say which samples were left out; 0 again afterwards
    nbytes: int
    kept: object


class _Table(NamedTuple):
    words: memoryview  # what stands before the table, the table, and a word for each sample that is to be computed anew
    address: int
    skipped: Array


Finished: TypeAlias = Callable[[Array], dict[ArrayName, Array]]


class Left(NamedTuple):
    """Arrays that a sweep leaves for later ones, besides the result."""

    value: tuple[int, ...] | None  # the shape of a value between sweeps
    partials: tuple[int, ...] | None  # of statistics of tiles
    finish: Finished | None  # what is made of these


class Again:
    """All sweeps of an execution: each with the arrays that it leaves. Where the result is stored past the caches, how
    depends on its place in a line of them, which must then be `place`."""

    def __init__(
        self, sweeps: Sequence[tuple[SweepAgain, Left]], number: np.dtype[Any], place: int | None = None
    ) -> None:
        self._sweeps, self._number, self._place = tuple(sweeps), number, place

    def __call__(self, *addresses: int) -> bool:
        """Of the input, the result, and the tensors of the value's shape. False: some samples are not computed, since
        Winograd's method cannot, or the result lies elsewhere in a line."""
        if self._place is not None and addresses[1] % LINE != self._place:
            return False
        arrays: list[Array] = []
        for sweep, left in self._sweeps:
            if left.value is not None:
                arrays.append(empty(left.value, self._number))
            if left.partials is not None:
                arrays.append(np.empty(left.partials))
            if not sweep(*addresses, *(array.ctypes.data for array in arrays)):
                return False
            if left.finish is not None:
                arrays += left.finish(arrays[-1]).values()
        return True

    def standing(self) -> Standing | None:
        """The same for native code, where it is one sweep, with as many threads as a call would use now."""
        (sweep, _), *more = self._sweeps
        return None if more or self._place is not None else sweep.standing()


class SweepAgain:
    """One sweep, with its weights and vectors."""

    def __init__(
        self, binding: Binding, call: Sequence[Words], changing: Mapping[int, int], batch: int, kept: object
    ) -> None:
        """`call` are the words of a call that was; `changing` maps the ids of those of its arrays that are another's
        next time to their number: 0 scratch memory, 1 marks of skipped samples, then in the order of a call's
        addresses. `kept` is all that the other words point to."""
        table, _ = binding.table(call)
        first = len(table) - sum(len(words.__dict__) for words in call)
        values = [value for words in call for value in words.__dict__.values()]
        numbers = [changing.get(id(value)) for value in values]
        self._template = np.concatenate([table, np.zeros(batch, np.int64)])
        self._places = [(first + at, number) for at, number in enumerate(numbers) if number is not None]
        self._counter = first  # the first word of a call is its address
        self._batch, self._marks_nothing = batch, 1 not in numbers
        self._kept = kept, [each for each, number in zip(values, numbers, strict=True) if number is None]
        self._binding, self._function = binding, binding.native["run"]
        self._scratch = binding.tiling.scratch
        self._threads = binding.items if binding.worth_sharing else 1
        self._free: list[_Table] = []

    def __call__(self, *addresses: int) -> bool:
        """Of all arrays that change. False: some samples are not computed."""
        try:
            table = self._free.pop()
        except IndexError:
            table = self._table()
        words = table.words
        words[COUNTER] = 0
        threads = self._threads if self._threads == 1 else min(get_num_threads(), self._threads)
        scratch = shared_scratch(self._scratch, threads)
        with scratch as (_, threads):
            given = (scratch.address, table.address + 8 * (len(words) - self._batch), *addresses)
            for at, number in self._places:
                words[at] = given[number]
            launch(self._function, table.address + 8 * BEFORE, threads)
        complete = self._marks_nothing or not table.skipped.any()
        if not complete:
            table.skipped[...] = 0
        self._free.append(table)
        return complete

    def standing(self) -> Standing:
        table = self._table()
        threads = min(get_num_threads(), self._threads)
        scratch = empty(max(1, self._scratch * threads), np.uint8)
        marks = table.address + 8 * (len(table.words) - self._batch)
        for at, number in self._places:
            if number < _FIRST:
                table.words[at] = (scratch.ctypes.data, marks)[number]
        return Standing(
            self._function.address,
            table.address + 8 * BEFORE,
            threads,
            table.address + 8 * COUNTER,
            [(table.address + 8 * at, number - _FIRST) for at, number in self._places if number >= _FIRST],
            (marks, 0 if self._marks_nothing else self._batch),
            scratch.nbytes + len(table.words) * 8,
            (self, table, scratch),
        )

    def _table(self) -> _Table:
        words = self._template.copy()
        address = words.ctypes.data
        words[self._counter] = address + 8 * COUNTER
        return _Table(memoryview(words), address, words[len(words) - self._batch :])
