"""The five functions are PyTorch's compositions, for any parameters, scalars and data, however the arrays come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.compare import assert_same
from helpers.data import SPECIALS, signed, sprinkled
from hypothesis import given, settings
from hypothesis import strategies as st

import convt3d
from convt3d.cpu.plan.plan import make_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate

INF, NAN = float("inf"), float("nan")


# --- the same computations, written with PyTorch ----------------------------------------------------------------------


CONV_NAMES = ("bias", "stride", "padding", "output_padding", "groups", "dilation")


def torch_conv(x: Any, w: Any, **p: Any) -> Any:
    return F.conv_transpose3d(x, w, **{name: p[name] for name in CONV_NAMES if name in p})


def _norm(y: Any, norm_weight: Any = None, norm_bias: Any = None, eps: float = 1e-5, **_: Any) -> Any:
    dim = y.ndim - 4  # channels
    return F.layer_norm(y.movedim(dim, -1), (y.shape[dim],), norm_weight, norm_bias, eps).movedim(-1, dim)


def torch_max_max_sum(x: Any, w: Any, **p: Any) -> Any:
    y = F.max_pool3d(F.max_pool3d(torch_conv(x, w, **p), 2), 3)
    return y.sum(dim=y.ndim - 4, keepdim=True)


def torch_sum_norm_pool_gelu(x: Any, w: Any, sum_weight: float = 1.0, approximate: str = "none", **p: Any) -> Any:
    return F.gelu(F.avg_pool3d(_norm(torch_conv(x, w, **p) + sum_weight, **p), 2), approximate=approximate)


def torch_pool_clamp_softmax(x: Any, w: Any, *, scale: Any, pool_kernel: Any, **p: Any) -> Any:
    y = torch_conv(F.avg_pool3d(x, pool_kernel), w, **p).clamp(p["clamp_min"], p["clamp_max"])
    return torch.softmax(y.flatten(-3), -1).reshape(y.shape) * scale.reshape(-1, 1, 1, 1)


def torch_norm_gelu_scaling(x: Any, w: Any, scaling_factor: float = 1.0, approximate: str = "none", **p: Any) -> Any:
    return F.gelu(_norm(torch_conv(x, w, **p), **p), approximate=approximate) * scaling_factor


PEERS: dict[Callable[..., Any], Callable[..., Any]] = {
    convt3d.conv_transpose3d: torch_conv,
    convt3d.conv_transpose3d_max_max_sum: torch_max_max_sum,
    convt3d.conv_transpose3d_sum_layernorm_avgpool_gelu: torch_sum_norm_pool_gelu,
    convt3d.conv_transpose3d_avgpool_clamp_softmax_multiply: torch_pool_clamp_softmax,
    convt3d.conv_transpose3d_layernorm_gelu_scaling: torch_norm_gelu_scaling,
}
CONV, MAX_SUM, SUM_NORM, SOFTMAX, SCALING = PEERS
ALL = [pytest.param(f, id=f.__name__) for f in PEERS]


@dataclass(repr=False)
class Case:
    """One call: x and w, arrays by keyword, and plain parameters."""

    x: Any
    w: Any
    arrays: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = {name: array.shape for name, array in self.arrays.items()}
        return f"Case(x {self.x.shape}, w {self.w.shape}, {shapes}, {self.parameters})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Without the numbers, which Hypothesis would print."""
        printer.text(repr(self))

    def map(self, wrap: Callable[[Any], Any]) -> tuple[tuple[Any, Any], dict[str, Any]]:
        arrays = {name: wrap(array) for name, array in self.arrays.items()}
        return (wrap(self.x), wrap(self.w)), {**arrays, **self.parameters}


def check(function: Callable[..., Any], case: Case, tolerance: float = 1e-10) -> Any:
    """Equal to PyTorch, and the same bits with a poisoned `out`."""
    args, keywords = case.map(lambda a: a)
    got = function(*args, **keywords)
    tensors, same = case.map(torch.from_numpy)
    expected = PEERS[function](*tensors, **same).numpy()
    # A normalised constant is pure cancellation: its natural scale is 1.
    assert_same(got, expected, tolerance, floor=1.0 if "norm" in function.__name__ else 0.0)
    out = np.full_like(expected, NAN)
    assert function(*args, **keywords, out=out) is out
    np.testing.assert_array_equal(out.view(f"u{out.itemsize}"), got.view(f"u{out.itemsize}"))
    return got


