"""A Plan is frozen, cached and free of arrays; where operands are not tame it is made again without their rewrites."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.compare import assert_same
from helpers.data import signed

import convt3d
from convt3d import (
    Add,
    BatchNorm,
    Clamp,
    ConvTranspose3d,
    Divide,
    Keep,
    LayerNorm,
    MaxPool3d,
    Mean,
    Multiply,
    Pipeline,
    PReLU,
    Softmax,
    Subtract,
    Sum,
)
from convt3d.cpu.plan.choice import AUTO, DIRECT
from convt3d.cpu.plan.plan import Plan, _make_plan, make_plan
from convt3d.spec import pipeline as spec
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate
from convt3d.spec.work import Work

F32, F64 = DTYPES["float32"], DTYPES["float64"]
INF, NAN = float("inf"), float("nan")
X, W = (2, 3, 4, 5, 6), (3, 4, 3, 2, 3)  # by stride 2: (2, 4, 9, 10, 13)
POOLS = (ConvTranspose3d(stride=2, bias=True), MaxPool3d(2), MaxPool3d(2), Sum())


def steps(plan: Plan) -> list[str]:
    return [step.name for step in plan.rewritten.steps]


# --- a plan is a value ------------------------------------------------------------------------------------------------


def test_frozen_and_hashable() -> None:
    plan = make_plan(Pipeline(*POOLS), X, (W, (4,)), F32)
    with pytest.raises(FrozenInstanceError):
        plan.algorithm = "other"  # type: ignore[misc]
    assert {plan: 1}[plan] == 1
    assert plan.trace.output == (2, 1, 2, 2, 3)


def test_equal_questions_get_the_same_plan() -> None:
    first = make_plan(Pipeline(*POOLS), X, (W, (4,)), F32)
    assert make_plan(Pipeline(*POOLS), X, (W, (4,)), F32) is first
    assert make_plan(spec.Pipeline(*POOLS), X, (W, (4,)), F32) is first, "the public and the plain pipeline are equal"
    assert make_plan(pickle.loads(pickle.dumps(Pipeline(*POOLS))), X, (W, (4,)), F32) is first


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((Pipeline(*POOLS[:-1]), X, (W, (4,)), F32), id="stages"),
        pytest.param((Pipeline(*POOLS), (3, *X[1:]), (W, (4,)), F32), id="input shape"),
        pytest.param((Pipeline(*POOLS), X, ((3, 4, 3, 3, 3), (4,)), F32), id="kernel shape"),
        pytest.param((Pipeline(*POOLS), X, (W, (4,)), F64), id="type"),
        pytest.param((Pipeline(*POOLS), X, (W, (4,)), F32, DIRECT), id="algorithm"),
        pytest.param((Pipeline(*POOLS), X, (W, (4,)), F32, AUTO, False), id="tame"),
    ],
)
def test_other_questions_get_other_plans(other: Any) -> None:
    assert make_plan(*other) != make_plan(Pipeline(*POOLS), X, (W, (4,)), F32)


TELLING = [
    pytest.param(Divide(0.0), Divide(-0.0), id="zero and minus zero"),
    pytest.param(Add("inf"), Add(INF), id="a label named inf and the number"),
    pytest.param(Subtract("nan"), Subtract(NAN), id="a label named nan and the number"),
    pytest.param(Multiply(1.0), Multiply(1.0 + 2.0**-52), id="neighbours"),
    pytest.param(Add(2.0), Subtract(2.0), id="same parameters, other stage"),
]


@pytest.mark.parametrize(("one", "two"), TELLING)
def test_pipelines_that_differ_in_meaning_never_share_a_plan(one: Any, two: Any, rng: Any) -> None:
    """The cache is keyed by equality: what computes differently must be unequal."""
    x, w = signed(rng, X), signed(rng, W)
    kept = (ConvTranspose3d(stride=2), Keep("inf"), Keep("nan"))
    first, second = Pipeline(*kept, one), Pipeline(*kept, two)
    assert first != second
    assert first(x, w).tobytes() != second(x, w).tobytes()


def test_nan_parameters_are_found_again() -> None:
    pipes = [Pipeline(ConvTranspose3d(), Add(float("nan"))) for _ in range(2)]
    assert make_plan(pipes[0], X, (W,), F32) is make_plan(pipes[1], X, (W,), F32)


def test_a_call_uses_the_cache(rng: Any) -> None:
    pipe = Pipeline(ConvTranspose3d(stride=(2, 1, 2)), Multiply(rng.random()))  # a factor nobody has planned for
    x, w = signed(rng, X), signed(rng, W)
    before = _make_plan.cache_info()
    for _ in range(5):
        pipe(x, w)
    after = _make_plan.cache_info()
    assert after.misses - before.misses == 1
    assert after.hits - before.hits >= 4


# --- shapes and work --------------------------------------------------------------------------------------------------

ALWAYS = (2, 4, 9, 10, 13)
REWRITTEN = [
    pytest.param(
        (ConvTranspose3d(stride=2), BatchNorm(affine=True), PReLU(), Add("tensor")),
        (W, (4,), (4,), (4,), (4,), (1,), (1, 4, 9, 1, 13)),
        ["batch_norm_into_weights"],
        (W, (4,), (1,), (1, 4, 9, 1, 13)),
        id="slope of one number and a tensor with axes of 1 keep their shapes behind folded operands",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2, bias=True), MaxPool3d(2), Sum(), PReLU(), Multiply("tensor")),
        (W, (4,), (1,), (2, 1, 1, 5, 6)),
        ["bias_through_max_pool", "channel_constant_through_sum"],
        (W, (1,), (1,), (2, 1, 1, 5, 6)),
        id="bias becomes one number",
    ),
    pytest.param(
        (
            Multiply("tensor"),
            ConvTranspose3d(stride=2),
            Clamp(-1, 1),
            Softmax("spatial"),
            Multiply("channel"),
            Add("tensor"),
        ),
        ((1, 3, 1, 1, 1), W, (4,), ALWAYS),
        ["bounded_softmax", "scale_into_softmax"],
        ((1, 3, 1, 1, 1), W, (4,), ALWAYS),
        id="a tensor on either side of the convolution",
    ),
    pytest.param(
        (ConvTranspose3d(stride=2, bias=True), Add(3.0), LayerNorm("width", affine=True)),
        (W, (4,), (13,), (13,)),
        ["constant_before_norm", "bias_before_norm"],
        (W, (13,), (13,)),
        id="vectors along the width behind a bias that goes",
    ),
]


@pytest.mark.parametrize(("stages", "operands", "names", "left"), REWRITTEN)
def test_shapes_of_rewritten_pipelines(stages: Any, operands: Any, names: Any, left: Any, rng: Any) -> None:
    pipe = Pipeline(*stages)
    plan = make_plan(pipe, X, operands, F64)
    assert steps(plan) == names
    assert tuple(shape for own in plan.simplified.operands for shape in own) == left
    assert plan.simplified.output == plan.trace.output
    arrays = [signed(rng, shape) ** 2 + 0.5 for shape in operands]  # positive: one of them is a variance
    prepared = plan.rewritten.operands(tuple(arrays))
    assert prepared is not None
    assert tuple(array.shape for array in prepared) == left
    x = signed(rng, X)
    assert_same(pipe(x, *arrays), evaluate(pipe, x, arrays), 1e-10)


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_work_and_scratch(batch: int) -> None:
    """Work grows with the batch; scratch, of one sample at a time, does not."""
    plan = make_plan(Pipeline(ConvTranspose3d(stride=2), MaxPool3d(2)), (batch, *X[1:]), (W,), F32)
    pairs = (4 * 3 - 1) * (5 * 2) * (6 * 3 - 1)  # the pool drops the last voxel of odd axes: one pair along D and W
    assert plan.work == Work(needed=2 * batch * 4 * 3 * pairs, nominal=2 * batch * 4 * 3 * 18 * 4 * 5 * 6)
    assert plan.reach == (8, 10, 12)
    assert plan.phase_pool == 1
    assert plan.scratch == make_plan(Pipeline(ConvTranspose3d(stride=2), MaxPool3d(2)), X, (W,), F32).scratch > 0


def test_planning_needs_no_memory() -> None:
    plan = make_plan(Pipeline(ConvTranspose3d(stride=2**16), MaxPool3d(2)), X, (W,), F32)
    assert plan.trace.output[2] > 2**16
    assert prod(plan.trace.output) > 2**50
    assert plan.scratch < 2**24, "phases that no tap meets have no memory of their own"


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(convt3d.ShapeError, match="first axis must equal the 3 channels"):
        make_plan(Pipeline(*POOLS), X, ((2, 4, 3, 3, 3), (4,)), F32)


# --- operands that are not tame ---------------------------------------------------------------------------------------


def check(pipe: Pipeline, expected: Any, x: Any, *operands: Any, falls_back: bool = True) -> None:
    plan = make_plan(pipe, x.shape, tuple(a.shape for a in operands), F64)
    assert (plan.rewritten.operands(operands) is None) == falls_back, "the case does not test what it says"
    assert_same(pipe(x, *operands), expected.numpy(), 1e-10)


def conv(x: Any, w: Any, bias: Any = None) -> Any:
    return F.conv_transpose3d(*(torch.from_numpy(a) for a in (x, w)), bias, stride=2)


@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e250, -1e30], ids=repr)
@pytest.mark.parametrize("data", ["finite", "-inf", "inf", "nan"])
def test_bias_of_max_max_sum(value: float, data: str, rng: Any) -> None:
    """inf + -inf is NaN for each voxel: behind the pool a bias of +inf would hide a voxel that is NaN."""
    x, w = signed(rng, X), signed(rng, W)
    bias = np.array([0.5, value, -1.0, 2.0])
    if data != "finite":
        x[0, 1, 2, 2, 3] = float(data)
    y = F.max_pool3d(F.max_pool3d(conv(x, w, torch.from_numpy(bias)), 2), 2).sum(1, keepdim=True)
    check(Pipeline(*POOLS), y, x, w, bias)


def test_opposite_infinities_in_two_channels(rng: Any) -> None:
    x, w, bias = signed(rng, X), signed(rng, W), np.array([INF, -INF, 0.0, 0.0])
    y = F.max_pool3d(F.max_pool3d(conv(x, w, torch.from_numpy(bias)), 2), 2).sum(1, keepdim=True)
    assert y.isnan().all()
    check(Pipeline(*POOLS), y, x, w, bias)


def test_bias_before_a_mean(rng: Any) -> None:
    x, w, bias = signed(rng, X), signed(rng, W), np.array([1.0, INF, 0.0, 1.0])
    y = F.max_pool3d(conv(x, w, torch.from_numpy(bias)), 2).mean(1, keepdim=True)
    check(Pipeline(ConvTranspose3d(stride=2, bias=True), MaxPool3d(2), Mean()), y, x, w, bias)


VARIANCES = [
    pytest.param({"var": 0.0}, 0.0, True, id="zero variance, eps 0"),
    pytest.param({"var": 0.0, "mean": 0.0}, 0.0, True, id="zero variance, mean 0, eps 0"),
    pytest.param({"var": -1.0}, 0.1, True, id="negative variance"),
    pytest.param({"var": INF}, 1e-5, True, id="infinite variance"),
    pytest.param({"var": NAN}, 1e-5, True, id="NaN variance"),
    pytest.param({"mean": INF}, 1e-5, True, id="infinite mean"),
    pytest.param({"weight": -INF}, 1e-5, True, id="infinite weight"),
    pytest.param({"bias": NAN}, 1e-5, True, id="NaN bias"),
    pytest.param({"var": 1e-300}, 0.0, True, id="variance so small that the scale is not tame"),
    pytest.param({"weight": 0.0}, 1e-5, False, id="weight 0 is tame"),
    pytest.param({"var": 0.0}, 1e-5, False, id="zero variance with an eps is tame"),
]


@pytest.mark.parametrize(("values", "eps", "falls_back"), VARIANCES)
@pytest.mark.parametrize("special", [None, INF], ids=["finite data", "Inf in the data"])
def test_batch_norm(values: dict[str, float], eps: float, falls_back: bool, special: float | None, rng: Any) -> None:
    x, w = signed(rng, X), signed(rng, W)
    if special is not None:
        x[1, 0, 1, 1, 1] = special
    vectors = {
        "mean": signed(rng, (4,)),
        "var": rng.uniform(0.5, 2, 4),
        "weight": signed(rng, (4,)),
        "bias": signed(rng, (4,)),
    }
    for name, value in values.items():
        vectors[name][2] = value
    mean, var, weight, bias = (torch.from_numpy(v) for v in vectors.values())
    y = F.batch_norm(conv(x, w), mean, var, weight, bias, eps=eps)
    check(
        Pipeline(ConvTranspose3d(stride=2), BatchNorm(eps=eps, affine=True)),
        y,
        x,
        w,
        *vectors.values(),
        falls_back=falls_back,
    )


@pytest.mark.parametrize("value", [INF, NAN, -1e200], ids=repr)
def test_scale_of_a_softmax(value: float, rng: Any) -> None:
    """0 * inf is NaN where a voxel's share vanished; sum-scaling first would hide it."""
    x, w, scale = signed(rng, X, 300.0), signed(rng, W), np.array([1.0, value, -2.0, 0.0])
    y = conv(x, w)
    y = torch.softmax(y.flatten(2), 2).reshape(y.shape) * torch.from_numpy(scale).reshape(-1, 1, 1, 1)
    check(Pipeline(ConvTranspose3d(stride=2), Softmax("spatial"), Multiply("channel")), y, x, w, scale)


