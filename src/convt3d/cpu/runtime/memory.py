"""Memory for large outputs and scratch: aligned, on huge pages where the system has them, and used again.

Touching fresh 4 KB pages costs several times more than 2 MB pages, and decides the time of outputs of many megabytes;
pages that were touched before cost nothing.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .arena import HUGE_PAGE, Arena

ALIGNMENT = 64
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
    _arena.clear()


def _aligned(size: int) -> NDArray[np.uint8]:
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def _mapped(size: int) -> NDArray[np.uint8]:
    if sys.platform == "win32":  # no madvise there
        return _aligned(size)
    check_size(size)
    return _arena.take(size)


_peak = 0  # bytes of large arrays that were in use at once: with what is kept, there are never more
_spares: dict[int, int] = {}  # bytes of each `Spare`


def _most(used: int) -> int:
    global _peak
    _peak = max(_peak, used)
    return min(_peak - used, OUTPUTS_KEPT) + sum(tuple(_spares.values()))


_arena = Arena(_most)


class Spare:
    """While it lives, so many bytes more of outputs that nobody uses any more are kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        _spares[id(self)] = size + HUGE_PAGE

    def __del__(self, spares: Any = _spares, arena: Any = _arena, ending: Any = sys.is_finalizing) -> None:
        spares.pop(id(self), None)
        if not ending():
            arena.let_go()


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
