"""The tools that need a GPU: that they say so where there is none, and that what they would do there runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from convt3d.spec.problems import PROBLEMS

torch = pytest.importorskip("torch")
TOOL = Path(__file__).resolve().parents[1] / "tools" / "gpu_here.py"


def tool() -> ModuleType:
    specification = importlib.util.spec_from_file_location("gpu_here", TOOL)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so() -> None:
    environment = {**os.environ, "PYTHONPATH": str(TOOL.parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, TOOL], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: PyTorch finds no CUDA device here")


PROBLEM = PROBLEMS["conv-transpose3d-layernorm-gelu-scaling"]
SMALL = {**PROBLEM.sample, "batch_size": 1, "in_channels": 8, "out_channels": 4, "depth": 2, "height": 2, "width": 2}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool; torch.compile would take a minute."""
    pytest.importorskip("triton", "3.4")

    def broken(function: Any, **options: Any) -> Any:
        def call(*arguments: Any) -> Any:
            raise RuntimeError("no\ncompiler")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    return tool()


@pytest.fixture
def report(here: ModuleType) -> Any:
    """Through the interpreter, with a clock of its own."""
    times = iter(range(1, 100))
    rows = list(here.measure(PROBLEM, SMALL, "float32", "cpu", lambda call: next(times)))
    facts = {"name": "NVIDIA A100-SXM4-80GB", "multiprocessors": 108}
    tests = {"code": 1, "summary": "1 failed, 9 passed", "failed": ["tests/gpu/test_kernels.py::test_x"]}
    return here, {"device": facts, "tests": tests, "quick": False, "rows": rows}


def test_everyone_is_timed_whoever_fails(report: Any, tmp_path: Path) -> None:
    here, told = report
    rows = {(row["contender"], row["setting"]): row for row in told["rows"]}
    assert len(rows) == 21
    assert rows["eager", "TF32 off"]["ms"] == 1.0
    assert rows["convt3d", "TF32 off"]["ms"] == 3.0
    assert rows["eager", "TF32 off"]["error"] == 0.0
    assert 0 < rows["convt3d", "TF32 off"]["error"] < 1e-5
    assert 0 < rows["convt3d", "default"]["error"] < 1e-5
    assert 1e-5 < rows["convt3d", "TF32 on"]["error"] < 2e-3  # products of TensorFloat32, as PyTorch's settings say
    assert rows["torch.compile", "default"]["failed"] == "RuntimeError: no\ncompiler"
    assert not here.good(told)  # a test failed
    assert here.good({**told, "tests": {**told["tests"], "code": 0}})  # others may
    here.write(told, str(tmp_path / "mine"))
    assert json.loads((tmp_path / "mine.json").read_text())["rows"] == told["rows"]
    page = (tmp_path / "mine.md").read_text()
    assert "- tests: 1 failed, 9 passed\n  - failed: tests/gpu/test_kernels.py::test_x\n" in page
    assert "| torch.compile | RuntimeError: no compiler | - | - | - | - |" in page
    assert "| convt3d | 3.000 | 1.00 |" in page
    for setting in here.SETTINGS:
        assert f"## conv-transpose3d-layernorm-gelu-scaling, float32, {setting}\n" in page


def test_all_three_ways_to_multiply_float32_are_timed(here: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from convt3d.torch.gpu import float32_precision

    found: list[str] = []
    monkeypatch.setattr("convt3d.torch.gpu.on_gpu", lambda *_: found.append(float32_precision()))
    list(here.measure(PROBLEM, SMALL, "float32", "cpu", lambda call: 1.0))
    assert list(dict.fromkeys(found)) == ["ieee", "bf16x6", "tf32"]


FAILS = "def test_good():\n    pass\n\n\ndef test_bad():\n    assert 1 == 2\n"
DIES = """
import os
print('{"operator": "a", "type": "b", "contender": "eager", "setting": "default", "ms": 2.0, "flop": 1, "bytes": 1, '
      '"tflops": 1.0, "error": 0.0}', flush=True)
os.abort()
"""


def test_a_failing_test_and_a_fault_of_the_device_leave_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole of it, where tests fail and each process dies after its first row."""
    here, failing = tool(), tmp_path / "test_it.py"
    failing.write_text(FAILS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(here, "device_facts", lambda: {"name": "a GPU"})
    monkeypatch.setattr(here, "TESTS", (str(failing), "-p", "no:cacheprovider"))
    monkeypatch.setattr(here, "CLOSE", {"float32": 1.0})
    ended = here._ended
    dies = [sys.executable, "-c", DIES]
    monkeypatch.setattr(here, "_ended", lambda command, **more: ended(dies if "--only" in command else command, **more))
    assert here.main(["--output", str(tmp_path / "mine")]) == 1
    told = json.loads((tmp_path / "mine.json").read_text())
    assert told["tests"]["code"] == 1
    (failed,) = told["tests"]["failed"]
    assert "test_it.py::test_bad" in failed
    assert [row.get("ms") for row in told["rows"]] == [2.0, None] * len(PROBLEMS)
    assert all(row["failed"].startswith("ended with code -6") for row in told["rows"][1::2])
    assert "| eager | 2.000 |" in (tmp_path / "mine.md").read_text()


def test_what_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    here = tool()
    monkeypatch.setattr(here, "HOURS", 1 / 3600)
    code = "import time; print('{\"ms\": 1.0}', flush=True); time.sleep(60)"
    first, last = here.rows_of([sys.executable, "-c", code], "a", "float32")
    assert first == {"ms": 1.0}
    assert last["failed"].startswith("ended with code 124: it had not ended")
    assert here.run_tests(["--co", "-q"])["code"] == 124


def test_a_wrong_result_is_not_timed(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here, told = report
    monkeypatch.setattr("convt3d.torch.gpu.on_gpu", lambda pipeline, x, operands: torch.full((1,), torch.nan))
    rows = list(here.measure(PROBLEM, SMALL, "float16", "cpu", lambda call: 1.0))
    wrong = [row for row in rows if row["contender"].startswith("convt3d")]
    assert {row["failed"] for row in wrong} == {"its result is wrong"}
    assert not any("ms" in row for row in wrong)
    assert all("ms" in row for row in rows if row["contender"].startswith("eager"))
    assert not here.good({**told, "tests": {"code": 0}, "rows": rows})
