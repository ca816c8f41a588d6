"""Calls whose results are known to the last bit, made in ways that go wrong first: `python -m soak.calls HOW SEED [N]`.

HOW is one of the functions below `MODES`. Data are small whole numbers, so that sums are exact in any order.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import convt3d as ct
from convt3d.spec.reference import evaluate

THREADS = 8
AFTER = ((), (ct.ReLU(),), (ct.MaxPool3d(2),), (ct.Add("channel"), ct.Clamp(-9.0, 9.0)), (ct.Sum("channels"),))
DTYPES = ("float32", "float64", "float16")


@dataclass
class Call:
    pipeline: ct.Pipeline
    arrays: list[Any]
    expected: Any

    def check(self) -> None:
        got = self.pipeline(*self.arrays)
        assert np.array_equal(got, self.expected), f"{self.pipeline!r} on {[array.shape for array in self.arrays]}"


def calls(seed: int, count: int) -> list[Call]:
    rng = np.random.default_rng(seed)
    return [_call(rng) for _ in range(count)]


def _call(rng: np.random.Generator) -> Call:
    stride = tuple(int(s) for s in rng.integers(1, 3, 3))
    pipeline = ct.Pipeline(
        ct.ConvTranspose3d(stride=stride, bias=bool(rng.integers(2))), *AFTER[rng.integers(len(AFTER))]
    )
    x = (int(rng.integers(1, 3)), int(rng.integers(1, 5)), *(int(size) for size in rng.integers(2, 9, 3)))
    kernel = (x[1], int(rng.integers(1, 20)), *(int(size) for size in rng.integers(1, 4, 3)))
    shapes = [x, *pipeline.operand_shapes(x, kernel)]
    wide = [rng.integers(-2, 3, shape).astype(np.float64) for shape in shapes]
    dtype = str(rng.choice(DTYPES))
    expected = evaluate(pipeline, wide[0], wide[1:]).astype(dtype)
    return Call(pipeline, [array.astype(dtype) for array in wide], expected)


def plain(made: list[Call]) -> None:
    """One after the other."""
    for call in made:
        call.check()


def race(made: list[Call]) -> None:
    """The first calls of a process, by threads that wait for each other."""
    barrier, problems = threading.Barrier(THREADS), []

    def caller(number: int) -> None:
        barrier.wait()
        try:
            plain(made[number % len(made) :] + made[: number % len(made)])
        except BaseException as problem:
            problems.append(repr(problem))

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not problems, problems[0]


def fork(made: list[Call]) -> None:
    """Children of a process whose threads are in the middle of calls; each child calls too."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            plain(made)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for one in threads:
        one.start()
    try:
        for at in range(10):
            time.sleep(0.01 * at)
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(60.0, exit=True)  # a child that hangs says where
                with suppress(BaseException):
                    plain(made)
                    os._exit(0)
                os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 0, f"a forked child ended with {status}"
    finally:
        stop.set()
        for one in threads:
            one.join()


def interrupt(made: list[Call]) -> None:
    """KeyboardInterrupt at any moment, compilations among them: the next call is right."""
    rng = np.random.default_rng(len(made))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for turn in range(60):
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, float(10.0 ** rng.uniform(-5, -1)))
            plain(made)
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        made[turn % len(made)].check()


def grow(made: list[Call], count: int) -> None:
    """Neither memory nor threads nor open files become more."""
    plain(made)
    for at in range(count // 5):
        made[at % len(made)].check()
    before = _held()
    for at in range(count):
        call = made[at % len(made)]
        if at % 1000 < len(made):
            call.check()
        else:
            call.pipeline(*call.arrays)
    after = _held()
    assert after[1:] == before[1:], f"threads and open files were {before[1:]}, are {after[1:]}"
    assert after[0] - before[0] < 8 << 20, f"{count} calls took {after[0] - before[0]:,} bytes"


def _held() -> tuple[int, int, int]:
    """Bytes in memory, threads, open files."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


MODES: dict[str, Callable[..., None]] = {f.__name__: f for f in (plain, race, fork, interrupt, grow)}


def main(how: str, seed: str, *numbers: str) -> None:
    MODES[how](calls(int(seed), 6), *map(int, numbers))
    print("right", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
