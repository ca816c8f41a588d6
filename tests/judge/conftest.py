"""What the judge's tests share: a kernel from its text, and proof that nothing is left behind."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import convt3d.judge.check
from convt3d.judge import sandbox
from convt3d.judge.check import Judgement, Options, check
from convt3d.judge.sandbox import Limits, Sandbox
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

Judge = Callable[..., Judgement]


def traces() -> tuple[set[str], set[str], set[str]]:
    """Temporary files, named shared memory, and processes of the judge's making."""
    folders = set(os.listdir(tempfile.gettempdir()))
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    return folders, {name for name in shared if "convt3d" in name}, set(processes())


def processes() -> Iterator[str]:
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_text(errors="replace").split("\0")
            except OSError:
                continue
            if any(word.endswith(("judge/keeper.py", "judge/child.py")) for word in words) and _of_this_run(int(name)):
                yield name


def _of_this_run(pid: int) -> bool:
    """Whether the process has this one among its ancestors, or has lost its parent."""
    first = pid
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
        if pid == first and parent == 1:
            return True
        pid = parent
    return False


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    """judge(text, slug, suffix=..., dtype=..., cases=..., limit=..., again=...); afterwards nothing is left of it.
    `again`: seconds for further runs of cases that passed; none, unless a test asks for them."""
    if sys.platform != "linux":
        pytest.skip("the sandbox needs Linux")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = traces()

    def run(
        text: str | bytes,
        slug: str,
        suffix: str = ".py",
        dtype: str = "float32",
        cases: tuple[str, ...] = (),
        limit: float = 20.0,
        allow_torch: bool = False,
        again: float = -1.0,
        **more: Any,
    ) -> Judgement:
        monkeypatch.setattr(convt3d.judge.check, "AGAIN_SECONDS", again)
        path = tmp_path / f"somebody{suffix}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        limits = Limits(limit, more.pop("start", 60.0), more.pop("memory", Limits.memory))
        compiled, changes = more.pop("compiled", False), more.pop("changes", {})
        options = Options(DTYPES[dtype], cases, more.pop("seed", 1), allow_torch, limits, changes, compiled)
        return check(str(path), PROBLEMS[slug], options, **more)

    yield run
    assert traces() == before


# --- protections ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def here() -> tuple[str, ...]:
    """The protections this system has."""
    with Sandbox([sys.executable, "-I", "-S", "-c", ""], Limits()) as box:
        box.run()
        return box.on


@pytest.fixture
def need(here: tuple[str, ...]) -> Callable[..., None]:
    """need(names): of protections without which a test has nothing to try."""

    def check(*names: str) -> None:
        missing = [name for name in names if name not in here]
        if missing:
            pytest.skip(f"not offered by this system: {', '.join(missing)}")

    return check


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """without(names): a system that lacks these protections."""
    return lambda *names: monkeypatch.setattr(sandbox, "WITHOUT", names)
