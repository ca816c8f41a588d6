"""The thread pool: every index runs once, errors and Ctrl-C arrive after all workers ended, forks and nesting work."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress

import pytest

from convt3d.cpu.runtime import threads
from convt3d.cpu.runtime.build import compile_ir, load
from convt3d.cpu.runtime.threads import parallel

COUNT_DOWN = """
define void @count_down(ptr %items, ptr %done) {
entry:
  br label %next
next:
  %left = atomicrmw sub ptr %items, i64 1 monotonic
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %work, label %stop
work:
  %old = atomicrmw add ptr %done, i64 %left monotonic
  br label %next
stop:
  ret void
}
"""


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_index_runs_once_and_index_0_on_the_caller(count):
    seen: list[tuple[int, int]] = []
    parallel(lambda index: seen.append((index, threading.get_ident())), count)
    assert sorted(index for index, _ in seen) == list(range(count))
    assert dict(seen)[0] == threading.get_ident()


def rest() -> None:
    """A worker is idle a moment after its call has ended; a call that finds fewer idle workers runs with those."""
    while len(threads._pool.idle) < threads._pool.count:
        time.sleep(0.001)


def test_workers_really_run_at_the_same_time():
    rest()
    met = threading.Barrier(4, timeout=600)
    parallel(lambda _index: met.wait(), 4)  # breaks if one of them begins after another has ended


def test_native_kernel_takes_items_from_an_atomic_counter():
    kernel = load(compile_ir(COUNT_DOWN).object_code, ["count_down"]).function(
        "count_down", ctypes.c_void_p, ctypes.c_void_p
    )
    for _ in range(50):
        items, done = ctypes.c_int64(1000), ctypes.c_int64(0)
        parallel(lambda _i: kernel(ctypes.addressof(items), ctypes.addressof(done)), 3)  # noqa: B023
        assert done.value == 500_500


def test_workers_persist_and_forget_what_they_ran():
    class Payload:
        pass

    parallel(lambda _index: None, 3)
    before = threading.active_count()
    payload = Payload()
    alive = weakref.ref(payload)
    parallel(lambda _index, payload=payload: None, 3)
    del payload
    gc.collect()
    assert alive() is None
    assert threading.active_count() == before


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_exceptions_reach_the_caller_after_all_that_began_have_ended(bad):
    begun: set[int] = set()
    ended: set[int] = set()
    met = threading.Barrier(3, timeout=600)
    rest()

    def body(index: int) -> None:
        met.wait()
        if index == bad:
            raise ValueError(f"index {index}")
        begun.add(index)
        time.sleep(0.03)
        ended.add(index)

    with pytest.raises(ValueError, match=f"index {bad}"):
        parallel(body, 3)
    assert begun == ended
    assert len(ended) == 2
    parallel(lambda _index: None, 3)


def test_caller_runs_what_no_worker_has_begun():
    parallel(lambda _index: None, 3)
    slow = threading.Event()
    rest()
    workers = threads._pool.count
    met = threading.Barrier(workers + 2, timeout=600)  # the workers, their caller and this thread
    others = threading.Thread(target=parallel, args=(lambda _index: (met.wait(), slow.wait(600)), workers + 1))
    others.start()
    met.wait()
    seen: list[int] = []
    parallel(lambda _index: seen.append(threading.get_ident()), 3)
    assert seen == [threading.get_ident()] * 3
    slow.set()
    others.join()


def test_nested_calls():
    seen: list[tuple[int, int]] = []
    parallel(lambda outer: parallel(lambda inner: seen.append((outer, inner)), 3), 3)
    assert sorted(seen) == [(outer, inner) for outer in range(3) for inner in range(3)]


def test_eight_python_threads_calling_at_once():
    totals: list[int] = []

    def caller() -> None:
        hits: list[int] = []
        for _ in range(100):
            parallel(hits.append, 3)
        totals.append(sum(hits))

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert totals == [300] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_starts_its_own_workers():
    parallel(lambda _index: None, 3)
    child = os.fork()
    if child == 0:
        seen: list[int] = []
        parallel(seen.append, 3)
        os._exit(0 if sorted(seen) == [0, 1, 2] and threads._pool.count == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_inside_a_call_does_not_hang_the_child():
    status: list[int] = []

    def body(index: int) -> None:
        if index == 0:
            child = os.fork()
            if child == 0:
                return
            status.append(os.waitpid(child, 0)[1])
        else:
            time.sleep(0.02)

    pid = os.getpid()
    parallel(body, 2)
    if os.getpid() != pid:
        os._exit(3)
    assert os.waitstatus_to_exitcode(status[0]) == 3


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to itself")
@pytest.mark.parametrize("caller_seconds", [0.0, 0.2], ids=["while waiting", "inside the kernel"])
def test_interrupt_waits_for_the_workers(caller_seconds):
    ended: list[int] = []
    met, sent = threading.Barrier(3, timeout=600), threading.Event()
    rest()

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    def body(index: int) -> None:
        met.wait()
        if index == 0:
            threading.Timer(0.05, interrupt).start()
            time.sleep(caller_seconds)
        else:
            sent.wait()
            time.sleep(0.2)
            ended.append(index)

    with pytest.raises(KeyboardInterrupt):
        parallel(body, 3)
    assert sorted(ended) == [1, 2]
    parallel(lambda _index: None, 3)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_interrupts_at_any_moment_never_leave_a_worker_behind():
    running: set[int] = set()

    def body(_index: int) -> None:
        running.add(threading.get_ident())
        time.sleep(0.002)
        running.discard(threading.get_ident())

    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    caught = 0
    try:
        for step in range(100):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + step * 3e-5)
                parallel(body, 3)
                time.sleep(0.005)
            caught += bool(running)
            assert running <= {threading.get_ident()}  # only the caller itself can be broken off half-way
            running.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert caught
    parallel(lambda _index: None, 3)


def test_interpreter_exits_cleanly_with_idle_and_busy_workers():
    script = (
        "import atexit, threading, time\n"
        "from convt3d.cpu.runtime.threads import parallel\n"
        "parallel(lambda i: None, 3)\n"
        "atexit.register(lambda: parallel(lambda i: None, 5))\n"
        "threading.Thread(target=parallel, args=(lambda i: time.sleep(0.2), 3), daemon=True).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_more_threads_the_caller_does_the_work(monkeypatch):
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[int] = []
    parallel(seen.append, 4)
    assert seen == [0, 1, 2, 3]
