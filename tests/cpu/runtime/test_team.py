"""The native launcher: every index runs once, whoever sleeps, forks or interrupts."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from convt3d.cpu.runtime import team
from convt3d.cpu.runtime.build import Function, Target, compile_ir, load
from convt3d.cpu.runtime.team import launch

# arguments: 0 items left, 1 sum, 2 turns to waste per index > 0, 3 turns to waste at index 0, 8 + index: times run
KERNEL = """
define void @kernel(ptr %arguments, i64 %index) {
entry:
  %caller = icmp eq i64 %index, 0
  %which = select i1 %caller, i64 3, i64 2
  %turns.at = getelementptr i64, ptr %arguments, i64 %which
  %turns = load i64, ptr %turns.at
  br label %waste
waste:
  %i = phi i64 [ 0, %entry ], [ %i.next, %waste ]
  %i.next = add i64 %i, 1
  store volatile i64 %i, ptr %scratch
  %go = icmp ult i64 %i.next, %turns
  br i1 %go, label %waste, label %next
next:
  %left = atomicrmw sub ptr %arguments, i64 1 monotonic
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %work, label %stop
work:
  %sum.at = getelementptr i64, ptr %arguments, i64 1
  %old = atomicrmw add ptr %sum.at, i64 %left monotonic
  br label %next
stop:
  %slot = add i64 %index, 8
  %run.at = getelementptr i64, ptr %arguments, i64 %slot
  %before = atomicrmw add ptr %run.at, i64 1 monotonic
  ret void
}
""".replace("entry:\n", "entry:\n  %scratch = alloca i64\n")
SECOND = 1_000_000_000  # turns of `waste`, more or less


@pytest.fixture(autouse=True)
def own_workers(monkeypatch):
    """Whatever another test has imported."""
    monkeypatch.setattr(team, "_others", None)


@pytest.fixture(scope="module")
def kernel() -> Function:
    return load(compile_ir(KERNEL).object_code, ["kernel"])["kernel"]


def arguments(items: int = 100, worker: float = 0.0, caller: float = 0.0) -> np.ndarray:
    words = np.zeros(32, np.int64)
    words[0], words[2], words[3] = items, worker * SECOND, caller * SECOND
    return words


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("pause", [0.0, 0.001], ids=["listening", "asleep"])
def test_each_index_runs_once_and_all_items_are_done(kernel, count, pause):
    for _ in range(30):
        words = arguments()
        launch(kernel, words.ctypes.data, count)
        assert words[1] == 5050
        assert list(words[8:16]) == [1] * count + [0] * (8 - count)
        time.sleep(pause)


@pytest.mark.parametrize(("worker", "caller"), [(0.01, 0), (0, 0.01), (0.01, 0.01)])
def test_unequal_shares_put_either_side_to_sleep(kernel, worker, caller):
    for _ in range(5):
        words = arguments(worker=worker, caller=caller)
        launch(kernel, words.ctypes.data, 2)
        assert (words[1], words[8], words[9]) == (5050, 1, 1)


def test_eight_python_threads_calling_at_once(kernel):
    good: list[int] = []

    def caller() -> None:
        for turn in range(100):
            words = arguments(worker=0.00005 * (turn % 3))
            launch(kernel, words.ctypes.data, 3)
            good.append(int(words[1] == 5050 and words[8:11].sum() == 3))

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(20)
    assert sum(good) == 800


@pytest.mark.parametrize("allowed", [0, 1, 2], ids=["no thread to be had", "one", "as many as were asked for"])
def test_python_takes_over_where_there_are_no_semaphores(kernel, monkeypatch, allowed):
    monkeypatch.setattr(team, "SUPPORTED", False)
    submit, given = ThreadPoolExecutor.submit, []

    def scarce(self, *work):
        if len(given) == allowed:
            raise RuntimeError("can't start new thread")
        given.append(1)
        return submit(self, *work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", scarce)
    before = threading.active_count()
    words = arguments()
    launch(kernel, words.ctypes.data, 3)
    assert (words[1], list(words[8:11])) == (5050, [1, 1, 1])
    assert threading.active_count() == before


def test_launcher_compiles_for_aarch64():
    dumps: dict[str, str] = {}
    compile_ir(team.team_ir("aarch64"), Target.cross("aarch64-unknown-linux-gnu"), dumps=dumps)
    assert "isb" in dumps["emit"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_starts_its_own_workers(kernel):
    launch(kernel, arguments().ctypes.data, 3)
    child = os.fork()
    if child == 0:
        words = arguments()
        launch(kernel, words.ctypes.data, 3)
        os._exit(0 if words[1] == 5050 and team._team.count == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
@pytest.mark.parametrize(("worker", "caller"), [(0.003, 0.0), (0.003, 0.003)], ids=["while waiting", "in the kernel"])
def test_interrupts_at_any_moment_wait_for_the_workers(kernel, worker, caller):
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    caught = 0
    try:
        for step in range(60):
            words = arguments(worker=worker, caller=caller)
            finished = False
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + step * 5e-5)
                launch(kernel, words.ctypes.data, 3)
                finished = True
                time.sleep(0.02)
            caught += not finished
            state = words.copy()
            time.sleep(0.008 if not finished else 0)
            assert (words == state).all(), "a worker was still writing"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert caught
    words = arguments()
    launch(kernel, words.ctypes.data, 3)
    assert words[1] == 5050


def test_interpreter_exits_cleanly_while_workers_listen():
    script = (
        "import sys; sys.argv = ['x']\n"
        "from convt3d.cpu.runtime.team import launch; from convt3d.cpu.runtime.build import compile_ir, load\n"
        "code = load(compile_ir('define void @f(ptr %a, i64 %i) {\\n  ret void\\n}').object_code, ['f'])\n"
        "for _ in range(3): launch(code['f'], 0, 3)\n"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_arguments_are_addresses(kernel):
    words = (ctypes.c_int64 * 32)(10)
    launch(kernel, ctypes.addressof(words), 2)
    assert words[1] == 55


# --- cores ------------------------------------------------------------------------------------------------------------

has_affinity = pytest.mark.skipif(
    not team.SUPPORTED or not hasattr(os, "sched_getaffinity"), reason="needs the native team and affinities"
)


def workers() -> list[int]:
    found = (thread for thread in threading.enumerate() if thread.name == "convt3d-worker")
    return [thread.native_id for thread in found if thread.native_id]


@has_affinity
def test_workers_are_kept_off_one_core_at_most_and_the_caller_off_none(kernel):
    """A caller that moves from core to core ends up on each worker's; no worker may lose a core for each of them."""
    allowed = os.sched_getaffinity(0)
    launch(kernel, arguments().ctypes.data, 3)  # threads inherit the cores of the one that starts them
    try:
        for _ in range(20):
            for core in allowed:
                os.sched_setaffinity(0, {core})
                launch(kernel, arguments().ctypes.data, 3)
                assert os.sched_getaffinity(0) == {core}
            for worker in workers():
                assert os.sched_getaffinity(worker) <= allowed
                assert len(allowed - os.sched_getaffinity(worker)) <= 1
                assert os.sched_getaffinity(worker)
    finally:
        os.sched_setaffinity(0, allowed)


@has_affinity
def test_one_core_is_enough():
    code = (
        "import os, sys, numpy, convt3d\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "x, w = numpy.ones((2, 4, 8, 8, 8), 'f'), numpy.ones((4, 4, 3, 3, 3), 'f')\n"
        "with convt3d.num_threads(4):\n"
        "    y = [convt3d.conv_transpose3d(x, w, stride=2) for _ in range(20)]\n"
        "print(all(float(each.sum()) == float(y[0].sum()) for each in y), len(os.sched_getaffinity(0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["True", "1"]
