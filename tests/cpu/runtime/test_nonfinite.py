"""NaN and infinity in every array, against PyTorch: kernels multiply padding zeros with weights, and Inf * 0 is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.data import sprinkled

import convt3d as ct
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.plan.winograd import HUGE
from convt3d.cpu.runtime.execute import _wild_samples, execute_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate
from convt3d.spec.text import read_stages

torch = pytest.importorskip("torch")
INF, NAN = np.inf, np.nan


def reference(x: Any, w: Any, bias: Any = None, **parameters: Any) -> Any:
    """PyTorch in float64: the same infinities and NaN, and finite values to compare with."""
    tensors = [None if array is None else torch.from_numpy(array.astype(np.float64)) for array in (x, w, bias)]
    return torch.nn.functional.conv_transpose3d(*tensors, **parameters).numpy()


def same(got: Any, expected: Any, rtol: float = 1e-4) -> None:
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(got), test(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=rtol, atol=rtol * 10)


@pytest.mark.parametrize("special", [(NAN,), (INF,), (-INF,), (NAN, INF, -INF)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights(special: tuple[float, ...], stride: int, dtype: str, rng: Any) -> None:
    """Only the outputs that a weight reaches may show it: not those where padding stands in for the input."""
    x = rng.standard_normal((2, 3, 4, 5, 6)).astype(dtype)
    w = sprinkled(rng, rng.standard_normal((3, 4, 3, 3, 3)).astype(dtype), special)
    y = ct.conv_transpose3d(x, w, stride=stride, padding=1)
    same(y, reference(x, w, stride=stride, padding=1))


@pytest.mark.parametrize("special", [(NAN,), (INF,), (NAN, INF, -INF)], ids=str)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_input_and_bias(special: tuple[float, ...], stride: int, rng: Any) -> None:
    """A bad voxel stays within its kernel's reach, although rows share vectors; a bad bias stays in its channel."""
    x = sprinkled(rng, rng.standard_normal((2, 3, 4, 5, 17)).astype(np.float32), special, share=0.01)
    w = rng.standard_normal((3, 4, 3, 3, 3)).astype(np.float32)
    bias = np.array([0.5, special[0], -1.0, special[-1]], np.float32)
    got = ct.conv_transpose3d(x, w, bias, stride=stride, padding=1)
    same(got, reference(x, w, bias, stride=stride, padding=1))


@pytest.mark.parametrize("special", [NAN, INF, -INF], ids=str)
def test_one_bad_sample_does_not_touch_the_others(special: float, rng: Any) -> None:
    """Statistics belong to a sample: its batch mates give the same bits with it and without it."""
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=2), ct.InstanceNorm(), ct.Softmax("spatial"))
    x, w = rng.standard_normal((3, 2, 4, 5, 6)).astype(np.float32), rng.standard_normal((2, 3, 3, 3, 3)).astype("f")
    good = pipe(x, w)
    x[1, 0, 2, 2, 2] = special
    bad = pipe(x, w)
    assert good[[0, 2]].tobytes() == bad[[0, 2]].tobytes()
    assert np.isnan(bad[1]).any()


@pytest.mark.parametrize("special", [NAN, INF, -INF, 1e30], ids=str)
@pytest.mark.parametrize("norm", [ct.InstanceNorm(affine=True), ct.LayerNorm("width")], ids=["instance", "rows"])
def test_a_bias_that_does_not_cancel(special: float, norm: Any, rng: Any) -> None:
    """A norm of infinities is NaN, of 1e30 and little else zero; channels with an ordinary bias know nothing of it."""
    x, w = rng.standard_normal((2, 3, 3, 4, 5)).astype("f"), rng.standard_normal((3, 4, 2, 2, 2)).astype("f")
    own = [np.float32([1.5, -0.5, 2.0, 1.0]), np.float32([0.0, 1.0, -1.0, 0.5])] if norm.name == "InstanceNorm" else []
    bias = np.float32([0.5, special, -3.0, 7.0])
    y = torch.from_numpy(reference(x, w, bias).astype(np.float32)).double()
    axes = (2, 3, 4) if own else (4,)
    centred = y - y.mean(axes, keepdim=True)
    expected = centred / torch.sqrt((centred**2).mean(axes, keepdim=True) + norm.eps)
    if own:
        weight, beta = (torch.from_numpy(array).double().reshape(1, -1, 1, 1, 1) for array in own)
        expected = expected * weight + beta
    got = ct.Pipeline(ct.ConvTranspose3d(bias=True), norm)(x, w, bias, *own)
    same(got, expected.numpy())


