"""Comparing large arrays natively: every bit counts, whatever the size, the type and the threads."""

from __future__ import annotations

import numpy as np
import pytest

import convt3d
from convt3d.cpu.runtime.compare import LARGE, same_bits


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 64, 65, 1000, 4097])
def test_every_byte_counts(threads: int, size: int) -> None:
    a = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    b = a.copy()
    with convt3d.num_threads(threads):
        assert same_bits(a, b)
        for at in {0, 1, size // 3, size // 2, size - 9, size - 2, size - 1} & set(range(size)):
            b[at] ^= 1 << at % 8
            assert not same_bits(a, b), at
            b[at] = a[at]


def test_bits_not_values() -> None:
    nan, zero = np.full(100, np.nan, np.float32), np.zeros(100, np.float32)
    assert same_bits(nan, nan.copy())
    assert not same_bits(zero, -zero)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_one_changed_weight_gives_a_new_answer(dtype: str, place: int) -> None:
    """Of a kernel large enough to be compared natively, changed in place; almost surely where no sample is taken."""
    channels = 72 if dtype != "float16" else 104
    rng = np.random.default_rng(0)
    x, w = (
        rng.standard_normal(shape).astype(dtype) for shape in ((1, channels, 1, 2, 2), (channels, channels, 3, 3, 3))
    )
    assert w.nbytes >= LARGE
    pipeline = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2))
    before = pipeline(x, w)
    np.testing.assert_array_equal(pipeline(x, w), before)
    w.reshape(-1)[place] += 1
    after = pipeline(x, w)
    np.testing.assert_array_equal(after, pipeline(x, w.copy()))
    assert not np.array_equal(after, before)
