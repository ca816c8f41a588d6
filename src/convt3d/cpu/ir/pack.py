"""Packs weights: each row of the kernel's order is a sum of taps, computed in float64 and rounded once.

The code serves every layout. What to add up is in tables, which cpu/runtime/packing.py writes:

    taps[channel][row][tap]  ->  slots[tap][row]       one channel, one block of rows at a time, as float64
    slots[...]               ->  slots[further][row]   sums that several others share, in the table's order
    slots[...]               ->  packed[...][channel][row]
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from .bounds import CheckedBuilder
from .builder import Builder, define
from .values import F32, F64, I64, PTR, constant, size_of, vector

_TYPES = {"float32": F32, "float64": F64}


def pack_ir(fields: Sequence[str], lanes: int, stored: str, number: str, check_bounds: bool = False) -> str:
    """void pack(ptr table, i64 thread), from weights of the type `stored` to `number`; `lanes` rows are added up
    together. `fields` are the words of the table, in order."""
    module = ir.Module("pack")
    b = define(module, "pack", [("table", PTR), ("thread", I64)], builder=CheckedBuilder if check_bounds else None)
    _Pack(b, fields, lanes, _TYPES[stored], _TYPES[number]).write()
    b.ret()
    return str(module)


class _Pack:
    def __init__(self, b: Builder, fields: Sequence[str], lanes: int, stored: ir.Type, number: ir.Type) -> None:
        self.b, self.lanes, self.stored, self.number = b, lanes, stored, number
        if isinstance(b, CheckedBuilder):
            b.trust(b.args["table"])
        self.word = {name: b.load(b.args["table"], at, I64) for at, name in enumerate(fields)}
        if isinstance(b, CheckedBuilder):
            b.faults = b.raw.inttoptr(self.word["faults"], PTR)
        self.slots = b.at(self.address("slots"), b.mul(b.args["thread"], self.word["slots of a thread"]), F64)

    def address(self, name: str) -> ir.Value:
        pointer = self.b.raw.inttoptr(self.word[name], PTR)
        if isinstance(self.b, CheckedBuilder):
            self.b.confine(pointer, self.word[f"begin {name}"], self.word[f"end {name}"], name)
        return pointer

    def write(self) -> None:
        b, word = self.b, self.word
        largest = b.at(self.address("largest"), b.args["thread"], I64)
        with b.drawn_from(self.address("counter"), word["items"]) as item:
            group = b.sdiv(item, word["items of a group"])
            first = b.mul(b.srem(item, word["items of a group"]), word["channels of an item"])
            last = b.min(b.add(first, word["channels of an item"]), word["channels"])
            with b.loop(0, word["count of blocks"]) as block:
                row, rows = self._entry("blocks", block, 2)
                with b.loop(first, last) as channel:
                    self._spread(group, channel, row, rows, largest)
                    with b.loop(0, rows, self.lanes) as at:
                        self._add_up(group, channel, row, rows, at)

    def _spread(self, group: ir.Value, channel: ir.Value, row: ir.Value, rows: ir.Value, largest: ir.Value) -> None:
        """Taps of a channel become slots; their magnitudes, whose bits are ordered like them, NaN being the largest."""
        b, word = self.b, self.word
        place = b.mul(b.add(b.mul(b.add(b.mul(group, word["channels"]), channel), word["rows"]), row), word["taps"])
        taps = b.at(self.address("weights"), place, self.stored)
        bits = ir.IntType(8 * size_of(self.stored))
        with b.loop_carrying(0, rows, 1, [b.load(largest, 0, I64)]) as (at, seen):
            start = b.mul(at, word["taps"])
            with b.loop_carrying(0, word["taps"], 1, seen.values) as (tap, found):
                value = b.load(taps, b.add(start, tap), self.stored)
                b.store(b.cast(value, F64), self.slots, b.add(b.mul(tap, word["pitch"]), at))
                magnitude = b.bits("and_", b.bitcast(value, bits), (1 << (bits.width - 1)) - 1)
                found.next = [b.max(found.values[0], b.cast(magnitude, I64))]
            seen.next = found.result
        b.store(seen.result[0], largest, 0)

    def _add_up(self, group: ir.Value, channel: ir.Value, row: ir.Value, rows: ir.Value, at: ir.Value) -> None:
        """The rows from `at` of the block: sums into slots, then those that are results."""
        b, word = self.b, self.word
        with b.loop(0, word["count of shared"]) as number:
            slot, *terms = self._entry("shared", number, 3)
            b.store(self._sum(terms, at), self.slots, b.add(b.mul(slot, word["pitch"]), at))
        packed = b.at(self.address("packed"), b.mul(group, word["numbers of a group"]), self.number)
        with b.loop(0, word["count of results"]) as number:
            start, apart, step, *terms = self._entry("results", number, 5)
            of_block = b.add(start, b.mul(row, apart))
            place = b.add(of_block, b.add(b.mul(b.add(step, channel), rows), at))
            b.store(b.cast(self._sum(terms, at), self.number), packed, place, count=b.sub(rows, at))

    def _entry(self, table: str, number: ir.Value, words: int) -> list[ir.Value]:
        b = self.b
        return [b.load(self.address(table), b.add(b.mul(number, words), at), I64) for at in range(words)]

    def _sum(self, terms: list[ir.Value], at: ir.Value) -> ir.Value:
        """Begins with -0, which changes nothing it is added to: a zero keeps its sign."""
        b = self.b
        first, behind = terms
        pairs = self.address("terms")
        with b.loop_carrying(first, behind, 1, [constant(vector(F64, self.lanes), -0.0)]) as (term, total):
            slot = b.load(pairs, b.mul(term, 2), I64)
            factor = b.load(pairs, b.add(b.mul(term, 2), 1), F64)
            rows = b.load(self.slots, b.add(b.mul(slot, self.word["pitch"]), at), F64, self.lanes)
            total.next = [b.multiply_add(b.splat(factor, self.lanes), rows, total.values[0])]
        return total.result[0]