def test_a_bias_that_cancels_costs_no_digits(rng: Any) -> None:
    """Added to numbers of 1 and subtracted again, 60000 would leave errors of 2e-3."""
    x, w = rng.standard_normal((1, 3, 3, 4, 5)).astype("f"), rng.standard_normal((3, 4, 2, 2, 2)).astype("f")
    pipe = ct.Pipeline(ct.ConvTranspose3d(bias=True), ct.InstanceNorm())
    without = pipe(x, w, np.zeros(4, np.float32))
    assert pipe(x, w, np.float32([60000.0, -0.3, 1e-40, -65536.0])).tobytes() == without.tobytes()
    added = pipe(x, w, np.float32([60000.0, -0.3, 1e-40, -65540.0]))  # one too large: all are added
    assert 1e-4 < np.abs(added - without).max() < 1e-2


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_bias_that_cancels_behind_the_other_convolution(dtype: str, rng: Any) -> None:
    """Its weights pass in their own type and order."""
    x, w = rng.standard_normal((2, 6, 4, 5, 6)).astype(dtype), rng.standard_normal((8, 3, 3, 2, 3)).astype(dtype)
    pipe = ct.Pipeline(ct.Conv3d(padding=1, groups=2, bias=True), ct.InstanceNorm())
    bias = rng.standard_normal(8).astype(dtype)
    y = torch.nn.functional.conv3d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1, groups=2)
    same(pipe(x, w, bias), torch.nn.functional.instance_norm(y).numpy(), 1e-3 if dtype == "float16" else 1e-5)
    assert pipe(x, w, bias).tobytes() == pipe(x, w, np.zeros_like(bias)).tobytes()


def test_weights_too_large_for_float32_after_folding(rng: Any) -> None:
    """A batch norm folded into the weights may overflow where the pipeline itself does not."""
    x, w = rng.standard_normal((1, 2, 3, 3, 3)).astype("f"), np.full((2, 3, 2, 2, 2), 1e30, np.float32)
    pipe = ct.Pipeline(ct.ConvTranspose3d(), ct.BatchNorm(eps=0.0))
    mean, var = np.zeros(3, np.float32), np.full(3, 1e-30, np.float32)
    y = torch.nn.functional.conv_transpose3d(torch.from_numpy(x), torch.from_numpy(w)).double()
    expected = (y / torch.sqrt(torch.from_numpy(var).double())[None, :, None, None, None]).numpy()
    with np.errstate(over="ignore"):
        rounded = expected.astype(np.float32)
    got = pipe(x, w, mean, var)
    assert (np.isfinite(got) == np.isfinite(rounded)).all()


@pytest.mark.parametrize("mode", ["none", "tanh"])
def test_gelu_of_minus_infinity_is_nan_as_in_pytorch(mode: str) -> None:
    """-inf * 0: PyTorch gives NaN, in both forms (asked in float64: its vectorised float32 erf makes +inf NaN too)."""
    x = np.array([-INF, INF, NAN, 0.0], np.float32).reshape(1, 1, 1, 1, 4)
    w = np.ones((1, 1, 1, 1, 1), np.float32)
    got = ct.Pipeline(ct.ConvTranspose3d(), ct.GELU(mode))(x, w)
    np.testing.assert_array_equal(got, torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate=mode).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_are_looked_at(dtype: str) -> None:
    """Which of a batch hold NaN, infinities or numbers whose sums might overflow; any strides, no other sample."""
    stored = DTYPES[dtype]
    limit = HUGE[stored.accumulate]
    values = [0.0, -1.0, NAN, INF, -INF, limit, -limit, limit / 2, -limit / 2, 65504.0, -65504.0, 2.0**-24]
    data = np.zeros((len(values), 2, 3, 4, 5))
    data[:, 1, 2, 3, 1] = values
    with np.errstate(invalid="ignore"):
        expected = [
            at for at, value in enumerate(stored.widen(stored.narrow(np.array(values)))) if not abs(value) < limit
        ]
    for x in (stored.narrow(data), stored.narrow(np.repeat(data, 2, axis=4))[..., ::2], stored.narrow(data)[..., ::-1]):
        assert _wild_samples(x, stored) == expected


