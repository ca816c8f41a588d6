"""A pipeline is a value: frozen, hashable, equal by bits, written as it reads; and it means the chain of its stages."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.chains import Chain, chains, operand_data
from helpers.compare import assert_same
from helpers.data import SPECIALS, signed, sprinkled
from helpers.problems import PROBLEMS
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.stage_rows import ROWS, Row

from convt3d.errors import ArgumentError, ArgumentTypeError, Error, ShapeError
from convt3d.spec import stages as vocabulary
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import evaluate
from convt3d.spec.stage import Stage
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    Conv3d,
    Convolution,
    ConvTranspose3d,
    Divide,
    HardSwish,
    Keep,
    LayerNorm,
    MaxPool3d,
    Mean,
    Multiply,
    PReLU,
    Recall,
    Sigmoid,
    Softmax,
    Subtract,
    Sum,
    Tanh,
)

inf, nan = math.inf, math.nan
NAMES = {**vars(vocabulary), "Pipeline": Pipeline, "inf": inf, "nan": nan}


# --- meaning ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(chains())
def test_a_random_chain_means_the_chain_of_pytorch_functions(chain: Chain) -> None:
    """Errors of 1e-16 grow through up to nine stages (a norm of a near-constant multiplies by 300)."""
    assert_same(evaluate(chain.pipeline, chain.x, chain.operands), chain.torch(chain.x), 1e-7, floor=1e-3)


@settings(max_examples=60)
@given(chains(most=3), st.sampled_from(sorted(SPECIALS)), st.integers(0, 2**32 - 1))
def test_nan_and_inf_through_a_chain(chain: Chain, specials: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = sprinkled(rng, chain.x, SPECIALS[specials], share=0.01)
    assert_same(evaluate(chain.pipeline, x, chain.operands), chain.torch(x), 1e-7, floor=1e-3)


@settings(max_examples=100)
@given(chains())
def test_the_shapes_of_a_trace_are_those_of_the_values(chain: Chain) -> None:
    trace = chain.pipeline.trace(chain.x.shape, [a.shape for a in chain.operands])
    assert trace.values[0] == chain.x.shape
    assert len(trace.values) == len(chain.pipeline.stages) + 1
    assert trace.output == evaluate(chain.pipeline, chain.x, chain.operands).shape
    assert [s for stage in trace.operands for s in stage] == [a.shape for a in chain.operands]


def _sigmoid(y: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-y))


LABELS = [
    pytest.param(
        (Keep("y"), Mean("spatial"), Sigmoid(), Multiply("y")),
        lambda x, y: _sigmoid(y.mean((2, 3, 4), keepdims=True)) * y,
        id="squeeze-excite: the current value is repeated over the kept one",
    ),
    pytest.param(
        (Mean("spatial"), Keep("m"), Add("x"), Divide("m")),
        lambda x, y: (y.mean((2, 3, 4), keepdims=True) + x) / y.mean((2, 3, 4), keepdims=True),
        id="the kept value is repeated over the current one",
    ),
    pytest.param((Keep("y"), HardSwish(), Subtract("y")), lambda x, y: y * np.clip(y + 3, 0, 6) / 6 - y, id="order"),
    pytest.param((Subtract("x"),), lambda x, y: y - x, id="x is the pipeline's input"),
    pytest.param(
        (Keep("a"), Sigmoid(), Keep("b"), Multiply("a"), Add("b"), Multiply("a")),
        lambda x, y: (_sigmoid(y) * y + _sigmoid(y)) * y,
        id="two labels, one used twice",
    ),
    pytest.param(
        (Keep("a"), Sum("channels"), Keep("b"), Multiply("a"), Mean("spatial"), Multiply("b")),
        lambda x, y: (y.sum(1, keepdims=True) * y).mean((2, 3, 4), keepdims=True) * y.sum(1, keepdims=True),
        id="both are repeated, on different axes",
    ),
    pytest.param(
        (Keep("y"), Tanh(), Keep("t"), Recall("y"), Sigmoid(), Multiply("t")),
        lambda x, y: np.tanh(y) * _sigmoid(y),
        id="Recall: a value goes two ways",
    ),
    pytest.param(
        (Keep("y"), Mean("spatial"), Keep("m"), Recall("x"), Subtract("m", reverse=True), Divide("y", reverse=True)),
        lambda x, y: y / (y.mean((2, 3, 4), keepdims=True) - x),
        id="Recall: the pipeline's input, of another shape than what it replaces; reverse",
    ),
    pytest.param((Keep("y"), Keep("z"), Divide("y")), lambda x, y: y / y, id="two names for one value"),
]


@pytest.mark.parametrize(("after", "formula"), LABELS)
def test_labels(after: tuple[Stage, ...], formula: Any, rng: np.random.Generator) -> None:
    pipeline = Pipeline(ConvTranspose3d(padding=(1, 0, 1)), *after)
    x = signed(rng, (2, 3, 2, 1, 5))
    w = signed(rng, (3, 3, 3, 1, 3))  # the output has the shape of x
    expected = formula(x, evaluate(Pipeline(pipeline.conv), x, [w]))
    assert_same(evaluate(pipeline, x, [w]), expected, 1e-13)
    assert pipeline.trace(x.shape, [w.shape]).output == expected.shape


# --- a value ----------------------------------------------------------------------------------------------------------

WRITTEN = [*(row.stage for row in ROWS), Clamp(-0.0, inf), Add(1e-300), Softmax(shift=3.0), Divide(0.1 + 0.2)]


@pytest.mark.parametrize("stage", WRITTEN, ids=repr)
def test_a_stage_is_a_value(stage: Stage) -> None:
    """repr reads back; pickle and copies are equal, with an equal hash."""
    for twin in (
        eval(repr(stage), dict(NAMES)),
        pickle.loads(pickle.dumps(stage)),
        copy.copy(stage),
        copy.deepcopy(stage),
        dataclasses.replace(stage),
    ):
        assert type(twin) is type(stage)
        assert twin == stage
        assert hash(twin) == hash(stage)


def test_different_stages_differ() -> None:
    """Every two rows of the table differ, and so do their hashes (they are keys of a cache)."""
    assert len({hash(stage) for stage in WRITTEN}) == len(WRITTEN)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_stage_is_frozen(row: Row) -> None:
    name = next((field.name for field in dataclasses.fields(row.stage)), "anything")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(row.stage, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(row.stage, name)


@settings(max_examples=60)
@given(chains())
def test_a_pipeline_is_a_value(chain: Chain) -> None:
    pipeline = chain.pipeline
    twins = [eval(repr(pipeline), dict(NAMES)), pickle.loads(pickle.dumps(pipeline)), copy.deepcopy(pipeline)]
    for twin in twins:
        assert twin == pipeline
        assert hash(twin) == hash(pipeline)
        assert (twin.stages, twin.slots, twin.convolutions) == (pipeline.stages, pipeline.slots, pipeline.convolutions)
    assert Pipeline(*pipeline.stages, GELU()) != pipeline


EQUAL = [
    pytest.param(Add(nan), Add(-nan), True, id="NaN equals NaN, or a cache would never find it"),
    pytest.param(Divide(0.0), Divide(-0.0), False, id="-0.0 divides to -Inf"),
    pytest.param(Add(1), Add(1.0), True, id="an int is the same number"),
    pytest.param(Add(np.float32(0.5)), Add(0.5), True, id="numpy numbers become plain ones"),
    pytest.param(Add(0.1), Add(float(np.float32(0.1))), False, id="every bit counts"),
    pytest.param(Add(1.0), Subtract(1.0), False, id="same parameter, other stage"),
    pytest.param(MaxPool3d(2), MaxPool3d((2, 2, 2), (2, 2, 2)), True, id="a triple written out; stride = kernel"),
    pytest.param(MaxPool3d(2), AvgPool3d(2), False, id="same parameters, other pool"),
    pytest.param(
        ConvTranspose3d(stride=np.int64(2)), ConvTranspose3d(stride=[2]), True, id="numpy integer, one-element list"
    ),
    pytest.param(Add("inf"), Add(inf), False, id="a label named inf is not the number"),
    pytest.param(Add("nan"), Add(nan), False, id="a label named nan is not the number"),
    pytest.param(Softmax(scale=None), Softmax(scale=1.0), False, id="no factor differs from a factor of one"),
]


@pytest.mark.parametrize(("one", "other", "equal"), EQUAL)
def test_equality_by_bits(one: Stage, other: Stage, equal: bool) -> None:
    assert (one == other) is equal
    assert (hash(one) == hash(other)) is equal
    if not isinstance(one, Convolution):
        before = (ConvTranspose3d(), Keep("inf"), Keep("nan"))
        assert (Pipeline(*before, one) == Pipeline(*before, other)) is equal


def test_a_stage_equals_no_other_kind_of_thing() -> None:
    assert Add(1.0) != ("Add", 1.0)
    assert Pipeline(ConvTranspose3d()) != (ConvTranspose3d(),)


def test_repr_is_as_one_would_write_it() -> None:
    pipeline = Pipeline(ConvTranspose3d(stride=(2, 1, 2), padding=1), MaxPool3d(3, 2), LayerNorm(), Add("channel"))
    assert repr(pipeline) == (
        "Pipeline(ConvTranspose3d(stride=(2, 1, 2), padding=1), MaxPool3d(kernel_size=3, stride=2), LayerNorm(), "
        "Add(other='channel'))"
    )


@pytest.mark.parametrize("name", ["stages", "slots", "convolutions", "_hash", "anything"])
def test_a_pipeline_is_frozen(name: str) -> None:
    pipeline = Pipeline(ConvTranspose3d())
    with pytest.raises(AttributeError, match="frozen"):
        setattr(pipeline, name, ())
    with pytest.raises(AttributeError, match="frozen"):
        delattr(pipeline, name)


# --- operands ---------------------------------------------------------------------------------------------------------

NAMED = [
    pytest.param((ConvTranspose3d(bias=True),), ("weight", "bias"), id="the convolution's own are short"),
    pytest.param(
        (Add("channel"), ConvTranspose3d(), Add("tensor"), Multiply("channel"), Add("channel")),
        ("add_other", "weight", "add_other_2", "multiply_other", "add_other_3"),
        id="order of stages; the second of a kind is counted",
    ),
    pytest.param(
        (ConvTranspose3d(bias=True), BatchNorm(affine=True), LayerNorm(affine=True), PReLU(), Softmax(scale="channel")),
        (
            *(
                "weight",
                "bias",
                "batchnorm_running_mean",
                "batchnorm_running_var",
                "batchnorm_weight",
                "batchnorm_bias",
            ),
            *("layernorm_weight", "layernorm_bias", "prelu_weight", "softmax_scale"),
        ),
        id="roles in the order of the stage",
    ),
    pytest.param((ConvTranspose3d(), Keep("y"), Add("y"), Add("x"), Add(2.0)), ("weight",), id="labels take no tensor"),
]


@pytest.mark.parametrize(("stages", "names"), NAMED)
def test_operand_names(stages: tuple[Stage, ...], names: tuple[str, ...]) -> None:
    assert Pipeline(*stages).operand_names == names


THREE = Pipeline(ConvTranspose3d(bias=True), Multiply("channel"))  # weight, bias, multiply_other

BOUND = [
    pytest.param((1, 2, 3), {}, id="by position"),
    pytest.param((), {"multiply_other": 3, "weight": 1, "bias": 2}, id="by name, any order"),
    pytest.param((1,), {"multiply_other": 3, "bias": 2}, id="both"),
]


@pytest.mark.parametrize(("positional", "named"), BOUND)
def test_bind(positional: tuple[int, ...], named: dict[str, int]) -> None:
    assert THREE.bind("op", positional, named) == (1, 2, 3)


UNBOUND = [
    pytest.param((1, 2, 3, 4), {}, "operands", "takes input, weight, bias, multiply_other", id="one too many"),
    pytest.param((1, 2), {}, "operands", ": 3 after input", id="one too few: which is missing nobody knows"),
    pytest.param((1, None, 3), {}, "bias", "is missing", id="None by position"),
    pytest.param((1, 2), {"multiply_other": None}, "multiply_other", "is missing", id="None by name"),
    pytest.param((1, 2), {"bias": 2}, "bias", "is given twice", id="twice"),
    pytest.param((1, 2, 3), {"slope": 2}, "slope", "is unknown", id="unknown name"),
]


@pytest.mark.parametrize(("positional", "named", "argument", "rule"), UNBOUND)
def test_bind_errors(positional: tuple[Any, ...], named: dict[str, Any], argument: str, rule: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        THREE.bind("my_op", positional, named)
    assert (caught.value.operator, caught.value.argument) == ("my_op", argument)
    assert rule in caught.value.rule
    assert "weight, bias, multiply_other" in caught.value.rule


FITTING = [
    pytest.param(Add("channel"), (6,), (6,), id="vector"),
    pytest.param(Add("channel"), (6, 1, 1, 1), (6,), id="vector as (C, 1, 1, 1)"),
    pytest.param(
        Add("channel"), (1, 6, 1, 1, 1), (6,), id="vector as (1, C, 1, 1, 1), as the problem texts write scale"
    ),
    pytest.param(PReLU(), (1,), (1,), id="one slope"),
    pytest.param(PReLU(), (1, 6, 1, 1, 1), (6,), id="a slope for each channel"),
    pytest.param(Add("tensor"), (1, 6, 1, 3, 5), (1, 6, 1, 3, 5), id="array with axes to repeat"),
    pytest.param(LayerNorm("width", affine=True), (5,), (5,), id="row of the width"),
    pytest.param(Add("channel"), (1,), None, id="a vector is never repeated"),
    pytest.param(Add("channel"), (1, 1, 1, 1, 6), None, id="vector on the wrong axis"),
    pytest.param(Add("tensor"), (6,), None, id="an array needs all five axes"),
    pytest.param(Add("tensor"), (2, 6, 2, 3, 4), None, id="array of another size"),
    pytest.param(PReLU(), (2,), None, id="neither 1 nor 6 slopes"),
    pytest.param(LayerNorm("width", affine=True), (6,), None, id="channels where the width is asked"),
]


@pytest.mark.parametrize(("stage", "given_shape", "normal"), FITTING)
def test_operand_shapes(stage: Stage, given_shape: tuple[int, ...], normal: Any) -> None:
    pipeline = Pipeline(stage, ConvTranspose3d())
    shapes = [given_shape] * len(stage.operands())
    if normal is None:
        with pytest.raises(ShapeError, match=stage.name):
            pipeline.trace((2, 6, 2, 3, 5), [*shapes, (6, 1, 1, 1, 1)])
    else:
        trace = pipeline.trace((2, 6, 2, 3, 5), [*shapes, (6, 1, 1, 1, 1)])
        assert trace.operands[0] == (normal,) * len(shapes)


def test_the_bias_fits_the_outputs_not_the_inputs(rng: np.random.Generator) -> None:
    pipeline = Pipeline(ConvTranspose3d(groups=2, bias=True))
    assert pipeline.operand_shapes((1, 4, 1, 2, 3), (4, 5, 1, 1, 2)) == ((4, 5, 1, 1, 2), (10,))
    with pytest.raises(ShapeError, match="bias"):
        pipeline.trace((1, 4, 1, 2, 3), [(4, 5, 1, 1, 2), (4,)])


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_the_five_problems_evaluate_small(problem: Any, rng: np.random.Generator) -> None:
    """Their shapes work scaled down, with a batch of one and unequal axes."""
    shape, kernel = (1, 3, 5, 6, 7), (3, 4, *problem.kernel[2:])
    operands = operand_data(problem.pipeline, shape, kernel, rng)
    got = evaluate(problem.pipeline, signed(rng, shape), operands)
    assert got.shape == problem.pipeline.trace(shape, [a.shape for a in operands]).output
    assert np.isfinite(got).all()
    assert np.ptp(got) > 0


def test_every_stage_in_a_pipeline_has_a_meaning() -> None:
    """`Binary` itself is not a stage one may write: it would fail only when it is evaluated."""
    with pytest.raises((Error, TypeError)):
        Pipeline(ConvTranspose3d(), vocabulary.Binary(1.0))


def test_a_pipeline_without_a_convolution_is_refused() -> None:
    for stages in ((), (GELU(),)):
        with pytest.raises(ArgumentError, match="must hold a ConvTranspose3d"):
            Pipeline(*stages)


def test_operands_of_several_convolutions_carry_their_number() -> None:
    pipeline = Pipeline(ConvTranspose3d(), GELU(), Conv3d(bias=True), BatchNorm(), Conv3d(bias=True), BatchNorm())
    norm = ("batchnorm_running_mean", "batchnorm_running_var")
    assert pipeline.convolutions == (0, 2, 4)
    assert pipeline.operand_names == (
        *("weight", "weight_2", "bias_2", *norm, "weight_3", "bias_3"),
        *(f"{name}_2" for name in norm),
    )
