"""Where Triton is: tests that need it, and processes in which it compiles instead of interpreting."""

from __future__ import annotations

import importlib.util
import os

import pytest


def need_triton() -> None:
    if not importlib.util.find_spec("triton"):
        pytest.skip("triton is not installed (a package of 286 MB, in the extras `test` and `gpu`)")


def compiling_environment() -> dict[str, str]:
    """Of a process of its own: where Triton was imported to interpret, it cannot compile."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
