"""The tools that need a GPU: that they say so where there is none, and that what they would do there runs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from gpu_proof.limits import DEVICES

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


def test_the_benchmark_compares_before_it_times() -> None:
    """Through the interpreter, on the sample's sizes, with a clock of its own."""
    pytest.importorskip("triton", "3.4")
    here, problem = tool(), PROBLEMS["conv-transpose3d-layernorm-gelu-scaling"]
    calls = []

    def clock(call: object) -> float:
        calls.append(call())  # type: ignore[operator]
        return 2.0 if len(calls) > 1 else 4.0

    times = here.measure(problem, problem.sample, "float32", "cpu", clock)
    assert times == {"convt3d": 4.0, "eager": 2.0, "eager ch.last": 2.0, "tuned": 2.0}
    line = here.row(problem, problem.benchmark, "float32", times, DEVICES[0])
    assert line.startswith(f"| {problem.slug} | float32 | 4.000 | 2.000 | 2.000 | 2.000 | 1.00 | 64.5 |")
    with pytest.raises(SystemExit, match="results differ by 1"):
        here.check("anything", torch.ones(3), torch.tensor([1.0, 1.0, 2.0]), 1e-4)
