"""What tests of the command line share: a command called here, a terminal, and a kernel to judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import kernels_python
from helpers.command import Terminal

from convt3d.cli import main as cli

Run = Callable[..., tuple[int, str, str]]
CONV = "conv-transpose-3d-asym-input-sq-kernel"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """main(argv) as (exit code, stdout, stderr)."""

    def call(*argv: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Of 80 columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """An honest numpy kernel, changed by the lines that follow it. Its cases are run once: tests/judge has tests of
    further runs."""
    monkeypatch.setattr("convt3d.judge.check.AGAIN_SECONDS", -1.0)

    def write(more: str = "", slug: str = CONV) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(kernels_python.solution(slug, kernels_python.NUMPY) + f"\nhonest = solution\n{more}\n")
        return path

    return write
