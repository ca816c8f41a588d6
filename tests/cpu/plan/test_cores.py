"""How many threads a call uses: the scope, the setter, the environment, torch, the usable cores, in this order."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convt3d import ArgumentError
from convt3d.cpu.plan import cores
from convt3d.cpu.plan.cores import available_cores, cgroup_quota, get_num_threads, num_threads, set_num_threads

SOURCE = Path(cores.__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _clean_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CONVT3D_NUM_THREADS", raising=False)
    yield
    set_num_threads(None)


def python(code: str) -> str:
    """What a fresh interpreter prints: for facts that hold only before anything else was imported."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_thread_variable_must_be_a_positive_integer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A typing error in the environment must not silently mean one thread, or all."""
    monkeypatch.setenv("CONVT3D_NUM_THREADS", text)
    with pytest.raises(ArgumentError, match=rf"CONVT3D_NUM_THREADS = '{text}': must be a positive integer"):
        get_num_threads()


def test_an_empty_thread_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells often export a variable without a value."""
    before = get_num_threads()
    monkeypatch.setenv("CONVT3D_NUM_THREADS", " ")
    assert get_num_threads() == before


@pytest.mark.parametrize("count", [0, -3, 1.5, True, "2"])
def test_thread_setters_refuse_nonsense(count: Any) -> None:
    """True is an int in Python, and surely not a number of threads."""
    with pytest.raises(ArgumentError, match="must be a positive integer"):
        set_num_threads(count)
    with pytest.raises(ArgumentError, match="must be a positive integer"), num_threads(count):
        pass


def test_precedence_scope_setter_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closest wish wins; a scope is seen by its own Python thread alone."""
    monkeypatch.setenv("CONVT3D_NUM_THREADS", "7")
    assert get_num_threads() == 7
    set_num_threads(5)
    seen: list[int] = []
    with num_threads(3):
        assert get_num_threads() == 3
        with num_threads(2):
            assert get_num_threads() == 2
        assert get_num_threads() == 3
        other = threading.Thread(target=lambda: seen.append(get_num_threads()))
        other.start()
        other.join()
    assert seen == [5]
    set_num_threads(None)
    assert get_num_threads() == 7


def test_a_scope_ends_with_an_exception() -> None:
    """Otherwise one failed call would throttle the whole process."""
    before = get_num_threads()

    def fail() -> None:
        with num_threads(before + 3):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert get_num_threads() == before


def test_asyncio_tasks_do_not_see_each_others_scope() -> None:
    """Two tasks share a thread: a thread-local would mix them up."""

    async def task(count: int) -> int:
        with num_threads(count):
            await asyncio.sleep(0.001)
            return get_num_threads()

    async def both() -> list[int]:
        return list(await asyncio.gather(task(2), task(3)))

    assert asyncio.run(both()) == [2, 3]


def test_torch_setting_is_the_default_but_torch_is_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who limits torch to one thread means all of the process; who has no torch must not wait for its import."""

    class FakeTorch:
        @staticmethod
        def get_num_threads() -> int:
            return 11

    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    assert get_num_threads() == 11
    monkeypatch.delitem(sys.modules, "torch")
    assert get_num_threads() == available_cores()
    code = (
        "import sys; from convt3d.cpu.plan.machine import machine; machine().describe(); print('torch' in sys.modules)"
    )
    assert python(code) == "False"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux only")
def test_affinity_mask_is_respected() -> None:
    """taskset and job schedulers limit a process this way."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from convt3d.cpu.plan.machine import machine; from convt3d.cpu.plan.cores import get_num_threads\n"
        "print(machine().threads, get_num_threads())"
    )
    assert python(code) == "1 1"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/gone\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({}, None),
    ],
    ids=["v2 parent", "v2 unlimited", "v2 container", "v1", "v1 unlimited", "none"],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cgroups are Linux only")
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    """Containers hide their limit here: the affinity mask still shows every core of the host."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path) == expected
