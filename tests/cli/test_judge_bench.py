"""`bench FILE`: judged first, then timed beside others, with every timed result compared."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.kernels_python import LAST_COLUMN_WRONG

from convt3d.bench.balance import Rates
from convt3d.judge.check import Judgement, Options
from convt3d.judge.timing import time_file
from convt3d.judge.verdict import Verdict
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

MAXES = "conv-transpose3d-max-max-sum"


def test_bench_judges_before_it_times(run, kernel) -> None:
    code, out, _ = run("bench", kernel(LAST_COLUMN_WRONG), "--json")
    document = json.loads(out)
    assert code == 1
    assert document["verdict"] == "wrong values"
    assert "seconds" not in document


def test_bench(run, kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convt3d.cli.judge_bench.measured_rates", lambda plan: Rates(1e9, 1e9, "measured elsewhere"))
    code, out, _ = run("bench", kernel(), "--json", "--repeat", 3, "--size", "sample", "--set", "batch_size=2")
    document: dict[str, Any] = json.loads(out)
    assert code == 0
    assert document["values"]["batch_size"] == 2
    assert document["rounds"] == 3
    assert {"your kernel", "convt3d"} <= set(document["seconds"])
    assert all(len(times) == 3 and min(times) > 0 for times in document["all_seconds"].values())
    ratio = document["ratio_to_convt3d"]
    assert ratio > 0
    if "torch eager" in document["seconds"]:
        assert document["ratio_to_torch_eager"] > 0
        assert document["best_peer"] in ("torch eager", "torch channels_last")
    medians = {name: float(np.median(times)) for name, times in document["all_seconds"].items()}
    assert document["seconds"] == pytest.approx(medians)
    for name, ratio in document["ratios"].items():
        assert ratio == pytest.approx(medians[name] / medians["your kernel"])
    assert (document["size"], document["set"]) == ("sample", ["batch_size=2"])
    for name, seconds in medians.items():
        assert document["needed_gflops"][name] == pytest.approx(document["needed_flop"] / seconds / 1e9)
        assert document["of_roofline"][name] == pytest.approx(document["roofline_seconds"] / seconds)
    rates, flop, moved = document["rates"], document["needed_flop"], document["bytes"]
    assert document["roofline_seconds"] == pytest.approx(max(flop / rates["flops"], moved / rates["bytes"]))
    monkeypatch.setattr("convt3d.cli.judge_bench.check", lambda *_: Judgement(Verdict("passed"), "python", 1))
    code, out, _ = run("bench", kernel(), "--repeat", 1, "--size", "sample", "--set", "batch_size=3")
    for piece in ("over yours", "GFLOP/s", "of roofline", "size     sample, batch_size=3", "roofline: "):
        assert piece in out


def test_a_kernel_that_skips_work_in_timed_runs_is_caught(run, kernel) -> None:
    """It is right on all cases of the check; a shape that comes for the fifth time must be a timed one."""
    late = (
        "calls = {}\ndef solution(*a):\n    calls[a[2].shape] = calls.get(a[2].shape, 0) + 1\n"
        "    if calls[a[2].shape] < 5: honest(*a)"
    )
    code, out, _ = run("bench", kernel(late), "--size", "two-groups", "--repeat", 8, "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["verdict"], document["case"]) == ("wrong values", "timed")


@pytest.mark.parametrize("shape_seen", [3, 5])
def test_a_kernel_that_caches_when_the_shape_repeats_is_caught(run, kernel, shape_seen: int) -> None:
    """It works honestly for as often as the check repeats a shape, and answers from memory afterwards."""
    cache = (
        "known = {}\ndef solution(*a):\n    seen = known.setdefault(a[2].shape, [])\n"
        f"    if len(seen) < {shape_seen}:\n        honest(*a)\n        seen.append(a[2].copy())\n"
        "    a[2][...] = seen[-1]"
    )
    code, out, _ = run("bench", kernel(cache), "--size", "two-groups", "--repeat", 8, "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["verdict"], document["case"]) == ("wrong values", "timed")


LARGE = {"in_channels": 128, "out_channels": 16, "depth": 8, "height": 8, "width": 8}


LARGE |= {"kernel_d": 5, "kernel_h": 5, "kernel_w": 5, "stride_d": 2, "stride_h": 2, "stride_w": 2}


ROUNDS_WHEN_LARGE = """
plain = wide
def wide(a):
    if a.size < 128 * 8**3: return plain(a)
    return ((np.ascontiguousarray(a).view(np.uint32) + np.uint32(4096)) & np.uint32(4294959104)).view(np.float32)
"""


@pytest.mark.parametrize(("more", "word"), [("", "passed"), (ROUNDS_WHEN_LARGE, "wrong values")])
def test_lower_precision_at_large_sizes_only_is_caught(kernel, more: str, word: str) -> None:
    """TF32 where results are too many for a float64 meaning of each: off by less than two results may differ."""
    problem = PROBLEMS[MAXES]
    values = problem.checked({**problem.sample, **LARGE})
    timing = time_file(str(kernel(more, MAXES)), problem, values, Options(DTYPES["float32"], seed=1), 1)
    assert timing.verdict.word == word, timing.verdict
