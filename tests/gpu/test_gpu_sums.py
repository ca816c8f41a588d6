"""Sums on the GPU: constants, large means and large windows lose no more than a few units, and the bias joins last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.gpu import GpuCase

import convt3d as ct
from convt3d.spec.dtypes import DTYPES

UNIT = 2.0**-24


def case(x: Any, *stages: Any) -> GpuCase:
    """After a convolution that changes nothing."""
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=1, groups=x.shape[1]), *stages)
    return GpuCase(pipe, DTYPES["float32"], x.astype(np.float32), (np.ones((x.shape[1], 1, 1, 1, 1), np.float32),))


NORMS = {
    "instance norm": (ct.InstanceNorm(), (1, 3, 5, 7, 9)),
    "group norm": (ct.GroupNorm(2), (1, 6, 5, 5, 5)),
    "layer norm": (ct.LayerNorm(), (1, 45, 2, 3, 3)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_constant_normalises_to_nothing(name: str) -> None:
    stage, shape = NORMS[name]
    for value in (0.1, -1 / 3, 1e4):
        assert np.abs(case(np.full(shape, value), stage).run()).max() <= abs(value) * UNIT**2 * 2**12


@pytest.mark.parametrize("name", NORMS)
def test_a_large_mean_leaves_the_deviation_alone(name: str) -> None:
    stage, shape = NORMS[name]
    one = case(1000 + np.random.default_rng(1).standard_normal(shape), stage)
    truth = one.expected()
    assert (np.abs(one.run() - truth) <= 24 * UNIT * (np.abs(truth) + 0.1)).all()


def test_large_windows() -> None:
    one = case(np.full((1, 2, 7, 8, 7), 0.1), ct.AvgPool3d(7))
    assert np.abs(one.run() - one.expected()).max() <= 3 * UNIT * 0.1


def test_infinity_in_a_large_window() -> None:
    x = np.ones((1, 1, 5, 5, 10))
    x[..., 2, 3, 4] = np.inf
    assert np.array_equal(case(x, ct.AvgPool3d(5)).run().reshape(2), [np.inf, 1.0])


def test_the_bias_joins_last() -> None:
    rng = np.random.default_rng(2)
    x, w = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((1, 16, 3, 3, 4), (16, 16, 3, 3, 3)))
    bias = rng.uniform(-100, 100, 16).astype(np.float32)
    plain = GpuCase(ct.Pipeline(ct.ConvTranspose3d(stride=2, padding=1)), DTYPES["float32"], x, (w,)).run()
    lifted = GpuCase(
        ct.Pipeline(ct.ConvTranspose3d(stride=2, padding=1, bias=True)), DTYPES["float32"], x, (w, bias)
    ).run()
    assert np.array_equal(lifted, plain + bias.reshape(-1, 1, 1, 1))
