"""Offsets of 64 bits: arrays whose elements lie more than 2^31 elements, and more than 2^32 bytes, apart."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
import pytest
from helpers.draws import Case, make

import convt3d as ct

NO_RESERVE = 0x4000  # Linux: address space without memory behind it until it is touched
FAR = 2**31 + 96  # elements


def sparse(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
    """An array with huge strides over untouched address space: only the pages of its elements take memory."""
    item = np.dtype(dtype).itemsize
    size = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) * item + item
    try:
        space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except (OSError, OverflowError, ValueError):
        pytest.skip(f"no address space of {size} bytes here")
    return np.ndarray(shape, dtype, space, 0, [step * item for step in strides])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs address space without memory")
@pytest.mark.parametrize("axis", ["batch", "channel", "depth", "height", "width"])
def test_far_apart_along_one_axis(axis: str) -> None:
    """A product of index and stride in 32 bits would wrap around, and write somewhere else."""
    at = ["batch", "channel", "depth", "height", "width"].index(axis)
    sizes = [1, 1, 1, 1, 1]
    sizes[at] = 2
    pipeline = ct.Pipeline(ct.ConvTranspose3d(), ct.Multiply(2.0))
    case = make(pipeline, tuple(sizes), (sizes[1], sizes[1], 1, 1, 1), "float16")
    strides = [1, 1, 1, 1, 1]
    strides[at] = FAR
    out = sparse(case.output, tuple(strides), "float16")
    assert abs(out.strides[at]) > 2**32
    case.check(out)
    x = sparse(case.x.shape, tuple(strides), "float16")
    x[...] = case.x
    Case(case.pipeline, case.dtype, x, case.operands).check()
    reverse = (slice(None, None, -1),) * 5
    Case(case.pipeline, case.dtype, x[reverse], case.operands).check(out[reverse])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs address space without memory")
def test_tensors_and_statistics_far_apart() -> None:
    """Tensor operands have strides of their own, and a value that waits in `out` is read from there again."""
    pipeline = ct.Pipeline(ct.ConvTranspose3d(stride=2), ct.Add("tensor"), ct.InstanceNorm())
    case = make(pipeline, (1, 2, 2, 3, 4), (2, 2, 2, 2, 2))
    strides = (1, 2**30 + 7, 128, 16, 1)
    tensor = sparse(case.output, strides, "float32")
    tensor[...] = case.operands[1]
    Case(pipeline, case.dtype, case.x, (case.operands[0], tensor)).check(sparse(case.output, strides, "float32"))
