"""Winograd's method is exact in rationals: its identity, its matrices, and every output of any axis."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convt3d.cpu.plan.winograd import EXACT_OUTPUTS, EXACT_POINTS, MOST_POINTS, AxisMethod, Method, Scheme, axis_methods
from convt3d.spec.shapes import ConvAxis, ForwardAxis, TransposedAxis

ALL = [(m, r) for m in range(1, 7) for r in range(1, 7)]


def times(matrix: Any, values: Any) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, values, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize(("m", "r"), ALL)
def test_the_defining_identity(m: int, r: int) -> None:
    """A [(G g) * (B x)] = correlation, for a basis of g and x: it is bilinear, so it holds for all."""
    scheme = Scheme(m, r)
    assert scheme.points == m + r - 1 == len(scheme.weights_matrix)
    for i in range(r):
        g = [Fraction(int(at == i)) for at in range(r)]
        for j in range(m + r - 1):
            x = [Fraction(int(at == j)) for at in range(m + r - 1)]
            products = [
                a * b for a, b in zip(times(scheme.weights_matrix, g), times(scheme.inputs_matrix, x), strict=True)
            ]
            assert times(scheme.outputs_matrix, products) == [Fraction(int(p + i == j)) for p in range(m)]


@pytest.mark.parametrize(("m", "r"), [pair for pair in ALL if sum(pair) - 1 <= EXACT_POINTS])
def test_exact_schemes_hold_only_simple_numbers(m: int, r: int) -> None:
    scheme = Scheme(m, r)
    found = {abs(v) for matrix in (scheme.inputs_matrix, scheme.outputs_matrix) for row in matrix for v in row}
    assert found <= {0, 1}
    assert {abs(v) for row in scheme.weights_matrix for v in row} <= {0, Fraction(1, 2), 1}


@pytest.mark.parametrize(("m", "r"), [pair for pair in ALL if sum(pair) - 1 <= EXACT_POINTS])
def test_exact_schemes_make_outputs_of_their_own_inputs(m: int, r: int) -> None:
    """Others would have to cancel, and a large one leaves its rounding errors behind: so it is with F(3, 2)."""
    scheme = Scheme(m, r)
    foreign = False
    for p, row in enumerate(scheme.outputs_matrix):
        used = {j for i, factor in enumerate(row) if factor for j, v in enumerate(scheme.inputs_matrix[i]) if v}
        foreign = foreign or not used <= set(range(p, p + r))
    assert foreign == (m > EXACT_OUTPUTS and r > 1)


@pytest.mark.parametrize(("m", "r"), ALL)
def test_inputs_are_multiplied_with_whole_numbers(m: int, r: int) -> None:
    assert all(v.denominator == 1 for row in Scheme(m, r).inputs_matrix for v in row)


def by_method(method: AxisMethod, x: list[Fraction], w: list[Fraction]) -> list[Fraction | None]:
    """The outputs of one axis as the kernel makes them, zeros where the input ends."""
    axis = method.axis

    def at(index: int) -> Fraction:
        return x[index] if 0 <= index < len(x) else Fraction(0)

    y: list[Fraction | None] = [None] * axis.out
    for q in range(method.walk.positions):
        for group in method.groups():
            scheme = group.scheme
            total = [Fraction(0)] * scheme.points
            for piece, own in enumerate(group.schemes):
                g = times(own.weights_matrix, [w[k] for k in group.taps[piece]])
                shifts = [group.shift(piece, point) for point in range(own.points)]
                v = times(own.inputs_matrix, [at(method.walk.pace * q + shift) for shift in shifts])
                for point in range(own.points):
                    assert piece in group.pieces_at[group.point(piece, point)]
                    total[group.point(piece, point)] += g[point] * v[point]
            for j, value in zip(group.outputs, times(scheme.outputs_matrix, total), strict=True):
                o = method.walk.period * q + j
                if o < axis.out:
                    assert y[o] is None, "an output is made once"
                    y[o] = value
    return y


def directly(axis: ConvAxis, x: list[Fraction], w: list[Fraction]) -> list[Fraction | None]:
    """None where no tap ever meets: such outputs are the bias."""
    y: list[Fraction | None] = [None] * axis.out
    for o in range(axis.out):
        for k in range(axis.kernel):
            turn, rest = divmod(o * axis.inputs_per_output + axis.offset(k), axis.outputs_per_input)
            if rest == 0:
                y[o] = (y[o] or Fraction(0)) + (x[turn] * w[k] if 0 <= turn < axis.size else 0)
    return y


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_output_of_an_axis(data: st.DataObject) -> None:
    size, kernel = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    stride, dilation = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    span = (size - 1) * stride + dilation * (kernel - 1) + 1
    padding = data.draw(st.integers(0, min(dilation * (kernel - 1), (span - 1) // 2)))
    extra = data.draw(st.integers(0, max(stride, dilation) - 1))
    axis: ConvAxis = TransposedAxis(size, kernel, stride, padding, extra, dilation)
    if data.draw(st.booleans()):
        padding = data.draw(st.integers(0, 9))
        axis = ForwardAxis(size, kernel, stride, padding, data.draw(st.integers(0, 1)), dilation)
        assume(axis.out >= 1)
    points = data.draw(st.integers(2, MOST_POINTS))
    method = data.draw(st.sampled_from(axis_methods(axis, points)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x, w = ([Fraction(int(v)) for v in rng.integers(-9, 10, n)] for n in (size, kernel))
    assert by_method(method, x, w) == directly(axis, x, w)


@pytest.mark.parametrize(
    ("kernel", "stride", "expected"),
    [
        (3, 1, {2: Fraction(4, 6)}),
        (4, 2, {2: Fraction(6, 8)}),
        (5, 2, {2: Fraction(7, 10)}),
        (3, 2, {2: Fraction(5, 6)}),
        (4, 1, {2: Fraction(6, 8)}),  # two pieces
        (5, 1, {2: Fraction(7, 10)}),  # pieces of three and two
        (7, 1, {2: Fraction(10, 14)}),  # three pieces
        (9, 1, {2: Fraction(12, 18)}),
        (10, 1, {}),  # four: errors of longer sums have not been measured
        (2, 2, {}),  # k = s: every phase has one tap
        (1, 1, {}),
        (3, 5, {}),
    ],
)
def test_products_of_usual_axes(kernel: int, stride: int, expected: dict[int, Fraction]) -> None:
    axis = TransposedAxis(32, kernel, stride, 0, 0, 1)
    plain, *saving = axis_methods(axis, EXACT_POINTS)
    found = {one.outputs: Fraction(one.products, one.together * plain.products) for one in saving}
    assert found == expected


def test_savings_multiply_over_the_axes() -> None:
    axis = TransposedAxis(32, 3, 1, 0, 0, 1)
    by_two = AxisMethod(axis, 2, EXACT_POINTS)
    assert Method((by_two, by_two, by_two)).saving == Fraction(6, 4) ** 3
    assert Method((by_two, by_two, AxisMethod(axis, 1, EXACT_POINTS))).saving == Fraction(6, 4) ** 2


@pytest.mark.parametrize(
    ("kernel", "stride", "expected"),
    [
        (3, 1, {2: Fraction(4, 6)}),
        (4, 2, {2: Fraction(6, 8)}),  # two taps on the inputs of either remainder
        (3, 2, {2: Fraction(5, 6)}),  # two and one
        (5, 2, {2: Fraction(7, 10)}),
        (7, 2, {2: Fraction(10, 14)}),  # two and two, and three
        (8, 2, {}),  # four pieces
        (2, 2, {}),
    ],
)
def test_products_of_a_convolution(kernel: int, stride: int, expected: dict[int, Fraction]) -> None:
    plain, *saving = axis_methods(ForwardAxis(32, kernel, stride, 0, 0, 1), EXACT_POINTS)
    assert {one.outputs: Fraction(one.products, one.together * plain.products) for one in saving} == expected


def test_plain_pieces_join_others_for_two_outputs_only() -> None:
    """A single tap beside others, of three outputs and more: its products are at other points."""
    for axis, points in ((TransposedAxis(1, 3, 1, 0, 0, 1), 5), (ForwardAxis(9, 3, 2, 1, 0, 1), MOST_POINTS)):
        for method in axis_methods(axis, points):
            x, w = ([Fraction(3 * at * at - 7) for at in range(n)] for n in (axis.size, axis.kernel))
            assert by_method(method, x, w) == directly(axis, x, w)
