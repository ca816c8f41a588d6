"""Work that PyTorch's OpenMP threads do for us: every index once, however many of them come."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import convt3d.torch  # noqa: E402, F401  # shares PyTorch's threads
from convt3d.cpu.runtime import openmp, team  # noqa: E402
from convt3d.cpu.runtime.build import Function, compile_ir, load  # noqa: E402

pytestmark = pytest.mark.skipif(team._others is None, reason="PyTorch has no OpenMP that others can call")

# arguments: times run, by index
KERNEL = """
define void @kernel(ptr %arguments, i64 %index) {
entry:
  %run.at = getelementptr i64, ptr %arguments, i64 %index
  %before = atomicrmw add ptr %run.at, i64 1 monotonic
  ret void
}
"""


@pytest.fixture(scope="module")
def kernel() -> Function:
    return load(compile_ir(KERNEL).object_code, ["kernel"])["kernel"]


@pytest.fixture
def three_threads(monkeypatch):
    """Which other programs may make late."""
    monkeypatch.setattr(openmp, "LATE", 1 << 60)
    monkeypatch.setattr(team._others, "_pauses_until", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_each_index_runs_once(kernel, three_threads):
    for count in (1, 2, 3) * 20:
        words = np.zeros(8, np.int64)
        assert team._others.run(kernel.address, words.ctypes.data, count)
        assert list(words) == [1] * count + [0] * (8 - count)
        torch.ones(1 << 16).mul_(2)  # the same threads, in turn


def test_workers_of_our_own_where_it_has_too_few(kernel, three_threads):
    words = np.zeros(8, np.int64)
    assert not team._others.run(kernel.address, words.ctypes.data, 4)
    assert not words.any()
    team.launch(kernel, words.ctypes.data, 4)
    assert list(words) == [1] * 4 + [0] * 4


def test_threads_that_came_late_are_not_waited_for_again(kernel, three_threads, monkeypatch):
    monkeypatch.setattr(openmp, "LATE", -1)
    words = np.zeros(8, np.int64)
    assert team._others.run(kernel.address, words.ctypes.data, 3)
    assert not team._others.run(kernel.address, words.ctypes.data, 3)
    assert words.sum() == 3
    monkeypatch.setattr(openmp.time, "monotonic", lambda: team._others._pauses_until + 1)
    assert team._others.run(kernel.address, words.ctypes.data, 3)


def test_several_callers(kernel, three_threads):
    good = []

    def call() -> None:
        torch.set_num_threads(3)
        for _ in range(50):
            words = np.zeros(8, np.int64)
            team.launch(kernel, words.ctypes.data, 3)
            good.append(list(words[:4]) == [1, 1, 1, 0])

    callers = [threading.Thread(target=call) for _ in range(4)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(20)
    assert good == [True] * 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_workers_of_its_own():
    """PyTorch's threads are not there in a child, and its OpenMP would wait for them."""
    code = """
import os, torch, convt3d.torch
torch.set_num_threads(2)
x, w = torch.randn(1, 8, 24, 24, 24), torch.randn(8, 8, 3, 3, 3)
expected = convt3d.torch.conv3d(x, w).numpy()
child = os.fork()
if child == 0:
    os._exit(0 if (convt3d.torch.conv3d(x, w).numpy() == expected).all() else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
