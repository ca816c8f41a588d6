"""How many threads a call uses: the caller's wish, else the environment, else torch's setting, else the usable cores.

Usable cores are those of the CPU affinity mask, limited by the cgroup CPU quota of a container.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from ...errors import ArgumentError
from ...spec.checks import answers, is_a

THREADS_VARIABLE = "CONVT3D_NUM_THREADS"
MOST_THREADS = 1024  # each has memory of its own

_Reader = Callable[[Path], "float | None"]
_scoped_threads: ContextVar[int | None] = ContextVar("convt3d_num_threads", default=None)
_process_threads: int | None = None
changes = ctypes.c_int64(0)  # how often `set_num_threads` was called: native code looks at it


@answers
def get_num_threads() -> int:
    """Threads a call made here and now would use.

    Returns
    -------
    int
        What `num_threads` or `set_num_threads` say, else CONVT3D_NUM_THREADS, else torch's number, else the usable
        cores.

    Raises
    ------
    convt3d.ArgumentError
        CONVT3D_NUM_THREADS is no count.

    Examples
    --------
    >>> import convt3d
    >>> with convt3d.num_threads(2):
    ...     convt3d.get_num_threads()
    2
    """
    for wish in (_scoped_threads.get(), _process_threads, _from_environment(), _from_torch()):
        if wish is not None:
            return min(wish, MOST_THREADS)
    return min(available_cores(), MOST_THREADS)


@answers
def set_num_threads(count: int | None) -> None:
    """Use `count` threads in the whole process from now on. Results have the same bits for any number of threads.

    Parameters
    ----------
    count : int or None
        At least 1; None returns to the default.

    Returns
    -------
    None
        The number holds for calls from now on.

    Raises
    ------
    convt3d.ArgumentError
        No count, or more than 1,024.

    Examples
    --------
    >>> import convt3d
    >>> convt3d.set_num_threads(1)
    >>> convt3d.get_num_threads()
    1
    >>> convt3d.set_num_threads(None)
    """
    global _process_threads
    _process_threads = None if count is None else _checked(count, "set_num_threads")
    changes.value += 1


@answers
@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Use `count` threads inside the `with` block; other Python threads and asyncio tasks are not affected.

    Parameters
    ----------
    count : int
        At least 1.

    Returns
    -------
    context manager
        To be written after `with`.

    Raises
    ------
    convt3d.ArgumentError
        No count, or more than 1,024.

    Examples
    --------
    >>> import convt3d
    >>> with convt3d.num_threads(1):
    ...     convt3d.get_num_threads()
    1
    """
    token = _scoped_threads.set(_checked(count, "num_threads"))
    try:
        yield
    finally:
        _scoped_threads.reset(token)


def available_cores() -> int:
    """Cores this process may run on: the affinity mask, limited by the container's CPU quota (rounded up)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


@cache
def cgroup_quota(root: Path = Path("/")) -> float | None:
    """CPU quota in cores of this process's cgroup and all its parents (v2 and v1), None when unlimited."""
    if not sys.platform.startswith("linux"):
        return None
    limits = [
        limit
        for folder, read in _cgroup_folders(root)
        for level in (folder, *folder.parents)
        if root / "sys/fs/cgroup" in (level, *level.parents) and (limit := read(level)) is not None
    ]
    return min(limits, default=None)


def _cgroup_folders(root: Path) -> Iterator[tuple[Path, _Reader]]:
    """Folders that hold this process's CPU limits, with the reader for their format.

    A container often sees a path that does not exist below its own mount: its parents, up to the mount, still count.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = path.strip("/")
        if hierarchy == "0":
            yield mount / inside, _quota_v2
            yield mount / "unified" / inside, _quota_v2
        elif "cpu" in controllers.split(","):
            yield mount / controllers / inside, _quota_v1
            yield mount / "cpu" / inside, _quota_v1


def _quota_v2(folder: Path) -> float | None:
    return _ratio(*_read(folder / "cpu.max").split())


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str = "", period: str = "") -> float | None:
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return cores if cores > 0 else None  # v1 says -1 for unlimited


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _from_environment() -> int | None:
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if not text:
        return None
    try:
        return _checked(int(text), THREADS_VARIABLE)
    except ValueError:
        rule = f"must be a positive integer up to {MOST_THREADS:,}"
        raise ArgumentError("environment", THREADS_VARIABLE, text, rule, "Set it to a count, or unset it") from None


def _from_torch() -> int | None:
    # Only looked up, never imported; a half-imported torch has no such attribute yet.
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return int(count()) if callable(count) else None


def _checked(count: int, name: str) -> int:
    if is_a(count, bool) or not is_a(count, int) or count < 1:
        raise ArgumentError(name, "count", count, "must be a positive integer", "Give the number of threads to use")
    if count > MOST_THREADS:
        raise ArgumentError(name, "count", count, f"must be at most {MOST_THREADS:,}", "Give the number of cores")
    return count
