"""The suite `training`: every contender's step is the float64 step, a wrong gradient shows, and rows can be drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.bench_rows import ORIGIN, small_case

pytest.importorskip("torch")

from convt3d.bench import balance, limits, measure
from convt3d.bench.alone import peak_memory
from convt3d.bench.cases import Arrays, Case
from convt3d.bench.contenders import TRAINED, find_contender
from convt3d.bench.contenders.base import Ready, UnsupportedError
from convt3d.bench.contenders.kept import SUFFIX
from convt3d.bench.measure import measure_case
from convt3d.bench.page import draw_page
from convt3d.bench.rounds import Pace
from convt3d.bench.suites import read_suite
from convt3d.bench.training import expected_step
from convt3d.spec.dtypes import DTYPES

BATCHNORM = "ConvTranspose3d(stride=2, bias=True) -> BatchNorm(affine=True) -> Add('tensor') -> ReLU()"
PIPELINES = {
    "norm": "ConvTranspose3d(stride=2, padding=1, output_padding=1) -> LayerNorm(affine=True) -> GELU()",
    "statistics of the batch": BATCHNORM,
    "a bias whose gradient is rounding alone": "ConvTranspose3d(stride=2, bias=True) -> BatchNorm()",
    "an axis dropped": "ConvTranspose3d(stride=2) -> MaxPool3d(2) -> Sum(keepdim=False)",
    "slopes": "ConvTranspose3d(bias=True) -> InstanceNorm() -> PReLU()",
    "the other convolution": "Conv3d(padding=1, bias=True) -> GroupNorm(2, affine=True)",
}


def trained(text: str, **changes: Any) -> Case:
    return small_case(pipeline=text, training=True, **changes)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("text", PIPELINES.values(), ids=PIPELINES)
def test_everyone_computes_the_same_step(name: str, text: str) -> None:
    w = (4, 8, 3, 3, 3) if text.startswith("Conv3d") else (8, 4, 3, 3, 3)
    case = trained(text, x=(3, 8, 3, 4, 5), w=w)
    arrays = case.draw()
    ready = find_contender(name.removesuffix(SUFFIX)).prepare(case, arrays)
    meaning = expected_step(case, arrays)
    first, second = (ready.stored(ready.run()) for _ in range(2))
    for found in (first, second):
        check = meaning.check(found)
        assert check.passed
        assert check.worst < 1e-5
    assert any((a != b).any() for a, b in zip(first, second, strict=True)), "a weight has changed by a rounding"
    np.testing.assert_array_equal(arrays.x, case.draw().x)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types(dtype: str) -> None:
    case = trained(PIPELINES["norm"], dtype=DTYPES[dtype])
    arrays = case.draw()
    ready = find_contender("convt3d").prepare(case, arrays)
    assert expected_step(case, arrays).check(ready.stored(ready.run())).passed


def test_memory_that_nobody_gives_back_is_not_kept() -> None:
    case = trained(BATCHNORM)
    with pytest.raises(UnsupportedError, match="large enough"):
        find_contender("torch-kept").prepare(case, case.draw())


class Wrong:
    """convt3d, with one plane of one gradient left out."""

    def __init__(self, number: int) -> None:
        self.number = number

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        ready = find_contender("convt3d").prepare(case, arrays)

        def spoiled(found: Any) -> Any:
            parts = [part.copy() for part in ready.stored(found)]
            parts[self.number][..., -1] = 0
            return parts

        return replace(ready, stored=spoiled)


def test_a_row_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong gradients are not timed; FLOP of three directions; the page draws it."""
    monkeypatch.setattr(measure, "FULL", Pace(seconds=0.0, least=3, most=3, pause=0.0))
    monkeypatch.setattr(limits, "GEMM_SIZE", 64)
    monkeypatch.setattr(balance, "_TURNS", 1000)
    monkeypatch.setattr(balance, "_MOST_COPIED", 1 << 16)
    case = trained(BATCHNORM, suite="training")
    wrong = {f"wrong {number}": Wrong(number) for number in (0, 1, 2, 4, 5, 6)}  # that of the bias, 3, is nothing
    contenders = {name: find_contender(name) for name in ("convt3d", "torch")}
    row = measure_case(case, {**contenders, **wrong}, apart=False)
    found = row["contenders"]
    assert [found[name]["status"] for name in contenders] == ["ok", "ok"]
    assert all(found[name]["status"] == "wrong" and "seconds" not in found[name] for name in wrong)
    forward = measure_case(replace(case, training=False), {"convt3d": contenders["convt3d"]}, apart=False)
    assert row["needed_flop"] == 3 * forward["needed_flop"]
    assert forward["bytes"] < row["bytes"] < 3 * forward["bytes"]
    assert "Forward and backward" in draw_page([{**ORIGIN, **row}])


def test_the_suite_holds_the_operators_and_the_layers() -> None:
    cases = read_suite("training", threads=2)
    both = [*read_suite("seeds", threads=2), *read_suite("models", threads=2)]
    assert [(case.name, case.pipeline, case.x, case.w) for case in cases] == [
        (case.name, case.pipeline, case.x, case.w) for case in both
    ]
    assert all(case.training and case.suite == "training" and case.threads == 2 for case in cases)
    assert 0 < sum(case.quick for case in cases) < 3


def test_memory_of_a_step_is_what_it_adds_to_result_and_gradients() -> None:
    """Eager keeps the convolution's result for the backward of LogSumExp, and makes its gradient."""
    text = "ConvTranspose3d(stride=2) -> LogSumExp()"
    case = trained(text, x=(1, 4, 24, 32, 32), w=(4, 32, 2, 2, 2))
    hidden = 4 * 32 * 48 * 64 * 64
    assert case.result_bytes == 4 * (48 * 64 * 64 + 4 * 24 * 32 * 32 + 4 * 32 * 8)
    found = peak_memory(case, "torch")
    assert found is None or 1.5 * hidden < found < 12 * hidden
