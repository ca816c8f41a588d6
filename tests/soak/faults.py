"""Trouble on purpose: first calls at once, writers that are killed, full disks, damaged entries, forks, interrupts.

Each scenario runs `soak.calls` in processes of its own with a kernel cache in `folder`, and raises AssertionError.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from soak.reduce import environment

SECONDS = 300.0  # after which a process hangs

Scenario = Callable[[np.random.Generator, Path], None]


def _start(folder: Path, how: str, seed: int, *numbers: int, most_bytes: int | None = None) -> subprocess.Popen[str]:
    def limited() -> None:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "soak.calls", how, *map(str, (seed, *numbers))],
        env=environment(CONVT3D_CACHE_DIR=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited,
    )


def _right(process: subprocess.Popen[str], what: str) -> None:
    try:
        out, problems = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f"{what}: hangs") from None
    assert (process.returncode, out.strip()) == (0, "right"), f"{what}: exit {process.returncode}\n{problems[-3000:]}"


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(10**6))


def race_cold(rng: np.random.Generator, folder: Path) -> None:
    """Nothing is compiled yet."""
    _right(_start(folder, "race", seed := _seed(rng)), f"race {seed}, empty cache")


def race_warm(rng: np.random.Generator, folder: Path) -> None:
    """Everything is on disk."""
    seed = _seed(rng)
    _right(_start(folder, "plain", seed), f"plain {seed}")
    _right(_start(folder, "race", seed), f"race {seed}, full cache")


def processes_at_once(rng: np.random.Generator, folder: Path) -> None:
    """Several processes fill one cache."""
    seed = _seed(rng)
    for process in [_start(folder, "race", seed) for _ in range(3)]:
        _right(process, f"race {seed}, three processes")


def killed_writers(rng: np.random.Generator, folder: Path) -> None:
    """Processes die while they write to the cache; what they left must not hurt the next one."""
    seed = _seed(rng)
    for _ in range(3):
        before = _files(folder)
        process = _start(folder, "plain", seed)
        while process.poll() is None and _files(folder) == before:
            time.sleep(0.001)
        time.sleep(float(rng.uniform(0.0, 0.2)))  # the first file has begun, others follow
        process.kill()
        process.communicate()
    _right(_start(folder, "plain", seed), f"plain {seed} after killed writers")


def _files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def full_disk(rng: np.random.Generator, folder: Path) -> None:
    """Files cannot grow beyond some bytes: entries break off at any place."""
    seed, most = _seed(rng), int(rng.choice([0, 1, 40, 500, 4096, 9000]))
    _right(_start(folder, "plain", seed, most_bytes=most), f"plain {seed}, files of {most} bytes at most")
    _right(_start(folder, "plain", seed), f"plain {seed} after a full disk")


def damaged_entries(rng: np.random.Generator, folder: Path) -> None:
    """Entries are cut, emptied, exchanged, or have a bit flipped."""
    seed = _seed(rng)
    _right(_start(folder, "plain", seed), f"plain {seed}")
    entries = sorted(path for path in folder.rglob("*") if path.is_file())
    assert entries, "nothing was cached"
    for path in entries:
        content = bytearray(path.read_bytes())
        how = rng.integers(5)
        if how == 0:
            content = content[: int(rng.integers(len(content)))]
        elif how == 1:
            content = bytearray()
        elif how == 2:
            content = bytearray(entries[rng.integers(len(entries))].read_bytes())
        elif how == 3 and content:
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
    _right(_start(folder, "plain", seed), f"plain {seed} with damaged entries")


def fork_during_calls(rng: np.random.Generator, folder: Path) -> None:
    _right(_start(folder, "fork", seed := _seed(rng)), f"fork {seed}")


def interrupted_calls(rng: np.random.Generator, folder: Path) -> None:
    _right(_start(folder, "interrupt", seed := _seed(rng)), f"interrupt {seed}")


SCENARIOS: tuple[Scenario, ...] = (
    race_cold,
    race_warm,
    processes_at_once,
    killed_writers,
    full_disk,
    damaged_entries,
    fork_during_calls,
    interrupted_calls,
)


def no_growth(rng: np.random.Generator, folder: Path, calls: int) -> None:
    _right(_start(folder, "grow", seed := _seed(rng), calls), f"grow {seed} {calls}")
