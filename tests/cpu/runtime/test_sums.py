"""Every reduction within the bound that docs/math.md derives, whatever its size; none behind PyTorch; the bias last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import convt3d as ct
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.runtime.execute import execute
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import MEANINGS
from convt3d.torch import stock

Shape = tuple[int, int, int, int, int]
Bound = Callable[[Any, Any, float], Any]  # of data, exact result and half the spacing of numbers at 1

SPACE, CHANNELS, ROWS = (2, 3, 4), (1,), (4,)


def _size(x: Any, axes: tuple[int, ...]) -> Any:
    return np.abs(x).sum(axis=axes, keepdims=True)


def total(axes: tuple[int, ...], mean: bool = False) -> Bound:
    """Half a unit of the result, and what sums in float64 lose of n <= 2^24 terms; 16 units for sums of float64."""

    def bound(x: Any, y: Any, unit: float) -> Any:
        lost = 16 * unit if unit < 2.0**-50 else 2.0**-29
        count = np.prod([x.shape[axis] for axis in axes]) if mean else 1
        return unit * np.abs(y) + lost * _size(x, axes) / count

    return bound


def norm(*axes: int, groups: int = 0) -> Bound:
    """12 units of the result. A mean that is large beside the deviation adds 8 of its own where numbers are float64;
    next to nothing where they are not, for then it has two parts."""

    def bound(x: Any, y: Any, unit: float) -> Any:
        parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:]) if groups else x
        ratio = np.abs(parts).max() / np.sqrt(parts.var(axis=axes).min() + 1e-5)
        return 12 * unit * np.abs(y) + 8 * unit * ratio * (1 if unit < 2.0**-50 else unit)

    return bound


def exponentials(*axes: int) -> Bound:
    """Differences are rounded before the exponential: their size counts, for a term and for the sum."""
    return lambda x, y, unit: unit * (2 * np.ptp(x, axis=axes, keepdims=True) + 12) * y


def logarithm(*axes: int) -> Bound:
    def bound(x: Any, y: Any, unit: float) -> Any:
        width, high = np.ptp(x, axis=axes, keepdims=True), x.max(axis=axes, keepdims=True)
        return unit * (np.abs(y) + 4 * np.abs(y - high) + width + 8)

    return bound


def window(kernel: int) -> Bound:
    """The means of a window's rows and their mean are rounded once each; quotients of float64 as well."""

    def bound(x: Any, y: Any, unit: float) -> Any:
        size = MEANINGS[ct.AvgPool3d](ct.AvgPool3d(kernel), np.abs(x))
        return 5 * unit * size if unit < 2.0**-50 else unit * np.abs(y) + (unit + 2.0**-29) * size

    return bound


WIDE, DEEP, LONG = (2, 3, 11, 13, 17), (2, 1500, 2, 3, 3), (1, 2, 3, 2, 2000)
TABLE: dict[str, tuple[tuple[Any, ...], Shape, Bound]] = {
    "sum over space": ((ct.Sum("spatial"),), WIDE, total(SPACE)),
    "mean over space": ((ct.Mean("spatial"),), WIDE, total(SPACE, mean=True)),
    "maximum over space": ((ct.Max("spatial"),), WIDE, lambda x, y, unit: 0.0 * y),
    "logsumexp over space": ((ct.LogSumExp("spatial"),), WIDE, logarithm(*SPACE)),
    "softmax over space": ((ct.Softmax("spatial"),), WIDE, exponentials(*SPACE)),
    "softmax of a clamp": ((ct.Clamp(-1, 1), ct.Softmax("spatial")), WIDE, lambda x, y, unit: 20 * unit * y),
    "instance norm": ((ct.InstanceNorm(),), WIDE, norm(*SPACE)),
    "group norm": ((ct.GroupNorm(2),), (2, 6, 9, 10, 11), norm(2, 3, 4, 5, groups=2)),
    "sum over channels": ((ct.Sum(),), DEEP, total(CHANNELS)),
    "mean over channels": ((ct.Mean(),), DEEP, total(CHANNELS, mean=True)),
    "maximum over channels": ((ct.Max(),), DEEP, lambda x, y, unit: 0.0 * y),
    "logsumexp over channels": ((ct.LogSumExp(),), DEEP, logarithm(1)),
    "softmax over channels": ((ct.Softmax(),), DEEP, exponentials(1)),
    "layer norm over channels": ((ct.LayerNorm(),), DEEP, norm(1)),
    "layer norm along rows": ((ct.LayerNorm("width"),), LONG, norm(4)),
    "large windows": ((ct.AvgPool3d(9),), (1, 2, 18, 19, 27), window(9)),
    "windows of two": ((ct.AvgPool3d(2),), (1, 2, 6, 8, 38), window(2)),
    "mean along the depth": ((ct.Mean("depth"),), (1, 2, 700, 3, 5), total((2,), mean=True)),
    "mean along the height": ((ct.Mean("height"),), (1, 2, 3, 700, 5), total((3,), mean=True)),
    "mean along rows": ((ct.Mean("width"),), LONG, total(ROWS, mean=True)),
    "sum along rows": ((ct.Sum("width"),), LONG, total(ROWS)),
}


