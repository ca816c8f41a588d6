"""A persistent pool of Python threads that run one function together: `parallel(body, n)` runs body(0) .. body(n - 1).

Index 0 runs on the calling thread. Nobody waits for a thread to wake up: an index that no worker has begun when the
caller has ended its own is run by the caller, which costs nothing if workers take items from a shared counter. So
`body` must never wait for another index of the same call. While it is inside a ctypes call the GIL is free.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from collections.abc import Callable
from queue import SimpleQueue

Body = Callable[[int], object]


class _Job:
    """One index of one call, offered to a worker."""

    __slots__ = ("_owner", "body", "done", "error", "finished", "index")

    def __init__(self, body: Body, index: int) -> None:
        self.body: Body | None = body
        self.index = index
        self.error: BaseException | None = None
        self.finished = False
        self.done = allocate_lock()
        self.done.acquire()
        self._owner: dict[None, object] = {}

    def claim(self, claimant: object) -> bool:
        """Whether `claimant` may run this job: the first to ask. Asking again, after an interrupt, changes nothing."""
        return self._owner.setdefault(None, claimant) is claimant

    def run(self) -> None:
        try:
            assert self.body is not None
            self.body(self.index)
        except BaseException as error:
            self.error = error


class _Worker:
    """A daemon thread that sleeps until it is offered a job."""

    def __init__(self, idle: list[_Worker]) -> None:
        self._idle = idle
        self.offers: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._work, name="convt3d-worker", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self.offers.get()
            if job.claim(self):
                job.run()
            self._idle.append(self)
            job.finished = True
            job.done.release()
            del job


class _Pool:
    """Workers of one process. It grows to the largest call seen, never with the number of concurrent calls."""

    def __init__(self) -> None:
        self.idle: list[_Worker] = []
        self.count = 0
        self._growing = allocate_lock()

    def take(self, wanted: int) -> list[_Worker]:
        """Up to `wanted` workers that have nothing to do."""
        if self.count < wanted:
            self._grow(wanted)
        taken: list[_Worker] = []
        while len(taken) < wanted:
            try:
                taken.append(self.idle.pop())
            except IndexError:  # concurrent calls hold the others
                break
        return taken

    def _grow(self, wanted: int) -> None:
        with self._growing:
            while self.count < wanted:
                try:
                    worker = _Worker(self.idle)
                except RuntimeError:  # no more threads allowed, or the interpreter is shutting down: run with fewer
                    return
                self.count += 1
                self.idle.append(worker)


_pool = _Pool()


def parallel(body: Body, n_threads: int) -> None:
    """Run `body(0) .. body(n_threads - 1)`, index 0 on this thread, and return when all have ended.

    The first exception is raised when all have ended. That holds for Ctrl-C too: KeyboardInterrupt goes on only when
    no worker uses the caller's memory any more.
    """
    if n_threads == 1:
        body(0)
        return
    pool = _pool
    jobs = [_Job(body, index) for index in range(1, n_threads)]
    errors: list[BaseException] = []
    try:
        for worker, job in zip(pool.take(n_threads - 1), jobs, strict=False):
            worker.offers.put(job)
        body(0)
        for job in jobs:
            if job.claim(pool):
                body(job.index)
    except BaseException as error:
        errors.append(error)
    # One loop inside one try: an interrupt can come between any two steps here, and then the loop starts again.
    waiting = True
    while waiting:
        try:
            for job in jobs:
                # Claimed by us: run above, or given up after an error. A child forked by `body` has no workers at all.
                while not job.claim(pool) and not job.finished and pool is _pool:
                    job.done.acquire()
            waiting = False
        except BaseException as error:
            errors.insert(0, error)
    for job in jobs:
        job.body = None  # a worker that wakes up late still finds the job, but not the caller's arrays
    errors += [job.error for job in jobs if job.error is not None]
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # the traceback refers to this frame: do not let the frame refer back


def _forget_workers() -> None:
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
