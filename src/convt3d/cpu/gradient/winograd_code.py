"""Winograd's method: lines of points are made from both packed arrays, each point is a product over all steps, and when
all positions are summed, points become taps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from llvmlite import ir

from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import I64, PTR, Number, constant, vector
from ..words import row_length
from .pieces import Kind, Piece, line_kinds, matrix_of, triple_kinds
from .words import LargeLineWords, PackedWords, SmallLineWords, TermWords, TripleWords, WinogradWords

if TYPE_CHECKING:
    from .code import Gradient

NULL = ir.Constant(PTR, None)
_STEPS = ("samples", "depth", "height", "width")


def sum_by_winograd(g: Gradient, words: WinogradWords, before: Number) -> None:
    """Adds a tile to the sums of points, which are new where nothing was summed `before`."""
    b, k, r, part = g.b, g.k, g.r, g.part
    numbers, vectors = words.number_points, words.vector_points
    with b.loop(0, words.small_count) as at:
        small = k.row(SmallLineWords, b, b.at(words.small_lines, b.mul(at, row_length(SmallLineWords)), I64))
        paces = small.pace_d, small.pace_h, small.pace_w
        counts = [b.sdiv(b.sub(b.add(count, pace), 1), pace) for count, pace in zip(g.count, paces, strict=True)]
        box = g.samples, *counts
        steps = b.mul(b.mul(g.samples, counts[0]), b.mul(counts[1], counts[2]))
        _make_line(g, words, True, small.kind, small.term, 0, box, paces)
        with b.loop(small.large, b.add(small.large, small.large_count)) as number:
            large = k.row(LargeLineWords, b, b.at(words.large_lines, b.mul(number, row_length(LargeLineWords)), I64))
            _make_line(g, words, False, large.kind, large.term, large.input, box, paces)
            flat = (1, 1, 1, steps, 0, 0, 0, r.block, 0, 0, 0, r.columns * k.lanes)
            with b.loop(0, small.points) as point:
                own = b.at(numbers.pointer, b.mul(b.mul(point, part.number_count), numbers.pitch), k.number)
                along = b.at(vectors.pointer, b.mul(b.mul(point, part.vector_count), vectors.pitch), k.number)
                g.products(own, along, numbers.pitch, vectors.pitch, NULL, b.add(large.slot, point), flat, before)


def _make_line(
    g: Gradient,
    words: WinogradWords,
    small: bool,
    kind: ir.Value,
    term: ir.Value,
    first_input: Number,
    box: tuple[Number, ...],
    paces: tuple[Number, ...],
) -> None:
    """All points of a line, for all channels of the part."""
    b, k, r, part = g.b, g.k, g.r, g.part
    packed = g.small if small else g.large
    points, count, vectors, pitch = words.vector_points, part.vector_count, r.columns, r.columns * k.lanes
    if packed is g.numbers:
        points, count, vectors, pitch = words.number_points, part.number_count, 1, r.block
    terms, inputs = (b.at(words.terms, b.mul(row, row_length(TermWords)), I64) for row in (term, first_input))
    steps = [packed.sample, *(b.mul(step, pace) for step, pace in zip(packed.steps, paces, strict=True))]
    assert g.structure.shape is not None
    for number, one in enumerate(line_kinds(g.structure.shape, small)):
        with b.if_(b.compare("==", kind, number)), b.loop(0, count) as block, b.loop(0, vectors) as column:
            source = b.at(packed.packed.pointer, k.dot((block, packed.packed.pitch), (column, k.lanes)), k.number)
            target = b.at(points.pointer, k.dot((block, points.pitch), (column, k.lanes)), k.number)
            sizes = (*box, *steps, packed.pitch, b.mul(count, points.pitch), pitch)
            b.call(line_kernel(k, small, one), source, target, terms, inputs, *sizes)


def line_kernel(k: Kernel, small: bool, kind: Kind) -> ir.Function:
    """to[point][step] for one vector of channels. Along depth and height a line is a sum of rows times factors, along
    the width the scheme's matrix is applied; inputs that the next step shares stay in registers."""
    name = f"{'small' if small else 'large'}_line_{kind[0]}_{kind[1]}"
    if name not in k.module.globals:
        pointers = [(word, PTR) for word in ("from", "to", "terms", "inputs")]
        sizes = [*_STEPS, *(f"{axis}_step" for axis in _STEPS), "position", "point", "pitch"]
        b = k.define(name, [*pointers, *((word, I64) for word in sizes)], noalias=("from", "to"))
        _Line(k, b, small, *kind).write()
        b.ret()
    return k.module.globals[name]


