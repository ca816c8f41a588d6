"""One case: a wrong contender is reported as wrong and not timed, whatever fails says why, everyone else is timed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers.bench_rows import small_case

from convt3d.bench import balance, limits, measure
from convt3d.bench.alone import first_calls, peak_memory, row_under_isa
from convt3d.bench.cases import Arrays, Case
from convt3d.bench.contenders import find_contender
from convt3d.bench.contenders.base import Ready, UnsupportedError
from convt3d.bench.measure import measure_case
from convt3d.bench.rounds import Pace
from convt3d.cpu.plan.machine import machine
from convt3d.spec.dtypes import DTYPES


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds, and limits that are rates of next to nothing."""
    monkeypatch.setattr(measure, "FULL", Pace(seconds=0.0, least=3, most=3, pause=0.0))
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.5)
    monkeypatch.setattr(limits, "GEMM_SIZE", 64)
    monkeypatch.setattr(balance, "_TURNS", 1000)
    monkeypatch.setattr(balance, "_MOST_COPIED", 1 << 16)


@dataclass
class Spoiled:
    """convt3d, but what it returns is spoiled; counts its calls."""

    spoil: Any
    calls: list[int] = field(default_factory=list)

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        ready = find_contender("convt3d").prepare(case, arrays)

        def run() -> Any:
            self.calls.append(1)
            return ready.run()

        return Ready(run, lambda y: self.spoil(ready.stored(y).copy()))


def measured(case: Case, peer: Any, **options: Any) -> dict[str, Any]:
    contenders = {"convt3d": find_contender("convt3d"), "peer": peer}
    row = measure_case(case, contenders, apart=False, **options)
    assert json.loads(json.dumps(row))["contenders"].keys() == {"convt3d", "peer"}
    assert row["contenders"]["convt3d"]["status"] == "ok"
    assert len(row["contenders"]["convt3d"]["seconds"]) >= 3  # more where others were busy
    assert row["rates"].keys() == {"registers", "gemm", "copy"}
    assert all(len(rates) >= 3 for rates in row["rates"].values())
    return dict(row["contenders"]["peer"])


def one_voxel(y: Any) -> Any:
    y[0, 0, 0, 0, 0] += 0.01 * abs(y).max()  # a corner, which is always sampled
    return y


@pytest.mark.parametrize(
    "spoil",
    [
        one_voxel,
        lambda y: y * 1.001,
        lambda y: y[:, ::-1],
        lambda y: np.full_like(y, np.nan),
        lambda y: np.zeros_like(y),
    ],
    ids=["one voxel", "a thousandth too large", "channels swapped", "NaN", "nothing computed"],
)
def test_a_wrong_contender_is_reported_and_not_timed(spoil: Any) -> None:
    broken = Spoiled(spoil)
    found = measured(small_case(), broken)
    assert found["status"] == "wrong"
    assert "seconds" not in found
    assert "is allowed" in found["note"]
    assert len(broken.calls) == 1, "it ran once, to be checked"


def test_an_honest_contender_is_timed() -> None:
    found = measured(small_case(), Spoiled(lambda y: y))
    assert found["status"] == "ok"
    assert len(found["seconds"]) >= 3
    assert 0 < found["error_units"] < 100


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_peers_may_round_after_every_stage_and_convt3d_may_not(dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    case = small_case(dtype=DTYPES[dtype])
    arrays = case.draw()
    sample = measure.draw_sample(case.pipeline, arrays.x, arrays.operands, case.dtype, np.random.default_rng(0))
    y = find_contender("convt3d").prepare(case, arrays).run()
    exact = case.dtype.widen(np.asarray(y).view(case.dtype.storage))
    rounded_more = case.dtype.narrow(exact + 2 * case.dtype.eps * abs(exact).max())
    assert measure.judge("torch", case, sample, rounded_more)["status"] == "ok"
    assert measure.judge("convt3d", case, sample, rounded_more)["status"] == "wrong"


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        raise self.error


def test_what_cannot_run_says_why() -> None:
    assert measured(small_case(), Failing(UnsupportedError("no such stage"))) == {
        "status": "unsupported",
        "note": "no such stage",
    }
    found = measured(small_case(), Failing(ZeroDivisionError("by zero")))
    assert (found["status"], found["note"]) == ("failed", "ZeroDivisionError: by zero")


def test_a_slow_contender_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def slowly(y: Any) -> Any:
        return y

    slow = Spoiled(slowly)
    prepare = slow.prepare

    def prepared(case: Case, arrays: Arrays) -> Ready:
        ready = prepare(case, arrays)
        return Ready(lambda: (time.sleep(0.3), ready.run())[1], ready.stored)

    case = small_case()
    find_contender("convt3d").prepare(case, case.draw()).run()  # compiled beforehand, so that we are not the slow one
    monkeypatch.setattr(slow, "prepare", prepared)
    monkeypatch.setattr(measure, "GIVE_UP", 0.2)
    found = measured(case, slow)
    assert (found["status"], len(found["seconds"])) == ("slow", 1)
    assert len(slow.calls) <= 2, "the checked call, and a timed one if that was not slow enough already"


def test_who_would_take_too_long_is_skipped() -> None:
    """By the time an earlier row gives for the same layer with a smaller batch."""
    earlier = measure_case(small_case(), {"convt3d": find_contender("convt3d")}, apart=False)
    earlier["contenders"]["peer"] = {"status": "ok", "seconds": [5.0]}
    many = small_case(x=(16, 8, 3, 4, 5))
    found = measured(many, Spoiled(lambda y: y), earlier=[earlier])
    assert found == {"status": "skipped", "note": "would take about 40 s, by an earlier case"}
    another = small_case(x=(16, 8, 3, 4, 6))
    assert measured(another, Spoiled(lambda y: y), earlier=[earlier])["status"] == "ok"


# --- in processes of their own ----------------------------------------------------------------------------------------


def test_memory_is_what_the_call_adds() -> None:
    """PyTorch keeps the convolution's result beside the sum over channels; convt3d keeps tiles."""
    pytest.importorskip("torch")
    case = small_case(
        pipeline="ConvTranspose3d(stride=2, padding=1, output_padding=1) -> Sum()",
        x=(1, 4, 32, 48, 48),
        w=(4, 24, 3, 3, 3),
    )
    own, torch = peak_memory(case, "convt3d"), peak_memory(case, "torch")
    if own is None or torch is None:
        pytest.skip("this system does not tell the peak memory of a process")
    hidden = 4 * 24 * 64 * 96 * 96
    assert own < hidden / 4
    assert hidden * 0.9 < torch < hidden * 6


def test_first_calls_with_either_cache() -> None:
    found = first_calls(small_case(), "convt3d")
    assert found.keys() == {"empty", "warm"}
    assert min(found.values()) >= 0


def test_a_lesser_instruction_set() -> None:
    if machine().isa not in ("avx512", "avx2"):
        pytest.skip("this processor has no AVX2")
    row = row_under_isa(small_case(isa="avx2", threads=1), quick=True)
    assert row["isa"] == "avx2"
    assert row["contenders"]["convt3d"]["seconds"]  # one, where it is slow because others are busy


def test_an_instruction_set_that_does_not_exist() -> None:
    row = row_under_isa(small_case(isa="avx1024", threads=1), quick=True)
    assert row["contenders"]["convt3d"]["status"] == "unsupported"
