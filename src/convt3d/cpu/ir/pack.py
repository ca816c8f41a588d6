"""Packs weights: each row of the kernel's order is a sum of taps, computed in float64 and rounded once, or one tap.

The code serves every layout. What to add up is in tables, which cpu/runtime/packing.py writes:

    taps[channel][row][tap]  ->  slots[tap][row]       one channel, one block of rows at a time, as float64
    slots[...]               ->  slots[further][row]   sums that several others share, in the table's order
    slots[...]               ->  packed[...][channel][row]

Where each row is one tap, taps are moved to their places at once.
"""

from __future__ import annotations

from llvmlite import ir

from ..words import BlockRow, PackWords, ResultRow, SharedRow, row_length
from .bounds import CheckedBuilder
from .builder import define
from .frame import Row, Table
from .values import F32, F64, I64, PTR, constant, size_of, vector

_TYPES = {"float32": F32, "float64": F64}


def emit_pack(lanes: int, stored: str, number: str, moved: bool, check_bounds: bool = False) -> Table:
    """void pack(ptr table, i64 thread), from weights of the type `stored` to `number`; `lanes` rows are added up
    together, unless all rows are `moved`. The table is that of PackWords."""
    entry, builder = [("table", PTR), ("thread", I64)], CheckedBuilder if check_bounds else None
    table = Table(define(ir.Module("pack"), "pack", entry, builder=builder), [PackWords])
    _Pack(table, lanes, _TYPES[stored], _TYPES[number]).write(moved)
    table.b.ret()
    return table


class _Pack:
    def __init__(self, table: Table, lanes: int, stored: ir.Type, number: ir.Type) -> None:
        self.table, self.b, self.lanes, self.stored, self.number = table, table.b, lanes, stored, number
        self.words: PackWords = table.sets[0]

    def write(self, moved: bool) -> None:
        b, words = self.b, self.words
        self.slots = b.at(words.slots, b.mul(b.args["thread"], words.thread_slots), F64)
        largest = b.at(words.largest, b.args["thread"], I64)
        with b.drawn_from(words.counter, words.items) as item:
            group = b.sdiv(item, words.group_items)
            first = b.mul(b.srem(item, words.group_items), words.item_channels)
            last = b.min(b.add(first, words.item_channels), words.channels)
            with b.loop(0, words.block_count) as number:
                block = self._row(BlockRow, words.blocks, number)
                with b.loop(first, last) as channel:
                    if moved:
                        self._move(group, channel, block, largest)
                    else:
                        self._spread(group, channel, block, largest)
                        with b.loop(0, block.rows, self.lanes) as at:
                            self._add_up(group, channel, block, at)

    def _taps(self, group: ir.Value, channel: ir.Value, block: BlockRow) -> ir.Value:
        """Of the block's first row."""
        b, words = self.b, self.words
        start = b.add(b.mul(group, words.group_step), b.mul(channel, words.channel_step))
        return b.at(words.weights, b.add(start, b.mul(block.first, words.row_step)), self.stored)

    def _magnitude(self, value: ir.Value) -> ir.Value:
        """Its bits are ordered like it, NaN being the largest."""
        bits = ir.IntType(8 * size_of(self.stored))
        return self.b.cast(self.b.bits("and_", self.b.bitcast(value, bits), (1 << (bits.width - 1)) - 1), I64)

    def _move(self, group: ir.Value, channel: ir.Value, block: BlockRow, largest: ir.Value) -> None:
        """Taps of a channel go to their places: the first term of a result is its tap."""
        b, words = self.b, self.words
        taps = self._taps(group, channel, block)
        packed = b.at(words.packed, b.mul(group, words.group_numbers), self.number)
        with b.loop_carrying(0, words.result_count, 1, [b.load(largest, 0, I64)]) as (number, seen):
            result = self._row(ResultRow, words.results, number)
            place = self._place(result, channel, block)
            with b.loop_carrying(0, block.rows, 1, seen.values) as (at, found):
                value = b.load(taps, b.add(b.mul(at, words.row_step), result.first), self.stored)
                b.store(b.cast(value, self.number), packed, b.add(place, at))
                found.next = [b.max(found.values[0], self._magnitude(value))]
            seen.next = found.result
        b.store(seen.result[0], largest, 0)

    def _place(self, result: ResultRow, channel: ir.Value, block: BlockRow) -> ir.Value:
        """Of the block's first row."""
        b = self.b
        of_block = b.add(result.place, b.mul(block.first, result.apart))
        return b.add(of_block, b.mul(b.add(result.step, channel), block.rows))

    def _spread(self, group: ir.Value, channel: ir.Value, block: BlockRow, largest: ir.Value) -> None:
        """Taps of a channel become slots."""
        b, words = self.b, self.words
        taps = self._taps(group, channel, block)
        with b.loop_carrying(0, block.rows, 1, [b.load(largest, 0, I64)]) as (at, seen):
            start = b.mul(at, words.row_step)
            with b.loop_carrying(0, words.taps, 1, seen.values) as (tap, found):
                value = b.load(taps, b.add(start, tap), self.stored)
                b.store(b.cast(value, F64), self.slots, b.add(b.mul(tap, words.pitch), at))
                found.next = [b.max(found.values[0], self._magnitude(value))]
            seen.next = found.result
        b.store(seen.result[0], largest, 0)

    def _add_up(self, group: ir.Value, channel: ir.Value, block: BlockRow, at: ir.Value) -> None:
        """The rows from `at` of the block: sums into slots, then those that are results."""
        b, words = self.b, self.words
        with b.loop(0, words.shared_count) as number:
            shared = self._row(SharedRow, words.shared, number)
            b.store(self._sum(shared, at), self.slots, b.add(b.mul(shared.slot, words.pitch), at))
        packed = b.at(words.packed, b.mul(group, words.group_numbers), self.number)
        with b.loop(0, words.result_count) as number:
            result = self._row(ResultRow, words.results, number)
            place = b.add(self._place(result, channel, block), at)
            b.store(b.cast(self._sum(result, at), self.number), packed, place, count=b.sub(block.rows, at))

    def _row(self, words: type[Row], table: ir.Value, number: ir.Value) -> Row:
        return self.table.row(words, self.b, self.b.at(table, self.b.mul(number, row_length(words)), I64))

    def _sum(self, row: SharedRow | ResultRow, at: ir.Value) -> ir.Value:
        """Begins with -0, which changes nothing it is added to: a zero keeps its sign."""
        b, terms = self.b, self.words.terms
        with b.loop_carrying(row.first, row.behind, 1, [constant(vector(F64, self.lanes), -0.0)]) as (term, total):
            slot = b.load(terms, b.mul(term, 2), I64)
            factor = b.load(terms, b.add(b.mul(term, 2), 1), F64)
            rows = b.load(self.slots, b.add(b.mul(slot, self.words.pitch), at), F64, self.lanes)
            total.next = [b.multiply_add(b.splat(factor, self.lanes), rows, total.values[0])]
        return total.result[0]