# Why each is there: rows share zeros; positions several inputs wide, by shuffles and by single numbers; phases without
# taps; groups; channels with taps of their own; padding as wide as the kernel; a pool before, whose box is in scratch
# memory; copies around the input; channels in parts; a chain, statistics and phases that are pooled behind.
MASKED = [
    ("ConvTranspose3d(stride=2, padding=1, bias=True)", (2, 5, 4, 5, 19), (5, 13, 4, 3, 5)),
    ("ConvTranspose3d(stride=(3, 2, 11), dilation=(1, 2, 1))", (1, 6, 3, 2, 5), (6, 4, 2, 1, 3)),
    ("Conv3d(stride=2, padding=1, groups=2)", (1, 6, 9, 5, 23), (4, 3, 3, 3, 3)),
    ("Conv3d(stride=(1, 3, 9), padding=2, dilation=(1, 2, 1))", (1, 3, 4, 15, 37), (5, 3, 2, 3, 4)),
    ("Conv3d(padding=2, groups=5)", (1, 5, 3, 4, 33), (5, 1, 5, 3, 3)),
    ("Conv3d(padding=(4, 3, 5), dilation=2)", (1, 2, 3, 1, 2), (3, 2, 3, 3, 3)),
    ("MaxPool3d(2) -> Conv3d(padding=1)", (1, 4, 6, 7, 10), (3, 4, 3, 3, 3)),
    ("Conv3d(padding=1, padding_mode='replicate')", (1, 3, 4, 5, 6), (4, 3, 3, 3, 3)),
    ("Conv3d(padding=1) -> GELU()", (1, 200, 3, 4, 5), (70, 200, 3, 3, 3)),
    ("ConvTranspose3d(stride=2, padding=1) -> MaxPool3d(2) -> Sum('channels')", (1, 3, 4, 5, 6), (3, 9, 3, 3, 3)),
    ("Conv3d(padding=1) -> InstanceNorm()", (2, 3, 4, 5, 6), (4, 3, 3, 3, 3)),
]


@pytest.mark.parametrize("layout", ["plain", "channels last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("text", "x_shape", "w_shape"), MASKED, ids=[text for text, *_ in MASKED])
def test_weights_by_masked_kernels(
    text: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, layout: str, rng: Any
) -> None:
    """Weights and input hold NaN and infinities at once; zeros inside the array meet infinite weights, too."""
    pipe, stored = ct.Pipeline(*read_stages(text)), DTYPES[dtype]
    x = sprinkled(rng, sprinkled(rng, rng.standard_normal(x_shape), (0.0,), share=0.2), (NAN, INF), share=0.002)
    shapes = pipe.operand_shapes(x_shape, w_shape)
    w = sprinkled(rng, rng.standard_normal(w_shape) / 4, (NAN, INF, -INF), share=0.01)
    given = [stored.narrow(one) for one in (x, w, *(rng.standard_normal(shape) for shape in shapes[1:]))]
    if layout == "channels last":
        given[0] = np.ascontiguousarray(given[0].transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    with np.errstate(all="ignore"):
        wide, *rest = (stored.widen(one) for one in given)
        expected = evaluate(pipe, wide, rest)
    plan = make_plan(pipe, x_shape, tuple(one.shape for one in given[1:]), stored)
    assert "masked" in " ".join(planned.structure.name for planned in plan.masked.sweeps)
    results = []
    for threads in (1, 3):
        out = np.full(pipe.trace(x_shape, shapes).output, 7, given[0].dtype)
        with ct.num_threads(threads):
            execute_plan(plan, given[0], tuple(given[1:]), out)
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()
    rounding = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    same(stored.widen(results[0]), expected, rounding)


def test_a_finite_result_knows_nothing_of_masks(rng: Any) -> None:
    """Where no product is left out the sums are those of direct summation, bit by bit."""
    x, w = rng.standard_normal((1, 5, 4, 6, 7)).astype("f"), rng.standard_normal((5, 3, 3, 3, 3)).astype("f")
    pipe = ct.Pipeline(ct.ConvTranspose3d())
    plan = make_plan(pipe, x.shape, (w.shape,), DTYPES["float32"])
    out = [np.empty(pipe(x, w).shape, np.float32) for _ in range(2)]
    for one, result in zip((plan.masked, plan.directly), out, strict=True):
        execute_plan(one, x, (w,), result)
    np.testing.assert_array_equal(*out)
