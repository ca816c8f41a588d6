"""Winograd's method: schemes F(m, r) that compute m outputs of r taps with m + r - 1 products instead of m * r.

y[p] = sum over i of g[i] x[p + i] is  y = A [(G g) * (B x)]  with small rational matrices, made here for any m and r
(docs/math.md derives them). Each phase of a transposed convolution is such a correlation along each axis; `AxisMethod`
says which outputs a scheme makes together, and from which inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count, pairwise, product
from math import gcd, lcm, prod
from typing import NamedTuple, TypeAlias

from ...spec.lazy import lazy
from ...spec.shapes import ConvAxis
from .geometry import Walk

Matrix = tuple[tuple[Fraction, ...], ...]

# Schemes of two outputs and at most four products round no worse than direct summation: their matrices hold 0, 1, -1
# and 1/2, and each output is made of its own inputs only. With three outputs, others would have to cancel. Sums grow
# longer with each piece of taps: up to three along an axis have been measured (docs/math.md).
EXACT_POINTS, EXACT_OUTPUTS, EXACT_PIECES = 4, 2, 3
MOST_POINTS = 6
MOST_PACE = 8

# Inputs and weights below these bounds: no sum of a transform overflows where direct summation would not.
HUGE = {"float32": 2.0**50, "float64": 2.0**480}


@dataclass(frozen=True)
class Scheme:
    """F(outputs, taps). With one tap it is plain: nothing is transformed."""

    outputs: int
    taps: int

    @property
    def points(self) -> int:
        return self.outputs + self.taps - 1

    @property
    def plain(self) -> bool:
        return self.taps == 1

    def __str__(self) -> str:
        return f"f{self.outputs}{self.taps}"

    @property
    def inputs_matrix(self) -> Matrix:
        """B, points x points, of whole numbers."""
        return _matrices(self.outputs, self.taps)[0]

    @property
    def weights_matrix(self) -> Matrix:
        """G, points x taps."""
        return _matrices(self.outputs, self.taps)[1]

    @property
    def outputs_matrix(self) -> Matrix:
        """A, outputs x points."""
        return _matrices(self.outputs, self.taps)[2]


def _finite_points() -> Iterator[Fraction]:
    """0, 1, -1, 2, -2, 1/2, -1/2, 3, -3, ...: the simpler a point, the less is lost to rounding."""
    yield Fraction(0)
    for number in count(1):
        for value in dict.fromkeys((Fraction(number), Fraction(1, number))):
            yield value
            yield -value


@lru_cache(maxsize=64)
def _matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """Toom-Cook multiplies polynomials of degree m - 1 and r - 1 by their values at m + r - 1 points, one of them
    infinity; the transpose of that computation is the correlation."""
    n = m + r - 1
    source = _finite_points()
    points = [next(source) for _ in range(n - 1)]

    def powers(size: int) -> Matrix:
        """Values of a polynomial of `size` coefficients at the points; at infinity, the last coefficient."""
        finite = [tuple(point**e for e in range(size)) for point in points]
        return (*finite, tuple(Fraction(int(e == size - 1)) for e in range(size)))

    inverse = _inverse(powers(n))
    rows = list(zip(*inverse, strict=True))
    scales = [lcm(*(value.denominator for value in row)) for row in rows]
    inputs = tuple(tuple(value * scale for value in row) for row, scale in zip(rows, scales, strict=True))
    weights = tuple(tuple(value / scale for value in row) for row, scale in zip(powers(r), scales, strict=True))
    outputs = tuple(zip(*powers(m), strict=True))
    if r == 1:
        one = tuple(tuple(Fraction(int(i == j)) for j in range(n)) for i in range(n))
        return one, ((Fraction(1),),) * n, one
    return inputs, weights, outputs


def _inverse(matrix: Matrix) -> Matrix:
    """Gauss-Jordan, exactly."""
    n = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(n))] for i, row in enumerate(matrix)]
    for column in range(n):
        pivot = next(i for i in range(column, n) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for i in range(n):
            if i != column and rows[i][column]:
                factor = rows[i][column]
                rows[i] = [value - factor * base for value, base in zip(rows[i], rows[column], strict=True)]
    return tuple(tuple(row[n:]) for row in rows)


@dataclass(frozen=True)
class Together:
    """Outputs of one phase along one axis that are made together.

    The super-position q covers inputs pace * q + shift. Taps are cut into pieces, each with the scheme of its length.
    What a scheme does with its products depends on its points alone, and those of a shorter piece are among those of a
    longer one; so the products of all pieces are summed point by point, and transformed back once.
    """

    taps: tuple[tuple[int, ...], ...]  # of each piece: of the kernel, in the order of rising inputs
    firsts: tuple[int, ...]  # shift of each piece's first input
    apart: int  # distance of neighbouring inputs
    outputs: tuple[int, ...]  # o - period * q

    @lazy
    def schemes(self) -> tuple[Scheme, ...]:
        """Of each piece."""
        return tuple(Scheme(len(self.outputs), len(piece)) for piece in self.taps)

    @lazy
    def scheme(self) -> Scheme:
        """Of the longest piece, which has the points of all."""
        return max(self.schemes, key=lambda scheme: scheme.points)

    @property
    def pieces(self) -> int:
        return len(self.taps)

    @property
    def products(self) -> int:
        return sum(scheme.points for scheme in self.schemes)

    @lazy
    def even(self) -> bool:
        """Whether all pieces have all points."""
        return all(scheme == self.scheme for scheme in self.schemes)

    def point(self, piece: int, number: int) -> int:
        """Where a point of a piece stands among all: infinity is the last one of each."""
        own = self.schemes[piece].points
        return number if number < own - 1 else self.scheme.points - 1

    @lazy
    def pieces_at(self) -> tuple[tuple[int, ...], ...]:
        """The pieces that have a product at each point."""
        found: list[list[int]] = [[] for _ in range(self.scheme.points)]
        for piece, scheme in enumerate(self.schemes):
            for number in range(scheme.points):
                found[self.point(piece, number)].append(piece)
        return tuple(map(tuple, found))

    def shift(self, piece: int, point: int) -> int:
        """Of an input of a piece."""
        return self.firsts[piece] + self.apart * point


@dataclass(frozen=True)
class AxisMethod:
    """How one axis is computed: m positions of every phase together."""

    axis: ConvAxis
    outputs: int  # m
    points: int  # most products of a scheme

    @property
    def apart(self) -> int:
        """Distance of the positions whose outputs are made together: above 1 only for a dilated kernel."""
        return self.axis.dilation // gcd(self.axis.dilation, self.axis.stride)

    @property
    def together(self) -> int:
        """Outputs of a phase at one super-position."""
        return self.outputs * self.apart if self.outputs > 1 else 1

    def groups(self) -> tuple[Together, ...]:
        return _groups(self)

    @property
    def walk(self) -> Walk:
        return _walk(self)

    @property
    def products(self) -> int:
        """For each input and output channel, of one super-position."""
        return sum(group.products for group in self.groups())

    @property
    def plain(self) -> bool:
        return self.outputs == 1

    @property
    def joins(self) -> bool:
        """Whether the products of all pieces can be summed: a plain scheme has the points of the others for two outputs
        only."""
        plain = [{scheme.plain for scheme in group.schemes} for group in self.groups()]
        return self.outputs <= 2 or all(len(kinds) == 1 for kinds in plain)

    @property
    def exact(self) -> bool:
        """Whether it rounds no worse than direct summation."""
        few = all(sum(len(_cut(run, self)) for run in runs) <= EXACT_PIECES for runs in _runs(self.axis).values())
        return self.outputs <= EXACT_OUTPUTS and self.points <= EXACT_POINTS and few


def _runs(axis: ConvAxis) -> dict[int, list[tuple[int, ...]]]:
    """For each phase the taps that form a correlation: those whose inputs lie whole steps apart. A convolution of
    stride s has one for each remainder of the inputs modulo s."""
    found: dict[int, dict[int, list[int]]] = {}
    for k in axis.taps_by_input:
        runs = found.setdefault(-axis.offset(k) % axis.outputs_per_input, {})
        runs.setdefault(axis.offset(k) % axis.inputs_per_output, []).append(k)
    return {phase: [tuple(run) for run in runs.values()] for phase, runs in sorted(found.items())}


def _cut(run: tuple[int, ...], method: AxisMethod) -> list[tuple[int, ...]]:
    """As few pieces as there can be, since each costs m - 1 products beside its taps; nearly equal ones."""
    most = method.points + 1 - method.outputs if method.outputs > 1 else 1
    count = -(-len(run) // most)
    ends = [at * len(run) // count for at in range(count + 1)]
    return [run[low:high] for low, high in pairwise(ends)]


@lru_cache(maxsize=1024)
def _groups(method: AxisMethod) -> tuple[Together, ...]:
    axis, m = method.axis, method.outputs
    up, down = axis.outputs_per_input, axis.inputs_per_output
    apart = method.apart if m > 1 else 1
    found = []
    for j, runs in _runs(axis).items():
        pieces = tuple(piece for run in runs for piece in _cut(run, method))
        for e in range(apart):
            firsts = tuple(down * e + (j * down + axis.offset(taps[0])) // up for taps in pieces)
            outputs = tuple(up * (apart * p + e) + j for p in range(m))
            found.append(Together(pieces, firsts, down * method.apart, outputs))
    return tuple(found)


@lru_cache(maxsize=1024)
def _walk(method: AxisMethod) -> Walk:
    last = max(
        group.shift(at, scheme.points - 1) for group in method.groups() for at, scheme in enumerate(group.schemes)
    )
    walk = Walk(method.axis, method.together)
    return Walk(method.axis, method.together, max(0, walk.clipped(last) - walk.shift_range[1]))


def axis_methods(axis: ConvAxis, points: int) -> list[AxisMethod]:
    """The plain method, then those that save products and whose positions are not too wide to shuffle."""
    most_taps = -(-axis.kernel * gcd(axis.dilation, axis.stride) // axis.stride)  # of a correlation
    plain = AxisMethod(axis, 1, points)
    exact = points <= EXACT_POINTS
    most = EXACT_OUTPUTS if exact else points - 1
    together = [AxisMethod(axis, m, points) for m in range(2, most + 1 if most_taps > 1 else 2)]
    near = [one for one in together if axis.inputs_per_output * one.together <= MOST_PACE]
    fitting = [one for one in near if one.joins and (one.exact or not exact)]
    return [plain, *(one for one in fitting if one.products < one.together * plain.products)]


def terms(matrix: Matrix) -> int:
    """Most factors in a row that are not zero."""
    return max(sum(map(bool, row)) for row in matrix)


Group: TypeAlias = tuple[Together, Together, Together]  # of the volume
Piece: TypeAlias = tuple[int, int, int]


class GatherKind(NamedTuple):
    """What the code that transforms the inputs of a piece depends on."""

    terms: int  # of a sum along the depth
    height: Scheme
    width: Scheme
    even: bool  # all pieces of the group have all its points

    @property
    def name(self) -> str:
        return f"gather_{self.terms}_{self.height}_{self.width}" + ("" if self.even else "_uneven")


class ScatterKind(NamedTuple):
    """What the code that transforms products back depends on."""

    terms: int
    height: Scheme
    width: Scheme

    @property
    def name(self) -> str:
        return f"scatter_{self.terms}_{self.height}_{self.width}"


def pieces_of(group: Group) -> tuple[Piece, ...]:
    d, h, w = (range(one.pieces) for one in group)
    return tuple(product(d, h, w))


def gather_kind(group: Group, piece: Piece) -> GatherKind:
    d, h, w = (one.schemes[at] for one, at in zip(group, piece, strict=True))
    return GatherKind(terms(d.inputs_matrix), h, w, all(one.even for one in group))


def scatter_kind(group: Group) -> ScatterKind:
    d, h, w = (one.scheme for one in group)
    return ScatterKind(terms(d.outputs_matrix), h, w)


def points_of(group: Group) -> list[tuple[int, int, int]]:
    """The points of the volume, in their order."""
    d, h, w = (range(one.scheme.points) for one in group)
    return list(product(d, h, w))


def pieces_at(group: Group, point: tuple[int, int, int]) -> list[Piece]:
    """The pieces that have a product there, in their order."""
    d, h, w = (one.pieces_at[at] for one, at in zip(group, point, strict=True))
    return list(product(d, h, w))


@dataclass(frozen=True)
class Method:
    """The methods of the three axes; plain on all three is the direct algorithm."""

    axes: tuple[AxisMethod, AxisMethod, AxisMethod]

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def _hash(self) -> int:
        """Found once: planning asks for what it knows of a method thousands of times."""
        return hash(self.axes)

    @property
    def direct(self) -> bool:
        return all(axis.plain for axis in self.axes)

    @lazy
    def walks(self) -> tuple[Walk, Walk, Walk]:
        d, h, w = (axis.walk for axis in self.axes)
        return d, h, w

    @lazy
    def groups(self) -> tuple[tuple[Together, Together, Together], ...]:
        """Of the volume: one for each combination of the axes' groups."""
        d, h, w = (axis.groups() for axis in self.axes)
        return tuple(product(d, h, w))

    @lazy
    def gathers(self) -> tuple[GatherKind, ...]:
        """The different transforms of inputs, on which the code depends."""
        return tuple(dict.fromkeys(gather_kind(group, piece) for group in self.groups for piece in pieces_of(group)))

    @lazy
    def scatters(self) -> tuple[ScatterKind, ...]:
        return tuple(dict.fromkeys(map(scatter_kind, self.groups)))

    @lazy
    def products(self) -> int:
        """For each input and output channel, at one super-position of the volume."""
        return prod(axis.products for axis in self.axes)

    @property
    def saving(self) -> Fraction:
        """Products of direct summation for each one made."""
        plain = prod(axis.together * AxisMethod(axis.axis, 1, axis.points).products for axis in self.axes)
        return Fraction(plain, self.products)

    @lazy
    def points(self) -> int:
        """Of all groups: matrix products at one super-position."""
        return sum(d.scheme.points * h.scheme.points * w.scheme.points for d, h, w in self.groups)

    @lazy
    def point_pieces(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of each different group of outputs: so many pieces have a product at so many points."""
        groups = ((len(pieces_at(group, point)) for point in points_of(group)) for group in self.groups)
        return tuple(dict.fromkeys(tuple(Counter(each).items()) for each in groups))

    @lazy
    def most_points(self) -> int:
        """Of any group."""
        return max(d.scheme.points * h.scheme.points * w.scheme.points for d, h, w in self.groups)

    @lazy
    def most_pieces(self) -> int:
        """Of any group at any point: products that are summed for each input channel."""
        return max(prod(max(map(len, one.pieces_at)) for one in group) for group in self.groups)
