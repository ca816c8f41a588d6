"""The sampled check: its cropped meaning is the crop of the meaning, and it sees every kind of wrong result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from convt3d.cpu.runtime.execute import execute
from convt3d.front import verify
from convt3d.front.verify import compare, make_crop, sampled_check
from convt3d.spec.dtypes import DTYPES, float16, float32
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import evaluate
from convt3d.spec.stage import Stage
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    Clamp,
    ConvTranspose3d,
    Exp,
    GroupNorm,
    InstanceNorm,
    Keep,
    LayerNorm,
    LogSumExp,
    MaxPool3d,
    Mean,
    Multiply,
    PReLU,
    Recall,
    Softmax,
    Subtract,
    Sum,
    Tanh,
)

OPERATORS = {
    "asym": Pipeline(ConvTranspose3d(stride=(1, 2, 3), padding=(0, 1, 2), dilation=(2, 1, 1))),
    "max-max-sum": Pipeline(ConvTranspose3d(stride=2, padding=2, bias=True), MaxPool3d(2), MaxPool3d(3), Sum()),
    "sum-layernorm": Pipeline(
        ConvTranspose3d(stride=2, padding=1, output_padding=1), Add(0.5), LayerNorm(), AvgPool3d(2), GELU()
    ),
    "softmax": Pipeline(
        AvgPool3d(2),
        ConvTranspose3d(stride=2, padding=1, output_padding=1),
        Clamp(-2.0, 2.0),
        Softmax("spatial"),
        Multiply("channel"),
    ),
    "layernorm-gelu": Pipeline(ConvTranspose3d(stride=2, padding=1), LayerNorm(), GELU(), Multiply(1.5)),
}


def _data(pipeline: Pipeline, x: tuple[int, ...], kernel: tuple[int, ...], rng: np.random.Generator) -> Any:
    shapes = pipeline.operand_shapes(x, kernel)
    return rng.normal(size=x), tuple(rng.normal(size=shape) for shape in shapes)


def _int(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def _triple(low: int, high: int) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(_int(low, high), _int(low, high), _int(low, high))


@st.composite
def _pool(draw: st.DrawFn) -> Stage:
    kernel = draw(_triple(1, 3))
    padding = tuple(draw(_int(0, k // 2)) for k in kernel)
    kind = draw(st.sampled_from([MaxPool3d, AvgPool3d]))
    more = {"count_include_pad": draw(st.booleans())} if kind is AvgPool3d else {}
    return kind(kernel, draw(_triple(1, 3)), padding, ceil_mode=draw(st.booleans()), **more)


@st.composite
def _convolution(draw: st.DrawFn, groups: int) -> ConvTranspose3d:
    stride, dilation = draw(_triple(1, 3)), draw(_triple(1, 2))
    extra = tuple(draw(_int(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    return ConvTranspose3d(
        stride=stride,
        padding=draw(_triple(0, 3)),
        output_padding=extra,
        groups=groups,
        dilation=dilation,
        bias=draw(st.booleans()),
    )


_POINTWISE = st.sampled_from(
    [Tanh(), GELU("tanh"), PReLU(), Clamp(-1.0, 1.0), Add("tensor"), Multiply("channel"), Add("kept"), Subtract("x")]
)
_COUPLED = st.sampled_from(
    [
        LayerNorm("width", affine=True),
        LayerNorm(affine=True),
        Softmax("spatial"),
        InstanceNorm(affine=True),
        Sum(),
        GroupNorm(2),
        Mean("spatial"),
        LogSumExp("channels"),
    ]
)


@st.composite
def _pipelines(draw: st.DrawFn) -> tuple[Pipeline, tuple[int, ...], tuple[int, ...]]:
    """Mostly stages that look at a neighbourhood, so that there is something to crop."""
    groups = draw(st.sampled_from([1, 1, 2]))
    any_stage = st.one_of(_POINTWISE, _pool(), _POINTWISE, _COUPLED)
    before = draw(st.lists(st.one_of(_pool(), st.just(Tanh()), st.just(Multiply("channel"))), max_size=2))
    after = draw(st.lists(any_stage, max_size=4))
    pipeline = Pipeline(*before, draw(_convolution(groups)), Keep("kept"), *after)
    kernel = (4, draw(_int(1, 3)), *draw(_triple(1, 4)))
    return pipeline, (2, 4, *draw(_triple(1, 26))), kernel


@given(_pipelines(), st.randoms(use_true_random=False))
def test_the_meaning_of_a_crop_is_the_crop_of_the_meaning(drawn: Any, random: Any) -> None:
    pipeline, x_shape, kernel = drawn
    try:
        trace = pipeline.trace(x_shape, pipeline.operand_shapes(x_shape, kernel))
    except ValueError:
        assume(False)
    x, operands = _data(pipeline, x_shape, kernel, np.random.default_rng(random.randrange(2**32)))
    full = evaluate(pipeline, x, operands)
    for _ in range(4):
        lows = [random.randrange(size) for size in trace.output[1:]]
        block: Any = tuple(
            (n, random.randint(n + 1, min(n + 3, s))) for n, s in zip(lows, trace.output[1:], strict=True)
        )
        crop = make_crop(pipeline, trace, random.randrange(2), block)
        got = crop.expected(pipeline, DTYPES["float64"], x, operands)
        expected = full[crop.sample][tuple(slice(*part) for part in crop.block)]
        assert got.shape == expected.shape
        assert np.allclose(got, expected, rtol=1e-9, atol=1e-9 * np.abs(full).max(), equal_nan=True)


# A tap that reads only the neighbour, so that a kept value is needed where the convolution does not look.
SHIFT = ConvTranspose3d(padding=1, output_padding=2, dilation=3)

MEETINGS = {
    "the input joins after the convolution": (Pipeline(ConvTranspose3d(stride=1, padding=1), Tanh(), Subtract("x")), 3),
    "the input is needed beyond what is convolved": (Pipeline(SHIFT, Subtract("x")), 1),
    "a kept value is needed beyond what is convolved": (
        Pipeline(AvgPool3d(3, 1, 1), Keep("kept"), SHIFT, Add("kept")),
        1,
    ),
    "grids of different pitch meet": (Pipeline(ConvTranspose3d(stride=2, padding=10), Subtract("x")), 2),
    "back to a kept value": (
        Pipeline(ConvTranspose3d(stride=2), Keep("a"), AvgPool3d(3, 1, 1), Keep("b"), Keep("c"), Recall("a"), Add("b")),
        4,
    ),
    "back to the input": (
        Pipeline(ConvTranspose3d(stride=1, padding=1), Keep("a"), Recall("x"), Subtract("a", True)),
        3,
    ),
    "a kept neighbourhood": (
        Pipeline(ConvTranspose3d(stride=2), Keep("kept"), AvgPool3d(3, 1, 1), Multiply("kept")),
        4,
    ),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_kept_values_are_cropped_in_step(name: str, rng: np.random.Generator) -> None:
    pipeline, taps = MEETINGS[name]
    x, operands = _data(pipeline, (1, 6, 20, 20, 20), (6, 6, taps, taps, taps), rng)
    trace = pipeline.trace(x.shape, [operand.shape for operand in operands])
    full = evaluate(pipeline, x, operands)
    for low in (0, 1, 9, 18):
        block: Any = ((2, 4), *((low, low + 2),) * 3)
        crop = make_crop(pipeline, trace, 0, block)
        expected = full[0][tuple(slice(*part) for part in crop.block)]
        assert np.allclose(crop.expected(pipeline, DTYPES["float64"], x, operands), expected)


def test_crops_are_small_where_they_can_be() -> None:
    """Otherwise the property above would hold for nothing cut at all."""

    def computed(pipeline: Pipeline, block: Any) -> Any:
        trace = pipeline.trace((1, 4, 64, 64, 64), pipeline.operand_shapes((1, 4, 64, 64, 64), (4, 6, 3, 3, 3)))
        return make_crop(pipeline, trace, 0, block).boxes[0]

    middle: Any = ((0, 6), (30, 32), (30, 32), (30, 32))
    assert all(high - low <= 5 for low, high in computed(Pipeline(ConvTranspose3d()), middle)[1:])
    assert all(high - low <= 6 for low, high in computed(OPERATORS["sum-layernorm"], middle)[1:])
    row = computed(Pipeline(ConvTranspose3d(), LayerNorm("width")), middle)
    assert row[3] == (0, 64)
    assert row[1][1] - row[1][0] <= 5
    channel = make_crop(
        OPERATORS["softmax"],
        OPERATORS["softmax"].trace((1, 4, 8, 8, 8), [(4, 6, 3, 3, 3), (6,)]),
        0,
        ((3, 4), (0, 1), (0, 1), (0, 1)),
    )
    assert channel.block == ((3, 4), (0, 8), (0, 8), (0, 8))
    assert [box[0] for box in channel.boxes] == [(0, 4), (0, 4), (3, 4), (3, 4), (3, 4), (3, 4)]


def test_one_group_is_computed_alone(rng: np.random.Generator) -> None:
    pipeline = Pipeline(ConvTranspose3d(stride=2, groups=3), InstanceNorm())
    x, operands = _data(pipeline, (1, 6, 4, 5, 3), (6, 4, 3, 3, 3), rng)
    trace = pipeline.trace(x.shape, [operand.shape for operand in operands])
    for low, high, inputs in ((0, 2, (0, 2)), (5, 7, (2, 4)), (11, 12, (4, 6))):
        crop = make_crop(pipeline, trace, 0, ((low, high), (0, 1), (0, 1), (0, 1)))
        assert crop.boxes[0][0] == inputs
        expected = evaluate(pipeline, x, operands)[0, low:high]
        assert np.allclose(crop.expected(pipeline, DTYPES["float64"], x, operands), expected)


def _run(name: str, dtype: Any, rng: np.random.Generator) -> Any:
    pipeline = OPERATORS[name]
    x, operands = _data(pipeline, (3, 8, 12, 10, 14), (8, 6, 3, 3, 3), rng)
    stored = dtype.narrow(x), tuple(dtype.narrow(operand) for operand in operands)
    shapes = [operand.shape for operand in stored[1]]
    y = np.empty(pipeline.trace(x.shape, shapes).output, dtype.storage)
    execute(pipeline, dtype, *stored, y)
    return pipeline, *stored, y


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("name", OPERATORS)
def test_right_results_pass(name: str, dtype: Any, rng: np.random.Generator) -> None:
    check = sampled_check(*_run(name, dtype, rng), dtype, rng)
    assert check.passed, check
    assert check.voxels >= 100
    assert 0.0 <= check.worst <= check.tolerance


def _second_to_next(y: Any) -> Any:
    """As if two axes had been swapped: their order of elements in memory."""
    return np.ascontiguousarray(y.swapaxes(3, 4)).reshape(y.shape)


WRONG = {
    "zeros": np.zeros_like,
    "a constant": lambda y: np.full_like(y, y.astype(np.float64).mean()),
    "shifted by one voxel": lambda y: np.roll(y, 1, axis=4),
    "shifted in depth": lambda y: np.roll(y, -1, axis=2),
    "swapped axes": _second_to_next,
    "samples swapped": lambda y: y[::-1],
    "one per mille off": lambda y: y * np.float32(1.001),
    "NaN": lambda y: np.full_like(y, np.nan),
    "infinite": lambda y: np.full_like(y, np.inf),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", OPERATORS)
def test_wrong_results_are_seen(name: str, wrong: str, rng: np.random.Generator) -> None:
    pipeline, x, operands, y = _run(name, float32, rng)
    check = sampled_check(pipeline, x, operands, WRONG[wrong](y), float32, rng)
    assert not check.passed, check


def test_nan_and_infinities_must_be_in_their_places(rng: np.random.Generator) -> None:
    expected = np.array([1.0, np.nan, np.inf, -np.inf, 1e9])
    stored = np.array([1.0, np.nan, np.inf, -np.inf, np.inf])  # float16 has no 1e9
    assert compare(stored, expected, float16, 1).passed
    for at, value in ((0, np.nan), (1, 0.0), (2, -np.inf), (2, 65504.0), (3, np.nan), (4, 65504.0)):
        wrong = stored.copy()
        wrong[at] = value
        check = compare(wrong, expected, float16, 1)
        assert not check.passed
        assert check.worst == np.inf


def test_scalars_count_as_the_type_sees_them(rng: np.random.Generator) -> None:
    """exp(x) * 1e39 is finite in float64, but 1e39 is inf in float32."""
    pipeline = Pipeline(ConvTranspose3d(), Exp(), Multiply(1e39))
    x, w = np.zeros((1, 1, 2, 2, 2), np.float32), np.ones((1, 1, 1, 1, 1), np.float32)
    assert sampled_check(pipeline, x, (w,), np.full(x.shape, np.inf, np.float32), float32, rng).passed


def test_exact_zeros_are_asked_for_exactly(rng: np.random.Generator) -> None:
    zeros = np.zeros(10)
    assert compare(zeros, zeros, float32, 100).passed
    assert not compare(zeros + 1e-30, zeros, float32, 100).passed


def test_an_empty_batch_has_nothing_to_check(rng: np.random.Generator) -> None:
    x, w = np.zeros((0, 1, 2, 2, 2), np.float32), np.ones((1, 1, 1, 1, 1), np.float32)
    assert sampled_check(Pipeline(ConvTranspose3d()), x, (w,), x, float32, rng) == verify.Check(0, 0.0, 0.0, True)


def test_large_blocks_are_narrowed_to_few_channels(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(verify, "BLOCK_SECONDS", 0.0)
    pipeline, x, operands, y = _run("softmax", float32, rng)
    check = sampled_check(pipeline, x, operands, y, float32, rng)
    assert check.passed
    assert check.voxels <= 4 * verify.FEW_CHANNELS * y[0, 0].size
