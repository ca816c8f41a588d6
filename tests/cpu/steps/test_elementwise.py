"""Sweeps of elementwise stages alone: straight from array to array, in any layout, with the bits of the way through
scratch memory."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.compare import assert_same
from helpers.tilings import streamed

import convt3d as ct
from convt3d.cpu.plan import tile_cost
from convt3d.cpu.plan.choice import DIRECT
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.runtime.execute import execute_plan
from convt3d.cpu.steps.elementwise import Elementwise
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate

PIPE = ct.Pipeline(
    ct.Conv3d(padding=1), ct.InstanceNorm(), ct.Keep("y"), ct.PReLU(), ct.Multiply("tensor"), ct.GELU(), ct.Add("y")
)
SHAPE = (2, 19, 5, 6, 7)  # of the result: channels that fill no vector, prime axes

TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3}


def laid(array: Any, layout: str) -> Any:
    """The same numbers, or NaN, elsewhere in memory."""
    b, c, d, h, w = array.shape
    if layout == "channels last":
        return np.ascontiguousarray(array.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    if layout == "backwards":
        return np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    if layout == "gaps":
        room = np.full((b, c + 1, d + 1, h + 2, w + 3), np.nan, array.dtype)
        room[:, :c, :d, :h, :w] = array
        return room[:, :c, :d, :h, :w]
    if layout == "planes apart":
        room = np.full((b, c, d + 1, h, w), np.nan, array.dtype)
        room[:, :, :d] = array
        return room[:, :, :d]
    return np.ascontiguousarray(array)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("width", [7, 1])
def test_every_layout_has_the_same_bits(dtype: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In items of any size."""
    rng, shape = np.random.default_rng(0), (*SHAPE[:4], width)
    x, weight = (rng.standard_normal(size).astype(dtype) for size in ((2, 3, *shape[2:]), (19, 3, 3, 3, 3)))
    slope = rng.standard_normal(19).astype(dtype)
    tensors = [rng.standard_normal(size).astype(dtype) for size in (shape, (1, *shape[1:]), (2, 19, 1, 6, width))]
    for tensor in tensors:
        operands = weight, slope, tensor
        shapes = tuple(operand.shape for operand in operands)
        plan = make_plan(PIPE, x.shape, shapes, DTYPES[dtype], DIRECT)
        assert isinstance(plan.sweeps[-1].structure.steps[0], Elementwise)
        expected = laid(np.full(shape, np.nan, dtype), "backwards")  # through scratch memory
        execute_plan(plan, x, operands, expected)
        wide = [DTYPES[dtype].widen(array) for array in (x, *operands)]
        assert_same(expected.astype(np.float64), evaluate(PIPE, wide[0], wide[1:]), TOLERANCE[dtype])
        for layout in ("dense", "gaps", "planes apart", "channels last"):
            for past, tile in ((False, shape[2:]), (True, shape[2:]), (True, (2, 6, width)), (False, (3, 4, 2))):
                monkeypatch.setattr(
                    tile_cost, "_in_order", lambda tilings, tile=tile: tilings.of(tile, shares=sum(tile))
                )
                out = laid(np.full(shape, np.nan, dtype), layout)
                with streamed(past):
                    PIPE(x, weight, slope, laid(tensor, layout), out=out, algorithm="direct")
                assert_same(out, expected, 0.0)


def test_items_are_long_runs_of_few_channels() -> None:
    shape = (1, 32, 48, 64, 64)
    plan = make_plan(PIPE, (1, 4, *shape[2:]), ((32, 4, 3, 3, 3), (32,), shape), DTYPES["float32"], DIRECT)
    tiling = plan.sweeps[-1].tiling
    assert tiling.tile[1:] == (64, 64)  # whole planes
    assert tiling.share.channels == 1
    assert tiling.items * prod(tiling.tile) >= prod(shape)
    assert tiling.items >= 4 * machine().cores or prod(tiling.tile) * 4 <= 64 << 10
    assert tiling.scratch <= machine().l2
