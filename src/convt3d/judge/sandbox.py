"""Runs a program with limits and takes everything away afterwards: processes, temporary files, what it printed.

    with Sandbox(argv, limits, fds=[theirs]) as box:
        line, moment = box.read_reply(ours, seconds)

Time is told by this process's clock. The program's parent is a keeper (keeper.py), which freezes and kills it with all
its descendants; whatever the program says about itself has no part in that.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import ArgumentError, described
from .remove import remove
from .seccomp import filter_for

GIGABYTE = 2**30
THREAD_SPACE = 2**27  # addresses, not memory, that a library reserves for each of its threads
MOST_OUTPUT = 16384  # bytes of what the program printed that are kept, from its end
MOST_REPLY = 65536
# What the system may offer, and what is refused by it: said where it is missing. Tests leave some out by WITHOUT.
PROTECTIONS = {
    "seccomp": "system calls a kernel has no use for: other processes, other programs, signals, the network",
    "Landlock": "writing outside its folder",
    "namespaces": "naming a process that is not its own",
    "hidden processes": "reading the command lines of others",
    "read-only files": "changing modes, times and attributes of files; filling the disk",
}
WITHOUT: tuple[str, ...] = ()
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
PROCESS_CLOCK = 2  # with a process's number above it, the name Linux gives to the clock of what it has used
PATIENCE = 10.0  # seconds the keeper has to answer; it does so within milliseconds


@dataclass(frozen=True)
class Limits:
    """What a program may use. Seconds are of the wall clock, for each thing it is asked; memory is what it and its
    descendants hold together, and bounds the addresses of each, beside those reserved for nothing."""

    seconds: float = 20.0
    start_seconds: float = 60.0
    memory: int = 6 * GIGABYTE
    processes: int = 32
    file_bytes: int = GIGABYTE // 4
    files: int = 10_000
    threads: int = 256 + 16 * (os.cpu_count() or 1)
    reserved: int = 0

    def rlimits(self) -> dict[str, int]:
        return {
            "RLIMIT_AS": self.memory + self.reserved + THREAD_SPACE * (2 * (os.cpu_count() or 1) + 1),
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": int(100 * self.seconds + self.start_seconds) * (os.cpu_count() or 1),
            "RLIMIT_NOFILE": 256,
        }


@contextmanager
def judging() -> Iterator[None]:
    """Around a judgement: the judge's memory is nobody's to read, and its pipes are not taken for standard streams that
    the caller has closed. A system that cannot carry out the judge's own work (its disk is full, it has no more
    processes) ends in an error, which says nothing about the kernel."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(fd)
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)
    readable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        yield
    except OSError as error:
        rule = "must let the judge make files, pipes and processes"
        remedy = "Free some room, or name another folder for temporary files by TMPDIR"
        raise ArgumentError("judge", "system", described(str(error)), rule, remedy) from None
    finally:
        if readable == 1:
            prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


class Ended(Exception):
    """The program is no longer there: exit code, or minus the signal; or None with the limit it went over."""

    def __init__(self, status: int | None, over: str = "") -> None:
        super().__init__(status, over)
        self.status, self.over = status, over

    def words(self) -> str:
        if self.over:
            return f"it used {self.over}"
        if self.status is not None and self.status < 0:
            with suppress(ValueError):
                return f"it was ended by {signal.Signals(-self.status).name}"
        return f"it ended itself with exit code {self.status}"


class TimedOut(Exception):
    """No answer within the limit."""


