"""Test data: signed, unsaturated, and on request sprinkled with NaN and infinities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convt3d.spec.stage import Operand

SPECIALS = {"nan": (np.nan,), "inf": (np.inf,), "-inf": (-np.inf,), "mixed": (np.nan, np.inf, -np.inf)}


def signed(rng: np.random.Generator, shape: Sequence[int], scale: float = 2.0) -> Any:
    return rng.normal(0.0, scale, tuple(shape))


def sprinkled(rng: np.random.Generator, values: Any, specials: Sequence[float], share: float = 0.02) -> Any:
    """A copy with about `share` of the elements replaced, and each special value in it at least once."""
    flat = values.reshape(-1).copy()
    hits = rng.random(flat.size) < share
    flat[hits] = rng.choice(specials, int(hits.sum()))
    for special, at in zip(specials, rng.permutation(flat.size), strict=False):
        flat[at] = special
    return flat.reshape(values.shape)


def operand(rng: np.random.Generator, kind: Operand, shape: Sequence[int], divisor: bool = False) -> Any:
    """Data for a stage's tensor: variances are positive, divisors keep away from zero, the rest is signed."""
    if kind.role == "running_var":
        return rng.uniform(0.5, 2.0, tuple(shape))
    if divisor:
        return rng.uniform(0.5, 2.0, tuple(shape)) * rng.choice([-1.0, 1.0], tuple(shape))
    return signed(rng, shape, 1.0)
