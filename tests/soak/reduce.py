"""A failing case made small: any simpler case that fails in the same way takes its place, until none does.

Every candidate runs in a process of its own, since some failures end it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from soak.draw import Draw, smaller

TESTS = Path(__file__).resolve().parents[1]
SECONDS = 120.0  # for one candidate: a case that takes longer hangs

Verdict = Callable[[Draw], str]  # "" or what went wrong; its first word is the kind


def environment(**more: str) -> dict[str, str]:
    """Of a process that finds these modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]), **more}


def verdict_alone(isa: str, **flags: str) -> Verdict:
    """The verdict on a case in a fresh process."""

    def verdict(draw: Draw) -> str:
        command = [sys.executable, "-m", "soak.check", repr(draw)]
        try:
            done = subprocess.run(
                command,
                env=environment(CONVT3D_ISA=isa, **flags),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"hang: longer than {SECONDS:.0f} seconds"
        if done.returncode < 0:
            return f"signal {-done.returncode}: the process died"
        if done.returncode == 1:
            return (done.stdout or done.stderr).strip()
        return ""

    return verdict


def reduced(draw: Draw, said: str, verdict: Verdict, seconds: float = 300.0) -> tuple[Draw, str]:
    """The smallest case found within some time, and what is said of it."""
    kind, end = said.split(":")[0], time.monotonic() + seconds
    tried = {repr(draw)}
    again = True
    while again:
        again = False
        for candidate in smaller(draw):
            if repr(candidate) in tried or time.monotonic() > end:
                continue
            tried.add(repr(candidate))
            found = verdict(candidate)
            if found and found.split(":")[0] == kind:
                draw, said, again = candidate, found, True
                break
    return draw, said


def program(draw: Draw, isa: str, checked: bool = False) -> str:
    """What to paste into a shell at the root of the repository."""
    flags = f"CONVT3D_ISA={isa}{' CONVT3D_CHECK_BOUNDS=1' if checked else ''}"
    return f"{flags} PYTHONPATH=tests .venv/bin/python - <<'EOF'\n{_BODY.format(draw=draw)}\nEOF"


_BODY = """from soak.check import check
from soak.draw import Draw

check({draw!r})"""
