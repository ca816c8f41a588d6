"""Winograd's method for a sum over positions: neighbouring taps, summed over pairs of neighbouring positions.

Along one axis, r taps that meet places of the large array one stride apart need 2 r products for a pair of positions;
F(r, 2) makes them from r + 1. What it makes of the products is linear, and done once, when all positions are summed:

    tap = A [ sum over pairs of (G small) * (B large) ]

docs/math.md has the matrices; here a factor of G is moved to A, so that G and B hold whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import gcd, lcm, prod

from ...spec.lazy import lazy
from ...spec.shapes import ConvAxis
from ..plan.winograd import Matrix, Scheme

# How many taps the pieces of each axis have: on that the code depends.
Shape = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
Kind = tuple[int, int, int]  # terms of a sum along the depth, taps of the pieces along height and width

_PLAIN: Matrix = ((Fraction(1),),)


@dataclass(frozen=True)
class Piece:
    """Taps of one axis that are summed together; one alone is summed position by position."""

    taps: tuple[int, ...]

    @property
    def pace(self) -> int:
        """Positions that are taken together."""
        return 2 if len(self.taps) > 1 else 1

    @property
    def points(self) -> int:
        return len(self.taps) + self.pace - 1

    @property
    def large_matrix(self) -> Matrix:
        """B, points x points."""
        return Scheme(len(self.taps), 2).inputs_matrix if self.pace > 1 else _PLAIN

    @property
    def small_matrix(self) -> Matrix:
        """G, points x pace."""
        return _matrices(len(self.taps))[0] if self.pace > 1 else _PLAIN

    @property
    def taps_matrix(self) -> Matrix:
        """A, taps x points."""
        return _matrices(len(self.taps))[1] if self.pace > 1 else _PLAIN


@lru_cache(maxsize=8)
def _matrices(taps: int) -> tuple[Matrix, Matrix]:
    scheme = Scheme(taps, 2)
    scales = [lcm(*(value.denominator for value in row)) for row in scheme.weights_matrix]
    small = tuple(
        tuple(value * scale for value in row) for row, scale in zip(scheme.weights_matrix, scales, strict=True)
    )
    of_taps = tuple(
        tuple(value / scale for value, scale in zip(row, scales, strict=True)) for row in scheme.outputs_matrix
    )
    return small, of_taps


def axis_pieces(axis: ConvAxis, paired: bool) -> tuple[Piece, ...]:
    """Taps by their remainder modulo the stride, in twos and threes; or each alone."""
    remainders: dict[int, list[int]] = {}
    for k in range(axis.kernel):
        remainders.setdefault(k * axis.dilation % axis.stride if paired else k, []).append(k)
    found = []
    for taps in remainders.values():
        at = 0
        while at < len(taps):
            left = len(taps) - at
            count = min(left, 2 if left in (2, 4) else 3)
            found.append(Piece(tuple(taps[at : at + count])))
            at += count
    return tuple(found)


def can_pair(axis: ConvAxis) -> bool:
    """Whether neighbouring taps of a remainder meet neighbouring positions, and there are such."""
    near = axis.dilation // gcd(axis.dilation, axis.stride) == 1
    return near and axis.size > 1 and any(len(piece.taps) > 1 for piece in axis_pieces(axis, True))


@dataclass(frozen=True)
class Method:
    """The pieces of the three axes. Each triple of them, and each of its points, is a matrix product."""

    axes: tuple[tuple[Piece, ...], tuple[Piece, ...], tuple[Piece, ...]]

    @lazy
    def triples(self) -> tuple[tuple[Piece, Piece, Piece], ...]:
        return tuple(product(*self.axes))

    @lazy
    def points(self) -> int:
        """Of all triples."""
        return sum(prod(piece.points for piece in triple) for triple in self.triples)

    @lazy
    def shape(self) -> Shape:
        return tuple(tuple(sorted({len(piece.taps) for piece in axis})) for axis in self.axes)  # type: ignore[return-value]


def terms_of(row: Sequence[Fraction]) -> list[tuple[int, int]]:
    """(column, factor) of those that are not zero."""
    return [(at, int(value)) for at, value in enumerate(row) if value]


def triple_kinds(shape: Shape) -> tuple[tuple[int, int, int], ...]:
    """Taps of the pieces of a triple."""
    return tuple(product(*shape))


def sheet_kinds(shape: Shape, small: bool) -> tuple[Kind, ...]:
    """The different sheets of one of the arrays."""
    terms = {len(terms_of(row)) for taps in shape[0] for row in matrix_of(taps, small)}
    return tuple(product(sorted(terms), shape[1], shape[2]))


def matrix_of(taps: int, small: bool) -> Matrix:
    piece = Piece(tuple(range(taps)))
    return piece.small_matrix if small else piece.large_matrix
