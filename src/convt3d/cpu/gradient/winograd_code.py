"""Winograd's method: sheets of points are made of both packed arrays, each point is a matrix product over all steps,
and when all positions are summed, points become taps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, constant
from ..plan.winograd import Matrix
from ..words import row_length
from .pieces import Kind, Schemes, matrices
from .words import LargeSheetWords, SmallSheetWords, TermWords, TripleWords, WinogradWords

if TYPE_CHECKING:
    from .code import Gradient

Place = tuple[int, ...]

NULL = ir.Constant(PTR, None)
_BOX = ("samples", "depth", "height", "width")


def sum_by_winograd(g: Gradient, words: WinogradWords, before: Number) -> None:
    """Adds a tile to the sums of points, which are new where nothing was summed `before`."""
    b, k, r = g.b, g.k, g.r
    numbers, vectors = words.number_points, words.vector_points
    with b.loop(0, words.small_count) as at:
        small = k.row(SmallSheetWords, b, b.at(words.small_sheets, b.mul(at, row_length(SmallSheetWords)), I64))
        paces = small.pace_d, small.pace_h, small.pace_w
        counts = [b.sdiv(b.sub(b.add(count, pace), 1), pace) for count, pace in zip(g.count, paces, strict=True)]
        box = g.samples, *counts
        steps = b.mul(b.mul(g.samples, counts[0]), b.mul(counts[1], counts[2]))
        _make_sheet(g, words, True, small.kind, small.term, box, paces)
        with b.loop(small.large, b.add(small.large, small.large_count)) as number:
            row = b.at(words.large_sheets, b.mul(number, row_length(LargeSheetWords)), I64)
            large = k.row(LargeSheetWords, b, row)
            _make_sheet(g, words, False, large.kind, large.term, box, paces)
            flat = (1, 1, 1, steps, 0, 0, 0, r.block, 0, 0, 0, r.columns * k.lanes)
            with b.loop(0, small.points) as point:
                own = b.at(numbers.pointer, b.mul(point, words.number_point), k.number)
                along = b.at(vectors.pointer, b.mul(point, words.vector_point), k.number)
                g.products(own, along, numbers.pitch, vectors.pitch, NULL, b.add(large.slot, point), flat, before)


def _make_sheet(
    g: Gradient,
    words: WinogradWords,
    small: bool,
    kind: ir.Value,
    term: ir.Value,
    box: tuple[Number, ...],
    paces: tuple[Number, ...],
) -> None:
    """All points of a sheet, for all channels of the part."""
    b, k, r, part = g.b, g.k, g.r, g.part
    packed = g.small if small else g.large
    points, point, pitch = words.vector_points, words.vector_point, r.columns * k.lanes
    count, vectors = part.vector_count, r.columns
    if packed is g.numbers:
        points, point, pitch = words.number_points, words.number_point, r.block
        count, vectors = part.number_count, 1
    terms = b.at(words.terms, b.mul(term, row_length(TermWords)), I64)
    steps = [packed.sample, *(b.mul(step, pace) for step, pace in zip(packed.steps, paces, strict=True))]
    schemes = g.structure.schemes
    assert schemes is not None
    for number, one in enumerate(schemes.sheets(small)):
        with b.if_(b.compare("==", kind, number)), b.loop(0, count) as block, b.loop(0, vectors) as column:
            source = b.at(packed.packed.pointer, k.dot((block, packed.packed.pitch), (column, k.lanes)), k.number)
            target = b.at(points.pointer, k.dot((block, points.pitch), (column, k.lanes)), k.number)
            b.call(sheet_kernel(k, schemes, small, one), source, target, terms, *box, *steps, point, pitch)


def sheet_kernel(k: Kernel, schemes: Schemes, small: bool, kind: Kind) -> ir.Function:
    """to[point][step] for one vector of channels. Along the depth it is a sum of planes times factors; along height and
    width the matrices of the schemes are applied. What the next step needs too stays in registers."""
    name = f"{'small' if small else 'large'}_sheet_{'_'.join(map(str, kind))}"
    if name not in k.module.globals:
        pointers = [(word, PTR) for word in ("from", "to", "terms")]
        sizes = [*_BOX, *(f"{axis}_step" for axis in _BOX), "point", "pitch"]
        b = k.define(name, [*pointers, *((word, I64) for word in sizes)], noalias=("from", "to"))
        _Sheet(k, b, schemes, small, *kind).write()
        b.ret()
    return k.module.globals[name]


class _Sheet:
    def __init__(self, k: Kernel, b: Builder, schemes: Schemes, small: bool, terms: int, high: int, wide: int) -> None:
        self.k, self.b = k, b
        self.high, self.wide = schemes.matrix(high, small), schemes.matrix(wide, small)
        numbers = range(terms + len(self.high[0]) + len(self.wide[0]))
        places = (b.at(b.args["terms"], number * row_length(TermWords), I64) for number in numbers)
        found = [k.row(TermWords, b, place) for place in places]
        self.planes = [(one.offset, b.splat(b.cast(one.factor, k.number), k.lanes)) for one in found[:terms]]
        offsets = [one.offset for one in found[terms:]]
        self.rows, self.places = offsets[: len(self.high[0])], offsets[len(self.high[0]) :]
        self.shared = 0 if small or wide == 1 else len(self.places) - 2  # places that a step shares with the next

    def write(self) -> None:
        b, a = self.b, self.b.args
        with b.loop(0, a["samples"]) as s, b.loop(0, a["depth"]) as d, b.loop(0, a["height"]) as h:
            row = _dot(b, (s, a["samples_step"]), (d, a["depth_step"]), (h, a["height_step"]))
            step = b.mul(b.add(b.mul(b.add(b.mul(s, a["depth"]), d), a["height"]), h), a["width"])
            columns = [self._column(row, place) for place in self.places[: self.shared]]
            size = len(self.high)
            with b.loop_carrying(0, a["width"], 1, [value for column in columns for value in column]) as (w, shared):
                place = b.add(row, b.mul(w, a["width_step"]))
                columns = [shared.values[at * size : (at + 1) * size] for at in range(self.shared)]
                columns += [self._column(place, own) for own in self.places[self.shared :]]
                for number, values in enumerate(zip(*columns, strict=True)):
                    for at, factors in enumerate(self.wide):
                        point = number * len(self.wide) + at
                        to = _dot(b, (point, a["point"]), (b.add(step, w), a["pitch"]))
                        b.store(_combined(b, factors, values), a["to"], to)
                kept = columns[-self.shared :] if self.shared else []
                shared.next = [value for column in kept for value in column]

    def _column(self, place: Number, offset: ir.Value) -> list[ir.Value]:
        """Points along the height, at one place along the width."""
        b, k = self.b, self.k
        values = []
        for row in self.rows:
            at = b.add(b.add(place, offset), row)
            found = [b.load(b.args["from"], b.add(at, plane), k.number, k.lanes) for plane, _ in self.planes]
            total = found[0]  # of a lone one the factor is 1
            if len(found) > 1:
                total = b.mul(total, self.planes[0][1])
                for value, (_, factor) in zip(found[1:], self.planes[1:], strict=True):
                    total = b.multiply_add(value, factor, total)
            values.append(total)
        return [_combined(b, factors, values) for factors in self.high]


def _dot(b: Builder, *pairs: tuple[Number, Number]) -> Number:
    total: Number = 0
    for index, stride in pairs:
        total = b.add(total, b.mul(index, stride))
    return total


def _combined(b: Builder, factors: Sequence[Fraction], values: Sequence[ir.Value]) -> ir.Value:
    """The sum of values times small factors."""
    total: ir.Value | None = None
    for factor, value in zip(factors, values, strict=True):
        if not factor:
            continue
        size = abs(factor)
        scaled = value if size == 1 else b.mul(value, constant(value.type, float(size)))
        if total is None:
            total = scaled if factor > 0 else b.neg(scaled)
        else:
            total = b.add(total, scaled) if factor > 0 else b.sub(total, scaled)
    assert total is not None
    return total


def taps_of_points(g: Gradient, words: WinogradWords) -> None:
    """In place: the taps of a triple take the slots of its first points."""
    b, k = g.b, g.k
    slot = b.mul(g.pairs, g.pair)
    schemes = g.structure.schemes
    assert schemes is not None
    with b.loop(0, words.triple_count) as number:
        triple = k.row(TripleWords, b, b.at(words.triples, b.mul(number, row_length(TripleWords)), I64))
        start = b.at(g.words.sums.pointer, b.mul(triple.slot, slot), k.number)
        for at, kind in enumerate(schemes.triples):
            if prod(kind) > 1:
                with b.if_(b.compare("==", triple.kind, at)), b.loop(0, slot, k.lanes) as vector_at:
                    b.call(taps_kernel(k, schemes, kind), b.at(start, vector_at, k.number), slot)


def taps_kernel(k: Kernel, schemes: Schemes, kind: tuple[int, int, int]) -> ir.Function:
    """One vector of all points of a triple, `slot` apart, becomes one of all its taps."""
    name = f"taps_of_points_{'x'.join(map(str, kind))}"
    if name not in k.module.globals:
        b = k.define(name, [("sums", PTR), ("slot", I64)])
        along = [matrices(taps, schemes.point).taps for taps in kind]
        places = product(*(range(len(matrix[0])) for matrix in along))
        values = {
            at: b.load(b.args["sums"], b.mul(b.args["slot"], number), k.number, k.lanes)
            for number, at in enumerate(places)
        }
        for axis in (2, 1, 0):
            values = _taps_along(b, axis, along[axis], values)
        for number, at in enumerate(sorted(values)):
            b.store(values[at], b.args["sums"], b.mul(b.args["slot"], number))
        b.ret()
    return k.module.globals[name]


def _taps_along(b: Builder, axis: int, matrix: Matrix, values: dict[Place, ir.Value]) -> dict[Place, ir.Value]:
    """Points of one axis become taps."""
    lines: dict[tuple[Place, Place], list[ir.Value]] = {}
    for at in sorted(values):
        lines.setdefault((at[:axis], at[axis + 1 :]), []).append(values[at])
    return {
        (*before, tap, *behind): _combined(b, factors, points)
        for (before, behind), points in lines.items()
        for tap, factors in enumerate(matrix)
    }