def usual(function: Callable[..., Any], rng: np.random.Generator, dtype: str = "float64", **parameters: Any) -> Case:
    """A call with unequal sizes, strides, paddings and kernels, groups, and every optional array."""
    x, w = signed(rng, (2, 4, 5, 4, 6)), signed(rng, (4, 3, 4, 3, 5), 0.5)
    conv = {"stride": (2, 3, 1), "padding": (1, 0, 2), "output_padding": (1, 2, 0), "groups": 2, "dilation": (1, 2, 1)}
    arrays = {"bias": signed(rng, (6,), 1.0)}
    if function in (SUM_NORM, SCALING):
        # Below 1 in size: PyTorch's float32 GELU is zero beneath -5.4, where the exact one is a tiny number.
        arrays |= {"norm_weight": rng.uniform(-1, 1, 6), "norm_bias": rng.uniform(-1, 1, 6)}
    if function is SOFTMAX:
        arrays["scale"] = signed(rng, (6,), 1.0)
        parameters = {"clamp_min": -1.5, "clamp_max": 2.5, "pool_kernel": (2, 1, 3), **parameters}
    typed = {name: array.astype(dtype) for name, array in arrays.items()}
    return Case(x.astype(dtype), w.astype(dtype), typed, {**conv, **parameters})


# --- drawn parameters -------------------------------------------------------------------------------------------------


# (groups, inputs and outputs of each): few, as a kernel is compiled for each number of outputs.
CHANNELS = ((1, 1, 1), (1, 3, 2), (2, 2, 1), (2, 1, 3), (3, 3, 2), (3, 1, 1))


