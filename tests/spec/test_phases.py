"""A pool whose window is the stride of the convolution is a mean (maximum) over the phases of its output."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.chains import operand_data
from helpers.compare import assert_same
from helpers.data import signed

from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import evaluate
from convt3d.spec.rewrite import Rewritten, max_pool_over_phases, pool_over_phases, strides_of_one_input
from convt3d.spec.stage import Stage
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    ConvTranspose3d,
    Keep,
    LayerNorm,
    MaxPool3d,
    Softmax,
    Sum,
)

SHAPE, KERNEL = (2, 3, 5, 4, 3), (3, 4, 3, 2, 4)
ALIGNED = ConvTranspose3d(stride=(1, 2, 3), padding=(0, 1, 1))
PHASES = [
    pytest.param((ALIGNED, AvgPool3d((1, 2, 3))), 1, id="mean"),
    pytest.param(
        (ALIGNED, LayerNorm(), GELU(), MaxPool3d((1, 2, 3)), GELU()), 3, id="maximum, stages per voxel between"
    ),
    pytest.param((ALIGNED, Keep("k"), Sum(), AvgPool3d((1, 2, 3))), 3, id="Keep and a sum over channels between"),
    pytest.param((ALIGNED, Add("tensor"), AvgPool3d((1, 2, 3))), 2, id="an array may differ for each voxel"),
    pytest.param((ALIGNED, AvgPool3d((1, 2, 2))), None, id="other kernel"),
    pytest.param((ALIGNED, AvgPool3d((1, 2, 3), (1, 2, 2))), None, id="other stride"),
    pytest.param((ALIGNED, AvgPool3d((1, 2, 3), padding=(0, 1, 0))), None, id="padding"),
    pytest.param((ALIGNED, AvgPool3d((1, 2, 3), ceil_mode=True)), None, id="ceil_mode"),
    pytest.param((ALIGNED, Softmax("spatial"), AvgPool3d((1, 2, 3))), None, id="softmax couples voxels"),
    pytest.param((ALIGNED, LayerNorm("width"), AvgPool3d((1, 2, 3))), None, id="norm along the width couples voxels"),
    pytest.param((ALIGNED, MaxPool3d(1, 2), AvgPool3d((1, 2, 3))), None, id="only the first pool counts"),
    pytest.param((AvgPool3d((1, 2, 3)), ALIGNED), None, id="pool before the convolution"),
    pytest.param((ALIGNED, GELU()), None, id="no pool"),
]


@pytest.mark.parametrize(("stages", "index"), PHASES)
def test_pool_over_phases(stages: tuple[Stage, ...], index: int | None, rng: np.random.Generator) -> None:
    """Where it names a pool, that pool is the mean (maximum) over the sub-grids o = phase mod stride."""
    pipeline = Pipeline(*stages)
    assert pool_over_phases(pipeline) == index
    if index is None:
        return
    up_to = Pipeline(*stages[:index])
    operands = operand_data(up_to, SHAPE, KERNEL, rng)
    x = signed(rng, SHAPE)
    value = evaluate(up_to, x, operands)
    pooled = evaluate(Pipeline(*stages[: index + 1]), x, operands)
    d, h, w = pooled.shape[2:]
    phases = [value[..., a::1, b::2, c::3][..., :d, :h, :w] for a, b, c in product(range(1), range(2), range(3))]
    expected = np.mean(phases, axis=0) if isinstance(stages[index], AvgPool3d) else np.max(phases, axis=0)
    assert_same(pooled, expected, 1e-14)


SPLIT = [
    pytest.param((ALIGNED, MaxPool3d((2, 4, 6))), ((2, 2, 2), (2, 2, 2)), id="windows side by side"),
    pytest.param((ALIGNED, GELU(), MaxPool3d((1, 4, 3), (1, 2, 3))), ((1, 2, 1), (1, 1, 1)), id="windows that overlap"),
    pytest.param((ALIGNED, MaxPool3d((1, 2, 3))), None, id="over phases already"),
    pytest.param((ALIGNED, MaxPool3d((1, 4, 4), (1, 4, 3))), None, id="a part of the phases"),
    pytest.param((ALIGNED, MaxPool3d((1, 2, 3), (1, 4, 3))), None, id="windows apart from each other"),
    pytest.param((ALIGNED, MaxPool3d((1, 4, 6), padding=(0, 2, 3))), None, id="padding"),
    pytest.param((ALIGNED, MaxPool3d((1, 4, 6), ceil_mode=True)), None, id="ceil_mode"),
    pytest.param((ALIGNED, AvgPool3d((1, 4, 6))), None, id="a mean"),
    pytest.param((ALIGNED, Softmax("spatial"), MaxPool3d((1, 4, 6))), None, id="softmax couples voxels"),
    pytest.param((ConvTranspose3d(), MaxPool3d(2)), None, id="one phase"),
]


@pytest.mark.parametrize(("stages", "outer"), SPLIT)
def test_max_pool_over_phases(
    stages: tuple[Stage, ...], outer: tuple[tuple[int, ...], ...] | None, rng: np.random.Generator
) -> None:
    """A pool over phases and a pool of what is left, which mean the same, NaN and infinities included."""
    before = Pipeline(*stages)
    after = max_pool_over_phases(Rewritten(before, ())).pipeline
    if outer is None:
        assert after == before
        return
    *first, inner, last = after.stages
    assert tuple(first) == stages[:-1]
    assert isinstance(inner, MaxPool3d)
    assert isinstance(last, MaxPool3d)
    assert last.triples[:2] == outer
    assert pool_over_phases(after) == len(first)
    operands, x = operand_data(before, SHAPE, KERNEL, rng), signed(rng, SHAPE)
    for wild in (0.0, np.nan, np.inf):
        x[0, 0, 1, 2, 1] += wild
        np.testing.assert_array_equal(evaluate(after, x, operands), evaluate(before, x, operands))


@pytest.mark.parametrize(
    ("conv", "size", "kernel", "strides"),
    [
        (ConvTranspose3d(), (1, 1, 1), (4, 4, 4), (4, 4, 4)),
        (ConvTranspose3d(stride=2, padding=1, bias=True), (1, 3, 1), (3, 3, 5), (3, 2, 5)),
        (ConvTranspose3d(stride=(5, 1, 2), dilation=(1, 3, 1), padding=(0, 2, 0)), (1, 1, 4), (2, 3, 3), (5, 7, 2)),
        (ConvTranspose3d(stride=3, output_padding=2), (1, 1, 1), (3, 2, 2), (3, 3, 3)),
        (ConvTranspose3d(stride=2, padding=1), (2, 3, 4), (4, 4, 4), (2, 2, 2)),
    ],
    ids=str,
)
def test_strides_of_one_input(
    conv: ConvTranspose3d, size: Any, kernel: Any, strides: Any, rng: np.random.Generator
) -> None:
    """Along an axis with one input any stride means the same; longest reaches give each output its own phase."""
    shape, weight = (2, 3, *size), (3, 5, *kernel)
    before = Pipeline(conv, Softmax("channels"))
    trace = before.trace(shape, before.operand_shapes(shape, weight))
    after = strides_of_one_input(Rewritten(before, ()), trace).pipeline
    assert after.conv.triples[0] == strides
    operands, x = operand_data(before, shape, weight, rng), signed(rng, shape)
    np.testing.assert_array_equal(evaluate(after, x, operands), evaluate(before, x, operands))
    pooled = Pipeline(conv, MaxPool3d(1))
    trace = pooled.trace(shape, pooled.operand_shapes(shape, weight))
    assert strides_of_one_input(Rewritten(pooled, ()), trace).pipeline == pooled
