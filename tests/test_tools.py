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


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Through the interpreter, on the sample's sizes, with a clock of its own; torch.compile would take a minute."""
    pytest.importorskip("triton", "3.4")
    here, problem = tool(), PROBLEMS["conv-transpose3d-layernorm-gelu-scaling"]

    def broken(function: Any, **options: Any) -> Any:
        def call(*arguments: Any) -> Any:
            raise RuntimeError("no\ncompiler")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    times = iter(range(1, 100))
    rows = here.measure(problem, problem.sample, "float32", "cpu", lambda call: (call(), float(next(times)))[1])
    facts = {"name": "NVIDIA A100-SXM4-80GB", "multiprocessors": 108}
    tests = {"code": 1, "summary": "1 failed, 9 passed", "failed": ["tests/gpu/test_kernels.py::test_x"]}
    return here, {"device": facts, "tests": tests, "quick": False, "rows": rows}


def test_everyone_is_timed_whoever_fails(report: Any, tmp_path: Path) -> None:
    here, told = report
    rows = {(row["contender"], row["tf32"]): row for row in told["rows"]}
    assert len(rows) == 14
    assert rows["convt3d", False]["ms"] == 1.0
    assert rows["eager", False]["ms"] == 4.0
    assert rows["eager", False]["error"] == 0.0
    assert 0 < rows["convt3d", False]["error"] < 1e-5
    assert 1e-5 < rows["convt3d", True]["error"] < 2e-3  # products of TensorFloat32, as PyTorch's settings say
    assert rows["torch.compile", True]["failed"] == "RuntimeError: no\ncompiler"
    assert not here.good(told)  # a test failed
    assert here.good({**told, "tests": {**told["tests"], "code": 0}})  # others may
    here.write(told, str(tmp_path / "mine"))
    assert json.loads((tmp_path / "mine.json").read_text())["rows"] == told["rows"]
    page = (tmp_path / "mine.md").read_text()
    assert "- tests: 1 failed, 9 passed\n  - failed: tests/gpu/test_kernels.py::test_x\n" in page
    assert "| torch.compile | RuntimeError: no compiler | - | - | - | - |" in page
    assert "| eager | 4.000 | 4.00 |" in page
    assert "layernorm-gelu-scaling, float32, TF32 on" in page


def test_a_wrong_result_is_not_timed(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here, told = report
    monkeypatch.setattr("convt3d.torch.gpu.on_gpu", lambda pipeline, x, operands: torch.full((1,), torch.nan))
    problem = PROBLEMS["conv-transpose3d-layernorm-gelu-scaling"]
    rows = here.measure(problem, problem.sample, "float16", "cpu", lambda call: 1.0)
    wrong = [row for row in rows if row["contender"].startswith("convt3d")]
    assert {row["failed"] for row in wrong} == {"its result is wrong"}
    assert not any("ms" in row for row in wrong)
    assert all("ms" in row for row in rows if row["contender"].startswith("eager"))
    assert not here.good({**told, "tests": {"code": 0}, "rows": rows})
