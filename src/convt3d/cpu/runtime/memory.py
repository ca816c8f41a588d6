"""Memory for large outputs and scratch: aligned, on huge pages where the system has them, and used again.

Touching fresh 4 KB pages costs several times more than 2 MB pages, and decides the time of outputs of many megabytes;
pages that were touched before cost nothing.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64
HUGE_PAGE = 2 << 20
HUGE_FROM = 4 << 20
SCRATCH_HUGE_FROM = 256 << 10
SCRATCH_KEPT = 64 << 20  # bytes kept per thread between calls
OUTPUTS_KEPT = 256 << 20  # bytes of outputs that nobody uses any more, kept for the next ones, at most


def empty(shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[np.generic]:
    """An uninitialised C-ordered array, 64-byte aligned; from 4 MB on, on huge pages of its own, fresh or those of an
    array that is gone."""
    kind = np.dtype(dtype)
    lengths = (shape,) if isinstance(shape, int) else tuple(int(length) for length in shape)
    size = math.prod(lengths) * kind.itemsize
    try:
        block = _mapped(size) if size >= HUGE_FROM else _aligned(size)
    except (OSError, OverflowError, ValueError, MemoryError) as problem:
        raise MemoryError(f"cannot allocate {size:,} bytes for shape {lengths} of {kind}: {problem}") from None
    array: NDArray[np.generic] = block.view(kind).reshape(lengths)
    return array


def physical_memory() -> int | None:
    """Bytes of the machine, where the system says so."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_size(size: int) -> None:
    """MemoryError where so many bytes cannot be had, even on systems that promise any number: with swap memory, twice
    what the machine has."""
    limit = physical_memory()
    if limit is not None and size > 2 * limit:
        raise MemoryError(f"the machine has {limit:,} bytes")


class shared_scratch:  # noqa: N801 - used as a function; a class starts faster than a generator
    """`size` bytes of uninitialised memory for each of `threads` threads during the `with` block, or for fewer where
    there is no memory for all; and how many. Nested blocks get different memory.

    Each Python thread keeps some of what it used last, so repeated calls touch no fresh pages. A forked child inherits
    its own private copy.
    """

    __slots__ = ("_block", "address", "size", "threads")

    def __init__(self, size: int, threads: int = 1) -> None:
        self.size, self.threads = size, threads

    def __enter__(self) -> tuple[NDArray[np.uint8], int]:
        while True:
            try:
                self._block = _take(self.size * self.threads)
                self.address = self._block.address
                return self._block.memory[: self.size * self.threads], self.threads
            except MemoryError:
                if self.threads == 1:
                    raise
                self.threads //= 2

    def __exit__(self, *problem: object) -> None:
        _give_back(self._block)


def free_scratch() -> None:
    """Return this thread's kept scratch memory, and what outputs left over, to the system."""
    _kept.blocks.clear()
    _left.clear()


def _aligned(size: int) -> NDArray[np.uint8]:
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def _mapped(size: int) -> NDArray[np.uint8]:
    if sys.platform == "win32":  # no madvise there
        return _aligned(size)
    mapping = _left_over(size) or _fresh(size)
    whole = np.frombuffer(mapping, np.uint8)
    _keep_after(whole, mapping)  # the last array that uses it
    _let_go()
    start = -whole.ctypes.data % HUGE_PAGE
    return whole[start : start + size]


# Mappings of arrays that are gone. No lock: a finalizer may run between any two steps of any thread.
_left: deque[mmap.mmap] = deque()
_peak = 0  # bytes of mappings that were in use at once: with what is kept, there are never more


_spares: dict[int, int] = {}  # bytes of each `Spare`


class Spare:
    """While it lives, so many bytes more of outputs that nobody uses any more are kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        _spares[id(self)] = size + HUGE_PAGE

    def __del__(self, spares: Any = _spares, ending: Any = sys.is_finalizing) -> None:
        spares.pop(id(self), None)
        if not ending():
            _let_go()


def _keep(mapping: mmap.mmap) -> None:
    _left.append(mapping)
    _let_go()


def _let_go() -> None:
    """Frees what is kept, oldest first, where there is more memory than was in use at once."""
    global _peak
    with suppress(IndexError, RuntimeError):  # taken, or changed, by another finalizer meanwhile
        used = sum(bytes_ for _, bytes_ in tuple(_watched.values()))
        _peak = max(_peak, used)
        most = min(_peak - used, OUTPUTS_KEPT) + sum(tuple(_spares.values()))
        while sum(map(len, tuple(_left))) > most:
            _left.popleft()


# Arrays in use, with the bytes of their mappings. No weakref.finalize: at the end of the interpreter it walks over its
# table, which other threads may still change.
_watched: dict[object, tuple[weakref.ref[NDArray[np.uint8]], int]] = {}


def _keep_after(whole: NDArray[np.uint8], mapping: mmap.mmap) -> None:
    place = object()

    def gone(_: object, watched: Any = _watched, keep: Any = _keep, ending: Any = sys.is_finalizing) -> None:
        watched.pop(place, None)
        if not ending():
            keep(mapping)

    _watched[place] = weakref.ref(whole, gone), len(mapping)


def _fresh(size: int) -> mmap.mmap:
    check_size(size)
    # Private, since the default of `mmap` is memory shared with forked children, which gets no huge pages.
    mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _left_over(size: int) -> mmap.mmap | None:
    """A mapping with room for `size` bytes and not much more, of those the last one left: caches may still hold it."""
    for _ in range(len(_left)):
        try:
            mapping = _left.pop()
        except IndexError:  # another thread took it
            return None
        if 0 <= len(mapping) - HUGE_PAGE - size <= size // 4:
            return mapping
        _left.appendleft(mapping)
    return None


class _Block(NamedTuple):
    size: int
    address: int
    memory: NDArray[np.uint8]


class _Kept(threading.local):
    """Scratch blocks of one thread, least recently used first."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []


_kept = _Kept()


def _take(size: int) -> _Block:
    kept = _kept.blocks
    if len(kept) == 1 and kept[0].size >= size:  # what small calls find
        return kept.pop()
    fitting = [(block.size, index) for index, block in enumerate(kept) if block.size >= size]
    if fitting:
        return kept.pop(min(fitting)[1])
    if size >= SCRATCH_HUGE_FROM:  # a tile's channels lie on many small pages, but on one huge page
        size = max(-(-size // HUGE_PAGE) * HUGE_PAGE, HUGE_FROM)
    memory: NDArray[np.uint8] = empty(size, np.uint8)  # type: ignore[assignment]
    return _Block(size, memory.ctypes.data, memory)


def _give_back(block: _Block) -> None:
    if block.size > SCRATCH_KEPT:
        return
    kept = _kept.blocks
    kept.append(block)
    while len(kept) > 1 and sum(one.size for one in kept) > SCRATCH_KEPT:
        kept.pop(0)
