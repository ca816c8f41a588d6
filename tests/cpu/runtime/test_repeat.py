"""A sweep that is repeated fills in nothing but addresses: other numbers, layouts, operands and places in memory give
what a first call gives, to the bit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import convt3d as ct
from convt3d.cpu.plan.cores import num_threads
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.runtime import call as calling
from convt3d.cpu.runtime.execute import execute_plan
from convt3d.cpu.runtime.ready import bindings
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.text import read_stages

TEXTS = [
    "ConvTranspose3d(stride=2, bias=True) -> InstanceNorm(affine=True) -> LeakyReLU(0.1)",
    "Conv3d(padding=1, bias=True) -> Add('tensor') -> GELU()",
    "Conv3d(padding=1) -> PReLU() -> Softmax('spatial') -> Multiply('channel')",
    "Conv3d(stride=2, padding=1, bias=True) -> MaxPool3d(2) -> LayerNorm(affine=True)",
]


def _arrays(pipeline: Pipeline, dtype: str, seed: int, last: bool) -> tuple[Any, list[Any]]:
    """x (2, 5, 6, 7, 9), operands, and with `last` channels that lie side by side."""
    rng = np.random.default_rng(seed)
    x = (2, 5, 6, 7, 9)
    shapes = [{"kernel": (5, 5, 3, 3, 3), "tensor": x}.get(slot.operand.kind, (5,)) for slot in pipeline.slots]

    def made(shape: Any) -> Any:
        stored = DTYPES[dtype].narrow(rng.standard_normal(shape))
        if last and len(shape) == 5:
            return np.ascontiguousarray(stored.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
        return stored

    return made(x), [made(shape) for shape in shapes]


def _called(plan: Any, x: Any, operands: list[Any]) -> Any:
    out = np.full(plan.trace.output, 77, DTYPES[plan.dtype.name].storage)
    execute_plan(plan, x, tuple(operands), out)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("text", TEXTS)
def test_other_arrays_of_a_layout(text: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(*read_stages(text))
    given = [_arrays(pipeline, dtype, seed, seed % 3 == 2) for seed in range(6)]
    plan = make_plan(pipeline, given[0][0].shape, tuple(each.shape for each in given[0][1]), DTYPES[dtype])
    for binding in bindings(plan):
        binding.filled.clear()
    with num_threads(2):
        found = [_called(plan, x, operands) for x, operands in given]
        assert all(1 <= len(binding.filled) <= 4 for binding in bindings(plan))
        monkeypatch.setattr(calling.Call, "repeat", lambda *_: False)
        expected = [_called(plan, x, operands) for x, operands in given]
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()
    assert len({each.tobytes() for each in found}) == len(found)


def test_an_array_in_two_places_is_no_layout() -> None:
    """The same array as input and as operand: the next call has two."""
    pipeline = Pipeline(*read_stages("Conv3d(padding=1) -> Add('tensor')"))
    rng = np.random.default_rng(0)
    x, other = (rng.standard_normal((1, 4, 5, 6, 7)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal((4, 4, 3, 3, 3)).astype(np.float32)
    plan = make_plan(pipeline, x.shape, (weight.shape, x.shape), DTYPES["float32"])
    _called(plan, x, [weight, x])
    got = _called(plan, x, [weight, other])
    expected = ct.Pipeline(ct.Conv3d(padding=1))(x, weight) + other
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_threads_that_repeat_at_once() -> None:
    pipeline = Pipeline(*read_stages(TEXTS[0]))
    given = [_arrays(pipeline, "float32", seed, False) for seed in range(4)]
    plan = make_plan(pipeline, given[0][0].shape, tuple(each.shape for each in given[0][1]), DTYPES["float32"])
    expected = [_called(plan, x, operands) for x, operands in given]
    wrong: list[int] = []

    def run(number: int) -> None:
        for _ in range(20):
            if _called(plan, *given[number]).tobytes() != expected[number].tobytes():
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
