"""Where each window of a max-pool has its largest value, as PyTorch says it: the first one, or the last NaN, going
along the width, then the height, then the depth."""

from __future__ import annotations

import math

from llvmlite import ir

from ..ir.frame import Kernel, Scratch
from ..ir.values import F64, I32, I64, Number, constant, vector
from ..plan.geometry import READ, READ_COUNT, WRITE, WRITE_COUNT
from ..steps.argmax import ArgmaxWords
from .pool import window_range


def emit_argmax(k: Kernel, words: ArgmaxWords, step: int, source: Scratch, channels: Number) -> None:
    """source (C, D, H, W) -> places in the array's volume, integers as wide as numbers are."""
    b, place = k.b, I64 if k.number == F64 else I32
    low, size, first, count = (k.spans(step, word) for word in (READ, READ_COUNT, WRITE, WRITE_COUNT))
    origin = source.pointer
    lowest = constant(vector(k.number, k.lanes), -math.inf)
    with b.loop(0, channels) as c, b.loop(0, count[0]) as d:
        d_range, _ = window_range(k, words, 0, b.add(first[0], d), low[0])
        with b.loop(0, count[1]) as h:
            h_range, _ = window_range(k, words, 1, b.add(first[1], h), low[1])
            base = b.mul(c, source.pitch)

            def row_number(in_d: Number, in_h: Number) -> ir.Value:
                """Of all rows of the volume."""
                row = b.add(b.mul(b.add(low[0], in_d), words.sizes[1]), b.add(low[1], in_h))
                return b.splat(b.cast(b.i64(row), place), k.lanes)

            with b.loop(0, size[2], k.lanes) as at:
                initial = [lowest, row_number(d_range[0], h_range[0])]
                with b.loop_carrying(*d_range, 1, initial) as (in_d, outer):
                    with b.loop_carrying(*h_range, 1, outer.values) as (in_h, inner):
                        offset = k.dot((1, base), (b.add(b.mul(in_d, size[1]), in_h), size[2]), (at, 1))
                        value = b.load(origin, offset, k.number, k.lanes)
                        most, row = inner.values
                        newer = b.bits("or_", b.compare(">", value, most), b.is_nan(value))
                        inner.next = [b.select(newer, value, most), b.select(newer, row_number(in_d, in_h), row)]
                    outer.next = inner.result
                most, row = outer.result
                b.store(most, words.row.pointer, at)
                b.store(row, words.rows.pointer, at)
            out = k.dot((c, words.places.pitch), (b.add(b.mul(d, count[1]), h), count[2]))
            _along(k, words, out, (first[2], low[2], count[2]), place)


def _along(k: Kernel, words: ArgmaxWords, out: Number, where: tuple[Number, ...], place: ir.Type) -> None:
    """Windows of a row, from the largest values of its columns and the rows these are in."""
    b, (first, low, count) = k.b, where
    none = constant(place, 2 ** (place.width - 1) - 1)  # a row behind all others
    with b.loop(0, count) as at:
        w_range, _ = window_range(k, words, 2, b.add(first, at), low)
        initial = [constant(k.number, -math.inf), none, b.i64(w_range[0])]
        with b.loop_carrying(*w_range, 1, initial) as (i, best):
            most, row, column = best.values
            value = b.load(words.row.pointer, i, k.number)
            own = b.load(words.rows.pointer, i, place)
            is_nan, was_nan = b.is_nan(value), b.is_nan(most)
            later = b.bits("or_", b.raw.not_(was_nan), b.compare(">=", own, row))
            equal = b.bits("and_", b.compare("==", value, most), b.compare("<", own, row))
            larger = b.bits("or_", b.compare(">", value, most), equal)
            newer = b.raw.select(is_nan, later, b.bits("and_", b.raw.not_(was_nan), larger))
            best.next = [b.select(newer, new, old) for new, old in ((value, most), (own, row), (i, column))]
        _, row, column = best.result
        flat = b.add(b.mul(b.cast(row, I64), words.sizes[2]), b.add(low, column))
        b.store(b.cast(flat, place), words.places.pointer, b.add(out, at))