def constant(rng: np.random.Generator, shape: Shape, large: float) -> Any:
    return np.full(shape, 0.1)


def large_mean(rng: np.random.Generator, shape: Shape, large: float) -> Any:
    return large + rng.standard_normal(shape)


def signed(rng: np.random.Generator, shape: Shape, large: float) -> Any:
    return rng.standard_normal(shape) * np.exp(rng.uniform(-3, 1, shape))


KINDS = [constant, large_mean, signed]


def run(stages: tuple[Any, ...], x: Any, dtype: str) -> Any:
    """The engine's result, after a convolution that changes nothing."""
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=1, groups=x.shape[1]), *stages)
    w = DTYPES[dtype].narrow(np.ones((x.shape[1], 1, 1, 1, 1)))
    out = np.empty(pipe.trace(x.shape, [w.shape]).output, DTYPES[dtype].storage)
    execute(pipe, DTYPES[dtype], x, (w,), out)
    return DTYPES[dtype].widen(out)


def applied(meanings: Any, stages: tuple[Any, ...], x: Any) -> Any:
    for stage in stages:
        x = meanings[type(stage)](stage, x)
    return x


def check(name: str, kind: Any, dtype: str, shape: Shape | None = None) -> None:
    stages, usual, bound = TABLE[name]
    stored, sums = DTYPES[dtype], np.dtype(DTYPES[dtype].accumulate)
    data = kind(np.random.default_rng(3), shape or usual, 1000.0 if stored.itemsize > 2 else 16.0)
    x = stored.narrow(data)
    got = run(stages, x, dtype)
    wide = stored.widen(x).astype(np.longdouble)
    truth = applied(MEANINGS, stages, wide)
    unit = float(np.finfo(sums).eps) / 2
    allowed = bound(wide, truth, unit)
    if stored.itemsize == 2:
        allowed = allowed + stored.eps / 2 * np.abs(truth) + 2.0**-25
    error = np.abs(got - truth)
    assert (error <= allowed).all(), (
        f"{float((error - allowed).max()):.3g} too much of {float(np.abs(truth).max()):.3g}"
    )
    if dtype == "float32":
        theirs = applied(stock.STOCK, stages, torch.from_numpy(x)).double().numpy()
        few = 4 * unit * np.abs(truth).max()
        assert error.max() <= 2 * np.abs(theirs - truth).max() + few, "less exact than PyTorch"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLE)
def test_reductions_stay_within_their_bounds(name: str, kind: Any, dtype: str) -> None:
    if dtype == "float64" and np.finfo(np.longdouble).eps > 2.0**-60:
        pytest.skip("no type beyond float64 to compare with")
    check(name, kind, dtype)