class _Line:
    def __init__(self, k: Kernel, b: Builder, small: bool, taps: int, terms: int) -> None:
        self.k, self.b, self.small, self.matrix = k, b, small, matrix_of(taps, small)
        a, row = b.args, row_length(TermWords)
        self.offsets = [b.load(a["terms"], number * row, I64) for number in range(terms)]
        factors = [b.load(a["terms"], number * row + 1, I64) for number in range(terms)]
        self.factors = [b.splat(b.cast(factor, k.number), k.lanes) for factor in factors]
        count = len(self.matrix[0])
        if small:
            self.inputs = [b.mul(a["position"], number) for number in range(count)]
        else:
            self.inputs = [b.load(a["inputs"], number * row, I64) for number in range(count)]
        self.shared = 0 if small or taps == 1 else count - 2  # inputs that a step has in common with the next

    def write(self) -> None:
        k, b, a = self.k, self.b, self.b.args
        with b.loop(0, a["samples"]) as s, b.loop(0, a["depth"]) as d, b.loop(0, a["height"]) as h:
            row = k_dot(b, (s, a["samples_step"]), (d, a["depth_step"]), (h, a["height_step"]))
            step = b.mul(b.add(b.mul(b.add(b.mul(s, a["depth"]), d), a["height"]), h), a["width"])
            first = [self._input(row, number) for number in range(self.shared)]
            with b.loop_carrying(0, a["width"], 1, first) as (w, shared):
                place = b.add(row, b.mul(w, a["width_step"]))
                values = list(shared.values)
                values += [self._input(place, number) for number in range(self.shared, len(self.inputs))]
                for number, factors in enumerate(self.matrix):
                    to = k_dot(b, (number, a["point"]), (b.add(step, w), a["pitch"]))
                    b.store(combined(b, factors, values), a["to"], to)
                shared.next = values[-self.shared :] if self.shared else []

    def _input(self, place: Number, number: int) -> ir.Value:
        """The sum of the line's rows at one place along the width."""
        b, k = self.b, self.k
        at = b.add(place, self.inputs[number])
        found = [b.load(b.args["from"], b.add(at, offset), k.number, k.lanes) for offset in self.offsets]
        if len(found) == 1:  # its factor is 1
            return found[0]
        total = b.mul(found[0], self.factors[0])
        for value, factor in zip(found[1:], self.factors[1:], strict=True):
            total = b.multiply_add(value, factor, total)
        return total


def k_dot(b: Builder, *pairs: tuple[Number, Number]) -> Number:
    total: Number = 0
    for index, stride in pairs:
        total = b.add(total, b.mul(index, stride))
    return total


def combined(b: Builder, factors: Sequence[Fraction], values: Sequence[ir.Value]) -> ir.Value:
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
    assert g.structure.shape is not None
    with b.loop(0, words.triple_count) as number:
        triple = k.row(TripleWords, b, b.at(words.triples, b.mul(number, row_length(TripleWords)), I64))
        start = b.at(g.words.sums.pointer, b.mul(triple.slot, slot), k.number)
        for at, kind in enumerate(triple_kinds(g.structure.shape)):
            if prod(kind) > 1:
                with b.if_(b.compare("==", triple.kind, at)), b.loop(0, slot, k.lanes) as vector_at:
                    b.call(taps_kernel(k, kind), b.at(start, vector_at, k.number), slot)


def taps_kernel(k: Kernel, kind: tuple[int, int, int]) -> ir.Function:
    """One vector of all points of a triple, `slot` apart, becomes one of all its taps."""
    name = f"taps_of_points_{'x'.join(map(str, kind))}"
    if name not in k.module.globals:
        b = k.define(name, [("sums", PTR), ("slot", I64)])
        pieces = [Piece(tuple(range(taps))) for taps in kind]
        places = product(*(range(piece.points) for piece in pieces))
        values = {
            at: b.load(b.args["sums"], b.mul(b.args["slot"], number), k.number, k.lanes)
            for number, at in enumerate(places)
        }
        for axis in (2, 1, 0):
            values = _along(b, axis, pieces[axis], values)
        for number, at in enumerate(sorted(values)):
            b.store(values[at], b.args["sums"], b.mul(b.args["slot"], number))
        b.ret()
    return k.module.globals[name]


def _along(b: Builder, axis: int, piece: Piece, values: dict[tuple[int, ...], ir.Value]) -> dict[tuple[int, ...], ir.Value]:
    """Points of one axis become taps."""
    found = {}
    for at in {(*at[:axis], 0, *at[axis + 1 :]) for at in values}:
        points = [values[(*at[:axis], point, *at[axis + 1 :])] for point in range(piece.points)]
        for tap, factors in enumerate(piece.taps_matrix):
            found[(*at[:axis], tap, *at[axis + 1 :])] = combined(b, factors, points)
    return found