class Sandbox:
    """One program, from its start to the removal of its last trace."""

    def __init__(
        self,
        argv: Sequence[str],
        limits: Limits,
        *,
        fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        may_exec: bool = False,
        folder: str | None = None,
    ) -> None:
        self.limits = limits
        self.printed = b""
        self.pid = 0
        self.on: tuple[str, ...] = ()
        self._still = 0.0
        self._closed = False
        self._status: int | None = None
        self._over = ""
        self._own_folder = folder is None
        self.folder = folder or tempfile.mkdtemp(prefix="convt3d-judge-")
        self._output, theirs = os.pipe()
        os.set_blocking(self._output, False)
        orders = {
            "argv": list(argv),
            "env": {**_environment(self.folder), **(environment or {})},
            "limits": limits.rlimits(),
            "fds": list(fds),
            "output": theirs,
            "folder": self.folder,
            "private": self._own_folder,
            "filter": filter_for(compiler=may_exec),
            "without": WITHOUT,
            "bytes": limits.memory,
            "processes": limits.processes,
            "threads": limits.threads,
            "files": limits.files,
            "stored": limits.file_bytes,
        }
        listening, self._orders = os.pipe()
        self._news, speaking = os.pipe()
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", script("keeper.py"), json.dumps(orders)],
                stdin=listening,
                stdout=speaking,
                stderr=subprocess.DEVNULL,
                pass_fds=[*fds, theirs],
                start_new_session=True,
                env={},
            )
        finally:
            for fd in (theirs, listening, speaking):
                os.close(fd)
        self._pending = b""
        self._answer: dict[str, Any] | None = None

    def __enter__(self) -> Sandbox:
        try:
            self._await_news(lambda: bool(self.pid))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            os.write(self._orders, b"end\n")
        try:
            self._keeper.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        if self._keeper.returncode and self.pid:  # somebody killed the keeper: what can still be found goes too
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self._drain()
        for fd in (self._output, self._orders, self._news):
            os.close(fd)
        if self._own_folder:
            remove(self.folder)

    @property
    def text(self) -> str:
        """The end of what the program printed."""
        return self.printed.decode("utf-8", "replace").strip()

    def read_reply(self, fd: int, seconds: float) -> tuple[bytes, float]:
        """One line from `fd`, and the moment it was here. Raises Ended or TimedOut."""
        deadline = time.perf_counter() + seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            for watched in (fd, self._news, self._output):
                selector.register(watched, selectors.EVENT_READ)
            while True:
                ended = self._ended()  # the news of its end may have come with that of its start
                left = 0.0 if ended else deadline - time.perf_counter()
                if left <= 0 and not ended:
                    raise TimedOut
                ready = {key.fd for key, _ in selector.select(left)}
                now = time.perf_counter()
                if fd in ready:
                    data = os.read(fd, MOST_REPLY)
                    line += data
                    if b"\n" in line or len(line) > MOST_REPLY:
                        return line.partition(b"\n")[0], now
                    if not data:
                        selector.unregister(fd)
                if self._output in ready and not self._drain():
                    selector.unregister(self._output)
                if ended:
                    raise Ended(self._status, self._over)
                if self._news in ready:
                    self._read_news()

    def run(self) -> int:
        """Waits until the program has ended by itself; its exit code. Raises Ended for a signal, or TimedOut."""
        unused, other = os.pipe()
        try:
            self.read_reply(unused, self.limits.start_seconds)
        except Ended as ended:
            if ended.status is None or ended.status < 0:
                raise
            return ended.status
        finally:
            os.close(unused)
            os.close(other)
        raise TimedOut

    def halt(self) -> None:
        """Directly and at once; `stop` makes sure, and freezes what else there is."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGSTOP)

    def processor_seconds(self) -> float:
        """What all threads of the program have used so far; 0 for one that has ended."""
        with suppress(OSError):
            return time.clock_gettime((~self.pid << 3) | PROCESS_CLOCK)
        return 0.0

    def stop(self) -> int:
        """Freezes the program; how many other processes of its making are alive. Raises TimedOut if it goes on."""
        answer = self._ask(b"stop\n")
        if not answer["still"]:
            raise TimedOut
        self._still = float(answer["cpu"])
        return int(answer["others"])

    def seconds_since_stop(self) -> float:
        """Of the processor, used by the program and its descendants since they were frozen."""
        return max(0.0, float(self._ask(b"look\n")["cpu"]) - self._still)

    def resume(self) -> None:
        """Directly, without the keeper: the clock is running."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)

    def maps(self) -> str:
        """Which files the program has in its memory."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/maps").read_text(errors="replace")
        return ""

    def _ask(self, order: bytes) -> dict[str, Any]:
        self._answer = None
        try:
            os.write(self._orders, order)
        except OSError:
            raise Ended(self._status, self._over or "a signal against its keeper") from None
        self._await_news(lambda: self._answer is not None)
        return self._answer or {}

    def _ended(self) -> bool:
        return self._status is not None or bool(self._over)

    def _await_news(self, known: Any) -> None:
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._news, selectors.EVENT_READ)
            while not known():
                if self._ended():
                    raise Ended(self._status, self._over)
                if time.monotonic() > deadline:
                    raise TimedOut
                if selector.select(0.5):
                    self._read_news()

    def _read_news(self) -> None:
        data = os.read(self._news, MOST_REPLY)
        if not data and not self._ended():
            self._over = "a signal against its keeper"
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.pid = message.get("pid", self.pid)
            self._status = message.get("status", self._status)
            self._over = message.get("over", self._over)
            self.on = tuple(message.get("on", self.on))
            if "cpu" in message:
                self._answer = message

    def _drain(self) -> bool:
        """Takes what was printed, keeps its end; False at the end of the pipe."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return True
        self.printed = (self.printed + data)[-MOST_OUTPUT:]
        return bool(data)


def script(name: str) -> str:
    """A file of this folder as one that another interpreter can run, its neighbours beside it."""
    return os.path.join(_scripts(), name)


@cache
def _scripts() -> str:
    """This folder; copies of it where the package is in an archive."""
    here = resources.files(__package__)
    if isinstance(here, Path):
        return str(here)
    folder = tempfile.mkdtemp(prefix="convt3d-")
    atexit.register(remove, folder)
    Path(folder, "ptx").mkdir()
    for place, files in ((".", here), ("ptx", here.joinpath("ptx"))):
        for file in files.iterdir():
            if file.name.endswith(".py"):
                Path(folder, place, file.name).write_bytes(file.read_bytes())
    return folder


def _environment(folder: str) -> dict[str, str]:
    """Nothing of the caller's but the way to programs; caches and temporary files go to `folder`."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    places = dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"), folder)
    return {**kept, **places, "PYTHONDONTWRITEBYTECODE": "1"}
