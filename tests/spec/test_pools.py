"""Max- and average-pool are PyTorch's for every kernel, stride, padding, ceil_mode and count_include_pad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.compare import assert_same
from helpers.data import SPECIALS, signed, sprinkled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from convt3d.errors import Error, ShapeError
from convt3d.spec.reference import MEANINGS
from convt3d.spec.stages import AvgPool3d, MaxPool3d

SEEDS = st.integers(0, 2**32 - 1)


def _both(kind: type, x: Any, parameters: dict[str, Any]) -> tuple[Any, Any]:
    """Our result and PyTorch's, an `Error` or RuntimeError where one of them refuses."""
    function = functional.max_pool3d if kind is MaxPool3d else functional.avg_pool3d
    got: Any
    expected: Any
    try:
        expected = function(torch.from_numpy(x), **parameters).numpy()
    except RuntimeError as error:
        expected = error
    try:
        stage = kind(**parameters)
        shape = stage.out_shape(x.shape, [])
        with np.errstate(all="ignore"):
            got = MEANINGS[kind](stage, x)
        assert got.shape == shape
    except Error as error:
        got = error
    return got, expected


@st.composite
def parameters(draw: st.DrawFn, kind: type, legal: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """A shape and parameters; legal ones keep the window inside the unpadded input."""
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(3))
    least = kernel if legal else (1, 1, 1)
    sizes = tuple(draw(st.integers(n, n + 5)) for n in least)
    found: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": draw(st.none() | st.tuples(*[st.integers(1, 5)] * 3)),
        "padding": tuple(draw(st.integers(0, k // 2 if legal else 2)) for k in kernel),
        "ceil_mode": draw(st.booleans()),
    }
    if kind is AvgPool3d:
        found["count_include_pad"] = draw(st.booleans())
    return (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *sizes), found


@pytest.mark.parametrize("kind", [MaxPool3d, AvgPool3d])
@settings(max_examples=120)
@given(st.data(), SEEDS, st.sampled_from(["finite", *sorted(SPECIALS)]))
def test_values_are_pytorchs(kind: type, data: st.DataObject, seed: int, specials: str) -> None:
    shape, given_parameters = data.draw(parameters(kind, legal=True))
    rng = np.random.default_rng(seed)
    x = signed(rng, shape)
    if specials != "finite":
        x = sprinkled(rng, x, SPECIALS[specials])
    got, expected = _both(kind, x, given_parameters)
    assert_same(got, expected, 1e-13)


@pytest.mark.parametrize("kind", [MaxPool3d, AvgPool3d])
@settings(max_examples=150)
@given(st.data(), SEEDS)
def test_the_same_parameters_are_legal(kind: type, data: st.DataObject, seed: int) -> None:
    """Padding beyond half the kernel and windows that do not fit are refused by both, all else by none."""
    shape, given_parameters = data.draw(parameters(kind, legal=False))
    got, expected = _both(kind, signed(np.random.default_rng(seed), shape), given_parameters)
    assert isinstance(got, Error) == isinstance(expected, RuntimeError), (got, expected)
    if not isinstance(got, Error):
        assert_same(got, expected, 1e-13)


def test_all_minus_inf_window_is_minus_inf() -> None:
    x = np.full((1, 1, 1, 2, 3), -np.inf)
    assert_same(*_both(MaxPool3d, x, {"kernel_size": (1, 2, 3)}), 0.0)


LARGER = [
    pytest.param(MaxPool3d, (1, 2, 2), {"kernel_size": 2}, id="max: depth 1, window 2"),
    pytest.param(AvgPool3d, (3, 2, 4), {"kernel_size": (1, 1, 5)}, id="avg: width 4, window 5"),
    pytest.param(
        AvgPool3d, (1, 3, 2), {"kernel_size": 2, "stride": 1, "padding": 1}, id="avg: PyTorch ignores padding"
    ),
    pytest.param(
        AvgPool3d, (3, 1, 3), {"kernel_size": 3, "stride": 5, "ceil_mode": True}, id="avg: nor does ceil_mode help"
    ),
    pytest.param(MaxPool3d, (3, 1, 3), {"kernel_size": 3, "ceil_mode": False}, id="max: height 1, window 3"),
]


@pytest.mark.parametrize(("kind", "sizes", "given_parameters"), LARGER)
def test_a_window_larger_than_its_input_is_an_error(kind: type, sizes: Any, given_parameters: dict[str, Any]) -> None:
    got, expected = _both(kind, np.ones((1, 1, *sizes)), given_parameters)
    assert isinstance(expected, RuntimeError)
    assert isinstance(got, ShapeError), got
    assert "larger than its input" in got.rule
