"""The same bits whatever the number of threads and the batch mates, from many Python threads, after fork and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from helpers.draws import drawn, make

import convt3d as ct
from convt3d.cpu.plan.cores import num_threads
from convt3d.cpu.runtime import team
from convt3d.spec.dtypes import DTYPES

TYPES = tuple(DTYPES)
STATISTICS = ct.Pipeline(
    ct.ConvTranspose3d(stride=2, bias=True), ct.GroupNorm(2, affine=True), ct.Softmax("spatial"), ct.GELU()
)


def bits(case: Any) -> bytes:
    return case.run().tobytes()


@pytest.mark.parametrize("chunk", range(3))
def test_any_number_of_threads_gives_the_same_bits(chunk: int) -> None:
    """Tiles are summed in a fixed order, whoever worked on them. More threads than cores and than tiles are allowed."""
    for seed in range(chunk * 6, chunk * 6 + 6):
        case = drawn(np.random.default_rng(seed), TYPES[seed % 4])
        found = set()
        for count in (1, 2, 3, 4):
            with num_threads(count):
                found.add(bits(case))
        assert len(found) == 1, case


def test_statistics_of_many_tiles_do_not_depend_on_threads() -> None:
    """Large enough for many tiles, so that threads do meet in the middle of a sum."""
    case = make(STATISTICS, (2, 8, 24, 24, 24), (8, 8, 3, 3, 3))
    found = set()
    for count in (1, 2, 3, 4, 4, 4):
        with num_threads(count):
            found.add(bits(case))
    assert len(found) == 1


@pytest.mark.parametrize("chunk", range(2))
def test_a_sample_does_not_depend_on_its_batch_mates(chunk: int) -> None:
    """Serving often changes the batch: the answer for one sample must not change with it."""
    for seed in range(100 + chunk * 8, 108 + chunk * 8):
        case = drawn(np.random.default_rng(seed), TYPES[seed % 4])
        slots = zip(case.pipeline.slots, case.operands, strict=True)
        if case.x.shape[0] == 1 or any(slot.operand.kind == "tensor" for slot, _ in slots):
            case = make(STATISTICS, (3, 4, 5, 6, 7 + seed % 9), (4, 4, 3, 3, 3), TYPES[seed % 4], seed)
        whole = case.run()
        for sample in range(case.x.shape[0]):
            alone = type(case)(case.pipeline, case.dtype, case.x[sample : sample + 1], case.operands)
            assert bits(alone) == whole[sample : sample + 1].tobytes(), case


def test_python_threads_calling_at_once() -> None:
    """Different pipelines from 6 threads: first calls compile together, later ones share packed weights and workers."""
    cases = [drawn(np.random.default_rng(seed), TYPES[seed % 4]) for seed in range(300, 306)]
    truth: list[bytes | None] = [None] * len(cases)
    failures: list[Any] = []

    def work(start: int) -> None:
        try:
            for turn in range(12):
                at = (start + turn) % len(cases)
                got = bits(cases[at])
                if truth[at] is None:
                    truth[at] = got
                if got != truth[at]:
                    failures.append((at, "other bits"))
        except BaseException as error:
            failures.append(error)

    with num_threads(2):
        threads = [threading.Thread(target=work, args=(start,)) for start in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
    assert not failures
    for case, expected in zip(cases, truth, strict=True):
        assert bits(case) == expected
        case.check()


def test_python_threads_with_weights_of_their_own() -> None:
    """Weights of equal shape in several threads: the cache of packed weights must tell them apart by their bits."""
    pipe = ct.Pipeline(ct.ConvTranspose3d(stride=2))
    x = np.ones((1, 2, 3, 3, 3), np.float32)
    failures: list[float] = []

    def work(value: float) -> None:
        w = np.full((2, 2, 2, 2, 2), value, np.float32)
        for _ in range(100):
            if not (pipe(x, w) == 2 * value).all():
                failures.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(1, 5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not failures


def test_workers_persist() -> None:
    """Threads are started once, not for each call."""
    case = make(STATISTICS, (2, 4, 8, 8, 8), (4, 4, 3, 3, 3))
    with num_threads(3):
        case.run()
        before = threading.active_count()
        for _ in range(20):
            case.run()
    assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_after_fork() -> None:
    """A child has no workers, and may hold locks of threads that do not exist in it: it must run and compile anew."""
    old = make(STATISTICS, (2, 8, 24, 24, 24), (8, 8, 3, 3, 3))  # many tiles: all threads get some
    new = drawn(np.random.default_rng(401), "float64")
    with num_threads(3):
        expected = bits(old)
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                new.check()
                code = 0 if bits(old) == expected and team._team.count <= 2 else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bits(old) == expected


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_interrupts_at_any_moment() -> None:
    """Ctrl-C during a call: no worker writes into the caller's array afterwards, and the next call is right."""
    case = make(STATISTICS, (4, 8, 12, 12, 12), (8, 8, 3, 3, 3))
    out = np.empty(case.output, np.float32)
    caught = 0
    with num_threads(3):
        expected = bits(case)
        start = time.perf_counter()
        case.run(out)
        seconds = time.perf_counter() - start
        old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for step in range(30):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 + seconds * step / 25)
                    case.run(out)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    caught += 1
                out[...] = 5.0
                time.sleep(0.002)
                assert (out == 5.0).all(), "a worker was still writing"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        assert bits(case) == expected
    assert caught


def test_ctrl_c_reaches_a_program() -> None:
    """A real SIGINT to a process that calls in a loop ends it at once, with the usual traceback and no crash."""
    script = (
        "import numpy as np, convt3d\n"
        "x, w = np.ones((8, 16, 16, 16, 16), 'f'), np.ones((16, 16, 3, 3, 3), 'f')\n"
        "convt3d.conv_transpose3d(x, w); print('ready', flush=True)\n"
        "while True: convt3d.conv_transpose3d(x, w, stride=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CONVT3D_NUM_THREADS": "2"}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert "KeyboardInterrupt" in errors
    assert process.returncode in (-signal.SIGINT, 130, 1)