@pytest.mark.parametrize("isa", ["avx2", "baseline"])
@pytest.mark.parametrize("name", TABLE)
def test_bounds_hold_on_lower_instruction_sets(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if machine().isa in ("neon", "baseline") or machine().isa == isa:
        pytest.skip("not below this machine's instruction set")
    monkeypatch.setenv("CONVT3D_ISA", isa)
    check(name, large_mean, "float32")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layer norm over channels", (1, 1 << 14, 1, 2, 3)),
        ("layer norm along rows", (1, 1, 1, 1, 1 << 20)),
    ],
)
def test_long_reductions_stay_within_the_same_bounds(name: str, shape: Shape) -> None:
    check(name, large_mean, "float32", shape)


def test_sixteen_million_voxels() -> None:
    """2^24 of 0.1: their mean is that number, their norm is zero; where every other one is 1000 larger, it is 1."""
    x = np.full((1, 1, 256, 256, 256), 0.1, np.float32)
    assert run((ct.Mean("spatial"),), x, "float32").item() == np.float32(0.1)
    assert not run((ct.InstanceNorm(),), x, "float32").any()
    x[..., ::2] += 1000
    high, low = (float(x[0, 0, 0, 0, at]) for at in (0, 1))
    assert abs(run((ct.Sum("spatial"),), x, "float32").item() / (2**23 * (high + low)) - 1) <= 2.0**-24
    normal = run((ct.InstanceNorm(),), x, "float32")
    for at, sign in ((0, 1), (1, -1)):
        assert np.abs(normal[..., at::2] - sign).max() <= 12 * 2.0**-24


def test_large_windows_over_phases() -> None:
    """Each phase of a stride once: every window holds the same number 125 times."""
    x = np.random.default_rng(7).standard_normal((1, 1, 2, 3, 4)).astype(np.float32)
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=5), ct.AvgPool3d(5))
    got = pipe(x, np.ones((1, 1, 5, 5, 5), np.float32))
    assert (np.abs(got - x) <= 3 * 2.0**-24 * np.abs(x)).all()