@pytest.mark.parametrize("value", [INF, NAN], ids=repr)
def test_weight_that_is_not_tame(value: float, rng: Any) -> None:
    x, w, bias = signed(rng, X), signed(rng, W), signed(rng, (4,))
    w[1, 2, 0, 0, 0] = value
    y = F.max_pool3d(F.max_pool3d(conv(x, w, torch.from_numpy(bias)), 2), 2).sum(1, keepdim=True)
    check(Pipeline(*POOLS), y, x, w, bias)


def test_fallback_keeps_the_rewrites_that_need_no_operands() -> None:
    plan = make_plan(Pipeline(*POOLS), X, (W, (4,)), F32, tame=False)
    assert steps(plan) == ["max_pool_of_max_pool", "max_pool_over_phases"]
    assert steps(make_plan(Pipeline(*POOLS), X, (W, (4,)), F32))[:1] == ["max_pool_of_max_pool"]
    assert not plan.rewritten.needs_tame


@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e300], ids=repr)
def test_a_constant_that_float32_cannot_hold_does_not_cancel(value: float) -> None:
    pipe = Pipeline(ConvTranspose3d(), Add(value), LayerNorm())
    assert steps(make_plan(pipe, X, (W,), F32)) == []
    assert steps(make_plan(Pipeline(ConvTranspose3d(), Add(2.0), LayerNorm()), X, (W,), F32)) == [
        "constant_before_norm"
    ]
