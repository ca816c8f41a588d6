"""Rounding to the four element types happens once, to nearest even, from float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convt3d.spec.dtypes import DTYPES, DType, bfloat16, float16, float32, float64

ALL_BITS = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
HALVES = [pytest.param(bfloat16, ml_dtypes.bfloat16, id="bfloat16"), pytest.param(float16, np.float16, id="float16")]


def _bits(dtype: DType, values: Any) -> Any:
    return dtype.narrow(np.asarray(values, dtype=np.float64)).view(np.uint16)


def _stored(dtype: DType) -> Any:
    return ALL_BITS.view(dtype.storage)


def _judged(judge: Any) -> Any:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return ALL_BITS.view(judge).astype(np.float64)


@pytest.mark.parametrize(("dtype", "judge"), HALVES)
def test_widening_all_numbers_is_exact(dtype: DType, judge: Any) -> None:
    """Signalling NaNs are among them: no warning may come out."""
    np.testing.assert_array_equal(dtype.widen(_stored(dtype)), _judged(judge))
    assert dtype.widen(_stored(dtype)).dtype == np.float64


@pytest.mark.parametrize(("dtype", "judge"), HALVES)
def test_all_numbers_round_trip(dtype: DType, judge: Any) -> None:
    """Every one of the 2**16 bit patterns comes back, subnormals and signed zeros too; NaN comes back as a NaN."""
    back = _bits(dtype, dtype.widen(_stored(dtype)))
    nan = np.isnan(_judged(judge))
    np.testing.assert_array_equal(back[~nan], ALL_BITS[~nan])
    assert np.isnan(back[nan].view(judge).astype(np.float64)).all()


def _neighbours(dtype: DType) -> tuple[Any, Any]:
    """All non-negative finite numbers but the largest, and the next one up from each."""
    top = 0x7F7F if dtype is bfloat16 else 0x7BFF
    bits = np.arange(top, dtype=np.uint16)
    return bits, dtype.widen(bits.view(dtype.storage))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=lambda dtype: dtype.name)
def test_every_tie_and_what_lies_just_beside_it(dtype: DType, sign: float) -> None:
    """Half-way values go to the even neighbour; one float64 ulp beside it decides. Rounding through float32 would lose
    that ulp and round twice, so this is the trap of double rounding, for every pair of neighbours."""
    bits, low = _neighbours(dtype)
    high = dtype.widen((bits + np.uint16(1)).view(dtype.storage))
    tie = (low + high) / 2  # exact in float64
    negative = np.uint16(0x8000 if sign < 0 else 0)
    for values, expected in (
        (tie, bits + (bits & np.uint16(1))),
        (np.nextafter(tie, -np.inf), bits),
        (np.nextafter(tie, np.inf), bits + np.uint16(1)),
        (np.nextafter(high, -np.inf), bits + np.uint16(1)),
    ):
        np.testing.assert_array_equal(_bits(dtype, sign * values), expected | negative)


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        pytest.param(bfloat16, 3.3895313892515355e38, 0x7F7F, id="bfloat16: largest"),
        pytest.param(bfloat16, math.nextafter(2.0**128 - 2.0**119, 0), 0x7F7F, id="bfloat16: just below overflow"),
        pytest.param(bfloat16, 2.0**128 - 2.0**119, 0x7F80, id="bfloat16: tie at overflow goes to Inf"),
        pytest.param(bfloat16, 3.5e38, 0x7F80, id="bfloat16: above float32 too"),
        pytest.param(bfloat16, -1e300, 0xFF80, id="bfloat16: -Inf"),
        pytest.param(bfloat16, 2.0**-133, 0x0001, id="bfloat16: least subnormal"),
        pytest.param(bfloat16, 2.0**-134, 0x0000, id="bfloat16: half of it ties to zero"),
        pytest.param(bfloat16, math.nextafter(2.0**-134, 1), 0x0001, id="bfloat16: a little more than half"),
        pytest.param(bfloat16, -1e-300, 0x8000, id="bfloat16: underflow keeps the sign"),
        pytest.param(bfloat16, 5e-324, 0x0000, id="bfloat16: least double"),
        pytest.param(bfloat16, 1.0 + 2.0**-8, 0x3F80, id="bfloat16: tie down to even"),
        pytest.param(bfloat16, 1.0 + 2.0**-8 + 2.0**-52, 0x3F81, id="bfloat16: float32 would round onto the tie"),
        pytest.param(bfloat16, 1.0 + 3 * 2.0**-8 - 2.0**-52, 0x3F81, id="bfloat16: float32 would round up to the tie"),
        pytest.param(float16, 65519.99999999999, 0x7BFF, id="float16: just below overflow"),
        pytest.param(float16, 65520.0, 0x7C00, id="float16: tie at overflow goes to Inf"),
        pytest.param(float16, -1e39, 0xFC00, id="float16: -Inf"),
        pytest.param(float16, 2.0**-24, 0x0001, id="float16: least subnormal"),
        pytest.param(float16, 2.0**-25, 0x0000, id="float16: half of it ties to zero"),
        pytest.param(float16, math.nextafter(2.0**-25, 1), 0x0001, id="float16: a little more than half"),
        pytest.param(float16, 1.0 + 2.0**-11 + 2.0**-50, 0x3C01, id="float16: float32 would round onto the tie"),
        pytest.param(float16, -0.0, 0x8000, id="float16: signed zero"),
        pytest.param(bfloat16, -0.0, 0x8000, id="bfloat16: signed zero"),
    ],
)
def test_narrow_at_the_edges(dtype: DType, value: float, bits: int) -> None:
    assert int(_bits(dtype, [value])[0]) == bits


@settings(max_examples=200)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_float16_is_torchs(values: list[float]) -> None:
    doubles = np.array(values)
    expected = torch.from_numpy(doubles).to(torch.float32)  # torch goes through float32: compare where that is exact
    exact = (expected.double().numpy() == doubles) | np.isnan(doubles)
    got = float16.narrow(doubles)
    np.testing.assert_array_equal(got[exact], expected.to(torch.float16).numpy()[exact])


@settings(max_examples=300)
@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_bfloat16_of_float32_values_is_torchs_and_ml_dtypes(values: list[float]) -> None:
    doubles = np.array(values)
    got = bfloat16.widen(bfloat16.narrow(doubles))
    np.testing.assert_array_equal(got, torch.from_numpy(doubles).float().bfloat16().double().numpy())
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(got, doubles.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64))


@settings(max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_bfloat16_takes_the_nearer_neighbour(value: float) -> None:
    """Any double, by the definition of rounding: no other bfloat16 is nearer."""
    got = float(bfloat16.widen(bfloat16.narrow(np.array([value])))[0])
    grid = bfloat16.widen(np.arange(0x7F80, dtype=np.uint16))
    at = int(np.searchsorted(grid, abs(value)))
    if at == len(grid):  # beyond the largest: Inf from half a step on
        assert got == math.copysign(math.inf if abs(value) >= 2.0**128 - 2.0**119 else grid[-1], value)
        return
    best = min(abs(abs(value) - grid[at]), abs(abs(value) - grid[max(at - 1, 0)]))
    assert abs(abs(value) - abs(got)) == best
    assert math.copysign(1.0, got) == math.copysign(1.0, value)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 1), (0, 4)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_shapes_and_types_survive(dtype: DType, shape: tuple[int, ...]) -> None:
    """Also arrays without an axis and without an element, and without any warning."""
    stored = dtype.narrow(np.full(shape, -1.5))
    assert (stored.shape, stored.dtype, stored.itemsize) == (shape, np.dtype(dtype.storage), dtype.itemsize)
    assert (dtype.widen(stored) == -1.5).all()
    assert dtype.widen(stored).shape == shape


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_eps_is_the_spacing_at_one(dtype: DType) -> None:
    after = dtype.widen(dtype.narrow(np.array([1.0 + dtype.eps, 1.0 + dtype.eps / 2])))
    assert list(after) == [1.0 + dtype.eps, 1.0]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        pytest.param(float32, 1e300, math.inf, id="float32: overflows, as in PyTorch"),
        pytest.param(float32, -1e39, -math.inf, id="float32: to -Inf"),
        pytest.param(float64, 1e300, 1e300, id="float64: stays"),
        pytest.param(float64, 0.1, 0.1, id="float64: every bit"),
        pytest.param(float32, 0.1, 0.10000000149011612, id="float32: rounded"),
        pytest.param(float16, 0.1, 0.10000000149011612, id="float16 computes in float32"),
        pytest.param(bfloat16, 1e10, 1e10, id="bfloat16 computes in float32"),
        pytest.param(float16, 1e5, 1e5, id="a float16 scalar may exceed float16"),
        pytest.param(float32, 1e-50, 0.0, id="float32: underflows"),
        pytest.param(float32, 1e-40, 9.999946101114759e-41, id="float32: subnormal"),
        pytest.param(float32, math.inf, math.inf, id="Inf stays"),
    ],
)
def test_round_scalar(dtype: DType, value: float, expected: float) -> None:
    got = dtype.round_scalar(value)
    assert (type(got), got.hex()) == (float, expected.hex())


def test_round_scalar_keeps_nan_and_the_sign_of_zero() -> None:
    assert math.isnan(float32.round_scalar(math.nan))
    assert math.copysign(1.0, float32.round_scalar(-0.0)) == -1.0
    assert math.copysign(1.0, float32.round_scalar(-1e-60)) == -1.0


def test_the_four_types() -> None:
    assert {name: (d.storage, d.accumulate, d.itemsize) for name, d in DTYPES.items()} == {
        "float32": ("float32", "float32", 4),
        "float64": ("float64", "float64", 8),
        "float16": ("float16", "float32", 2),
        "bfloat16": ("uint16", "float32", 2),
    }