# Rows folded in vectors, in pairs and one by one; windows that are the whole axis; phases.
AVERAGES = [
    (1, ct.AvgPool3d(2)),
    (1, ct.AvgPool3d(3)),
    (1, ct.AvgPool3d(3, 1, 1, count_include_pad=False)),
    (1, ct.AvgPool3d((2, 3, 12), (2, 3, 1))),
    (2, ct.AvgPool3d(2)),
    *((1, ct.Mean(axis)) for axis in ("depth", "height", "width", "channels", "spatial")),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stage", AVERAGES, ids=str)
def test_averages_of_the_largest_number(stage: tuple[int, ct.Stage], dtype: str) -> None:
    """Sums of float32 numbers are divided before they are rounded; those of float64 must be numbers themselves."""
    stride, average = stage
    largest = np.finfo(dtype).max if dtype == "float32" else np.finfo(dtype).max / 2**11
    x, w = np.full((1, 2, 6, 9, 12), largest, dtype), np.ones((2, 1, *[stride] * 3), dtype)
    got = ct.Pipeline(ct.ConvTranspose3d(stride=stride, groups=2), average)(x, w)
    assert np.abs(got / largest - 1).max() <= (0 if dtype == "float32" else 4 * 2.0**-53)


@pytest.mark.parametrize("name", ["instance norm", "group norm", "layer norm along rows"])
def test_norms_square_in_float64(name: str) -> None:
    stages, shape, _ = TABLE[name]
    x = (signed(np.random.default_rng(3), shape, 1.0) * 1e30).astype(np.float32)
    truth = applied(MEANINGS, stages, x.astype(np.float64))
    assert (np.abs(run(stages, x, "float32") - truth) <= 12 * 2.0**-24 * np.abs(truth) + 2.0**-45).all()


def mean_of_a_layer(x: Any, w: Any, bias: Any, **parameters: Any) -> tuple[Any, Any]:
    """Exact mean over space, and the mean of the sizes of what is added up."""

    def mean(*arrays: Any) -> Any:
        tensors = (torch.from_numpy(array.astype(np.float64)) for array in arrays)
        return torch.nn.functional.conv_transpose3d(*tensors, **parameters).mean((2, 3, 4), keepdim=True).numpy()

    return mean(x, w, bias), mean(*map(np.abs, (x, w, bias)))


@pytest.mark.parametrize("parameters", [{}, {"stride": 2}, {"stride": 3, "output_padding": 1}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_mean_that_joins_the_weights(kind: Any, parameters: dict[str, int]) -> None:
    """Mean of the input, share, weights and the products of 5 channels are rounded once each, and their sum."""
    rng = np.random.default_rng(11)
    x = kind(rng, (2, 5, 4, 5, 6), 1000.0).astype(np.float32)
    w, bias = (kind(rng, shape, 10.0).astype(np.float32) for shape in ((5, 3, 3, 3, 3), (3,)))
    pipe = ct.Pipeline(ct.ConvTranspose3d(**parameters, bias=True), ct.Mean("spatial"))
    truth, size = mean_of_a_layer(x, w, bias, **parameters)
    assert "mean_over_taps" in pipe.explain(x.shape, w.shape)
    assert (np.abs(pipe(x, w, bias) - truth) <= (4 + 5) * 2.0**-24 * size).all()


@pytest.mark.parametrize("name", ["instance norm", "group norm", "layer norm over channels", "layer norm along rows"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_constant_normalises_to_zero(name: str, dtype: str) -> None:
    stages, shape, _ = TABLE[name]
    for value in (0.1, -1 / 3, 1e4):
        assert not run(stages, DTYPES[dtype].narrow(np.full(shape, value)), dtype).any()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sum over space", "mean over channels", "large windows"])
def test_infinite_sums_are_not_nan(name: str, dtype: str, special: float) -> None:
    """What an addition of infinity rounds away is NaN, and must not show."""
    stages, shape, _ = TABLE[name]
    x = np.ones(shape, dtype)
    x[0, 0, 1, 1, 1] = special
    got, truth = run(stages, x, dtype), applied(MEANINGS, stages, x.astype(np.float64))
    assert np.array_equal(got[~np.isfinite(truth)], truth[~np.isfinite(truth)], equal_nan=True)
    assert np.isfinite(got).sum() == np.isfinite(truth).sum()


# Direct sums of one piece and of several, Winograd's method, phases without a tap, groups.
LAYERS = [
    ((1, 8, 4, 5, 6), (8, 13, 3, 3, 3), {"stride": 2, "padding": 1}),
    ((1, 48, 3, 4, 5), (48, 7, 3, 3, 3), {"stride": 1, "padding": 1}),
    ((1, 6, 3, 3, 4), (6, 4, 2, 2, 2), {"stride": 3}),
    ((2, 8, 5, 6, 7), (8, 3, 4, 4, 4), {"stride": 2, "groups": 4}),
]


@pytest.mark.parametrize("isa", ["", "avx2", "baseline"])
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bias_joins_last(dtype: str, algorithm: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit the sum without it, plus the bias, rounded once: a large one costs no more than that."""
    if isa and (machine().isa in ("neon", "baseline") or machine().isa == isa):
        pytest.skip("not below this machine's instruction set")
    monkeypatch.setenv("CONVT3D_ISA", isa) if isa else None
    for x_shape, w_shape, parameters in LAYERS:
        rng = np.random.default_rng(5)
        x, w = (rng.uniform(-1, 1, shape).astype(dtype) for shape in (x_shape, w_shape))
        bias = rng.uniform(-100, 100, w_shape[1] * parameters.get("groups", 1)).astype(dtype)
        plain = ct.Pipeline(ct.ConvTranspose3d(**parameters))(x, w, algorithm=algorithm)
        lifted = ct.Pipeline(ct.ConvTranspose3d(**parameters, bias=True))(x, w, bias, algorithm=algorithm)
        assert np.array_equal(lifted, plain + bias.reshape(-1, 1, 1, 1))
