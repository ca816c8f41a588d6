"""The convolution by Winograd's method: inputs are transformed, multiplied, and the products transformed back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plan.conv_cost import winograd_cost
from ..plan.rooms import Rooms
from ..plan.slab import Blocking, Slab, SlabPlaces, blocking_of
from ..plan.winograd import Kind, Matrix, Method, kind_of
from ..words import Array, Buffer, Room, Size, SourceCall, Words
from .base import Where
from .conv import ConvCall, Convolution, ConvWords, PacedWords

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.tiles import Tiling
    from ..runtime.bind import Binding
    from ..runtime.execute import Call


@dataclass(eq=False)
class WinogradWords(Words):
    largest: Buffer  # magnitude of the inputs seen, a vector
    inputs: Buffer  # transformed: (points, steps, positions)
    products: Buffer  # (points, rows, positions)
    group_count: Size
    groups: Array  # rows of GroupWords
    factors: Array  # of the transforms along the depth
    gather: Array  # where the inputs of each group are
    scatter: Array  # where its outputs go
    chunk: Size  # vectors of positions that are worked on together
    chunk_positions: Size
    chunk_blocks: Size  # of output channels that are multiplied before they are transformed back
    input_point: Size  # elements from one point to the next
    product_point: Size
    depth_step: Size  # in the slab, from one position along the depth to the next


@dataclass(eq=False)
class GroupWords(Words):
    """A row of the table of outputs that are made together."""

    kind: Size
    pieces: Size  # of taps
    steps: Size
    points: Size
    depth_in: Size  # points along the depth
    depth_out: Size  # outputs along the depth
    gather: Size  # where its part of that table begins
    scatter: Size
    factors_in: Size
    factors_out: Size
    weight: Size


@dataclass(eq=False)
class WinogradCall(ConvCall):
    part_channels: Size  # that go together through the steps behind
    skipped: Array  # samples with huge inputs, which are left to direct summation


@dataclass(frozen=True)
class WinogradConvolution(Convolution):
    kinds: tuple[Kind, ...]
    pace: int  # of the width: vectors of every pace-th number are made by shuffles

    @property
    def words(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return ConvWords, PacedWords, WinogradWords

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (WinogradCall, SourceCall) if self.reads else (WinogradCall,)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        schemes = {str(scheme) for _, _, *plane in self.kinds for scheme in plane if not scheme.plain}
        return (*super().names, *sorted(schemes))

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        method, machine = where.method, where.machine
        slab, room = self.slab(where, rooms)
        blocking = blocking_of(where.kernel, where.groups, method, slab, machine, rooms.item)
        rooms.blocking = blocking
        row = self.row(where, rooms, slab)
        largest = rooms.add(1, rooms.lanes)
        inputs = rooms.add(method.most_points, blocking.input_point, again=True)
        products = rooms.add(method.most_points, blocking.product_point, again=True)
        return room, row, largest, inputs, products, self.phased(where, rooms, slab)

    def cost(self, where: Where, tiling: Tiling) -> tuple[float, float]:
        return winograd_cost(where, tiling)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.winograd import emit_winograd

        emit_winograd(tile, self, words, call)

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        where, slab, blocking = binding.where, binding.tiling.slab, binding.tiling.blocking
        assert slab is not None
        assert blocking is not None
        room, row, largest, inputs, products, phased = rooms
        in_group, per_out = where.kernel[0] // where.groups, where.kernel[1]
        groups, factors, gather, scatter, weights = _tables(where.method, slab, blocking, in_group, per_out)
        offsets = np.arange(where.method.most_pieces * in_group + 1, dtype=np.int64) * blocking.positions
        conv = self.bind_slab(binding, {"slab": room, "phased": phased}, offsets=offsets, weights_group=weights)
        own = WinogradWords(
            largest=largest,
            inputs=inputs,
            products=products,
            group_count=len(groups),
            groups=np.array([group.numbers(False) for group in groups], dtype=np.int64),
            factors=np.array(factors, dtype=binding.number),
            gather=np.array(gather, dtype=np.int64),
            scatter=np.array(scatter, dtype=np.int64),
            chunk=blocking.vectors,
            chunk_positions=blocking.positions,
            chunk_blocks=blocking.blocks,
            input_point=blocking.input_point,
            product_point=blocking.product_point,
            depth_step=where.method.walks[0].pace * slab.height * slab.pitch,
        )
        return conv, PacedWords(row), own

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        *_, channels = call.part
        return WinogradCall(call.weights, call.bias, channels, call.skipped), *self.bind_reads(call)


def _tables(
    method: Method, slab: Slab, blocking: Blocking, in_group: int, per_out: int
) -> tuple[list[GroupWords], list[float], list[int], list[int], int]:
    """The groups, the tables they point into (factors, gather, scatter), and the numbers of a group's weights."""
    places = SlabPlaces(method, slab)
    depth, height, width = method.walks
    axes = (height, width.kept), (width, 1), (depth, height.kept * width.kept)
    rows: list[GroupWords] = []
    gather: list[int] = []
    scatter: list[int] = []
    factors: list[float] = []
    weight = 0
    for group in method.groups:
        d, h, w = group
        kind = kind_of(group)
        pieces = list(product(*(range(one.pieces) for one in group)))
        points = [one.scheme.points for one in group]
        begin = len(gather), len(scatter)
        for piece in pieces:
            gather += [places.height(h.shift(piece[1], point)) for point in range(points[1])]
            gather += [places.width(w.shift(piece[2], point)) for point in range(points[2])]
            inputs = [places.depth(d.shift(piece[0], point)) for point in range(points[0])]
            gather += [inputs[at] for terms in _terms(d.scheme.inputs_matrix, kind[0]) for at, _ in terms]
        for one, (walk, factor) in zip((h, w, d), axes, strict=True):
            scatter += [walk.place(j) * factor * slab.phase for j in one.outputs]
        products = blocking.product_point * points[1] * points[2]
        scatter += [at * products for terms in _terms(d.scheme.outputs_matrix, kind[1]) for at, _ in terms]
        begins = []
        for matrix, most in ((d.scheme.inputs_matrix, kind[0]), (d.scheme.outputs_matrix, kind[1])):
            begins.append(len(factors))
            factors += [float(factor) for terms in _terms(matrix, most) for _, factor in terms]
        steps = len(pieces) * in_group
        rows.append(
            GroupWords(
                kind=method.kinds.index(kind),
                pieces=len(pieces),
                steps=steps,
                points=prod(points),
                depth_in=points[0],
                depth_out=d.scheme.outputs,
                gather=begin[0],
                scatter=begin[1],
                factors_in=begins[0],
                factors_out=begins[1],
                weight=weight,
            )
        )
        weight += prod(points) * steps * per_out
    return rows, factors, gather, scatter, weight


def _terms(matrix: Matrix, count: int) -> Iterator[list[tuple[int, Fraction]]]:
    """For each row of a matrix its `count` terms, column and factor; filled up with zeros."""
    for row in matrix:
        found = [(at, factor) for at, factor in enumerate(row) if factor]
        yield found + [(found[0][0], Fraction(0))] * (count - len(found))
