"""Pipelines of several convolutions: segments that mean what the whole means, whatever goes from one to another."""

from __future__ import annotations

import pickle
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.data import SPECIALS, sprinkled
from helpers.draws import make, several

import convt3d as ct
from convt3d.cpu.plan.sequence import make_sequence
from convt3d.cpu.runtime.execute import execute
from convt3d.plan.segments import Value, segments
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate
from convt3d.spec.text import read_stages, write_pipeline

X, K3, K1 = (2, 4, 5, 6, 7), (4, 4, 3, 3, 3), (4, 4, 1, 1, 1)
# Text, shapes of weights, segments as they run.
ROWS = {
    "stages between belong to the first": (
        "Conv3d(padding=1) -> ReLU() -> Conv3d(padding=1, bias=True)",
        [K3, K3],
        ["Conv3d(padding=1) -> ReLU()", "Conv3d(padding=1, bias=True)"],
    ),
    "the input again": (
        "Conv3d(padding=1) -> ReLU() -> Conv3d(padding=1) -> Add('x')",
        [K3, K3],
        ["Conv3d(padding=1) -> ReLU()", "Conv3d(padding=1) -> Add(other='tensor')"],
    ),
    "a segment ends where a later one needs the value": (
        "Conv3d(padding=1) -> Keep('y') -> ReLU() -> MaxPool3d(3, 1, 1) -> Conv3d(padding=1) -> Add('y')",
        [K3, K3],
        ["Conv3d(padding=1)", "ReLU() -> MaxPool3d(kernel_size=3, stride=1, padding=1) -> Conv3d(padding=1) -> "
         "Add(other='x')"],
    ),
    "the next one makes the other": (
        "Conv3d(padding=1) -> Keep('y') -> Tanh() -> Keep('z') -> GELU() -> Conv3d(padding=1) -> Add('y') -> "
        "Multiply('z')",
        [K3, K3],
        ["Conv3d(padding=1)", "Tanh() -> Keep(label='z') -> GELU() -> Conv3d(padding=1) -> Add(other='x') -> "
         "Multiply(other='z')"],
    ),
    "two such values": (
        "Conv3d(padding=1) -> Keep('y') -> Tanh() -> Keep('z') -> GELU() -> Conv3d(padding=1) -> Add('y') -> "
        "Conv3d(padding=1) -> Multiply('z')",
        [K3, K3, K3],
        ["Conv3d(padding=1)", "ConvTranspose3d(groups=4) -> Recall(label='x') -> Tanh()",
         "GELU() -> Conv3d(padding=1) -> Add(other='tensor')", "Conv3d(padding=1) -> Multiply(other='tensor')"],
    ),
    "a gate that is repeated": (
        "Conv3d(padding=1) -> Keep('y') -> Mean('spatial') -> Conv3d(bias=True) -> ReLU() -> Conv3d() -> Sigmoid() -> "
        "Multiply('y')",
        [K3, K1, K1],
        ["Conv3d(padding=1)", "Mean(over='spatial') -> Conv3d(bias=True) -> ReLU()", "Conv3d() -> Sigmoid()",
         "ConvTranspose3d(groups=4) -> Recall(label='x') -> Multiply(other='tensor')"],
    ),
    "back to an earlier value, and another convolution": (
        "Conv3d(padding=1) -> Keep('y') -> Conv3d(padding=1) -> Keep('z') -> Recall('y') -> Conv3d(padding=1) -> "
        "Subtract('z', reverse=True)",
        [K3, K3, K3],
        ["Conv3d(padding=1)", "Conv3d(padding=1)", "Conv3d(padding=1) -> Subtract(other='tensor', reverse=True)"],
    ),
    "back to what the segment reads": (
        "Conv3d(padding=1) -> Keep('y') -> Conv3d(padding=1) -> Keep('z') -> Recall('y') -> Sigmoid() -> Multiply('z')",
        [K3, K3],
        ["Conv3d(padding=1)", "Conv3d(padding=1) -> Keep(label='z') -> Recall(label='x') -> Sigmoid() -> "
         "Multiply(other='z')"],
    ),
    "a value before all convolutions": (
        "ReLU() -> Keep('a') -> Conv3d(padding=1) -> Conv3d(padding=1) -> Add('a')",
        [K3, K3],
        ["ConvTranspose3d(groups=4) -> Recall(label='x') -> ReLU()", "Conv3d(padding=1)",
         "Conv3d(padding=1) -> Add(other='tensor')"],
    ),
    "back to a value within an earlier segment": (
        "Conv3d(padding=1) -> Keep('y') -> Tanh() -> Conv3d(padding=1) -> Conv3d(padding=1) -> Keep('z') -> "
        "Recall('y') -> Sigmoid() -> Multiply('z')",
        [K3, K3, K3],
        ["Conv3d(padding=1)", "Tanh() -> Conv3d(padding=1)", "Conv3d(padding=1)",
         "ConvTranspose3d(groups=4) -> Recall(label='x') -> Sigmoid() -> Multiply(other='tensor')"],
    ),
    "names within a segment stay": (
        "Conv3d() -> ConvTranspose3d(stride=2) -> Keep('y') -> Tanh() -> Keep('t') -> Recall('y') -> Sigmoid() -> "
        "Multiply('t')",
        [K3, K3],
        ["Conv3d()", "ConvTranspose3d(stride=2) -> Keep(label='y') -> Tanh() -> Keep(label='t') -> Recall(label='y') "
         "-> Sigmoid() -> Multiply(other='t')"],
    ),
    "a name for what is there": (
        "Conv3d(padding=1) -> Conv3d(padding=1) -> Keep('y') -> Recall('y') -> ReLU()",
        [K3, K3],
        ["Conv3d(padding=1)", "Conv3d(padding=1) -> ReLU()"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "kernels", "parts"), ROWS.values(), ids=ROWS)
def test_where_segments_end_and_what_they_compute(text: str, kernels: Any, parts: list[str]) -> None:
    pipeline = ct.Pipeline(*read_stages(text))
    cut = segments(pipeline, pipeline.trace(X, pipeline.operand_shapes(X, *kernels)))
    assert [write_pipeline(segment.pipeline) for segment in cut] == parts
    for dtype in ("float32", "bfloat16"):
        make(pipeline, X, kernels[0], dtype, 1, kernels[1:]).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_drawn(dtype: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(dtype)])
    several(rng, dtype).check()


