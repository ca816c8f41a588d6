"""The one comparison: value, shape, dtype, NaN positions and signs of Inf, error measured against the scale."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(got: Any, expected: Any, rtol_of_scale: float, floor: float = 0.0) -> None:
    """`floor` is the least scale, for results that are pure cancellation (a normalised constant)."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    assert got.dtype == expected.dtype, f"dtype {got.dtype}, expected {expected.dtype}"
    wide, truth = got.astype(np.float64), expected.astype(np.float64)
    for what, test in (("NaN", np.isnan), ("+Inf", np.isposinf), ("-Inf", np.isneginf)):
        differ = np.argwhere(test(wide) != test(truth))
        if len(differ):
            at = tuple(int(i) for i in differ[0])
            raise AssertionError(
                f"{what} differs at {len(differ)} places, first {at}: {wide[at]}, expected {truth[at]}"
            )
    error = np.where(np.isfinite(truth), np.abs(_finite(wide) - _finite(truth)), 0.0)
    scale = max(float(np.abs(_finite(truth)).max(initial=0.0)), floor)
    worst = float(error.max(initial=0.0))
    if not worst <= rtol_of_scale * scale:
        at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        raise AssertionError(f"error {worst:.3g} of scale {scale:.3g} at {at}: {wide[at]!r}, expected {truth[at]!r}")


def _finite(values: Any) -> Any:
    return np.where(np.isfinite(values), values, 0.0)
