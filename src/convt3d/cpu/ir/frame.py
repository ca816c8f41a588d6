"""The frame of a kernel: parameters from one table of integers, tiles drawn from a shared counter, scratch per worker.

`void run(ptr parameters, i64 worker)`: `parameters` holds pointers, sizes and strides as i64, by name while the code is
written and by position when it runs; stage constants are in a second table of numbers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ..plan.geometry import STEP_WORDS
from ..plan.machine import Machine
from .bounds import CheckedBuilder, with_regions
from .builder import Builder, define
from .values import FLOAT64, I64, PTR, Instructions, Number, Storage, size_of, vector

AXES = ("d", "h", "w")


def instructions_of(machine: Machine) -> Instructions:
    neon = machine.isa == "neon"
    return Instructions(fma=machine.has("fma") or neon, half=machine.has("f16c") or neon)


def define_for(
    machine: Machine, module: ir.Module, name: str, arguments: list[tuple[str, ir.Type]], **options: Any
) -> Builder:
    """A function that generated code calls."""
    if machine.check_bounds:
        arguments, options = with_regions(arguments), {**options, "builder": CheckedBuilder}
    return define(module, name, arguments, instructions=instructions_of(machine), **options)


class Kernel:
    """What every emitter needs: the builder, the vector width, named parameters and the current tile's geometry."""

    def __init__(self, name: str, machine: Machine, storage: Storage) -> None:
        self.module = ir.Module(name)
        self.machine = machine
        self.storage = storage
        self.number = storage.arithmetic
        self.wide = storage == FLOAT64
        self.lanes = machine.lanes(8 if self.wide else 4)
        self.names: list[str] = []
        self.constants = 0
        self.instructions = instructions_of(machine)
        self._loaded: dict[str, ir.Value] = {}
        entry = [("parameters", PTR), ("worker", I64)]
        checked = CheckedBuilder if machine.check_bounds else None
        self.b: Builder = define(self.module, "run", entry, instructions=self.instructions, builder=checked)
        if isinstance(self.b, CheckedBuilder):
            self.b.trust(self.b.args["parameters"])
            self.b.faults = self.code("faults")
        self._rows: dict[str, ir.Value] = {}
        self.sample: ir.Value | None = None
        self.first_channel: Number = 0  # of those in the buffers: a tile may take its channels in parts
        self.item: ir.Value | None = None

    def define(self, name: str, arguments: list[tuple[str, ir.Type]], noalias: tuple[str, ...] = ()) -> Builder:
        """A function of this kernel."""
        return define_for(self.machine, self.module, name, arguments, internal=True, noalias=noalias)

    def param(self, name: str) -> ir.Value:
        """An i64 from the table, loaded once at the start of `run`."""
        if name not in self._loaded:
            self.names.append(name)
            with self.b.raw.goto_entry_block():
                self._loaded[name] = self.b.load(self.b.args["parameters"], len(self.names) - 1, I64)
        return self._loaded[name]

    def pointer(self, name: str) -> ir.Value:
        """To an array."""
        found = f"*{name}" in self._loaded
        pointer = self.code(name)
        if isinstance(self.b, CheckedBuilder) and not found:
            self.b.confine(pointer, self.param(f"begin {name}"), self.param(f"end {name}"), name)
        return pointer

    def code(self, name: str) -> ir.Value:
        """Pointer to a function."""
        if f"*{name}" not in self._loaded:
            value = self.param(name)
            with self.b.raw.goto_entry_block():
                self._loaded[f"*{name}"] = self.b.raw.inttoptr(value, PTR)
        return self._loaded[f"*{name}"]

    def constant(self) -> ir.Value:
        """The next number of the table of stage constants, splat over a vector."""
        self.constants += 1
        pointer = self.pointer("constants")
        key = f"#{self.constants}"
        with self.b.raw.goto_entry_block():
            self._loaded[key] = self.b.splat(self.b.load(pointer, self.constants - 1, self.number), self.lanes)
        return self._loaded[key]

    def square(self) -> ir.Value:
        """Room on the stack for as many vectors as each has lanes."""
        if "square" not in self._loaded:
            with self.b.raw.goto_entry_block():
                room = self.b.raw.alloca(vector(self.number, self.lanes), self.lanes)
                begin = self.b.raw.ptrtoint(room, I64)
                self._loaded["square"] = self.b.raw.inttoptr(begin, PTR)
                if isinstance(self.b, CheckedBuilder):
                    end = self.b.i64(self.b.add(begin, self.lanes * self.lanes * size_of(self.number)))
                    self.b.confine(self._loaded["square"], begin, end, "square")
        return self._loaded["square"]

    def buffer(self, name: str) -> ir.Value:
        """Address of a scratch buffer of this worker."""
        key = f"@{name}"
        if key not in self._loaded:
            offset, scratch, size = self.param(f"buffer {name}"), self.pointer("scratch"), self.param("scratch size")
            with self.b.raw.goto_entry_block():
                start = self.b.add(self.b.mul(self.b.args["worker"], size), offset)
                self._loaded[key] = self.b.at(scratch, start, self.number)
            if isinstance(self.b, CheckedBuilder):
                self._confine_buffer(self.b, name)
        return self._loaded[key]

    def begin_buffer(self, name: str, place: Number) -> None:
        """From here on, the buffer is what lies behind this place of it."""
        self._loaded[f"@{name}"] = self.b.at(self.buffer(name), place, self.number)

    def _confine_buffer(self, b: CheckedBuilder, name: str) -> None:
        length, buffer = self.param(f"size {name}"), self._loaded[f"@{name}"]
        with b.raw.goto_entry_block():
            begin = b.raw.ptrtoint(buffer, I64)
            b.confine(buffer, begin, b.i64(b.add(begin, b.mul(length, size_of(self.number)))), f"buffer {name}")

    def span(self, axis: str, step: int, word: int) -> ir.Value:
        """A number from the current tile's row of an axis table."""
        return self.b.load(self._rows[axis], step * STEP_WORDS + word, I64)

    def spans(self, step: int, word: int) -> tuple[ir.Value, ir.Value, ir.Value]:
        d, h, w = (self.span(axis, step, word) for axis in AXES)
        return d, h, w

    def begin_tile(self, item: ir.Value) -> None:
        """Splits the item number into sample and tile, and finds the tile's rows in the axis tables."""
        b, rest = self.b, item
        self.item = item
        self._rows = {}
        words = self.param("row words")
        for axis in reversed(AXES):
            count = self.param(f"tiles {axis}")
            tile = b.srem(rest, count)
            rest = b.sdiv(rest, count)
            self._rows[axis] = b.at(self.pointer(f"table {axis}"), b.mul(tile, words), I64)
        self.sample = rest

    def dot(self, *pairs: tuple[Number, Number]) -> Number:
        """Sum of products: an offset from indices and strides."""
        total: Number = 0
        for index, stride in pairs:
            total = self.b.add(total, self.b.mul(index, stride))
        return total
