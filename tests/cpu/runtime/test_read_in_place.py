"""Convolutions that read runs and rows of the array as they lie there: against PyTorch's meaning, in arrays of any
layout that end where memory does."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.guard import Fence
from helpers.tilings import planned_by

import convt3d as ct
from convt3d.cpu.plan.choice import DIRECT, Choice
from convt3d.cpu.plan.geometry import conv_axes
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.plan.tiles import Tilings
from convt3d.cpu.plan.winograd import EXACT_POINTS, AxisMethod, Method
from convt3d.cpu.steps.lowering import steps_of
from convt3d.spec import pipeline as specs
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate
from convt3d.spec.stage import Stage

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect")

CASES: dict[str, tuple[list[Stage], tuple[int, ...], tuple[int, ...]]] = {
    "ragged run": ([ct.Conv3d(bias=True)], (2, 5, 3, 7, 11), (14, 5, 1, 1, 1)),
    "whole vectors": ([ct.Conv3d()], (1, 3, 4, 4, 8), (27, 3, 1, 1, 1)),
    "one column": ([ct.Conv3d(bias=True)], (1, 4, 5, 9, 1), (3, 4, 1, 1, 1)),
    "groups": ([ct.Conv3d(groups=3, bias=True), ct.ReLU()], (1, 6, 2, 5, 9), (9, 2, 1, 1, 1)),
    "sums in pieces": ([ct.Conv3d(bias=True)], (1, 600, 1, 3, 13), (5, 600, 1, 1, 1)),
    "runs that are carried": ([ct.Conv3d(bias=True)], (1, 5, 6, 9, 16), (33, 5, 1, 1, 1)),
    "carried for some phases": ([ct.ConvTranspose3d(stride=(1, 1, 2))], (1, 4, 5, 9, 16), (4, 30, 1, 1, 2)),
    "one block": ([ct.Conv3d(bias=True)], (1, 12, 5, 9, 16), (3, 12, 1, 1, 1)),
    "kernel as long as the stride": ([ct.ConvTranspose3d(stride=(2, 1, 3))], (1, 4, 3, 5, 7), (4, 6, 2, 1, 3)),
    "depthwise": ([ct.Conv3d(padding=1, groups=5, bias=True)], (1, 5, 4, 9, 19), (5, 1, 3, 3, 3)),
    "depthwise, strided": ([ct.Conv3d(stride=2, padding=2, groups=5)], (1, 5, 5, 19, 37), (5, 1, 3, 5, 5)),
    "depthwise, short rows": ([ct.Conv3d(padding=1, groups=5, bias=True)], (2, 5, 2, 9, 11), (5, 1, 3, 3, 3)),
    "depthwise, a short end": ([ct.Conv3d(padding=1, groups=5)], (1, 5, 2, 3, 21), (5, 1, 3, 3, 3)),
    "depthwise, half a vector": ([ct.ConvTranspose3d(stride=2, groups=3)], (1, 3, 2, 8, 8), (3, 1, 3, 4, 2)),
    "depthwise, stride 3": ([ct.Conv3d(stride=(1, 3, 2), groups=3)], (1, 3, 3, 31, 40), (3, 1, 1, 7, 2)),
}


def _laid_out(values: np.ndarray, layout: str, at_end: bool, fences: list[Fence]) -> np.ndarray:
    """The same numbers in memory whose neighbour pages nobody may touch."""
    order = (0, 2, 3, 4, 1) if layout == "channels last" else (0, 1, 2, 3, 4)
    gap = 3 if layout == "gaps" else 0
    stored = [values.shape[axis] for axis in order]
    stored[-1] += gap
    fences.append(Fence(int(np.prod(stored)) * values.itemsize, at_end))
    memory = fences[-1].bytes.view(values.dtype).reshape(stored)
    memory[...] = np.nan
    view = memory[..., : stored[-1] - gap].transpose(np.argsort(order))
    view[...] = values
    return view


@pytest.mark.parametrize("layout", ["plain", "gaps", "channels last"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_sums_of_fenced_arrays(name: str, dtype: type, layout: str) -> None:
    stages, shape, kernel = CASES[name]
    rng = np.random.default_rng(7)
    pipeline = ct.Pipeline(*stages)
    shapes = pipeline.operand_shapes(shape, kernel)
    operands = [rng.standard_normal(each).astype(dtype) for each in shapes]
    values = rng.standard_normal(shape).astype(dtype)
    wanted = evaluate(specs.Pipeline(*stages), values.astype(float), [each.astype(float) for each in operands])
    fences: list[Fence] = []
    for at_end in (True, False):
        x = _laid_out(values, layout, at_end, fences)
        out = _laid_out(np.full(wanted.shape, np.nan, dtype), layout, at_end, fences)
        pipeline(x, *operands, out=out, algorithm="direct")
        np.testing.assert_allclose(out, wanted, rtol=0, atol=40 * np.finfo(dtype).eps * np.abs(wanted).max())
        del x, out
    for fence in fences:
        fence.free()


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("blocks", [1, 3])
def test_tiles_that_meet_inside_a_vector(depth: int, blocks: int) -> None:
    """What one leaves to the next is written, also where that one is shorter than a vector; wherever the result begins
    in a vector."""

    def choose_method(one: Any, where: Any, options: Any) -> Choice:
        axes = conv_axes(where.pipeline, where.trace)
        where = replace(where, method=Method(tuple(AxisMethod(axis, 1, EXACT_POINTS) for axis in axes)))
        steps = steps_of(one, where)
        return Choice(where, steps, Tilings(one, steps, where).of((depth, 1, width)))

    rng, lanes = np.random.default_rng(depth), machine().lanes(4)
    width = lanes // 2
    x = rng.standard_normal((1, 3, 8, 1, width)).astype(np.float32)
    w = rng.standard_normal((20 * blocks, 3, 1, 1, 1)).astype(np.float32)
    wanted = np.einsum("bcdhw,oc->bodhw", x.astype(float), w[..., 0, 0, 0].astype(float))
    with planned_by(choose_method):
        for ahead in range(lanes):
            memory = np.full(wanted.size + 2 * lanes, np.nan, np.float32)
            start = -memory.ctypes.data % 64 // 4 % lanes + ahead
            out = memory[start : start + wanted.size].reshape(wanted.shape)
            ct.Pipeline(ct.Conv3d())(x, w, out=out, algorithm="direct")
            np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5)
            assert np.isnan(memory).sum() == 2 * lanes


def test_which_positions_meet_one_input() -> None:
    """With more positions than inputs, or zeros around them, there is a slab."""

    def pointwise(stage: Stage, shape: tuple[int, ...], kernel: tuple[int, ...]) -> bool:
        pipeline = specs.Pipeline(stage)
        plan = make_plan(pipeline, shape, tuple(pipeline.operand_shapes(shape, kernel)), DTYPES["float32"], DIRECT)
        return bool(plan.sweeps[0].structure.steps[0].pointwise)

    shape = (1, 4, 5, 6, 7)
    assert pointwise(ct.Conv3d(), shape, (3, 4, 1, 1, 1))
    assert pointwise(ct.ConvTranspose3d(stride=2), shape, (4, 3, 2, 2, 2))
    assert pointwise(ct.ConvTranspose3d(stride=2), shape, (4, 3, 1, 1, 1))
    assert not pointwise(ct.Conv3d(padding=1), shape, (3, 4, 1, 1, 1))
    assert not pointwise(ct.Conv3d(stride=2), shape, (3, 4, 1, 1, 1))
    assert not pointwise(ct.ConvTranspose3d(stride=2, output_padding=1), shape, (4, 3, 2, 2, 2))
    assert not pointwise(ct.Conv3d(), shape, (3, 4, 1, 1, 2))
