"""Each rewrite fires on its pattern and only there, and what it leaves means the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.chains import operand_data
from helpers.compare import assert_same
from helpers.data import SPECIALS, signed, sprinkled
from helpers.problems import PROBLEMS
from hypothesis import given, settings
from hypothesis import strategies as st

from convt3d.errors import Error
from convt3d.spec.dtypes import DType, float16, float32, float64
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import evaluate
from convt3d.spec.rewrite import REWRITES, TAME, round_scalars, simplify
from convt3d.spec.stage import Stage
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    ConvTranspose3d,
    Divide,
    GroupNorm,
    HardTanh,
    InstanceNorm,
    Keep,
    LayerNorm,
    MaxPool3d,
    Mean,
    Multiply,
    Recall,
    ReLU,
    Sigmoid,
    Softmax,
    Softplus,
    Subtract,
    Sum,
)

inf, nan = math.inf, math.nan
CONV, BIASED = ConvTranspose3d(stride=(1, 2, 3)), ConvTranspose3d(stride=(1, 2, 3), bias=True)
SHAPE, KERNEL = (2, 3, 5, 4, 3), (3, 4, 3, 2, 4)

# name, stages, what becomes of them, why
FIRES = [
    ("constant_before_norm", (CONV, Add(-2.5), LayerNorm()), (CONV, LayerNorm()), "number before LayerNorm"),
    ("constant_before_norm", (CONV, Subtract(2.5), GroupNorm(2)), (CONV, GroupNorm(2)), "difference, GroupNorm"),
    (
        "constant_before_norm",
        (CONV, Add(3.0), InstanceNorm(eps=0.1, affine=True)),
        (CONV, InstanceNorm(eps=0.1, affine=True)),
        "affine tensors stay where they are",
    ),
    (
        "constant_before_norm",
        (Add(1.5), LayerNorm("width"), CONV),
        (LayerNorm("width"), CONV),
        "before the convolution",
    ),
    ("constant_before_norm", (CONV, Add(65536.0), LayerNorm()), (CONV, LayerNorm()), "the largest number allowed"),
    ("bias_before_norm", (BIASED, InstanceNorm(eps=0.1)), (CONV, InstanceNorm(eps=0.1)), "the convolution's bias"),
    (
        "bias_before_norm",
        (CONV, Add("channel"), InstanceNorm(affine=True), Multiply("tensor")),
        (CONV, InstanceNorm(affine=True), Multiply("tensor")),
        "a vector; the norm's own tensors, and others, stay where they are",
    ),
    ("bias_before_norm", (CONV, Subtract("channel"), InstanceNorm()), (CONV, InstanceNorm()), "difference"),
    ("bias_before_norm", (BIASED, LayerNorm("width")), (CONV, LayerNorm("width")), "rows lie within a channel"),
    (
        "bias_before_norm",
        (Add("channel"), LayerNorm("width"), CONV),
        (LayerNorm("width"), CONV),
        "before the convolution",
    ),
    (
        "max_pool_of_max_pool",
        (CONV, MaxPool3d(2), MaxPool3d((1, 3, 2))),
        (CONV, MaxPool3d((2, 6, 4), (2, 6, 4))),
        "windows of windows",
    ),
    (
        "max_pool_of_max_pool",
        (CONV, MaxPool3d((2, 3, 2), (1, 2, 2)), MaxPool3d((2, 1, 2), (1, 2, 3))),
        (CONV, MaxPool3d((3, 3, 4), (1, 4, 6))),
        "overlapping inside, gaps outside",
    ),
    ("bias_through_max_pool", (BIASED, MaxPool3d(2)), (CONV, MaxPool3d(2), Add("channel")), "bias after the pool"),
    (
        "bias_through_max_pool",
        (BIASED, MaxPool3d(3, 2, 1, ceil_mode=True)),
        (CONV, MaxPool3d(3, 2, 1, ceil_mode=True), Add("channel")),
        "padding is -inf, so it does not matter",
    ),
    ("channel_constant_through_sum", (CONV, Add("channel"), Sum()), (CONV, Sum(), Add("channel")), "sum of the vector"),
    ("channel_constant_through_sum", (CONV, Add("channel"), Mean()), (CONV, Mean(), Add("channel")), "its mean"),
    ("batch_norm_into_weights", (CONV, BatchNorm(eps=0.2)), (BIASED,), "a bias appears"),
    ("batch_norm_into_weights", (BIASED, BatchNorm(eps=0.2, affine=True)), (BIASED,), "bias and affine are folded"),
    (
        "batch_norm_into_weights",
        (Add("channel"), ConvTranspose3d(groups=3, bias=True), BatchNorm(eps=0.1, affine=True), Multiply("tensor")),
        (Add("channel"), ConvTranspose3d(groups=3, bias=True), Multiply("tensor")),
        "groups; other tensors before and after keep their places",
    ),
    (
        "bounded_softmax",
        (CONV, Clamp(-1.5, 2.0), Softmax("spatial")),
        (CONV, Clamp(-1.5, 2.0), Softmax("spatial", shift=0.0)),
        "small bounds need no shift at all",
    ),
    (
        "bounded_softmax",
        (CONV, HardTanh(-20.0, 20.0), Softmax()),
        (CONV, HardTanh(-20.0, 20.0), Softmax(shift=0.0)),
        "HardTanh; 40 apart, just allowed",
    ),
    (
        "bounded_softmax",
        (CONV, Clamp(70.0, 100.0), Softmax()),
        (CONV, Clamp(70.0, 100.0), Softmax(shift=100.0)),
        "far from zero the upper bound is the shift",
    ),
    ("scale_into_softmax", (CONV, Softmax(), Multiply(-3.5)), (CONV, Softmax(scale=-3.5)), "number"),
    ("scale_into_softmax", (CONV, Softmax(), Multiply(-TAME)), (CONV, Softmax(scale=-TAME)), "the largest allowed"),
    (
        "scale_into_softmax",
        (CONV, Softmax("spatial"), Multiply("channel")),
        (CONV, Softmax("spatial", scale="channel")),
        "vector",
    ),
]
FIRE_PARAMS = [pytest.param(*row[:3], id=f"{row[0]}: {row[3]}") for row in FIRES]

STAYS = [
    pytest.param((CONV, Add(inf), LayerNorm()), id="norm: Inf does not cancel, it makes NaN"),
    pytest.param((CONV, Add(nan), GroupNorm(2)), id="norm: NaN"),
    pytest.param((CONV, Subtract(-inf), InstanceNorm()), id="norm: -Inf"),
    pytest.param((CONV, Add(1e30), LayerNorm()), id="norm: a number that swallows x"),
    pytest.param((CONV, Add(65537.0), LayerNorm()), id="norm: just above the limit"),
    pytest.param(
        (CONV, Add(1.0), LayerNorm(eps=0.0)), id="norm: without eps rounding errors are divided by themselves"
    ),
    pytest.param((CONV, Add("channel"), LayerNorm()), id="norm: a vector over channels does not cancel"),
    pytest.param((CONV, Multiply(2.0), LayerNorm()), id="norm: eps makes a factor show"),
    pytest.param((CONV, Add(1.0), BatchNorm()), id="norm: given statistics know nothing of the number"),
    pytest.param((CONV, Add(1.0), Keep("k"), LayerNorm(), Add("k")), id="norm: the sum is used again"),
    pytest.param((CONV, LayerNorm(), Add(1.0)), id="norm: the other order"),
    pytest.param((CONV, Subtract(1.0, reverse=True), LayerNorm()), id="norm: c - x has the other sign"),
    pytest.param((CONV, Keep("k"), Add(1.0), Keep("s"), Recall("k"), LayerNorm(), Add("s")), id="norm: Recall between"),
    pytest.param((BIASED, Keep("k"), Recall("k"), MaxPool3d(2)), id="bias: Recall in between"),
    pytest.param((CONV, Keep("k"), ReLU(), Keep("r"), Recall("k"), BatchNorm(), Add("r")), id="batch norm: recalled"),
    pytest.param((BIASED, LayerNorm()), id="bias before norm: channels are normalised together"),
    pytest.param((BIASED, GroupNorm(2)), id="bias before norm: channels of a group have different ones"),
    pytest.param((BIASED, InstanceNorm(eps=0.0)), id="bias before norm: no eps, nothing bounds what rounding does"),
    pytest.param((CONV, Add("channel"), LayerNorm("width", eps=0.0)), id="bias before norm: no eps, rows"),
    pytest.param((CONV, Subtract("channel", reverse=True), InstanceNorm()), id="bias before norm: b - x"),
    pytest.param((CONV, Add("tensor"), InstanceNorm()), id="bias before norm: an array differs from voxel to voxel"),
    pytest.param((CONV, Multiply("channel"), InstanceNorm()), id="bias before norm: eps makes a factor show"),
    pytest.param((BIASED, Keep("k"), InstanceNorm(), Add("k")), id="bias before norm: the sum is used again"),
    pytest.param((BIASED, ReLU(), InstanceNorm()), id="bias before norm: not through ReLU"),
    pytest.param((CONV, MaxPool3d(2, 1, 1), MaxPool3d(2)), id="pools: padding inside"),
    pytest.param((CONV, MaxPool3d(2), MaxPool3d(2, 2, (0, 0, 1))), id="pools: padding outside"),
    pytest.param((CONV, MaxPool3d(2, ceil_mode=True), MaxPool3d(2)), id="pools: ceil_mode inside"),
    pytest.param((CONV, MaxPool3d(2), MaxPool3d(2, ceil_mode=True)), id="pools: ceil_mode outside"),
    pytest.param((CONV, MaxPool3d(2, (2, 2, 3)), MaxPool3d(2)), id="pools: gaps along one axis"),
    pytest.param((CONV, AvgPool3d(2), MaxPool3d(2)), id="pools: of different kinds"),
    pytest.param((CONV, MaxPool3d(2), Keep("k"), MaxPool3d(2)), id="pools: Keep in between"),
    pytest.param((BIASED, AvgPool3d(2)), id="bias: only through a maximum"),
    pytest.param((BIASED, Keep("k"), MaxPool3d(1), Add("k")), id="bias: Keep in between"),
    pytest.param((BIASED, GELU(), MaxPool3d(2)), id="bias: not through GELU"),
    pytest.param((CONV, Add("channel"), Sum("spatial")), id="sum: over voxels it would count each"),
    pytest.param((CONV, Add("tensor"), Sum()), id="sum: an array is no vector"),
    pytest.param((CONV, Subtract("channel"), Sum()), id="sum: differences are left alone"),
    pytest.param((CONV, Keep("k"), BatchNorm(), Add("k")), id="batch norm: the convolution's value is used again"),
    pytest.param((BatchNorm(), CONV), id="batch norm: before the convolution"),
    pytest.param((CONV, GELU(), BatchNorm()), id="batch norm: not through GELU"),
    pytest.param((CONV, Clamp(max=1.0), Softmax()), id="softmax: one-sided, from above"),
    pytest.param((CONV, Clamp(min=1.0), Softmax()), id="softmax: one-sided, from below"),
    pytest.param((CONV, Clamp(-inf, 1.0), Softmax()), id="softmax: infinite lower bound"),
    pytest.param((CONV, Clamp(0.0, inf), Softmax()), id="softmax: infinite upper bound"),
    pytest.param((CONV, Clamp(inf, inf), Softmax()), id="softmax: both infinite, difference NaN"),
    pytest.param((CONV, HardTanh(-30.0, 11.0), Softmax()), id="softmax: bounds 41 apart"),
    pytest.param((CONV, Clamp(0.0, 1.0), Keep("k"), Softmax(), Add("k")), id="softmax: Keep in between"),
    pytest.param((CONV, Clamp(0.0, 1.0), Multiply(9.0), Softmax()), id="softmax: bounds that no longer hold"),
    pytest.param((CONV, Softmax(), Multiply(inf)), id="scale: Inf * 0 is NaN, whichever order"),
    pytest.param((CONV, Softmax(), Multiply(nan)), id="scale: NaN"),
    pytest.param((CONV, Softmax(), Multiply(TAME * 1.5)), id="scale: may overflow before it meets the sum"),
    pytest.param((CONV, Softmax("channels"), Multiply("channel")), id="scale: a vector along the softmax itself"),
    pytest.param((CONV, Softmax(scale=2.0), Multiply(3.0)), id="scale: there is one already"),
    pytest.param((CONV, Softmax(), Divide(3.0)), id="scale: division is left alone"),
]


def _same_meaning(pipeline: Pipeline, x: Any, operands: tuple[Any, ...], floor: float = 0.0) -> int:
    """Checks the simplified pipeline against the original; the number of steps."""
    rewritten = simplify(pipeline, float64, tame=True)
    prepared = rewritten.operands(operands)
    assert prepared is not None
    rewritten.pipeline.trace(x.shape, [a.shape for a in prepared])
    expected = evaluate(pipeline, x, operands)
    assert_same(evaluate(rewritten.pipeline, x, prepared), expected, 1e-12, floor)
    return len(rewritten.steps)


@pytest.mark.parametrize(("name", "before", "after"), FIRE_PARAMS)
def test_fires(name: str, before: tuple[Stage, ...], after: tuple[Stage, ...]) -> None:
    rewritten = simplify(Pipeline(*before), float64, tame=True)
    assert [step.name for step in rewritten.steps] == [name]
    assert rewritten.pipeline == Pipeline(*after)
    assert simplify(rewritten.pipeline, float64, tame=True).steps == ()


@pytest.mark.parametrize(("name", "before", "after"), FIRE_PARAMS)
def test_means_the_same(name: str, before: tuple[Stage, ...], after: Any, rng: np.random.Generator) -> None:
    """On signed data, and with NaN and infinities in x. The largest constants cost as many digits as they have."""
    pipeline = Pipeline(*before)
    kernel = (3, 2, 3, 2, 4) if pipeline.conv.groups == 3 else KERNEL
    operands = operand_data(pipeline, SHAPE, kernel, rng)
    x = signed(rng, SHAPE)
    if Add(65536.0) in before:
        rewritten = simplify(pipeline, float64, tame=True)
        assert_same(
            evaluate(rewritten.pipeline, x, operands), evaluate(pipeline, x, operands), 1e-10
        )  # 2^16 * 2^-52, and a margin
        return
    assert _same_meaning(pipeline, x, operands) == 1
    for specials in SPECIALS.values():
        _same_meaning(pipeline, sprinkled(rng, x, specials, share=0.01), operands)


@pytest.mark.parametrize("stages", STAYS)
def test_does_not_fire(stages: tuple[Stage, ...]) -> None:
    rewritten = simplify(Pipeline(*stages), float64, tame=True)
    assert [step.name for step in rewritten.steps] == []
    assert rewritten.pipeline == Pipeline(*stages)


def test_every_rewrite_has_a_row() -> None:
    assert {name for name, *_ in FIRES} == {rewrite.__name__ for rewrite in REWRITES}


NEEDS_TAME = {
    "bias_before_norm",
    "bias_through_max_pool",
    "channel_constant_through_sum",
    "batch_norm_into_weights",
}


@pytest.mark.parametrize(("name", "before", "after"), FIRE_PARAMS)
def test_without_tame_tensors_only_rewrites_that_touch_none_fire(
    name: str, before: tuple[Stage, ...], after: tuple[Stage, ...]
) -> None:
    touches = name in NEEDS_TAME or after[-1] == Softmax("spatial", scale="channel")
    assert simplify(Pipeline(*before), float64, tame=True).needs_tame is touches
    rewritten = simplify(Pipeline(*before), float64, tame=False)
    assert rewritten.pipeline == Pipeline(*(before if touches else after))
    assert not rewritten.needs_tame


# --- scalars are seen in the type of the arithmetic -------------------------------------------------------------------


def _fired(stages: tuple[Stage, ...], dtype: DType) -> list[str]:
    return [step.name for step in simplify(Pipeline(*stages), dtype, tame=True).steps]


def test_a_bound_that_overflows_float32_is_infinite_there() -> None:
    stages = (CONV, Clamp(1e39, 1e39), Softmax())
    assert _fired(stages, float64) == ["bounded_softmax"]
    assert _fired(stages, float32) == _fired(stages, float16) == []
    assert simplify(Pipeline(*stages), float32, True).pipeline.stages[1] == Clamp(inf, inf)


def test_a_factor_that_underflows_float32_is_zero_there() -> None:
    rewritten = simplify(Pipeline(CONV, Softmax(), Multiply(-1e-60)), float32, tame=True)
    assert rewritten.pipeline == Pipeline(CONV, Softmax(scale=-0.0))


def test_round_scalars() -> None:
    """Floats are rounded; triples, labels, None and flags are not touched; float64 changes nothing."""
    pipeline = Pipeline(BIASED, Keep("k"), Add(0.1), Clamp(None, 1e300), LayerNorm(eps=1e-60), Multiply("k"), Add(nan))
    tenth = float(np.float32(0.1))
    assert round_scalars(pipeline, float32) == Pipeline(
        BIASED, Keep("k"), Add(tenth), Clamp(None, inf), LayerNorm(eps=0.0), Multiply("k"), Add(nan)
    )
    assert round_scalars(pipeline, float64) == pipeline


# --- tensors ----------------------------------------------------------------------------------------------------------

BN = (BIASED, BatchNorm(eps=0.25, affine=True))  # w, bias, mean, var, weight, bias
WILD = [
    pytest.param((BIASED, InstanceNorm()), 1, nan, id="bias NaN before a norm: all of the channel is NaN"),
    pytest.param((BIASED, InstanceNorm()), 1, -inf, id="bias -Inf before a norm"),
    pytest.param((BIASED, InstanceNorm()), 1, -65537.0, id="a bias that swallows x"),
    pytest.param((CONV, Subtract("channel"), LayerNorm("width")), 1, inf, id="vector Inf before a norm of rows"),
    pytest.param((BIASED, MaxPool3d(2)), 1, nan, id="bias NaN"),
    pytest.param((BIASED, MaxPool3d(2)), 1, -inf, id="bias -Inf: -Inf - (-Inf) must not appear"),
    pytest.param((BIASED, MaxPool3d(2)), 1, TAME * 1.01, id="bias huge"),
    pytest.param((CONV, Add("channel"), Sum()), 1, inf, id="vector Inf before the sum"),
    pytest.param(BN, 0, nan, id="w NaN"),
    pytest.param(BN, 1, inf, id="bias Inf before batch norm"),
    pytest.param(BN, 2, nan, id="running_mean NaN"),
    pytest.param(BN, 3, nan, id="running_var NaN"),
    pytest.param(BN, 3, inf, id="running_var Inf"),
    pytest.param(BN, 3, -0.25, id="running_var + eps = 0"),
    pytest.param(BN, 3, -1.0, id="running_var + eps < 0"),
    pytest.param(BN, 4, -inf, id="weight -Inf"),
    pytest.param(BN, 4, -1e30, id="weight huge"),
    pytest.param(BN, 5, inf, id="bias Inf"),
    pytest.param((CONV, BatchNorm(eps=0.0)), 2, 1e-40, id="the quotient is huge although no tensor is"),
    pytest.param((CONV, Softmax("spatial"), Multiply("channel")), 1, nan, id="factor NaN"),
]


@pytest.mark.parametrize(("stages", "position", "number"), WILD)
def test_wild_tensors_are_not_prepared(
    stages: tuple[Stage, ...], position: int, number: float, rng: np.random.Generator
) -> None:
    pipeline = Pipeline(*stages)
    operands = operand_data(pipeline, SHAPE, KERNEL, rng)
    rewritten = simplify(pipeline, float64, tame=True)
    assert rewritten.operands(operands) is not None
    operands[position].reshape(-1)[-1] = number
    assert rewritten.operands(operands) is None


def test_the_limit_of_tame_holds_for_results_too(rng: np.random.Generator) -> None:
    pipeline = Pipeline(CONV, Add("channel"), Sum())
    rewritten = simplify(pipeline, float64, tame=True)
    w = signed(rng, KERNEL)
    assert_same(rewritten.operands((w, np.array([TAME, 0, 0, 0])))[1], np.array([TAME]), 0.0)  # type: ignore[index]
    assert rewritten.operands((w, np.array([TAME, TAME, 0, 0]))) is None


def test_weights_may_be_wild_where_only_the_bias_goes(rng: np.random.Generator) -> None:
    """And so may the norm's own tensors; a bias may be as large as the limit."""
    rewritten = simplify(Pipeline(BIASED, InstanceNorm(affine=True)), float64, tame=True)
    w, weight, bias = np.full(KERNEL, 1e-300), np.full(KERNEL[1], inf), np.full(KERNEL[1], nan)
    prepared = rewritten.operands((w, np.full(KERNEL[1], 65536.0), weight, bias))
    assert prepared is not None
    assert all(new is old for new, old in zip(prepared, (w, weight, bias), strict=True))


