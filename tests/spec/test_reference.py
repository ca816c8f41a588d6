"""The float64 meaning of every stage is PyTorch's, also for NaN and Inf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.compare import assert_same
from helpers.data import SPECIALS, operand, signed, sprinkled
from spec.stage_rows import ROWS, SHAPES, Row, classes

from convt3d.errors import ShapeError
from convt3d.spec.reference import MEANINGS
from convt3d.spec.stages import Binary, Convolution, Divide, PReLU


def _kernel(row: Row, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [row.weight(shape[1])] if row.kernel else []


def _fits(row: Row, shape: tuple[int, ...]) -> bool:
    try:
        row.stage.out_shape(shape, _kernel(row, shape))
    except ShapeError:
        return False
    return True


PAIRS = [pytest.param(row, shape, id=f"{row.id} {shape}") for row in ROWS for shape in SHAPES if _fits(row, shape)]


def _tensors(row: Row, shape: tuple[int, ...], rng: np.random.Generator) -> list[Any]:
    """The operands of the stage; the value of a label stands in for one."""
    out = row.stage.out_shape(shape, _kernel(row, shape))
    tensors = []
    for op in row.stage.operands():
        usual = op.usual_shape(out if op.kind == "out_channel" else shape)
        own = _kernel(row, shape)[0] if op.kind == "kernel" else usual
        tensors.append(operand(rng, op, own, divisor=isinstance(row.stage, Divide)))
    if row.stage.uses:
        tensors.append(signed(rng, shape))
    return tensors


def _check(row: Row, x: Any, tensors: list[Any]) -> None:
    given = [*tensors]
    if isinstance(row.stage, Binary) and not tensors:
        given = [row.stage.other]
    with np.errstate(all="ignore"):
        got = MEANINGS[type(row.stage)](row.stage, x, *given)
    expected = row.torch(torch.from_numpy(x), *map(torch.from_numpy, tensors))
    assert_same(got, expected.numpy(), 1e-12)


@pytest.mark.parametrize("scale", [pytest.param(1.0, id="moderate"), pytest.param(30.0, id="wide: tails, thresholds")])
@pytest.mark.parametrize(("row", "shape"), PAIRS)
def test_meaning_is_pytorchs(row: Row, shape: tuple[int, ...], scale: float, rng: np.random.Generator) -> None:
    _check(row, signed(rng, shape, scale), _tensors(row, shape, rng))


@pytest.mark.parametrize("specials", SPECIALS)
@pytest.mark.parametrize(("row", "shape"), PAIRS)
def test_nan_and_inf_travel_as_in_pytorch(
    row: Row, shape: tuple[int, ...], specials: str, rng: np.random.Generator
) -> None:
    tensors = _tensors(row, shape, rng)
    for _ in range(3):
        _check(row, sprinkled(rng, signed(rng, shape), SPECIALS[specials]), tensors)


TAKES = [row for row in ROWS if row.stage.operands() and not isinstance(row.stage, Convolution)]


@pytest.mark.parametrize("row", TAKES, ids=lambda row: row.id)
def test_nan_and_inf_in_the_stages_tensors(row: Row, rng: np.random.Generator) -> None:
    """Vectors and arrays given at the call may hold NaN, Inf and zeros (a variance of 0, a divisor of -0.0)."""
    shape = SHAPES[0]
    for position, op in enumerate(row.stage.operands()):
        for number in (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0):
            if row.fused and op.role == "weight" and np.isinf(number):
                continue  # see Row.fused: here the formula holds, not what PyTorch's kernel makes of it
            tensors = _tensors(row, shape, rng)
            tensors[position].reshape(-1)[1] = number
            _check(row, signed(rng, shape), tensors)


@pytest.mark.parametrize("shape", [pytest.param((1,), id="one slope for all channels")])
def test_prelu_with_one_slope(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    row = next(row for row in ROWS if isinstance(row.stage, PReLU))
    _check(row, signed(rng, SHAPES[0]), [signed(rng, shape)])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_an_empty_batch_gives_an_empty_result(row: Row, rng: np.random.Generator) -> None:
    """The batch may be empty: nothing fails, and the shape is the one the shape rule says."""
    shape = (0, *SHAPES[0][1:])
    tensors = _tensors(row, shape, rng)
    given = tensors if tensors or not isinstance(row.stage, Binary) else [row.stage.other]
    got = MEANINGS[type(row.stage)](row.stage, np.zeros(shape), *given)
    assert got.shape == row.stage.out_shape(shape, _kernel(row, shape))


def test_every_stage_has_a_meaning_and_no_other_class_has_one() -> None:
    assert set(MEANINGS.entries) == classes()


def test_every_stage_has_a_row() -> None:
    assert {type(row.stage) for row in ROWS} == classes()


def test_rows_differ() -> None:
    """A row written twice would look like more coverage than there is."""
    assert len({row.stage for row in ROWS}) == len(ROWS)
