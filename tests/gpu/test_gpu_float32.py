"""float32 by tensor cores: three bfloat16 numbers for each factor are as good as float32, wherever that can be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", "3.4")
from gpu_proof.tensor_cores import nearest, parts, summed  # noqa: E402
from helpers.gpu import INTERPRETED, GpuCase, gpu_case  # noqa: E402

import convt3d as ct  # noqa: E402
from convt3d.gpu.plan import gpu_plan  # noqa: E402
from convt3d.judge.tolerance import expectation  # noqa: E402
from convt3d.spec.dtypes import DTYPES  # noqa: E402
from convt3d.spec.pipeline import Pipeline  # noqa: E402

CONV = ct.ConvTranspose3d
UNIT = 2.0**-24


def case(**options: Any) -> GpuCase:
    return gpu_case(Pipeline(CONV(stride=2, padding=1)), (1, 20, 3, 4, 3), (20, 7, 3, 3, 3), **options)


def test_it_is_the_default_and_more_than_a_few_inputs_have_it() -> None:
    pipeline = Pipeline(CONV(stride=2))
    for inputs, dtype, precision in ((4, "float32", "bf16x6"), (3, "float32", "ieee"), (4, "float64", "ieee")):
        x = (1, inputs, 2, 2, 2)
        made = gpu_plan(pipeline, x, pipeline.operand_shapes(x, (inputs, 4, 2, 2, 2)), DTYPES[dtype])
        assert made.precision == precision


@pytest.mark.parametrize("seed", range(3))
def test_as_good_as_float32(seed: int) -> None:
    """The tolerance of honest sums in float32 holds, and the error is no larger than that of products one by one."""
    one = case(seed=seed)
    truth, exact, split = one.expected(), one.run(precision="ieee"), one.run()
    assert not np.array_equal(exact, split)
    expected = expectation(one.pipeline, one.dtype, one.x, one.operands, np.random.default_rng(seed))
    assert expected.accepts(split)
    largest = np.abs(truth).max()
    assert np.abs(split - truth).max() <= max(np.abs(exact - truth).max(), 4 * UNIT * largest)


def test_tf32_is_rounded() -> None:
    """Tensor cores would cut the factors off, and lose twice as much."""
    one = case()
    exact = one.run(precision="ieee")
    found = one.run(precision="tf32")
    error = np.abs(found - exact).max() / np.abs(exact).max()
    assert UNIT * 8 < error < 2.0**-10


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scales(scale: float) -> None:
    one = case()
    one.x[...] *= np.float32(scale)
    expected = expectation(one.pipeline, one.dtype, one.x, one.operands, np.random.default_rng(0))
    assert expected.accepts(one.run())


def test_numbers_near_the_largest() -> None:
    """The nearest bfloat16 number would be infinite."""
    most = np.finfo(np.float32).max
    one = gpu_case(Pipeline(CONV()), (1, 8, 1, 1, 4), (8, 3, 1, 1, 1))
    one.x[...], one.operands[0][...] = 0, 0
    one.x[0, 0], one.operands[0][0] = [[[most, -most, most / 2, most * 0.999]]], 1
    one.operands[0][1] = 5
    assert np.array_equal(one.run()[0, 0], one.x[0, 0])


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["x", "weight"])
def test_infinity_and_nan(where: str, value: float) -> None:
    """As products one by one give them: nothing beside, and no NaN where infinity meets a finite number."""
    one = gpu_case(Pipeline(CONV(stride=2, padding=1)), (1, 5, 2, 3, 2), (5, 4, 2, 3, 2))
    (one.x if where == "x" else one.operands[0])[0, 3, 1, 2, 1] = value
    truth, found = one.expected(), one.run()
    assert np.isfinite(found).any()
    assert not np.isfinite(found).all()
    assert np.array_equal(np.isnan(found), np.isnan(truth))
    assert np.array_equal(np.isinf(found), np.isinf(truth))
    one.check()


def test_tiny_numbers_lose_no_more_than_the_smallest_normal_number() -> None:
    """Parts below it may be taken for zero, as Triton's interpreter does and some GPUs do."""
    one = case()
    one.x[...] *= np.float32(2.0**-120)
    weights = np.abs(one.operands[0]).sum(axis=(0, 2, 3, 4)).max()
    assert np.abs(one.run() - one.expected()).max() <= 2.0**-126 * weights


# --- what tensor cores do beside: they cut off what they add ----------------------------------------------------------


def test_parts_give_the_number_back() -> None:
    rng = np.random.default_rng(0)
    v = (rng.standard_normal(10_000) * 2.0 ** rng.integers(-90, 90, 10_000)).astype(np.float32)
    first, second, third = parts(v)
    assert np.array_equal(first + (second + third), v)
    assert all(np.array_equal(nearest(part, 16), part) for part in (first, second, third))


@pytest.mark.parametrize("inputs", [32, 48, 256])
def test_sums_of_their_own_for_each_block_are_as_good_as_float32(inputs: int) -> None:
    """27 taps, in tensor cores that cut: one sum for all is off by many times as much."""
    rng = np.random.default_rng(inputs)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 27 * inputs), (27 * inputs, 16)))
    truth = x.astype(np.float64) @ w.astype(np.float64)
    error = {way: np.abs(summed(x, w, way) - truth).max() / np.abs(truth).max() for way in ("ieee", "blocks", "chain")}
    assert error["blocks"] <= error["ieee"] < 4e-6
    assert error["chain"] > 4 * error["blocks"]


@pytest.mark.skipif(not INTERPRETED, reason="the interpreter's own sums are rounded")
def test_the_interpreter_splits_as_the_simulation_does() -> None:
    one = gpu_case(Pipeline(CONV()), (1, 16, 1, 1, 5), (16, 16, 1, 1, 1))
    x, w = one.x[0, :, 0, 0, :].T, one.operands[0][:, :, 0, 0, 0]
    assert np.abs(one.run()[0, :, 0, 0, :].T - summed(x, w, "blocks")).max() <= 8 * UNIT * np.abs(x @ w).max()
