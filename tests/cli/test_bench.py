"""`convt3d bench`: measures and appends, keeps what it has when interrupted, reports, compares, refuses nonsense."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.bench_rows import row
from helpers.command import environment

from convt3d.bench import measure
from convt3d.bench.cases import Arrays, Case
from convt3d.bench.contenders import find_contender
from convt3d.bench.contenders.base import Ready
from convt3d.bench.record import append_row, read_rows
from convt3d.bench.rounds import Pace
from convt3d.cli import bench as command

Run = Callable[..., tuple[int, str, str]]
LIMITS = ("registers", "gemm", "copy")
TINY = ("--suite", "small", "--filter", "4->4", "--filter", "16->8")


@pytest.fixture
def bench(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`convt3d bench` in an empty directory. What takes processes of its own, or measures the machine, has tests in
    tests/bench."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "FULL", Pace(seconds=0.0, least=3, most=3, pause=0.0))
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.5)
    monkeypatch.setattr(measure, "limits", lambda case, quick: {name: lambda: 1e9 for name in LIMITS})
    monkeypatch.setattr(measure, "peak_memory", lambda case, name: 3 << 20)
    monkeypatch.setattr(measure, "first_calls", lambda case, name: {"empty": 0.25, "warm": 0.02})
    return lambda *argv: run("bench", *argv)


def test_a_run_is_shown_and_appended(bench: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code, out, err = bench(*TINY, "--peer", "torch")
    assert code == 0
    assert err.splitlines() == [  # a log shows what is being done
        "2 cases, about 2 min 00 s; rows are appended to bench.jsonl",
        "case 1 of 2: 4->4 k3 @2x3x4",
        "case 2 of 2: 16->8 k2 s2 @4^3",
    ]
    assert "overhead alone: 4->4 k3 @2x3x4" in out
    assert "appended to bench.jsonl" in out
    rows = read_rows(tmp_path / "bench.jsonl")
    assert [one["name"] for one in rows] == ["4->4 k3 @2x3x4", "16->8 k2 s2 @4^3"]
    own = rows[0]["contenders"]["convt3d"]
    assert own["first_call"].keys() == {"empty", "warm"}
    assert own["extra_bytes"] == 3 << 20
    assert "3 MiB" in out
    assert "250 ms / 20 ms" in out
    code, out, err = bench(*TINY[:4], "--peer", "torch", "--json", "--dtype", "float64", "--threads", 1)
    assert code == 0
    (document,) = json.loads(out)
    assert (document["dtype"], document["threads"]) == ("float64", 1)
    assert len(read_rows(tmp_path / "bench.jsonl")) == 3, "the file only grows"


class Broken:
    """Returns what convt3d returns, with one voxel changed."""

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        ready = find_contender("convt3d").prepare(case, arrays)

        def stored(y: Any) -> Any:
            result = ready.stored(y).copy()
            result[-1, :, -1, -1, -1] += 1.0
            return result

        return Ready(ready.run, stored)


@pytest.mark.parametrize(("name", "code"), [("torch", 0), ("convt3d", 1)])
def test_a_broken_contender_is_reported_as_wrong(
    bench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """A wrong peer is a finding; a wrong convt3d is a failure of the run."""
    monkeypatch.setattr(command, "find_contender", lambda asked: Broken() if asked == name else find_contender(asked))
    ended, out, _ = bench(*TINY[:4], "--peer", "torch")
    assert ended == code
    assert "WRONG" in out
    (found,) = read_rows(tmp_path / "bench.jsonl")
    assert found["contenders"][name]["status"] == "wrong"
    assert "seconds" not in found["contenders"][name]
    assert "first_call" not in found["contenders"][name]


def test_an_interruption_keeps_what_was_measured(bench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = command.measure_case, []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(command, "measure_case", interrupted)
    code, out, err = bench(*TINY, "--peer", "convt3d")
    assert code == 130
    assert "interrupted; 1 of 2 cases are kept in bench.jsonl" in err
    assert "4->4 k3 @2x3x4" in out
    assert len(read_rows(tmp_path / "bench.jsonl")) == 1


IN_A_PROCESS = """
import sys
from convt3d.bench import measure
from convt3d.cli.main import main
measure.peak_memory, measure.first_calls = lambda *_: None, lambda *_: {}
sys.exit(main(sys.argv[1:]))
"""


def test_a_real_signal(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    words = ["bench", "--suite", "small", "--peer", "convt3d", "--quick", *TINY[2:], "--output", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS, *words], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while process.poll() is None and not (path.exists() and "\n" in path.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert len(read_rows(path)) >= 1


def test_quick_ends_in_time(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_SECONDS", -1.0)
    code, out, err = bench("--quick", "--peer", "convt3d", *TINY)
    assert code == 0
    assert "4->4 k3 @2x3x4" in out
    assert "left out: 16->8 k2 s2 @4^3" in err
    assert "error" not in err


def write(path: Path, *rows: dict[str, Any]) -> Path:
    for one in rows:
        append_row(path, one)
    return path


def test_report(bench: Run, tmp_path: Path) -> None:
    results = write(tmp_path / "a.jsonl", row({"convt3d": [1e-3] * 3, "torch": [2e-3] * 3}))
    code, out, err = bench("report", results, "--figure", "figure.svg")
    assert (code, err) == (0, "")
    assert "1 cases: bench.html, figure.svg" in out
    assert "networks: faster than every peer in 1 of 1 cases; the fastest peer takes 2.00 times our time." in out
    assert "k3 s2 8-&gt;4 @3x4x5" in (tmp_path / "bench.html").read_text()
    assert "k3 s2 8-&gt;4 @3x4x5" in (tmp_path / "figure.svg").read_text()
    code, _, err = bench("report", tmp_path / "none.jsonl")
    assert code == 2
    assert "cannot be read" in err
    code, _, err = bench("report", results, "--output", tmp_path / "no" / "such" / "folder.html")
    assert code == 2
    assert "cannot be written" in err


def test_compare(bench: Run, tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", row({"convt3d": [1e-3] * 3, "torch": [4e-3] * 3}))
    new = write(tmp_path / "new.jsonl", row({"convt3d": [0.5e-3] * 3, "torch": [4e-3] * 3}))
    code, out, err = bench("compare", old, new)
    assert (code, err) == (0, "")
    assert "faster" in out
    assert "1 faster, 0 slower, 0 same" in out
    code, out, _ = bench("compare", old, new, "--peer", "torch", "--json")
    assert code == 0
    assert [one["verdict"] for one in json.loads(out)] == ["same"]
    assert bench("compare", old)[0] == 2


def test_nonsense_is_refused(bench: Run) -> None:
    code, _, err = bench("nonsense", "more")
    assert code == 2
    assert "first word = 'nonsense': must be report or compare, or the one file of your kernel" in err
    assert bench("nonsense")[0] == 2  # a kernel that is not there
    assert bench("--suite", "nonsense")[0] == 2
    assert bench("--filter", "nonsense")[0] == 2
