"""Processes and terminals of tests: interpreters that find the same convt3d, and a stream that is a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import convt3d


def environment(source: Path | None = None, **more: str) -> dict[str, str]:
    """Variables with which an interpreter finds convt3d: in `source`, or where this one found it."""
    return {**os.environ, "PYTHONPATH": str(source or Path(convt3d.__file__).parents[1]), **more}


def python(*arguments: str | Path, source: Path | None = None, silent: bool = False, **more: str) -> str:
    """What a fresh interpreter prints, which must end well and, if `silent`, complain of nothing."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(source, **more),
        cwd=source,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not silent or done.stderr == ""
    return done.stdout


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True
