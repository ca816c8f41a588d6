"""Winograd's method for a sum over positions: neighbouring taps, summed over pairs of neighbouring positions.

Along one axis, r taps that meet places of the large array one stride apart need 2 r products for a pair of positions;
F(r, 2) makes them from r + 1. What it makes of the products is linear, and done once, when all positions are summed:

    taps = A [ sum over pairs of (G small) * (B large) ]

Factors of G are moved to A, so that G and B hold 0, 1 and -1. docs/math.md derives the matrices, and says which point
is best for two taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import gcd, prod

from ...spec.lazy import lazy
from ...spec.shapes import TransposedAxis
from ..plan.winograd import Matrix, Scheme

# How many taps the pieces of each axis have: on that the code depends.
Lengths = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
Kind = tuple[int, int, int]  # terms of a sum along the depth, taps of the pieces along height and width

_MOST = 3  # taps of a piece: with more, points other than 0, 1, -1 and infinity would be needed


@dataclass(frozen=True)
class Matrices:
    """Of a piece: G (points, positions), B (points, places), A (taps, points)."""

    small: Matrix
    large: Matrix
    taps: Matrix


@lru_cache(maxsize=8)
def matrices(taps: int, point: int) -> Matrices:
    """Of so many taps; of two, the point beside 0 and infinity is `point`, 1 or -1. One tap is plain."""
    if taps == 1:
        one: Matrix = ((Fraction(1),),)
        return Matrices(one, one, one)
    scheme = Scheme(taps, 2)
    small, large = (_alternating(matrix, point) for matrix in (scheme.weights_matrix, scheme.inputs_matrix))
    of_taps = [[value * point**tap for value in row] for tap, row in enumerate(scheme.outputs_matrix)]
    factors = [_factor(one) * _factor(other) for one, other in zip(small, large, strict=True)]
    return Matrices(
        tuple(tuple(value / _factor(row) for value in row) for row in small),
        tuple(tuple(value / _factor(row) for value in row) for row in large),
        tuple(tuple(value * factor for value, factor in zip(row, factors, strict=True)) for row in of_taps),
    )


def _alternating(matrix: Matrix, point: int) -> Matrix:
    """For -1: every other coefficient of a polynomial changes its sign, and with it those of its values at 1 and -1."""
    return tuple(tuple(value * point**column for column, value in enumerate(row)) for row in matrix)


def _factor(row: Sequence[Fraction]) -> Fraction:
    """What is taken out of a row: then it holds 0, 1 and -1, and begins with 1."""
    return next(value for value in row if value)


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


def axis_pieces(axis: TransposedAxis, paired: bool) -> tuple[Piece, ...]:
    """Taps by their remainder modulo the stride, in twos and threes; or each alone."""
    remainders: dict[int, list[int]] = {}
    for k in range(axis.kernel):
        remainders.setdefault(k * axis.dilation % axis.stride if paired else k, []).append(k)
    found = []
    for taps in remainders.values():
        at = 0
        while at < len(taps):
            left = len(taps) - at
            count = 2 if left in (2, 4) else min(left, _MOST)
            found.append(Piece(tuple(taps[at : at + count])))
            at += count
    return tuple(found)


def can_pair(axis: TransposedAxis) -> bool:
    """Whether neighbouring taps of a remainder meet neighbouring positions, and there are such."""
    near = axis.dilation // gcd(axis.dilation, axis.stride) == 1
    return near and axis.size > 1 and any(piece.pace > 1 for piece in axis_pieces(axis, True))


@dataclass(frozen=True)
class Method:
    """The pieces of the three axes. Each triple of them, and each of its points, is a matrix product."""

    axes: tuple[tuple[Piece, ...], tuple[Piece, ...], tuple[Piece, ...]]
    point: int  # of pieces of two taps

    @lazy
    def triples(self) -> tuple[tuple[Piece, Piece, Piece], ...]:
        return tuple(product(*self.axes))

    @lazy
    def points(self) -> int:
        """Of all triples."""
        return sum(prod(piece.points for piece in triple) for triple in self.triples)

    @lazy
    def schemes(self) -> Schemes:
        d, h, w = (tuple(sorted({len(piece.taps) for piece in axis})) for axis in self.axes)
        return Schemes((d, h, w), self.point)


@dataclass(frozen=True)
class Schemes:
    """What the code of a method depends on."""

    lengths: Lengths
    point: int

    @property
    def triples(self) -> tuple[tuple[int, int, int], ...]:
        """Taps of the pieces of a triple."""
        return tuple(product(*self.lengths))

    def matrix(self, taps: int, small: bool) -> Matrix:
        found = matrices(taps, self.point)
        return found.small if small else found.large

    def sheets(self, small: bool) -> tuple[Kind, ...]:
        """The different sheets of one of the arrays."""
        terms = {len(terms_of(row)) for taps in self.lengths[0] for row in self.matrix(taps, small)}
        return tuple(product(sorted(terms), *self.lengths[1:]))


def terms_of(row: Sequence[Fraction]) -> list[tuple[int, int]]:
    """(column, factor) of those that are not zero."""
    return [(at, int(value)) for at, value in enumerate(row) if value]
