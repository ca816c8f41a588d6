"""The micro-kernel: sums of outer products, over the positions of a box.

    sums[tap][row][column] = (the same, if something was summed before) + sum over positions of
                             numbers[tap's place + row] * vectors[tap's place + column]

A number is broadcast over the lanes, or is itself a vector. Taps move one of the two operands.
"""

from __future__ import annotations

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, constant, vector
from ..words import row_length
from .registers import Registers
from .words import TapWords

BOX = ("samples", "depth", "height", "width")


def outer_kernel(k: Kernel, r: Registers, columns: int) -> ir.Function:
    """For `columns` of the r.columns vectors of a block, and all blocks of numbers, which are `block` apart."""
    name = f"outer_{r.rows}x{columns}"
    if name not in k.module.globals:
        pointers = [(word, PTR) for word in ("numbers", "vectors", "sums", "taps")]
        steps = [(f"{side}_{axis}", I64) for side in ("number", "vector") for axis in BOX]
        sizes = [(axis, I64) for axis in BOX]
        more = [(word, I64) for word in ("before", "blocks", "block")]
        b = k.define(name, [*pointers, *sizes, *steps, *more], noalias=("numbers", "vectors", "sums"))
        size = r.taps * r.rows * r.columns * k.lanes
        with b.loop(0, b.args["blocks"]) as block, b.loop(0, r.block // r.rows) as part:
            number = b.add(b.mul(block, b.args["block"]), b.mul(part, r.rows))
            _Outer(k, b, r, columns).write(number, b.mul(b.add(b.mul(block, r.block // r.rows), part), size))
        b.ret()
    return k.module.globals[name]


class _Outer:
    def __init__(self, k: Kernel, b: Builder, r: Registers, columns: int) -> None:
        self.k, self.b, self.r, self.columns = k, b, r, columns
        offsets: list[Number] = [0]
        if r.taps > 1:
            rows = (b.at(b.args["taps"], tap * row_length(TapWords), I64) for tap in range(r.taps))
            offsets = [k.row(TapWords, b, row).offset for row in rows]
        moved = "vectors" if r.lanes_along == "large" else "numbers"
        self.numbers, self.vectors = (
            [b.at(b.args[name], offset, k.number) if name == moved else b.args[name] for offset in offsets]
            for name in ("numbers", "vectors")
        )

    def write(self, number: Number, first: Number) -> None:
        """The sums from `first` on, of the numbers from `number` on."""
        k, b, r, lanes = self.k, self.b, self.r, self.k.lanes
        zero = constant(vector(k.number, lanes), 0.0)
        found = self._over(BOX, [zero] * (r.taps * r.rows * self.columns), number, 0)
        rows = [(tap * r.rows + row) * r.columns for tap in range(r.taps) for row in range(r.rows)]
        places = [(row + column) * lanes for row in rows for column in range(self.columns)]
        sums = b.at(b.args["sums"], first, k.number)
        with b.if_else(b.compare("==", b.args["before"], 0)) as (alone, joined):
            with alone:
                alone.values = found
            with joined:
                before = [b.load(sums, place, k.number, lanes) for place in places]
                joined.values = [b.add(*pair) for pair in zip(before, found, strict=True)]
        for place, value in zip(places, alone.merged, strict=True):
            b.store(value, sums, place)

    def _over(self, axes: tuple[str, ...], sums: list[ir.Value], number: Number, along: Number) -> list[ir.Value]:
        """The sums after the loops over these axes of the box."""
        if not axes:
            return self._products(sums, number, along)
        b, (axis, *rest) = self.b, axes
        with b.loop_carrying(0, b.args[axis], 1, sums) as (index, carried):
            places = (
                b.add(place, b.mul(index, b.args[f"{side}_{axis}"]))
                for side, place in (("number", number), ("vector", along))
            )
            carried.next = self._over(tuple(rest), carried.values, *places)
        return carried.result

    def _products(self, sums: list[ir.Value], number: Number, along: Number) -> list[ir.Value]:
        """One position. What there is less of is held in registers, the other read as it is needed."""
        b, r, columns = self.b, self.r, self.columns
        taps = range(r.taps)
        apart = r.lanes_along == "small" or r.taps == 1  # each tap has numbers of its own
        if apart:
            vectors = [self._vector(0, column, along) for column in range(columns)]
            pairs = [
                (self._number(tap, row, number), vectors[column])
                for tap in taps
                for row in range(r.rows)
                for column in range(columns)
            ]
        else:
            numbers = [self._number(0, row, number) for row in range(r.rows)]
            moved = [[self._vector(tap, column, along) for column in range(columns)] for tap in taps]
            pairs = [(one, vector) for tap in taps for one in numbers for vector in moved[tap]]
        return [b.multiply_add(*pair, total) for pair, total in zip(pairs, sums, strict=True)]

    def _number(self, tap: int, row: int, place: Number) -> ir.Value:
        b, k = self.b, self.k
        if self.r.by_group:
            return b.load(self.numbers[tap], b.add(place, row * k.lanes), k.number, k.lanes)
        return b.splat(b.load(self.numbers[tap], b.add(place, row), k.number), k.lanes)

    def _vector(self, tap: int, column: int, place: Number) -> ir.Value:
        b, k = self.b, self.k
        return b.load(self.vectors[tap], b.add(place, column * k.lanes), k.number, k.lanes)
