"""Packs weights: each row of the kernel's order is a sum of taps, computed in float64 and rounded once, or one tap.

The code serves every layout. What to add up is in tables, which cpu/runtime/packing.py writes:

    taps[channel][row][tap]  ->  slots[tap][channel][row]       some channels of one block of rows, as float64
    slots[...]               ->  slots[further][channel][row]   sums that several others share, in the table's order
    slots[...]               ->  packed[...][channel][row]

Where each row is one tap, taps are moved to their places at once. Taps of a channel lie side by side in memory, and in
some layouts those of all channels do: squares of them and of rows are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from llvmlite import ir

from ..words import BlockRow, PackWords, ResultRow, SharedRow, row_length
from .bounds import CheckedBuilder
from .builder import define
from .frame import Row, Table
from .values import F32, F64, I64, PTR, Number, constant, size_of, vector, width_of

_TYPES = {"float32": F32, "float64": F64}
_MOST_TERMS = 3  # of a sum that has code of its own

# Receives the channel, the tap, the first row in the block, and the taps of that row and of those behind it. Lanes
# behind the last row of the block hold whatever.
Sink: TypeAlias = Callable[[Number, Number, Number, ir.Value], None]


def emit_pack(lanes: int, stored: str, number: str, moved: bool, check_bounds: bool = False) -> Table:
    """void pack(ptr table, i64 thread), from weights of the type `stored` to `number`; `lanes` rows are taken together.
    The table is that of PackWords."""
    entry, builder = [("table", PTR), ("thread", I64)], CheckedBuilder if check_bounds else None
    table = Table(define(ir.Module("pack"), "pack", entry, builder=builder), [PackWords])
    _Pack(table, lanes, _TYPES[stored], _TYPES[number]).write(moved)
    table.b.ret()
    return table


class _Pack:
    def __init__(self, table: Table, lanes: int, stored: ir.Type, number: ir.Type) -> None:
        self.table, self.b, self.lanes, self.stored, self.number = table, table.b, lanes, stored, number
        self.words: PackWords = table.sets[0]
        self.bits = ir.IntType(8 * size_of(stored))

    def write(self, moved: bool) -> None:
        b, words = self.b, self.words
        self.slots = b.at(words.slots, b.mul(b.args["thread"], words.thread_slots), F64)
        self.largest = b.at(words.largest, b.args["thread"], I64)
        with b.drawn_from(words.counter, words.items) as item:
            self.group = b.sdiv(item, words.group_items)
            self.packed = b.at(words.packed, b.mul(self.group, words.group_numbers), self.number)
            first = b.mul(b.srem(item, words.group_items), words.item_channels)
            last = b.min(b.add(first, words.item_channels), words.channels)
            with b.loop(0, words.block_count) as number:
                self.block: BlockRow = self._row(BlockRow, words.blocks, number)
                if moved:
                    self._each(first, last, self._move)
                else:
                    with b.loop(first, last, words.together) as some:
                        behind = b.min(b.add(some, words.together), last)
                        self._each(some, behind, partial(self._to_slot, some))
                        self._add_up(some, b.mul(b.sub(behind, some), self.block.rows))

    # ---- taps as they lie in memory ----

    def _each(self, first: Number, last: Number, sink: Sink) -> None:
        """Hands on the taps of the block's rows and of these channels, whose largest magnitude is noted."""
        b, words = self.b, self.words
        start = b.add(b.mul(self.group, words.group_step), b.mul(self.block.first, words.row_step))
        taps = b.at(words.weights, b.add(start, b.mul(first, words.channel_step)), self.stored)
        channels, adjacent = b.sub(last, first), b.compare("==", words.channel_step, words.taps)
        runs = b.select(adjacent, 1, channels)
        length = b.select(adjacent, b.mul(channels, words.taps), words.taps)

        def by(wide: int) -> None:
            """Squares are so wide where runs are long enough."""
            if wide == 1:
                return squares(1)
            with b.if_else(b.compare(">=", length, wide)) as (long, short):
                with long:
                    squares(wide)
                with short:
                    by(wide // 2)

        def squares(wide: int) -> None:
            with b.loop(0, runs) as run, b.loop(0, self.block.rows, self.lanes) as at:
                own = b.at(taps, b.mul(run, words.channel_step), self.stored)
                self._squares(own, length, wide, at, b.add(first, run), sink)

        by(self.lanes)

    def _squares(self, run: ir.Value, length: Number, wide: int, at: Number, first: Number, sink: Sink) -> None:
        """A run of taps, of the channels from `first` on, in the rows from `at` of the block. In the place of rows that
        are not there is the last one, and the last square begins so that it ends with the run."""
        b, words, lanes = self.b, self.words, self.lanes
        last = b.sub(self.block.rows, 1)
        rows = [b.mul(b.min(b.add(at, lane), last), words.row_step) for lane in range(lanes)]
        with b.loop(0, length, wide) as place:
            begin = b.min(place, b.sub(length, wide))
            square = [b.load(run, b.add(row, begin), self.stored, wide) for row in rows]
            channel, tap = b.add(first, b.sdiv(begin, words.taps)), b.srem(begin, words.taps)
            columns, parts = b.interleave(square), lanes // wide
            columns = [self._together(columns[parts * number : parts * (number + 1)]) for number in range(wide)]
            self._note(columns)
            for column in columns:
                sink(channel, tap, at, column)
                tap = b.add(tap, 1)
                over = b.compare("==", tap, words.taps)
                channel, tap = b.select(over, b.add(channel, 1), channel), b.select(over, 0, tap)

    def _together(self, parts: Sequence[ir.Value]) -> ir.Value:
        """One vector of some."""
        if width_of(parts[0].type) == 1:
            return self.b.join(parts)
        while len(parts) > 1:
            every = range(2 * width_of(parts[0].type))
            parts = [self.b.shuffle(*pair, every) for pair in zip(parts[0::2], parts[1::2], strict=True)]
        return parts[0]

    def _note(self, values: Sequence[ir.Value]) -> None:
        """Their bits without the sign are ordered like their magnitudes, NaN being the largest."""
        b = self.b
        every = [b.bits("and_", b.bitcast(each, self.bits), (1 << (self.bits.width - 1)) - 1) for each in values]
        while len(every) > 1:
            every = [b.max(*pair) for pair in zip(every[0::2], every[1::2], strict=True)]
        largest = b.cast(b.reduce(every[0], b.max), I64)
        b.store(b.max(b.load(self.largest, 0, I64), largest), self.largest, 0)

    # ---- where they go ----

    def _move(self, channel: Number, tap: Number, at: Number, rows: ir.Value) -> None:
        """To their places: the result of a tap has its number."""
        b = self.b
        place = self._place(self._row(ResultRow, self.words.results, tap), channel)
        b.store(b.cast(rows, self.number), self.packed, b.add(place, at), count=b.sub(self.block.rows, at))

    def _to_slot(self, first: Number, channel: Number, tap: Number, at: Number, rows: ir.Value) -> None:
        """To the slot of the tap."""
        b = self.b
        place = b.add(b.mul(b.sub(channel, first), self.block.rows), at)
        place = b.add(b.mul(tap, self.words.pitch), place)
        b.store(b.cast(rows, F64), self.slots, place, count=b.sub(self.block.rows, at))

    def _place(self, result: ResultRow, channel: Number) -> Number:
        """Of the block's first row."""
        b, block = self.b, self.block
        of_block = b.add(result.place, b.mul(block.first, result.apart))
        return b.add(of_block, b.mul(b.add(result.step, channel), block.rows))

    # ---- sums ----

    def _add_up(self, first: Number, count: Number) -> None:
        """Of `count` rows, of the channels from `first` on: sums into slots, then those that are results."""
        b, words = self.b, self.words
        with b.loop(0, words.shared_count) as number:
            shared = self._row(SharedRow, words.shared, number)
            slot = b.at(self.slots, b.mul(shared.slot, words.pitch), F64)
            self._sum(shared, count, lambda at, rows: b.store(rows, slot, at))
        with b.loop(0, words.result_count) as number:
            result = self._row(ResultRow, words.results, number)
            place = b.at(self.packed, self._place(result, first), self.number)
            self._sum(
                result,
                count,
                lambda at, rows: b.store(b.cast(rows, self.number), place, at, count=b.sub(count, at)),
            )

    def _sum(self, row: SharedRow | ResultRow, count: Number, sink: Callable[[Number, ir.Value], None]) -> None:
        """For vectors of rows. Begins with -0, which changes nothing it is added to: a zero keeps its sign."""
        b, lanes = self.b, self.lanes
        nothing = constant(vector(F64, lanes), -0.0)

        def term(number: Number) -> tuple[ir.Value, ir.Value]:
            slot = b.load(self.words.terms, b.mul(number, 2), I64)
            factor = b.load(self.words.terms, b.add(b.mul(number, 2), 1), F64)
            return b.at(self.slots, b.mul(slot, self.words.pitch), F64), b.splat(factor, lanes)

        def plus(one: tuple[ir.Value, ir.Value], at: Number, total: ir.Value) -> ir.Value:
            return b.multiply_add(one[1], b.load(one[0], at, F64, lanes), total)

        def of(terms: int) -> None:
            if terms > _MOST_TERMS:
                with b.loop(0, count, lanes) as at:
                    with b.loop_carrying(row.first, row.behind, 1, [nothing]) as (number, found):
                        found.next = [plus(term(number), at, found.values[0])]
                    sink(at, found.result[0])
                return
            with b.if_else(b.compare("==", b.sub(row.behind, row.first), terms)) as (these, others):
                with these:
                    own = [term(b.add(row.first, number)) for number in range(terms)]
                    with b.loop(0, count, lanes) as at:
                        total = nothing
                        for each in own:
                            total = plus(each, at, total)
                        sink(at, total)
                with others:
                    of(terms + 1)

        of(1)

    def _row(self, words: type[Row], table: ir.Value, number: Number) -> Row:
        return self.table.row(words, self.b, self.b.at(table, self.b.mul(number, row_length(words)), I64))
