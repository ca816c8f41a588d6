"""A user's program, with its right and its wrong lines, is what type checkers take it for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "typed" / "user_program.py"


def judged(command: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return done.stdout + done.stderr


def test_mypy() -> None:
    if importlib.util.find_spec("mypy") is None or not (ROOT / "pyproject.toml").is_file():
        pytest.skip("mypy is not installed, or this is no source tree")
    assert "Success" in judged([sys.executable, "-m", "mypy", "--strict", str(PROGRAM)])


def test_pyright() -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    said = judged([sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(PROGRAM)])
    assert "0 errors" in said, said