@pytest.mark.parametrize("seed", range(6))
def test_nan_and_infinity_go_where_the_meaning_takes_them(seed: int) -> None:
    """Winograd's method spreads infinities over its tiles, and zeros around an array meet infinite weights: what
    enters a later segment is looked at as any input is."""
    rng = np.random.default_rng(seed)
    pipeline = ct.Pipeline(*read_stages(ROWS["a segment ends where a later one needs the value"][0]))
    case = make(pipeline, (3, 4, 9, 8, 11), K3, "float32", seed, [K3])
    case.x[1] = sprinkled(rng, case.x[1], SPECIALS["mixed"], 0.02)
    case.check()
    case.x[2] *= np.float32(1e30)  # the first result is near the largest number, the second beyond it
    case.operands[0][...] *= np.float32(1e7)
    case.check()


def _arrays(text: str, *kernels: tuple[int, ...]) -> tuple[ct.Pipeline, Any, list[Any], Any]:
    pipeline = ct.Pipeline(*read_stages(text))
    case = make(pipeline, X, kernels[0], "float64", 3, kernels[1:])
    return pipeline, case.x, list(case.operands), evaluate(pipeline, case.x, case.operands)


BLOCK = "Conv3d(padding=1, bias=True) -> ReLU() -> Conv3d(padding=1, bias=True) -> Add('x') -> ReLU()"


def test_calls_by_name_unbatched_and_into_an_array() -> None:
    pipeline, x, operands, expected = _arrays(BLOCK, K3, K3)
    by_name = pipeline(x, **dict(zip(pipeline.operand_names, operands, strict=True)))
    np.testing.assert_allclose(by_name, expected, atol=1e-12)
    np.testing.assert_allclose(pipeline(x[0], *operands), expected[0], atol=1e-12)
    out = np.full_like(expected, np.nan)
    assert pipeline(x, *operands, out=out) is out
    assert out.tobytes() == by_name.tobytes()
    with pytest.raises(ct.OutputError, match="share memory"):
        pipeline(x, *operands, out=x)
    with pytest.raises(ct.ArgumentTypeError, match="weight_2"):
        pipeline(x, *operands[:2])
    wrong = [*operands[:2], np.ones((4, 5, 3, 3, 3)), operands[3]]
    with pytest.raises(ct.ShapeError, match="weight_2 = array of shape \\(4, 5, 3, 3, 3\\)"):
        pipeline(x, *wrong)
    assert pipeline(x[:0], *operands).shape == (0, *expected.shape[1:])