def test_a_bias_goes_by_several_ways() -> None:
    """Through a maximum, through folded statistics, and with a vector that is added to it."""
    norm = InstanceNorm()
    ways = {
        (BIASED, MaxPool3d(2), norm): ["bias_through_max_pool", "bias_before_norm"],
        (BIASED, BatchNorm(), norm): ["batch_norm_into_weights", "bias_before_norm"],
        (BIASED, Add("channel"), Subtract(2.0), norm): ["constant_before_norm", "bias_before_norm", "bias_before_norm"],
    }
    for stages, names in ways.items():
        rewritten = simplify(Pipeline(*stages), float64, tame=True)
        assert [step.name for step in rewritten.steps] == names
        assert not rewritten.pipeline.conv.bias
        assert rewritten.pipeline.stages[-1] == norm


def test_tensors_no_rewrite_touches_may_be_wild(rng: np.random.Generator) -> None:
    pipeline = Pipeline(CONV, Add(1.0), LayerNorm(), Multiply("channel"))
    operands = (np.full(KERNEL, nan), np.full(KERNEL[1], inf))
    prepared = simplify(pipeline, float64, tame=True).operands(operands)
    assert prepared is not None
    assert all(new is old for new, old in zip(prepared, operands, strict=True))


# --- any pipeline -----------------------------------------------------------------------------------------------------

