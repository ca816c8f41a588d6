"""What rounding errors decide is known, and nothing else is called so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soak.undetermined import undetermined

import convt3d as ct
from convt3d.spec.dtypes import DTYPES

W = np.ones((1, 1, 1, 1, 1))


def found(*stages: Any, x: Any, operands: Any = (), w: Any = W, dtype: str = "float32") -> list[int]:
    """Places of the voxels along the width."""
    pipeline = ct.Pipeline(*stages)
    slots = iter([w, *operands] if isinstance(stages[0], ct.ConvTranspose3d) else [*operands, w])
    arrays = [np.asarray(next(slots), np.float64) for _ in pipeline.slots]
    value = np.asarray(x, np.float64).reshape(1, 1, 1, 1, -1)
    mask = undetermined(pipeline, DTYPES[dtype], value, arrays, np.random.default_rng(0))
    return [int(at) for at in np.flatnonzero(mask)]


INFINITE = np.array([np.inf])
RIGHT = np.array([np.inf, 1.0, 1.0, 1.0, -np.inf]).reshape(1, 1, 1, 1, 5)

# stages, x, operands, voxels
CASES = {
    "a number far from zero times infinity": ((ct.Multiply("channel"),), [1, -2, 3], [INFINITE], []),
    "finite factors": ((ct.LayerNorm("width"), ct.Multiply("channel")), [7.1, 7.1, 7.1], [[1e30]], []),
    "equal numbers less their mean": (
        (ct.LayerNorm("width"), ct.Multiply("channel")),
        [7.1] * 3,
        [INFINITE],
        [0, 1, 2],
    ),
    "in a norm's own weight": ((ct.InstanceNorm(affine=True),), [7.1] * 3, [INFINITE, [0.0]], [0, 1, 2]),
    "weights along rows": (
        (ct.LayerNorm("width", affine=True),),
        [7.1] * 3,
        [[1.0, np.inf, 1.0], [0.0] * 3],
        [1],
    ),
    "a batch norm of what cancels": (
        (ct.Add(-7.1), ct.BatchNorm(affine=True)),
        [7.1, 9.0, 7.1],
        [[0.0], [1.0], [np.inf], [0.0]],
        [0, 2],
    ),
    "division by what cancels": ((ct.Add(-7.1), ct.Divide(1.0, reverse=True)), [7.1, 9.0, 7.1], [], [0, 2]),
    "a kept value that cancels": (
        (ct.Add(-7.1), ct.Keep("a"), ct.Recall("x"), ct.Multiply(np.inf), ct.Multiply("a")),
        [7.1, 9.0, 7.1],
        [],
        [0, 2],
    ),
    "what depends on it": (
        (ct.Add(-7.1), ct.Multiply(np.inf), ct.MaxPool3d((1, 1, 2))),
        [7.1, 9.0, 7.0, 9.0],
        [],
        [0],
    ),
    "NaN whatever it is": ((ct.Add(-7.1), ct.Multiply(np.nan)), [7.1, 9.0], [], []),
}


@pytest.mark.parametrize("name", CASES)
def test_after_the_convolution(name: str) -> None:
    stages, x, operands, voxels = CASES[name]
    assert found(ct.ConvTranspose3d(), *stages, x=np.float32(x), operands=operands) == voxels


def test_an_infinite_weight_meets_what_cancels() -> None:
    """Only the first input is near zero, and only the first and the last tap are infinite."""
    stages = ct.Add(-7.1), ct.ConvTranspose3d()
    assert found(*stages, x=np.float32([7.1, 9.0, 3.0]), w=RIGHT) == [0, 4]
    assert found(*stages, x=np.float32([7.1, 9.0, 3.0]), w=np.ones_like(RIGHT)) == []


def test_an_input_that_is_zero_makes_nan_of_infinity() -> None:
    assert found(ct.Multiply("channel"), ct.ConvTranspose3d(), x=[0.0, 1.0, -0.0], operands=[INFINITE]) == []
    assert found(ct.ConvTranspose3d(), x=[0.0, 1.0, -0.0], w=RIGHT) == []


def test_the_arithmetic_counts() -> None:
    """What float32 takes for nothing is a number in float64."""
    stages = ct.ConvTranspose3d(), ct.Add(1e-10), ct.Subtract(1.0), ct.Multiply(np.inf)
    assert found(*stages, x=[1.0, 2.0]) == [0]
    assert found(*stages, x=[1.0, 2.0], dtype="float64") == []