def test_an_axis_is_dropped() -> None:
    text = "Conv3d(padding=1) -> Tanh() -> Conv3d() -> Sum(keepdim=False) -> Exp()"
    pipeline, x, operands, expected = _arrays(text, K3, K3)
    np.testing.assert_allclose(pipeline(x, *operands), expected, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_bits_do_not_depend_on_threads(threads: int) -> None:
    pipeline, x, operands, _ = _arrays(BLOCK, K3, K3)
    with ct.num_threads(threads):
        assert pipeline(x, *operands).tobytes() == pipeline(x, *operands, algorithm="auto").tobytes()
    with ct.num_threads(3):
        other = pipeline(x, *operands)
    with ct.num_threads(threads):
        assert pipeline(x, *operands).tobytes() == other.tobytes()


def test_prepared_owns_the_weights_of_every_segment() -> None:
    """Two equal convolutions have weights of their own, and a change of the second is seen."""
    text = "Conv3d(padding=1) -> ReLU() -> Conv3d(padding=1) -> ReLU() -> Add('tensor')"
    pipeline, x, operands, expected = _arrays(text, K3, K3)
    *own, tensor = operands
    layer = pipeline.prepare(*own)
    assert layer.nbytes == sum(array.nbytes for array in own)  # copies to compare with
    for _ in range(2):
        np.testing.assert_allclose(layer(x, tensor), expected, atol=1e-12)
    assert layer.nbytes >= 2 * sum(array.nbytes for array in own)
    own[1] *= 2.0
    np.testing.assert_allclose(layer(x, tensor), evaluate(pipeline, x, operands), atol=1e-12)
    twin = pickle.loads(pickle.dumps(layer))
    assert twin(x, tensor).tobytes() == pipeline(x, *operands).tobytes()


def test_explain_names_segments_and_what_they_hold() -> None:
    pipeline = ct.Pipeline(*read_stages(ROWS["two such values"][0]))
    lines = pipeline.explain(X, [K3, K3, K3]).splitlines()
    assert lines[0] == "3 convolutions on float32, in 4 segments one after the other"
    heads = [line for line in lines if line.startswith("segment")]
    size = 4 * prod(X)
    assert heads == [
        "segment 1 of 4: reads the input, gives value 1, 2x4x5x6x7",
        "segment 2 of 4: reads value 1, gives value 3, 2x4x5x6x7",
        "segment 3 of 4: reads value 3, value 1, gives value 7, 2x4x5x6x7; then value 1 is freed",
        "segment 4 of 4: reads value 7, value 3, gives the result",
    ]
    assert f"values between segments {3 * size / 1024:.1f} KiB at most at a time" in lines
    assert any(line.startswith("scratch ") for line in lines)
    with pytest.raises(ct.ArgumentTypeError, match="must be 3 shapes"):
        pipeline.explain(X, K3)
    with pytest.raises(ct.ArgumentTypeError, match="must be a shape"):
        pipeline.explain(X, [3, 3, 3])


def test_values_are_freed_as_soon_as_nobody_reads_them() -> None:
    text = " -> ".join(["Conv3d(padding=1)"] * 5)
    pipeline = ct.Pipeline(*read_stages(text))
    sequence = make_sequence(pipeline, X, pipeline.operand_shapes(X, *[K3] * 5), DTYPES["float32"])
    assert [segment.frees for segment in sequence.segments] == [(), *((Value(number),) for number in range(1, 5))]
    assert sequence.between == 2 * 4 * prod(X), "what a segment reads, and what it gives"


def test_text_and_back() -> None:
    for text, _, _ in ROWS.values():
        pipeline = ct.Pipeline(*read_stages(text))
        assert ct.Pipeline(*read_stages(write_pipeline(pipeline))) == pipeline
        assert pickle.loads(pickle.dumps(pipeline)) == pipeline


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [3, 37])  # less than a vector, and more
def test_arithmetic_between_convolutions_keeps_the_sign_of_zero(dtype: str, width: int) -> None:
    """-0.0 divides to -inf: a convolution that changes nothing would add it to 0.0."""
    text = "ConvTranspose3d(groups=3) -> Recall('x') -> Divide(1.0, reverse=True) -> Multiply('tensor')"
    pipeline, kind = ct.Pipeline(*read_stages(text)), DTYPES[dtype]
    x = np.zeros((2, 3, 2, 5, width))
    x[:, :, :, ::2] = -0.0
    weight, other = np.full((3, 1, 1, 1, 1), np.nan), np.full(x.shape, 2.0)
    out = np.empty(x.shape, kind.storage)
    execute(pipeline, kind, kind.narrow(x), (kind.narrow(weight), kind.narrow(other)), out)
    assert np.array_equal(kind.widen(out), np.where(np.signbit(x), -np.inf, np.inf))
    assert "packed weights 0 B" in pipeline.explain(x.shape, weight.shape)
