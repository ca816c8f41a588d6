"""Where Triton is: tests that need it, and processes in which it compiles instead of interpreting."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def need_triton() -> None:
    if not importlib.util.find_spec("triton"):
        pytest.skip("triton is not installed (a package of 286 MB, in the extras `test` and `gpu`)")


def printed(code: str) -> list[Any]:
    """What code prints, a line of JSON each, in a process in which Triton compiles."""
    need_triton()
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**compiling_environment(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def compiling_environment() -> dict[str, str]:
    """Of a process of its own: where Triton was imported to interpret, it cannot compile."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def need_compiled() -> None:
    """Its PTX is run by a driver that was written for the Triton of today."""
    need_triton()
    if tuple(map(int, version("triton").split(".")[:2])) < (3, 9):
        pytest.skip("the machine for PTX is tested with triton 3.9")
