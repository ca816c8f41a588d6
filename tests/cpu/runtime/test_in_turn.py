"""Values between sweeps that the output array cannot hold: some samples go through all sweeps after the others, in the
same memory. The bits are those of all samples at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from helpers.compare import assert_same

import convt3d as ct
from convt3d.cpu.plan import plan as planning
from convt3d.cpu.plan.plan import make_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate
from convt3d.spec.text import read_stages

BATCH = 5
# An array of 16-bit numbers; a value that is kept; operands of every sample, and one for all; a result with other axes
CASES = [
    ("Conv3d(padding=1) -> InstanceNorm() -> LeakyReLU()", "float16", ()),
    ("ConvTranspose3d(stride=2) -> Softmax('spatial')", "float16", ()),
    ("Conv3d(padding=1) -> Keep('y') -> InstanceNorm() -> Add('y')", "float32", ()),
    ("ConvTranspose3d(stride=2) -> Keep('y') -> GroupNorm(3) -> Multiply('y') -> Add('tensor')", "float32", (BATCH,)),
    ("ConvTranspose3d(stride=2) -> Keep('y') -> GroupNorm(3) -> Multiply('y') -> Add('tensor')", "float64", (1,)),
    ("MaxPool3d(2) -> Conv3d(padding=1) -> InstanceNorm() -> Mean('channels')", "float32", ()),
]


@contextmanager
def samples_together(count: int, each: int) -> Iterator[None]:
    """Plans made inside find room in the cache for the values of so many samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "cached_bytes", lambda host: count * each)
        planning._make_plan.cache_clear()
        try:
            yield
        finally:
            planning._make_plan.cache_clear()


def arrays(text: str, dtype: str, tensors: tuple[int, ...]) -> tuple[ct.Pipeline, list[Any]]:
    rng = np.random.default_rng(3)
    pipe = ct.Pipeline(*read_stages(text))
    kernel = (6, 6, 3, 3, 3) if isinstance(pipe.conv, ct.Conv3d) else (6, 6, 2, 2, 2)
    x = (BATCH, 6, 4, 5, 7)
    shapes = [list(shape) for shape in pipe.operand_shapes(x, kernel)]
    for slot, shape in zip(pipe.slots, shapes, strict=True):
        if slot.operand.kind == "tensor":
            shape[0] = tensors[0]
    return pipe, [rng.standard_normal(shape).astype(dtype) for shape in (x, *shapes)]


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize(("text", "dtype", "tensors"), CASES)
def test_the_same_bits(text: str, dtype: str, tensors: tuple[int, ...], together: int) -> None:
    pipe, given = arrays(text, dtype, tensors)
    plan = make_plan(pipe, given[0].shape, tuple(one.shape for one in given[1:]), DTYPES[dtype])
    each = plan._shared_values // BATCH
    assert each > 0
    assert plan.samples_together == BATCH
    at_once = pipe(*given)
    with samples_together(together, each):
        cut = make_plan(pipe, given[0].shape, tuple(one.shape for one in given[1:]), DTYPES[dtype])
        assert (cut.samples_together, cut.intermediate) == (together, together * each)
        for threads in (1, 3):
            with ct.num_threads(threads):
                out = np.full_like(at_once, np.nan)
                pipe(*given, out=out)
            assert np.array_equal(out, at_once)
    meant = evaluate(pipe, given[0].astype(np.float64), [one.astype(np.float64) for one in given[1:]])
    assert_same(at_once, meant.astype(dtype), 0.01 if dtype == "float16" else 1e-4)


def test_a_sample_that_winograd_leaves_out() -> None:
    """It is computed on its own, whichever turn it has."""
    pipe, (x, w) = arrays(CASES[2][0], "float32", ())
    x[3, 1, 2, 2, 2], x[1, 0, 0, 0, 0] = 1e30, np.inf
    each = make_plan(pipe, x.shape, (w.shape,), DTYPES["float32"])._shared_values // BATCH
    at_once = pipe(x, w, algorithm="winograd")
    with samples_together(2, each):
        assert np.array_equal(pipe(x, w, algorithm="winograd"), at_once, equal_nan=True)


def test_all_at_once_where_the_output_holds_them() -> None:
    pipe, (x, w) = arrays("Conv3d(padding=1) -> InstanceNorm() -> ReLU()", "float32", ())
    with samples_together(1, 1):
        plan = make_plan(pipe, x.shape, (w.shape,), DTYPES["float32"])
        assert (plan.samples_together, plan.intermediate) == (BATCH, 0)