POOL: list[Stage] = [
    *(Add(1.5), Subtract(-0.75), Add("channel"), Multiply(-2.0), Multiply("channel"), Multiply("tensor"), Sigmoid()),
    *(
        LayerNorm(eps=0.3),
        LayerNorm("width", 0.3, True),
        GroupNorm(2, eps=0.3, affine=True),
        InstanceNorm(eps=0.4),
        BatchNorm(eps=0.3),
    ),
    *(
        BatchNorm(eps=0.3, affine=True),
        MaxPool3d((1, 2, 2)),
        MaxPool3d((2, 1, 2), 1),
        MaxPool3d(1, (1, 2, 1)),
        AvgPool3d((1, 1, 2)),
    ),
    *(Clamp(-1.0, 0.5), HardTanh(-0.5, 2.0), Clamp(max=0.6), Softmax(), Softmax("spatial"), Sum(), Mean()),
    *(Keep("k"), Add("k"), Multiply("k"), Subtract("k", reverse=True), Subtract(0.25, reverse=True), Mean("depth")),
]


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Stages the rewrites look at, in any order; those that do not fit are left out."""
    conv = ConvTranspose3d(stride=(1, 2, 1), bias=draw(st.booleans()))
    stages: list[Stage] = [conv]
    for stage in draw(st.lists(st.sampled_from(POOL), min_size=2, max_size=8)):
        try:
            Pipeline(*stages, stage).operand_shapes(SHAPE, KERNEL)
        except Error:
            continue
        stages.append(stage)
    return Pipeline(*stages)


@settings(max_examples=200)
@given(pipelines(), st.integers(0, 2**32 - 1), st.sampled_from(["finite", *sorted(SPECIALS)]))
def test_simplified_pipelines_mean_the_same(pipeline: Pipeline, seed: int, specials: str) -> None:
    rng = np.random.default_rng(seed)
    operands = operand_data(pipeline, SHAPE, KERNEL, rng)
    x = signed(rng, SHAPE, 0.5)
    if specials != "finite":
        x = sprinkled(rng, x, SPECIALS[specials], share=0.005)
    _same_meaning(pipeline, x, operands, floor=0.1)
    again = simplify(simplify(pipeline, float64, tame=True).pipeline, float64, tame=True)
    assert again.steps == ()


STEPS = {
    "conv-transpose-3d-asym-input-sq-kernel": [],
    "conv-transpose3d-max-max-sum": ["max_pool_of_max_pool", "bias_through_max_pool", "channel_constant_through_sum"],
    "conv-transpose3d-sum-layernorm-avgpool-gelu": ["constant_before_norm"],
    "conv-transpose3d-avgpool-clamp-softmax-multiply": ["bounded_softmax", "scale_into_softmax"],
    "conv-transpose3d-layernorm-gelu-scaling": [],
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_the_five_problems(problem: Any, rng: np.random.Generator) -> None:
    assert _fired(problem.pipeline.stages, float32) == STEPS[problem.slug]
    shape, kernel = (1, 3, 5, 6, 7), (3, 4, *problem.kernel[2:])
    operands = operand_data(problem.pipeline, shape, kernel, rng)
    _same_meaning(problem.pipeline, signed(rng, shape), operands)


def test_max_max_sum_becomes_one_pool_and_one_number() -> None:
    pipeline = next(p.pipeline for p in PROBLEMS if "max-max" in p.slug)
    assert simplify(pipeline, float32, tame=True).pipeline == Pipeline(
        ConvTranspose3d(stride=2, padding=2), MaxPool3d(6), Sum(), Add("channel")
    )


@pytest.mark.parametrize("beta", [1e30, -1e30, 1e-30, -1e-30])
def test_the_largest_and_least_legal_beta_stay_legal_when_rounded(beta: float) -> None:
    """float32(1e30) is a little more than 1e30: rounding must not turn a legal stage into an error."""
    assert round_scalars(Pipeline(CONV, Softplus(beta)), float32).stages[1].name == "Softplus"
