"""Averages are folded into the weights where that is exact, and nowhere else; a wild input goes as written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.chains import operand_data
from helpers.compare import assert_same
from helpers.data import signed
from helpers.draws import make

import convt3d as ct
from convt3d.cpu.plan.plan import make_plan
from convt3d.plan.prepare import rewrite
from convt3d.spec.dtypes import float32, float64
from convt3d.spec.linear import RULES
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import evaluate
from convt3d.spec.stage import Stage

CONV, POOL = ct.ConvTranspose3d, ct.AvgPool3d
X, W = (2, 4, 3, 4, 5), (4, 3, 3, 2, 4)


def _folded(stages: tuple[Stage, ...], x: tuple[int, ...] = X, kernel: tuple[int, ...] = W) -> Any:
    pipeline = Pipeline(*stages)
    return rewrite(pipeline, pipeline.trace(x, pipeline.operand_shapes(x, kernel)), float64, tame=True)


# rule, stages, taps of the new weights, why
POOLED, MEAN = "pool_into_weights", "mean_over_taps"
FIRES = [
    (POOLED, (CONV(stride=2), POOL(2)), (2, 1, 2), "stride = window"),
    (
        POOLED,
        (CONV(stride=2, padding=1, output_padding=1, bias=True), POOL(2)),
        (2, 2, 3),
        "padding, and more outputs than taps reach",
    ),
    (
        POOLED,
        (CONV(stride=(2, 3, 4), padding=(0, 2, 1), output_padding=(1, 2, 3)), POOL((2, 3, 2))),
        (2, 1, 3),
        "the window divides the stride",
    ),
    (POOLED, (CONV(stride=(1, 2, 2), dilation=(3, 2, 1)), POOL((1, 2, 2))), (3, 2, 2), "taps that stay apart"),
    (POOLED, (CONV(stride=2, groups=2, bias=True), POOL(2, divisor_override=3)), (2, 1, 2), "groups, a divisor"),
    (POOLED, (CONV(stride=2), POOL(2), ct.Add("tensor"), ct.ReLU()), (2, 1, 2), "more stages"),
    (MEAN, (CONV(stride=2, bias=True), ct.Mean("spatial")), (1, 1, 1), "mean"),
    (MEAN, (CONV(stride=2, output_padding=1, dilation=2), ct.Sum("spatial")), (1, 1, 1), "sum"),
    (MEAN, (CONV(stride=3, bias=True, groups=2), ct.Sum("spatial")), (1, 1, 1), "sum: the bias counts for every voxel"),
]

STAYS = [
    pytest.param((CONV(stride=2, padding=1), ct.Mean("spatial")), id="mean: padding cuts what some taps make"),
    pytest.param((CONV(stride=2), ct.Mean("depth")), id="mean: of one axis"),
    pytest.param((CONV(stride=2), ct.Max("spatial")), id="mean: a maximum is not linear"),
    pytest.param(
        (CONV(stride=2), ct.Keep("y"), ct.Mean("spatial"), ct.Add("y")), id="mean: the convolution is used again"
    ),
    pytest.param(
        (ct.ReLU(), CONV(stride=2), ct.Mean("spatial")), id="mean: nobody has looked at what enters the convolution"
    ),
    pytest.param((CONV(stride=2), ct.MaxPool3d(2)), id="pool: a maximum is not linear"),
    pytest.param((CONV(stride=2), POOL(2, 1)), id="pool: windows overlap"),
    pytest.param((CONV(stride=2), POOL(3)), id="pool: the window does not divide the stride"),
    pytest.param((CONV(stride=2), POOL(2, 2, 1)), id="pool: padding"),
    pytest.param((CONV(stride=2), POOL(2, ceil_mode=True)), id="pool: ceil_mode"),
    pytest.param((CONV(stride=2, dilation=3), POOL(2)), id="pool: more taps than there were"),
    pytest.param((CONV(stride=2), ct.GELU(), POOL(2)), id="pool: not through GELU"),
    pytest.param((CONV(stride=2), ct.Keep("y"), POOL(2), ct.Recall("y"), ct.Tanh())[:3], id="pool: Keep in between"),
    pytest.param((CONV(stride=1), POOL(1)), id="pool: of nothing"),
]


@pytest.mark.parametrize(("rule", "stages", "taps", "why"), FIRES)
def test_fires_and_means_the_same(
    rule: str, stages: Any, taps: tuple[int, ...], why: str, rng: np.random.Generator
) -> None:
    rewritten, trace = _folded(stages)
    assert [step.name for step in rewritten.steps] == [rule]
    assert rewritten.needs_tame
    assert rewritten.needs_tame_input
    pipeline, x = Pipeline(*stages), signed(rng, X)
    operands = operand_data(pipeline, X, W, rng)
    prepared = rewritten.operands(operands)
    assert prepared is not None
    assert prepared[0].shape == trace.operands[rewritten.pipeline.conv_index][0] == (*W[:2], *taps)
    expected = evaluate(pipeline, x, operands)
    assert trace.output == expected.shape
    assert_same(evaluate(rewritten.pipeline, x, prepared), expected, 1e-12)


@pytest.mark.parametrize("stages", STAYS)
def test_stays(stages: Any) -> None:
    assert not _folded(stages, x=(2, 4, 5, 5, 5))[0].needs_tame_input


def test_every_rule_has_a_row() -> None:
    assert {rule for rule, *_ in FIRES} == {rule.__name__ for rule in RULES}


def test_weights_that_are_not_tame_are_not_folded(rng: np.random.Generator) -> None:
    rewritten, _ = _folded((CONV(stride=2), POOL(2)))
    w = signed(rng, W)
    w[0, 0, 0, 0, 0] = np.inf
    assert rewritten.operands((w,)) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("after", [POOL(2), ct.Mean("spatial")], ids=repr)
def test_a_wild_input_goes_as_written(dtype: str, special: float, after: Stage) -> None:
    """Weights 1 and -1 in one window make Inf - Inf = NaN, and their sum would not; batch mates keep their bits."""
    pipeline = Pipeline(CONV(stride=2), after)
    case = make(pipeline, (3, 2, 2, 3, 4), (2, 3, 2, 2, 2), dtype)
    before = case.run()
    with np.errstate(over="ignore"):
        case.x[1, 0, 1, 1, 1] = case.dtype.narrow(np.array(special))
    case.check()
    after_all = case.run()
    assert after_all[0].tobytes() == before[0].tobytes()
    assert after_all[2].tobytes() == before[2].tobytes()


def test_the_same_weights_on_another_size() -> None:
    """Weights made for one size are kept; nothing of that size may be in them."""
    pipeline, kernel = Pipeline(CONV(stride=2, bias=True), ct.Mean("spatial"), ct.Tanh()), (2, 3, 2, 3, 2)
    first = make(pipeline, (1, 2, 3, 3, 3), kernel)
    first.check()
    second = make(pipeline, (1, 2, 5, 4, 6), kernel)
    type(second)(pipeline, second.dtype, second.x, first.operands).check()


def test_fewer_products_are_needed() -> None:
    pipeline = Pipeline(CONV(stride=2, padding=1, output_padding=1), POOL(2))
    x, kernel = (1, 8, 8, 8, 8), (8, 8, 3, 3, 3)
    plan = make_plan(pipeline, x, pipeline.operand_shapes(x, kernel), float32)
    assert plan.work.needed * 3 < plan.work.nominal
    assert len(plan.sweeps) == 1
