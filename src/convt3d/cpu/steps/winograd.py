"""The convolution by Winograd's method: inputs are transformed, multiplied, and the products transformed back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..plan.conv_cost import winograd_cost
from ..plan.rooms import Rooms
from ..plan.slab import Blocking, Slab, SlabPlaces, blocking_of
from ..plan.winograd import (
    GatherKind,
    Group,
    Matrix,
    Method,
    Piece,
    ScatterKind,
    gather_kind,
    pieces_at,
    pieces_of,
    points_of,
    scatter_kind,
)
from ..words import Array, Buffer, Room, Size, SourceCall, StripsCall, Words
from .base import Where
from .conv import BesideWords, ConvCall, Convolution, ConvWords, PacedWords

if TYPE_CHECKING:
    from ..code.tile import Tile
    from ..plan.tiles import Tiling
    from ..runtime.bind import Binding
    from ..runtime.call import Call


# Shorter than in direct summation, for errors are larger where products cancel, and more so where pieces of taps join.
_SUMMED, _SUMMED_OF_PIECES = 128, 64


@dataclass(eq=False)
class WinogradWords(Words):
    largest: Buffer  # magnitude of the inputs seen, a vector
    inputs: Buffer  # transformed: (points, steps, positions)
    products: Buffer  # (points, rows, positions)
    group_count: Size
    groups: Array  # rows of GroupWords
    pieces: Array  # rows of PieceWords
    points: Array  # rows of PointWords
    factors: Array  # of the transforms along the depth
    gather: Array  # where the inputs of each piece are, and where they go
    scatter: Array  # where the outputs of each group go
    chunk: Size  # vectors of positions that are worked on together
    chunk_positions: Size
    chunk_blocks: Size  # of output channels that are multiplied before they are transformed back
    product_point: Size  # elements from one point to the next
    depth_step: Size  # in the slab, from one position along the depth to the next


@dataclass(eq=False)
class GroupWords(Words):
    """A row of the table of outputs that are made together."""

    kind: Size
    piece: Size  # its first
    pieces: Size  # of taps
    point: Size  # its first
    points: Size
    depth_out: Size  # outputs along the depth
    scatter: Size  # where its part of that table begins
    factors: Size
    summed: Size  # steps that are summed on their own before they join the rest


@dataclass(eq=False)
class PieceWords(Words):
    """A row of the table of pieces."""

    kind: Size
    depth: Size  # points along the depth
    gather: Size  # where its part of that table begins
    factors: Size


@dataclass(eq=False)
class PointWords(Words):
    """A row of the table of points."""

    inputs: Size  # where its transformed inputs begin
    steps: Size  # a piece and an input channel each
    weight: Size  # where its weights begin


@dataclass(eq=False)
class WinogradCall(ConvCall):
    part_channels: Size  # that go together through the steps behind
    skipped: Array  # samples with huge inputs, which are left to direct summation


@dataclass(frozen=True)
class WinogradConvolution(Convolution):
    gathers: tuple[GatherKind, ...]
    scatters: tuple[ScatterKind, ...]
    pace: int  # of the width: vectors of every pace-th number are made by shuffles

    @property
    def words(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return ConvWords, PacedWords, WinogradWords, *((BesideWords,) if self.beside else ())

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (WinogradCall, SourceCall) if self.reads else (WinogradCall,)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        plane = {scheme for kind in self.gathers for scheme in (kind.height, kind.width)}
        schemes = {str(scheme) for scheme in plane if not scheme.plain}
        return (*super().names, *sorted(schemes))

    def scratch(self, where: Where, rooms: Rooms) -> tuple[Room, ...]:
        method, machine = where.method, where.machine
        slab, room = self.slab(where, rooms)
        blocking = blocking_of(where.kernel, where.groups, method, rooms.woven or slab, machine, rooms.item)
        rooms.blocking = blocking
        row = self.row(where, rooms, slab)
        largest = rooms.add(1, rooms.lanes)
        inputs = rooms.add(1, blocking.inputs, again=True)
        products = rooms.add(method.most_points, blocking.product_point, again=True)
        phased = self.phased(where, rooms, slab)
        return room, row, largest, inputs, products, phased, *self.beside_rooms(rooms)

    def cost(self, where: Where, tiling: Tiling) -> tuple[float, float]:
        return winograd_cost(where, tiling)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.winograd import emit_winograd

        emit_winograd(tile, self, words, call)

    def bind(self, binding: Binding, rooms: tuple[Room, ...]) -> tuple[Words, ...]:
        where, slab, blocking = binding.where, binding.tiling.slab, binding.tiling.blocking
        assert slab is not None
        assert blocking is not None
        room, row, largest, inputs, products, phased, *beside = rooms
        woven = binding.tiling.woven or slab
        in_group, per_out = where.kernel[0] // where.groups, where.kernel[1]
        tables = _Tables(where.method, woven, blocking, in_group, per_out)
        offsets = np.arange(where.method.most_pieces * in_group + 1, dtype=np.int64) * blocking.positions
        conv = self.bind_slab(binding, {"slab": room, "phased": phased}, offsets=offsets, weights_group=tables.weight)
        own = WinogradWords(
            largest=largest,
            inputs=inputs,
            products=products,
            group_count=len(tables.groups),
            groups=_rows(tables.groups),
            pieces=_rows(tables.pieces),
            points=_rows(tables.points),
            factors=np.array(tables.factors, dtype=binding.number),
            gather=np.array(tables.gather, dtype=np.int64),
            scatter=np.array(tables.scatter, dtype=np.int64),
            chunk=blocking.vectors,
            chunk_positions=blocking.positions,
            chunk_blocks=blocking.blocks,
            product_point=blocking.product_point,
            depth_step=where.method.walks[0].pace * woven.height * woven.pitch,
        )
        return conv, PacedWords(row), own, *self.bind_beside(binding, tuple(beside))

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        *_, channels = call.part
        return WinogradCall(call.weights, call.bias, channels, call.skipped), *self.bind_reads(call)


@dataclass(frozen=True)
class WinogradOfStrips(WinogradConvolution):
    """The same of an array that lies in several pieces."""

    @property
    def call(self) -> tuple[type[Words], ...]:  # type: ignore[override]
        return (*super().call, StripsCall)

    def emit(self, tile: Tile, words: Any, call: Any) -> None:
        from ..code.winograd import emit_winograd

        emit_winograd(tile, self, words, call, strips=call[-1])

    def bind_call(self, call: Call) -> tuple[Words, ...]:
        return *super().bind_call(call), call.strips


def _rows(table: list[Any]) -> npt.NDArray[np.int64]:
    return np.array([row.numbers(False) for row in table], dtype=np.int64)


class _Tables:
    """The groups, their pieces and points, and the tables that these point into."""

    def __init__(self, method: Method, slab: Slab, blocking: Blocking, in_group: int, per_out: int) -> None:
        self.method, self.slab, self.blocking = method, slab, blocking
        self.in_group, self.per_out = in_group, per_out
        self.places = SlabPlaces(method, slab)
        self.groups: list[GroupWords] = []
        self.pieces: list[PieceWords] = []
        self.points: list[PointWords] = []
        self.factors: list[float] = []
        self.gather: list[int] = []
        self.scatter: list[int] = []
        self.weight = 0  # numbers of a group's weights
        for group in method.groups:
            self._add(group)

    def _add(self, group: Group) -> None:
        begin, first, places = len(self.points), len(self.pieces), self._points(group)
        for piece in pieces_of(group):
            self._piece(group, piece, places)
        kind, scatter = scatter_kind(group), len(self.scatter)
        depth, height, width = self.method.walks
        axes = (height, width.kept), (width, 1), (depth, height.kept * width.kept)
        d, h, w = group
        for one, (walk, factor) in zip((h, w, d), axes, strict=True):
            self.scatter += [walk.place(j) * factor * self.slab.phase for j in one.outputs]
        products = self.blocking.product_point * h.scheme.points * w.scheme.points
        back = list(_terms(d.scheme.outputs_matrix, kind.terms))
        self.scatter += [at * products for terms in back for at, _ in terms]
        self.groups.append(
            GroupWords(
                kind=self.method.scatters.index(kind),
                piece=first,
                pieces=len(self.pieces) - first,
                point=begin,
                points=len(self.points) - begin,
                depth_out=d.scheme.outputs,
                scatter=scatter,
                factors=self._factors(back),
                summed=_SUMMED if len(pieces_of(group)) == 1 else _SUMMED_OF_PIECES,
            )
        )

    def _points(self, group: Group) -> dict[tuple[tuple[int, ...], Piece], int]:
        """The rows of its points; and where the inputs of each piece go at each of them."""
        found: dict[tuple[tuple[int, ...], Piece], int] = {}
        inputs = 0
        for point in points_of(group):
            pieces = pieces_at(group, point)
            steps = len(pieces) * self.in_group
            for number, piece in enumerate(pieces):
                found[point, piece] = inputs + number * self.in_group * self.blocking.positions
            self.points.append(PointWords(inputs=inputs, steps=steps, weight=self.weight))
            inputs += self.blocking.input_length(steps)
            self.weight += steps * self.per_out
        return found

    def _piece(self, group: Group, piece: Piece, places: dict[tuple[tuple[int, ...], Piece], int]) -> None:
        """Offsets of its inputs along height and width, those of the terms of each point along the depth, and where the
        transformed ones go."""
        kind, begin = gather_kind(group, piece), len(self.gather)
        d, h, w = group
        depth = d.schemes[piece[0]]
        self.gather += [self.places.height(h.shift(piece[1], at)) for at in range(kind.height.points)]
        self.gather += [self.places.width(w.shift(piece[2], at)) for at in range(kind.width.points)]
        inputs = [self.places.depth(d.shift(piece[0], at)) for at in range(depth.points)]
        terms = list(_terms(depth.inputs_matrix, kind.terms))
        self.gather += [inputs[at] for row in terms for at, _ in row]
        for local in product(*(range(one.schemes[at].points) for one, at in zip(group, piece, strict=True))):
            point = tuple(one.point(at, number) for one, at, number in zip(group, piece, local, strict=True))
            self.gather.append(places[point, piece])
        self.pieces.append(
            PieceWords(
                kind=self.method.gathers.index(kind),
                depth=depth.points,
                gather=begin,
                factors=self._factors(terms),
            )
        )

    def _factors(self, rows: list[list[tuple[int, Fraction]]]) -> int:
        """Of these terms; where they begin in the table."""
        begin = len(self.factors)
        self.factors += [float(factor) for terms in rows for _, factor in terms]
        return begin


def _terms(matrix: Matrix, count: int) -> Iterator[list[tuple[int, Fraction]]]:
    """For each row of a matrix its `count` terms, column and factor; filled up with zeros."""
    for row in matrix:
        found = [(at, factor) for at, factor in enumerate(row) if factor]
        yield found + [(found[0][0], Fraction(0))] * (count - len(found))
