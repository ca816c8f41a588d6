"""The transposed convolution is the sum its definition writes down, and PyTorch's, for every legal parameter."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers.compare import assert_same
from helpers.data import SPECIALS, signed, sprinkled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from convt3d.errors import Error
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import MEANINGS, evaluate
from convt3d.spec.stages import ConvTranspose3d

SEEDS = st.integers(0, 2**32 - 1)


def by_definition(stage: ConvTranspose3d, x: Any, w: Any, bias: Any = None) -> Any:
    """y[o] = sum over i, k with o = i * stride - padding + k * dilation of x[i] * w[k]; one multiply at a time."""
    (sd, sh, sw), (pd, ph, pw), (ed, eh, ew), (dd, dh, dw) = stage.triples
    batch, cin, D, H, W = x.shape
    _, per_out, Kd, Kh, Kw = w.shape
    per_in = cin // stage.groups
    out_d = (D - 1) * sd - 2 * pd + dd * (Kd - 1) + ed + 1
    out_h = (H - 1) * sh - 2 * ph + dh * (Kh - 1) + eh + 1
    out_w = (W - 1) * sw - 2 * pw + dw * (Kw - 1) + ew + 1
    y = np.zeros((batch, per_out * stage.groups, out_d, out_h, out_w))
    for b, ci, co in product(range(batch), range(cin), range(per_out)):
        channel = ci // per_in * per_out + co
        for i, j, k in product(range(D), range(H), range(W)):
            for u, v, t in product(range(Kd), range(Kh), range(Kw)):
                o = (i * sd - pd + u * dd, j * sh - ph + v * dh, k * sw - pw + t * dw)
                if 0 <= o[0] < out_d and 0 <= o[1] < out_h and 0 <= o[2] < out_w:
                    y[(b, channel, *o)] += x[b, ci, i, j, k] * w[ci, co, u, v, t]
    return y if bias is None else y + bias.reshape(-1, 1, 1, 1)


TINY = [
    pytest.param({}, (1, 1, 1, 1, 1), (1, 1, 1, 1), id="smallest: one multiplication"),
    pytest.param({}, (2, 2, 1, 3, 2), (3, 2, 1, 3), id="defaults, a size-1 axis"),
    pytest.param({"stride": (3, 2, 1)}, (1, 2, 2, 2, 3), (2, 1, 3, 2), id="kernel < stride: voxels without a tap"),
    pytest.param({"stride": 4, "bias": True}, (1, 1, 2, 1, 2), (2, 1, 2, 1), id="voxels without a tap hold the bias"),
    pytest.param({"padding": (1, 2, 0), "stride": 2}, (1, 2, 2, 3, 1), (2, 3, 4, 2), id="padding crops both ends"),
    pytest.param({"padding": (2, 0, 1)}, (1, 1, 3, 2, 2), (1, 3, 1, 3), id="padding beyond the first tap"),
    pytest.param(
        {"output_padding": (1, 0, 2), "stride": (2, 1, 3)},
        (1, 2, 2, 1, 2),
        (1, 2, 2, 4),
        id="output_padding at the end",
    ),
    pytest.param(
        {"output_padding": (2, 1, 0), "dilation": (3, 2, 1)},
        (1, 1, 2, 2, 2),
        (2, 2, 3, 1),
        id="output_padding below the dilation, stride 1",
    ),
    pytest.param({"dilation": (1, 2, 3), "stride": (2, 3, 2)}, (1, 2, 1, 2, 2), (2, 2, 3, 2), id="dilation x stride"),
    pytest.param({"groups": 2, "bias": True}, (2, 4, 1, 2, 2), (3, 1, 2, 2), id="groups: 2 inputs, 3 outputs each"),
    pytest.param({"groups": 3, "stride": (1, 2, 2)}, (1, 3, 2, 1, 2), (1, 2, 2, 3), id="depthwise"),
    pytest.param({"groups": 3}, (1, 3, 2, 1, 2), (2, 2, 2, 1), id="depthwise with multiplier 2"),
    pytest.param({"bias": True}, (0, 2, 2, 1, 3), (2, 2, 1, 2), id="empty batch"),
]


@pytest.mark.parametrize(("parameters", "shape", "kernel"), TINY)
def test_brute_force(
    parameters: dict[str, Any], shape: tuple[int, ...], kernel: tuple[int, ...], rng: np.random.Generator
) -> None:
    stage = ConvTranspose3d(**parameters)
    x, w = signed(rng, shape), signed(rng, (shape[1], *kernel))
    bias = [signed(rng, (kernel[0] * stage.groups,))] if stage.bias else []
    expected = by_definition(stage, x, w, *bias)
    assert_same(evaluate(Pipeline(stage), x, [w, *bias]), expected, 1e-14)
    assert Pipeline(stage).trace(x.shape, [w.shape, *(b.shape for b in bias)]).output == expected.shape


@st.composite
def axis(draw: st.DrawFn) -> dict[str, int]:
    """One legal axis: output_padding < max(stride, dilation), padding that leaves an output."""
    size, kernel = draw(st.sampled_from([1, 2, 3, 5])), draw(st.integers(1, 4))
    stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    extra = draw(st.integers(0, max(stride, dilation) - 1))
    full = (size - 1) * stride + dilation * (kernel - 1) + extra + 1
    padding = draw(st.integers(0, min(4, (full - 1) // 2)))
    names = ("size", "kernel", "stride", "padding", "output_padding", "dilation")
    return dict(zip(names, (size, kernel, stride, padding, extra, dilation), strict=True))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], bool]:
    """Parameters as PyTorch names them, shapes of x and w, and whether there is a bias."""
    axes = [draw(axis()) for _ in range(3)]
    names = ("stride", "padding", "output_padding", "dilation")
    parameters: dict[str, Any] = {name: tuple(a[name] for a in axes) for name in names}
    parameters["groups"] = groups = draw(st.integers(1, 3))
    cin, per_out = groups * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = (draw(st.integers(1, 3)), cin, *(a["size"] for a in axes))
    return parameters, shape, (cin, per_out, *(a["kernel"] for a in axes)), draw(st.booleans())


def _both(case: tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], bool], x: Any, rng: Any) -> tuple[Any, Any]:
    parameters, _, kernel, biased = case
    stage = ConvTranspose3d(**parameters, bias=biased)
    w = signed(rng, kernel)
    bias = [signed(rng, (kernel[1] * stage.groups,))] if biased else []
    expected = functional.conv_transpose3d(*map(torch.from_numpy, (x, w, *bias)), **parameters).numpy()
    trace = Pipeline(stage).trace(x.shape, [w.shape, *(b.shape for b in bias)])
    assert trace.output == expected.shape
    with np.errstate(all="ignore"):
        return MEANINGS[ConvTranspose3d](stage, x, w, *bias), expected


@settings(max_examples=250)
@given(cases(), SEEDS)
def test_against_pytorch(case: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert_same(*_both(case, signed(rng, case[1]), rng), 1e-12)


@settings(max_examples=80)
@given(cases(), SEEDS, st.sampled_from(sorted(SPECIALS)))
def test_nan_and_inf_against_pytorch(case: Any, seed: int, specials: str) -> None:
    """Only the voxels a special value reaches through a tap that is not cropped may change."""
    rng = np.random.default_rng(seed)
    assert_same(*_both(case, sprinkled(rng, signed(rng, case[1]), SPECIALS[specials]), rng), 1e-12)


@settings(max_examples=250)
@given(
    st.tuples(*[st.integers(1, 3)] * 3),
    st.tuples(*[st.integers(1, 3)] * 3),
    st.fixed_dictionaries(
        {
            "stride": st.tuples(*[st.integers(1, 3)] * 3),
            "padding": st.tuples(*[st.integers(0, 3)] * 3),
            "output_padding": st.tuples(*[st.integers(0, 3)] * 3),
            "dilation": st.tuples(*[st.integers(1, 3)] * 3),
            "groups": st.integers(1, 3),
        }
    ),
    st.integers(1, 4),
)
def test_the_same_parameters_are_legal(sizes: Any, kernel: Any, parameters: dict[str, Any], cin: int) -> None:
    """output_padding >= max(stride, dilation), empty outputs and groups that do not divide: refused by both."""
    x, w = np.zeros((1, cin, *sizes)), np.zeros((cin, 2, *kernel))
    try:
        expected: Any = tuple(functional.conv_transpose3d(torch.from_numpy(x), torch.from_numpy(w), **parameters).shape)
    except (RuntimeError, ValueError):
        expected = "refused"
    got: Any
    try:
        got = Pipeline(ConvTranspose3d(**parameters)).trace(x.shape, [w.shape]).output
    except Error:
        got = "refused"
    assert got == expected


@pytest.mark.parametrize(
    ("axis_name", "position"), [pytest.param(name, i, id=name) for i, name in enumerate(("depth", "height", "width"))]
)
def test_output_padding_is_checked_along_each_axis(axis_name: str, position: int) -> None:
    """Legal along the other two axes (below their dilation or stride), one too many along this one."""
    extra = [2, 1, 0]
    extra[position] += 1
    ConvTranspose3d(stride=(3, 1, 1), dilation=(1, 2, 1), output_padding=(2, 1, 0))
    with pytest.raises(Error, match=axis_name):
        ConvTranspose3d(stride=(3, 1, 1), dilation=(1, 2, 1), output_padding=tuple(extra))  # type: ignore[arg-type]
