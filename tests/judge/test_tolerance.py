"""Tolerances of unusual data: what honest float32 gives is accepted, what is wrong is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convt3d as ct
from convt3d.judge.tolerance import Expectation, expectation
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate

X, W = (1, 3, 4, 5, 6), (3, 4, 2, 3, 2)


def of(*stages: Any, dtype: str = "float32", x: Any = None, w: Any = None) -> tuple[Expectation, Any, list[Any]]:
    rng, kind = np.random.default_rng(5), DTYPES[dtype]
    arrays = [rng.standard_normal(X) if x is None else x, rng.standard_normal(W) if w is None else w]
    arrays = [kind.widen(kind.narrow(array)) for array in arrays]
    return expectation(ct.Pipeline(*stages), kind, arrays[0], arrays[1:], rng), arrays[0], arrays[1:]


def test_kept_values_are_those_that_were_kept() -> None:
    stages = ct.Keep("a"), ct.ConvTranspose3d(), ct.ReLU(), ct.Keep("b"), ct.Tanh(), ct.Add("b")
    found, x, operands = of(*stages)
    np.testing.assert_array_equal(found.values, evaluate(ct.Pipeline(*stages), x, operands))
    assert found.accepts(found.values)
    assert not found.accepts(found.values * (1 + 1e-4))


def test_a_nan_leaves_other_voxels_their_tolerance() -> None:
    usual, x, operands = of(ct.ConvTranspose3d(), ct.Tanh())
    x = x.copy()
    x[0, 0, 0, 0, 0] = np.nan
    found, _, _ = of(ct.ConvTranspose3d(), ct.Tanh(), x=x, w=operands[0])
    touched = np.isnan(found.values)
    assert 0 < touched.sum() < touched.size // 4
    assert (found.tolerance[~touched] > 0.1 * np.median(usual.tolerance)).all()
    assert found.accepts(found.values)
    assert not found.accepts(np.nan_to_num(found.values))


def test_an_infinity_that_a_softmax_swallows_leaves_a_tolerance() -> None:
    x = np.random.default_rng(1).standard_normal(X)
    x[0, 0] = -np.inf
    found, _, _ = of(ct.Softmax("channels"), ct.ConvTranspose3d(), x=x)
    assert np.isfinite(found.values).all()
    assert found.accepts(found.values.astype(np.float32).astype(np.float64))


def test_sums_that_may_overflow_are_not_judged() -> None:
    found, _, _ = of(ct.ConvTranspose3d(), ct.Clamp(-1.0, 1.0), x=np.full(X, 1e30), w=np.full(W, 1e20))
    assert np.isinf(found.tolerance).all()
    assert found.accepts(np.full(found.values.shape, np.nan))
    large, _, _ = of(ct.ConvTranspose3d(), ct.Clamp(-1.0, 1.0), x=np.full(X, 1e15), w=np.full(W, 1e15))
    assert np.isfinite(large.tolerance).all()
    assert not large.accepts(np.full(large.values.shape, np.nan))


def test_a_norm_squares_what_it_reads() -> None:
    found, _, _ = of(ct.ConvTranspose3d(), ct.LayerNorm(), x=np.random.default_rng(0).standard_normal(X) * 1e22)
    assert np.isinf(found.tolerance).all()


def test_the_brink_of_a_type() -> None:
    """65519.99 becomes 65504 in float16 and 65520 becomes inf: both are honest between them."""
    w = np.ones((1, 1, 1, 1, 1))
    x = np.array([65504.0, 60000.0, 70000.0]).reshape(1, 1, 1, 1, 3)
    pipeline, kind = ct.Pipeline(ct.ConvTranspose3d(), ct.Add(15.9)), DTYPES["float16"]
    found = expectation(pipeline, kind, x, [w], np.random.default_rng(0))
    assert np.isinf(found.tolerance).ravel().tolist() == [True, False, False]
    assert found.accepts(np.array([np.inf, 60000.0, np.inf]).reshape(x.shape))
    assert not found.accepts(np.array([np.inf, np.inf, np.inf]).reshape(x.shape))


def test_products_below_the_smallest_number_may_vanish() -> None:
    """1e-40 of them are lost in float32, and then divided by as little."""
    found, x, operands = of(
        ct.ConvTranspose3d(), ct.Divide(1e-42), x=np.full(X, 3e-23), w=np.full(W, 2e-23)
    )  # terms of 4 tenths of the smallest subnormal
    assert found.accepts(np.zeros(found.values.shape))
    normal, _, _ = of(ct.ConvTranspose3d(), x=x * 1e10, w=operands[0])
    assert not normal.accepts(np.zeros(normal.values.shape))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_as_most_people_write_it(approximate: str) -> None:
    """1 + erf(...) in float32 is exactly zero from -6 on, where the meaning is 1e-9."""
    from math import erf, sqrt

    x = np.random.default_rng(3).standard_normal(X) * 4 - 5
    w = np.zeros((3, 3, 1, 1, 1))
    w[range(3), range(3)] = 1.0
    found, x, _ = of(ct.ConvTranspose3d(), ct.GELU(approximate), x=x, w=w)
    narrow = x.astype(np.float32)
    if approximate == "tanh":
        gate = np.tanh(np.float32(sqrt(2 / np.pi)) * (narrow + np.float32(0.044715) * narrow**3))
    else:
        gate = np.vectorize(erf, otypes=[np.float32])(narrow * np.float32(sqrt(0.5)))
    honest = (np.float32(0.5) * narrow * (1 + gate)).astype(np.float64)
    assert found.accepts(honest)
    assert not found.accepts(honest + 1e-4)


def test_a_norm_of_equal_numbers_magnifies_the_rounding_of_their_mean() -> None:
    found, _, _ = of(ct.GroupNorm(1), ct.ConvTranspose3d(), x=np.full(X, 7.1), w=np.ones(W))
    off = np.float32(7.1) * 2.0**-24 / np.sqrt(1e-5)
    assert found.accepts(found.values + off)
    assert not found.accepts(found.values + 1.0)


@pytest.mark.parametrize("power", [-560, 480])
def test_sizes_whose_squares_are_no_numbers(power: int) -> None:
    """Powers of two change no rounding: the tolerance of 1e-169 and of 1e144 is that of 1, times as much."""
    x = np.random.default_rng(2).standard_normal(X)
    for stages in (ct.ConvTranspose3d(),), (ct.ConvTranspose3d(), ct.Sum("spatial")):
        usual, _, _ = of(*stages, dtype="float64", x=x)
        found, _, _ = of(*stages, dtype="float64", x=np.ldexp(x, power))
        np.testing.assert_allclose(found.tolerance, np.ldexp(usual.tolerance, power), rtol=1e-9)


def test_numbers_that_rounding_makes_equal() -> None:
    """1e12 leaves nothing of them in float32, and a norm along rows zeros; in float64, the larger of each two is 1."""
    stages = ct.ConvTranspose3d(), ct.Add(1e12), ct.LayerNorm("width"), ct.MaxPool3d((1, 1, 2))
    x = np.tile([0.75, -0.5], 9).reshape(1, 1, 3, 3, 2)
    found, x, operands = of(*stages, x=x, w=np.ones((1, 1, 1, 1, 1)))
    assert (found.values > 0.9).all()
    assert found.accepts(np.zeros(found.values.shape))
    assert not found.accepts(np.full(found.values.shape, 2.5))
    smaller, _, _ = of(stages[0], ct.Add(100.0), *stages[2:], x=x, w=operands[0])
    assert not smaller.accepts(np.zeros(found.values.shape))


def test_what_cancels_in_a_batch_norm() -> None:
    """float32(mean * scale) is off by 2^-25, and 0.003 is left of it."""
    stages = ct.ConvTranspose3d(), ct.Multiply(0.5), ct.BatchNorm(affine=True)
    mean, var, weight = (np.float32([number]) for number in (1.0, 0.3, 0.7))
    scale = weight / np.sqrt(var + np.float32(1e-5))
    bias = (mean * scale + np.float32(0.003)).astype(np.float32)
    x, w = np.zeros((1, 1, 2, 2, 2)), np.ones((1, 1, 1, 1, 1))
    operands = [w, *(array.astype(np.float64) for array in (mean, var, weight, bias))]
    found = expectation(ct.Pipeline(*stages), DTYPES["float32"], x, operands, np.random.default_rng(0))
    one_off = np.nextafter(mean * scale, np.float32(2.0))
    for product in (mean * scale, one_off):
        assert found.accepts(np.broadcast_to((bias - product).astype(np.float64), found.values.shape))
    assert not found.accepts(found.values + 2.0**-16 * float(mean[0] * scale[0]))


@pytest.mark.parametrize("size", [4e36, 1e30])
def test_a_factor_that_overflows_is_not_judged(size: float) -> None:
    """Of equal numbers a norm is zero; times 4e36 / sqrt(1e-5), which float32 does not hold, it is NaN."""
    x, w = np.full((1, 1, 2, 2, 2), 3.0), np.ones((1, 2, 1, 1, 1))
    operands = [w, np.array([1.0, size]), np.zeros(2)]
    pipeline = ct.Pipeline(ct.ConvTranspose3d(), ct.InstanceNorm(affine=True))
    found = expectation(pipeline, DTYPES["float32"], x, operands, np.random.default_rng(0))
    assert np.isinf(found.tolerance).any(axis=(0, 2, 3, 4)).tolist() == [False, size == 4e36]
    moments = [np.zeros(2), np.zeros(2)]
    pipeline = ct.Pipeline(ct.ConvTranspose3d(), ct.ReLU(), ct.BatchNorm(affine=True))
    found = expectation(pipeline, DTYPES["float32"], 0 * x, [w, *moments, *operands[1:]], np.random.default_rng(0))
    assert np.isinf(found.tolerance).any(axis=(0, 2, 3, 4)).tolist() == [False, size == 4e36]


def test_a_factor_near_zero_is_rounded_before_it_is_multiplied() -> None:
    """7.4 spacings become 7, and 40 times that is off by 16 of them; not by 1000."""
    least = float(np.finfo(np.float32).smallest_subnormal)
    x = np.random.default_rng(4).standard_normal((2, 1, 5, 6, 7)) * 40.0
    weight, bias = np.array([300 * least]), np.zeros(1)
    pipeline = ct.Pipeline(ct.ConvTranspose3d(), ct.InstanceNorm(affine=True))
    kind, w = DTYPES["float32"], np.ones((1, 1, 1, 1, 1))
    found = expectation(pipeline, kind, x, [w, weight, bias], np.random.default_rng(0))
    centred = x - x.mean(axis=(2, 3, 4), keepdims=True)
    factor = weight / np.sqrt((centred**2).mean(axis=(2, 3, 4), keepdims=True) + 1e-5)
    honest = (centred.astype(np.float32) * factor.astype(np.float32)).astype(np.float64)
    assert np.abs(honest - found.values).max() > 10 * least
    assert found.accepts(honest)
    assert not found.accepts(honest + 1000 * least * np.sign(centred))
