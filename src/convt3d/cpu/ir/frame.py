"""The frame of a kernel: words from one table, tiles drawn from a shared counter, scratch per worker.

`void run(ptr table, i64 worker)`: the table holds the sets of words that a sweep and its steps declare (cpu/words.py),
one after the other, as i64. Native code beside the kernels is given such a table, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llvmlite import ir

from ..plan.geometry import STEP_WORDS
from ..plan.machine import ARM, Machine
from ..words import Field, SweepCall, SweepWords, Words, layout, places
from .bounds import CheckedBuilder, with_regions
from .builder import Builder, define
from .values import FLOAT64, I64, PTR, Instructions, Number, Storage, size_of, vector

Row = TypeVar("Row", bound=Words)
AXES = (0, 1, 2)  # depth, height, width


def instructions_of(machine: Machine) -> Instructions:
    arm = machine.isa in ARM
    f16c = machine.has("f16c")
    return Instructions(fma=machine.has("fma") or arm, half=f16c or arm, narrowing_store=f16c)


def define_for(
    machine: Machine, module: ir.Module, name: str, arguments: list[tuple[str, ir.Type]], **options: Any
) -> Builder:
    """A function that generated code calls."""
    if machine.check_bounds:
        arguments, options = with_regions(arguments), {**options, "builder": CheckedBuilder}
    return define(module, name, arguments, instructions=instructions_of(machine), **options)


@dataclass(frozen=True)
class Scratch:
    """A Buffer as code sees it: (channels, pitch) numbers of this worker."""

    pointer: ir.Value
    pitch: ir.Value


class _Set:
    """Gives the fields of one set of words."""

    def __init__(self, table: Table, words: type[Words], at: int) -> None:
        self.table, self.at = table, at
        self.fields = {field.name: field for field in layout(words, table.checked)[0]}
        self.label = words.__name__

    def field(self, own: Words, name: str) -> Any:
        field = self.fields[name]
        self.table.used.add((type(own), name))
        each = [self._one(field, self.at + field.at + number * field.size) for number in range(max(field.times, 1))]
        return tuple(each) if field.times else each[0]

    def _one(self, field: Field, at: int) -> Any:
        table, label = self.table, f"{self.label}.{field.name}"
        if field.kind == "array":
            return table.array(at, label)
        if field.kind == "buffer":
            return table.scratch(at, label)
        return table.routine(at) if field.kind == "routine" else table.word(at)


class Table:
    """The table that a function is given: sets of words, of which one says where faults are noted. A word that is asked
    for is loaded once, at the start of the function."""

    def __init__(self, b: Builder, sets: Sequence[type[Words]]) -> None:
        self.b = b
        self.checked = isinstance(b, CheckedBuilder)
        self.used: set[tuple[type[Words], str]] = set()  # fields that the code reads
        starts = places(sets, self.checked)
        self.sets = [words.read_by(_Set(self, words, at)) for words, at in zip(sets, starts, strict=False)]
        if isinstance(b, CheckedBuilder):
            b.trust(b.args["table"])
            b.faults = next(words.faults for words in self.sets if "faults" in words.__dataclass_fields__)

    def word(self, at: int) -> ir.Value:
        """An i64 of the table."""
        with self.b.raw.goto_entry_block():
            return self.b.load(self.b.args["table"], at, I64)

    def routine(self, at: int) -> ir.Value:
        """An address of the table, of a function or of memory that is not checked."""
        value = self.word(at)
        with self.b.raw.goto_entry_block():
            return self.b.raw.inttoptr(value, PTR)

    def array(self, at: int, name: str) -> ir.Value:
        """The address of an array; where accesses are checked, its region follows."""
        pointer = self.routine(at)
        if isinstance(self.b, CheckedBuilder):
            self.b.confine(pointer, self.word(at + 1), self.word(at + 2), name)
        return pointer

    def scratch(self, at: int, name: str) -> Any:
        raise TypeError(f"{name}: only the kernel of a sweep has scratch memory")

    def row(self, words: type[Row], b: Builder, row: ir.Value) -> Row:
        """A row of a table that is a set of sizes, read by the function that `b` writes."""
        self.used.update((words, field.name) for field in layout(words, False)[0])
        return words(**{field.name: b.load(row, field.at, I64) for field in layout(words, False)[0]})


class Kernel(Table):
    """What every emitter needs: the builder, the vector width, the sets of words and the current tile's geometry."""

    def __init__(self, name: str, machine: Machine, storage: Storage, sets: Sequence[type[Words]]) -> None:
        """`sets` begin with SweepWords, or with others that have `items` and `scratch_size`, and hold one SweepCall."""
        self.module = ir.Module(name)
        self.machine = machine
        self.storage = storage
        self.number = storage.arithmetic
        self.wide = storage == FLOAT64
        self.lanes = machine.lanes(8 if self.wide else 4)
        self.instructions = instructions_of(machine)
        entry = [("table", PTR), ("worker", I64)]
        builder = CheckedBuilder if machine.check_bounds else None
        super().__init__(define(self.module, "run", entry, instructions=self.instructions, builder=builder), sets)
        self.sweep: SweepWords = self.sets[0]
        self.call: SweepCall = next(words for words in self.sets if isinstance(words, SweepCall))
        self._square: ir.Value | None = None
        self._rows: list[ir.Value] = []
        self.sample: ir.Value | None = None
        self.first_channel: Number = 0  # of those in the buffers: a tile may take its channels in parts
        self.item: ir.Value | None = None  # of a tile, whichever share of its channels
        self.share: ir.Value | None = None

    def define(self, name: str, arguments: list[tuple[str, ir.Type]], noalias: tuple[str, ...] = ()) -> Builder:
        """A function of this kernel."""
        return define_for(self.machine, self.module, name, arguments, internal=True, noalias=noalias)

    def scratch(self, at: int, name: str) -> Scratch:
        """A buffer of this worker: offset and pitch, and its length where accesses are checked."""
        offset, pitch = self.word(at), self.word(at + 1)
        memory, size, b = self.call.scratch, self.sweep.scratch_size, self.b
        with b.raw.goto_entry_block():
            pointer = b.at(memory, b.add(b.mul(b.args["worker"], size), offset), self.number)
        if isinstance(b, CheckedBuilder):
            length = self.word(at + 2)
            with b.raw.goto_entry_block():
                begin = b.raw.ptrtoint(pointer, I64)
                b.confine(pointer, begin, b.i64(b.add(begin, b.mul(length, size_of(self.number)))), name)
        return Scratch(pointer, pitch)

    def behind(self, buffer: Scratch, place: Number) -> Scratch:
        """What lies behind this place of a buffer."""
        return Scratch(self.b.at(buffer.pointer, place, self.number), buffer.pitch)

    def constant(self, table: ir.Value, at: int) -> ir.Value:
        """A number of a table of stage constants, splat over a vector at the start of `run`."""
        with self.b.raw.goto_entry_block():
            return self.b.splat(self.b.load(table, at, self.number), self.lanes)

    def square(self) -> ir.Value:
        """Room on the stack for as many vectors as each has lanes."""
        if self._square is None:
            with self.b.raw.goto_entry_block():
                room = self.b.raw.alloca(vector(self.number, self.lanes), self.lanes)
                begin = self.b.raw.ptrtoint(room, I64)
                self._square = self.b.raw.inttoptr(begin, PTR)
                if isinstance(self.b, CheckedBuilder):
                    end = self.b.i64(self.b.add(begin, self.lanes * self.lanes * size_of(self.number)))
                    self.b.confine(self._square, begin, end, "square")
        return self._square

    def span(self, axis: int, step: int, word: int) -> ir.Value:
        """A number from the current tile's row of an axis table."""
        return self.b.load(self._rows[axis], step * STEP_WORDS + word, I64)

    def spans(self, step: int, word: int) -> tuple[ir.Value, ir.Value, ir.Value]:
        d, h, w = (self.span(axis, step, word) for axis in AXES)
        return d, h, w

    def begin_tile(self, item: ir.Value) -> None:
        """Splits the item number into share, sample and tile, and finds the tile's rows in the axis tables. A share's
        weights serve all samples and tiles before those of the next are fetched."""
        b = self.b
        tiles = b.sdiv(self.sweep.items, self.sweep.shares)
        self.share, self.item = b.sdiv(item, tiles), b.srem(item, tiles)
        rest: Number = self.item
        rows: list[ir.Value] = []
        for count, table in zip(reversed(self.sweep.tiles), reversed(self.sweep.tables), strict=True):
            tile = b.srem(rest, count)
            rest = b.sdiv(rest, count)
            rows.append(b.at(table, b.mul(tile, self.sweep.row_words), I64))
        self._rows = rows[::-1]
        self.sample = b.i64(rest)

    def dot(self, *pairs: tuple[Number, Number]) -> Number:
        """Sum of products: an offset from indices and strides."""
        total: Number = 0
        for index, stride in pairs:
            total = self.b.add(total, self.b.mul(index, stride))
        return total