@st.composite
def conv_cases(draw: st.DrawFn, least: int = 1, pool: tuple[int, int, int] = (1, 1, 1)) -> Case:
    """Any legal convolution whose output has at least `least` voxels along each axis, on an input pooled by `pool`."""
    groups, per_in, per_out = draw(st.sampled_from(CHANNELS))
    sizes, kernels, strides, paddings, extras, dilations = [], [], [], [], [], []
    for _ in range(3):
        size, kernel = draw(st.sampled_from([1, 2, 3, 5, 7])), draw(st.integers(1, 4))
        stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        extra = draw(st.integers(0, max(stride, dilation) - 1))
        full = (size - 1) * stride + dilation * (kernel - 1) + extra + 1
        longer = max(0, -(-(least - full) // stride))
        size, full = size + longer, full + longer * stride
        paddings.append(draw(st.integers(0, min(3, (full - least) // 2))))
        sizes.append(size)
        kernels.append(kernel)
        strides.append(stride)
        extras.append(extra)
        dilations.append(dilation)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tails = [draw(st.integers(0, p - 1)) for p in pool]  # dropped by the floor of the pool
    spatial = [s * p + t for s, p, t in zip(sizes, pool, tails, strict=True)]
    batch = draw(st.sampled_from([(), (1,), (2,)]))  # () is unbatched
    x = signed(rng, (*batch, groups * per_in, *spatial))
    w = signed(rng, (groups * per_in, per_out, *kernels), 1.0)
    arrays = {"bias": signed(rng, (groups * per_out,), 1.0)} if draw(st.booleans()) else {}
    conv = {
        "stride": tuple(strides),
        "padding": tuple(paddings),
        "output_padding": tuple(extras),
        "groups": groups,
        "dilation": tuple(dilations),
    }
    return Case(x, w, arrays, conv)


def _with_norm(draw: st.DrawFn, scalar: str, least: int) -> Case:
    case = draw(conv_cases(least))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    channels = case.w.shape[1] * case.parameters["groups"]
    for name in ("norm_weight", "norm_bias"):  # each may be there alone
        if draw(st.booleans()):
            case.arrays[name] = signed(rng, (channels,), 1.0)
    case.parameters |= {
        scalar: draw(st.floats(-3, 3)),
        "eps": draw(st.sampled_from([1e-5, 1e-2, 3.0])),
        "approximate": draw(st.sampled_from(["none", "tanh"])),
    }
    return case


@st.composite
def softmax_cases(draw: st.DrawFn) -> Case:
    pool = draw(st.tuples(*3 * [st.integers(1, 3)]))
    case = draw(conv_cases(pool=pool))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    channels = case.w.shape[1] * case.parameters["groups"]
    shape = draw(st.sampled_from([(channels,), (1, channels, 1, 1, 1)]))
    case.arrays["scale"] = signed(rng, shape, 1.0)
    low = draw(st.none() | st.floats(-60, 2))
    high = draw(st.floats(-1 if low is None else max(low, -1), 60) | (st.nothing() if low is None else st.none()))
    case.parameters |= {"pool_kernel": pool, "clamp_min": low, "clamp_max": high}
    return case


@given(conv_cases())
@settings(max_examples=120)
def test_conv_transpose3d(case: Case) -> None:
    check(CONV, case)


@given(conv_cases(least=6))
@settings(max_examples=30)
def test_max_max_sum(case: Case) -> None:
    check(MAX_SUM, case)


@given(st.composite(_with_norm)("sum_weight", 2))
@settings(max_examples=30)
def test_sum_layernorm_avgpool_gelu(case: Case) -> None:
    check(SUM_NORM, case)


@given(softmax_cases())
@settings(max_examples=30)
def test_avgpool_clamp_softmax_multiply(case: Case) -> None:
    check(SOFTMAX, case)


@given(st.composite(_with_norm)("scaling_factor", 1))
@settings(max_examples=30)
def test_layernorm_gelu_scaling(case: Case) -> None:
    check(SCALING, case)


# --- chosen parameters ------------------------------------------------------------------------------------------------

CHOSEN = [
    pytest.param((1, 1, 1, 1, 1), (1, 1, 1, 1, 1), {}, id="one voxel, one tap"),
    pytest.param((1, 3, 7, 11, 13), (3, 2, 3, 2, 5), {"stride": (1, 2, 3), "padding": (1, 0, 2)}, id="prime axes"),
    pytest.param((1, 2, 3, 3, 3), (2, 2, 1, 2, 1), {"stride": 3}, id="kernel < stride: voxels without a tap"),
    pytest.param((2, 4, 2, 3, 1), (4, 1, 2, 2, 2), {"groups": 4, "stride": 2}, id="depthwise"),
    pytest.param((1, 2, 5, 5, 5), (2, 2, 1, 1, 3), {"padding": (2, 1, 3)}, id="padding beyond the kernel crops inputs"),
    pytest.param((1, 2, 2, 2, 2), (2, 1, 2, 2, 2), {"dilation": 4, "output_padding": 3}, id="extra below the dilation"),
    pytest.param((2, 5, 1, 1, 7), (5, 3, 1, 1, 4), {"stride": (5, 1, 2)}, id="size-1 axes with a stride"),
    pytest.param((1, 3, 2, 2, 2), (3, 2, 3, 3, 3), {"stride": np.int64(2), "padding": [1, 0, 1]}, id="numpy int, list"),
]


@pytest.mark.parametrize(("x", "w", "parameters"), CHOSEN)
def test_chosen_convolutions(x: tuple[int, ...], w: tuple[int, ...], parameters: Any, rng: Any) -> None:
    bias = signed(rng, (w[1] * parameters.get("groups", 1),))
    case = Case(signed(rng, x), signed(rng, w), {"bias": bias}, parameters)
    args, keywords = case.map(lambda a: a)
    plain = {k: int(v) if isinstance(v, np.integer) else v for k, v in keywords.items() if k != "bias"}
    expected = torch_conv(*map(torch.from_numpy, args), bias=torch.from_numpy(bias), **plain)
    assert_same(CONV(*args, **keywords), expected.numpy(), 1e-10)


@pytest.mark.parametrize("function", ALL)
def test_defaults_are_those_of_the_problem_texts(function: Callable[..., Any], rng: Any) -> None:
    conv = {
        CONV: {},
        MAX_SUM: {"stride": 2, "padding": 2},
        SUM_NORM: {"stride": 2, "padding": 1, "output_padding": 1, "sum_weight": 1.0},
        SOFTMAX: {"stride": 2, "padding": 1, "output_padding": 1, "pool_kernel": 2, "clamp_min": 0.0, "clamp_max": 1.0},
        SCALING: {"stride": 2, "padding": 1, "scaling_factor": 1.0},
    }[function]
    x, w = signed(rng, (2, 2, 6, 5, 7)), signed(rng, (2, 3, 4, 4, 4), 0.3)
    arrays = {"scale": signed(rng, (3,))} if function is SOFTMAX else {}
    expected = PEERS[function](*map(torch.from_numpy, (x, w)), **Case(x, w, arrays, conv).map(torch.from_numpy)[1])
    assert_same(function(x, w, **arrays), expected.numpy(), 1e-10)


@pytest.mark.parametrize("function", ALL)
def test_positional_order_is_pytorchs(function: Callable[..., Any], rng: Any) -> None:
    """The documented positions mean the documented names: every position holds a different value."""
    x, w, bias = signed(rng, (1, 4, 7, 5, 6)), signed(rng, (4, 2, 3, 3, 3), 0.3), signed(rng, (4,))
    size = {"stride": (1, 2, 3), "padding": (1, 0, 1)}
    names = {
        CONV: {"bias": bias, **size, "output_padding": (0, 1, 2), "groups": 2, "dilation": (2, 1, 1)},
        MAX_SUM: {"bias": bias[:2], **size},
        SUM_NORM: {"sum_weight": INF, **size, "output_padding": (0, 1, 2)},
        SOFTMAX: {"scale": bias[:2], **size, "output_padding": (0, 1, 2), "pool_kernel": (2, 1, 1)}
        | {"clamp_min": -0.5, "clamp_max": 0.25},
        SCALING: {"scaling_factor": -3.0, **size, "output_padding": (0, 1, 2)},
    }[function]
    by_name = function(x, w, **names)
    out = np.full_like(by_name, NAN)
    assert function(x, w, *names.values(), out) is out  # `out` follows the positional ones
    np.testing.assert_array_equal(out, by_name)


# --- non-finite numbers, as parameters and as data --------------------------------------------------------------------

SCALARS = [NAN, INF, -INF, 0.0, -0.0, 1e300, -1e300, 1e-300, 3]


@pytest.mark.parametrize("value", SCALARS, ids=lambda v: f"{v!r} becomes float32")
@pytest.mark.parametrize(
    ("function", "name"), [(SUM_NORM, "sum_weight"), (SCALING, "scaling_factor")], ids=["sum_weight", "scaling_factor"]
)
def test_scalars_in_float32(function: Callable[..., Any], name: str, value: float, rng: Any) -> None:
    """1e300 is infinite in float32: NaN after a norm, Inf and NaN after a GELU, as in PyTorch."""
    got = check(function, usual(function, rng, "float32", **{name: value}), 2e-5)
    if name == "sum_weight":
        assert np.isnan(got).all() == (not abs(value) < 1e30), "a constant that float32 can hold cancels, others do not"


@pytest.mark.parametrize("value", [v for v in SCALARS if v != 0], ids=repr)
def test_scaling_in_float64(value: float, rng: Any) -> None:
    check(SCALING, usual(SCALING, rng, scaling_factor=value))


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_sign_of_a_zero_scale(value: float, rng: Any) -> None:
    case = usual(SCALING, rng, scaling_factor=value)
    got, tensors = check(SCALING, case), case.map(torch.from_numpy)
    expected = torch_norm_gelu_scaling(*tensors[0], **tensors[1]).numpy()
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


CLAMPS = [
    pytest.param(None, 0.5, id="upper only"),
    pytest.param(-0.5, None, id="lower only"),
    pytest.param(-INF, INF, id="no clamp at all"),
    pytest.param(-INF, 0.3, id="lower infinite"),
    pytest.param(0.1, INF, id="upper infinite"),
    pytest.param(0.25, 0.25, id="constant: uniform"),
    pytest.param(-INF, -INF, id="all -inf: NaN"),
    pytest.param(INF, INF, id="all +inf: NaN"),
    pytest.param(700.0, 800.0, id="exp of the bounds overflows without a shift"),
    pytest.param(-900.0, -800.0, id="exp of the bounds vanishes without a shift"),
    pytest.param(-1000.0, 1000.0, id="wide: the maximum is needed"),
    pytest.param(-3e38, 3e38, id="the largest bounds float32 holds"),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("low", "high"), CLAMPS)
def test_clamp_bounds(low: float | None, high: float | None, dtype: str, rng: Any) -> None:
    case = usual(SOFTMAX, rng, dtype, clamp_min=low, clamp_max=high)
    case.x *= 40  # values reach far beyond bounds of order 1 and need the maximum when there is no bound
    check(SOFTMAX, case, 1e-10 if dtype == "float64" else 2e-5)


def test_bounds_that_overflow_float32_are_infinite(rng: Any) -> None:
    """PyTorch refuses them; here scalars are C doubles seen by the arithmetic in its own type."""
    args, keywords = usual(SOFTMAX, rng, "float32").map(lambda a: a)
    got = SOFTMAX(*args, **{**keywords, "clamp_min": -1e300, "clamp_max": 1e300})
    np.testing.assert_array_equal(got, SOFTMAX(*args, **{**keywords, "clamp_min": -INF, "clamp_max": INF}))


OPTIONAL = {
    CONV: ["bias"],
    MAX_SUM: ["bias"],
    SUM_NORM: ["bias", "norm_weight", "norm_bias"],
    SOFTMAX: ["bias", "scale"],
    SCALING: ["bias", "norm_weight", "norm_bias"],
}


@pytest.mark.parametrize("specials", SPECIALS.values(), ids=SPECIALS)
@pytest.mark.parametrize(
    ("function", "where"),
    [pytest.param(f, where, id=f"{f.__name__} {where}") for f in PEERS for where in ("x", "w", *OPTIONAL[f])],
)
def test_nan_and_inf_in_data(function: Callable[..., Any], where: str, specials: Any, rng: Any) -> None:
    case = usual(function, rng)
    if where in ("x", "w"):
        setattr(case, where, sprinkled(rng, getattr(case, where), specials, share=0.005))
    else:
        case.arrays[where] = sprinkled(rng, case.arrays[where], specials[:1])
    check(function, case)


# --- the fronts agree -------------------------------------------------------------------------------------------------


class Exported:
    """An array of an unknown library."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def _stages(function: Callable[..., Any], p: dict[str, Any]) -> list[Any]:
    norm = [convt3d.LayerNorm(), convt3d.Multiply("channel"), convt3d.Add("channel")]
    pools = [convt3d.MaxPool3d(2), convt3d.MaxPool3d(3), convt3d.Sum("channels")]
    conv = convt3d.ConvTranspose3d(**{name: p[name] for name in CONV_NAMES[1:]}, bias=True)
    clamp = convt3d.Clamp(p.get("clamp_min", 0), p.get("clamp_max", 1))
    return {
        CONV: [conv],
        MAX_SUM: [conv, *pools],
        SUM_NORM: [conv, convt3d.Add(0.75), *norm, convt3d.AvgPool3d(2), convt3d.GELU()],
        SOFTMAX: [convt3d.AvgPool3d((2, 1, 3)), conv, clamp, convt3d.Softmax("spatial"), convt3d.Multiply("channel")],
        SCALING: [conv, *norm, convt3d.GELU(), convt3d.Multiply(-1.25)],
    }[function]


@pytest.mark.parametrize("function", ALL)
def test_fronts_pipeline_and_reference_agree(function: Callable[..., Any], rng: Any) -> None:
    scalars = {SUM_NORM: {"sum_weight": 0.75}, SCALING: {"scaling_factor": -1.25}}.get(function, {})
    case = usual(function, rng, **scalars)
    args, keywords = case.map(lambda a: a)
    bits = function(*args, **keywords).tobytes()
    tensors, same = case.map(torch.from_numpy)
    assert function(*tensors, **same).numpy().tobytes() == bits
    exported, same = case.map(Exported)
    assert function(*exported, **same).tobytes() == bits
    pipeline = convt3d.Pipeline(*_stages(function, case.parameters))
    operands = (case.w, *case.arrays.values())
    assert pipeline(case.x, *operands).tobytes() == bits
    assert_same(function(*args, **keywords), evaluate(pipeline, case.x, operands), 1e-12)
    plan = make_plan(pipeline, case.x.shape, tuple(a.shape for a in operands), DTYPES["float64"])
    if plan.algorithm == "meaning":  # the meaning itself, of the simplified pipeline: the same bits
        assert evaluate(plan.rewritten.pipeline, case.x, plan.rewritten.operands(operands)).tobytes() == bits
