"""Memory of large arrays: ranges of a few large mappings, on huge pages, that are used again when their array is gone.

A network makes arrays of many sizes one after the other. Where each had a mapping of its own, those of other sizes
would be of no use to the next one, and fresh pages, which the system fills with zeros, cost a tenth of its time.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20  # ranges start and end at one
RESERVED = 256 << 20  # bytes of addresses of a mapping, unless an array needs more; what is not touched is no memory
_PATIENCE = 0.1  # seconds that a thread waits for others


class Range(NamedTuple):
    start: int
    end: int
    touched: bool  # it has pages

    @property
    def size(self) -> int:
        return self.end - self.start


class _Mapping:
    """`size` bytes from the first huge page on."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Private, since the default of `mmap` is memory shared with forked children, which gets no huge pages.
        self.memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel built without them
                self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.first = -np.frombuffer(self.memory, np.uint8).ctypes.data % HUGE_PAGE
        self.free: tuple[Range, ...] = (Range(0, size, touched=False),)  # in order; always whole

    @property
    def used(self) -> int:
        return self.size - sum(each.size for each in self.free)

    @property
    def kept(self) -> int:
        """Bytes of pages that nobody uses."""
        return sum(each.size for each in self.free if each.touched)

    def places(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Where a range of this size has room: how many of its pages are fresh, how large a hole it is put into, and
        its start."""
        for start, end, ranges in _runs(self.free):
            touched = [each for each in ranges if each.touched]
            starts = {start, *(each.start for each in touched), *(each.end - size for each in touched)}
            for at in starts:
                if start <= at and at + size <= end:
                    met = [each for each in touched if each.start < at + size and at < each.end]
                    old = sum(min(each.end, at + size) - max(each.start, at) for each in met)
                    yield size - old, sum(each.size for each in met), at

    def take(self, start: int, size: int) -> None:
        end, left = start + size, []
        for each in self.free:
            parts = Range(each.start, min(each.end, start), each.touched), Range(max(each.start, end), *each[1:])
            left += [part for part in parts if part.size > 0] if each.start < end and start < each.end else [each]
        self.free = tuple(left)

    def give_back(self, start: int, size: int) -> None:
        free = sorted((*self.free, Range(start, start + size, touched=True)))
        self.free = tuple(_joined(free))

    def let_go(self, most: int) -> int:
        """Gives pages back to the system until no more than so many bytes are kept; how many are kept."""
        kept = self.kept
        for each in reversed([each for each in self.free if each.touched]):
            if kept <= most:
                break
            start = max(each.start, each.end - -(-(kept - most) // HUGE_PAGE) * HUGE_PAGE)
            self._release(start, each.end)
            rest = [Range(each.start, start, touched=True)] if start > each.start else []
            others = [other for other in self.free if other is not each]
            self.free = tuple(_joined(sorted([*others, *rest, Range(start, each.end, touched=False)])))
            kept -= each.end - start
        return kept

    def _release(self, start: int, end: int) -> None:
        advice = getattr(mmap, "MADV_DONTNEED" if sys.platform.startswith("linux") else "MADV_FREE", None)
        if advice is not None:
            with suppress(OSError):  # locked pages, say
                self.memory.madvise(advice, self.first + start, end - start)


def _runs(free: tuple[Range, ...]) -> Iterator[tuple[int, int, list[Range]]]:
    """Ranges that meet, together."""
    before = 0
    ends = [0, *(each.end for each in free)]
    numbers = []
    for each, end in zip(free, ends, strict=False):
        before += each.start != end
        numbers.append(before)
    for _, group in groupby(zip(numbers, free, strict=True), key=lambda pair: pair[0]):
        ranges = [each for _, each in group]
        yield ranges[0].start, ranges[-1].end, ranges


def _joined(ranges: list[Range]) -> list[Range]:
    """Neighbours of one kind as one."""
    joined: list[Range] = []
    for each in ranges:
        if joined and joined[-1].end == each.start and joined[-1].touched == each.touched:
            joined[-1] = Range(joined[-1].start, each.end, each.touched)
        else:
            joined.append(each)
    return joined


class Arena:
    """Threads take ranges by turns. A finalizer may run between any two steps of any thread, and only notes what is
    free. An exception of another's, such as Ctrl-C, may lose a range, but never gives it to two."""

    def __init__(self, most: Callable[[int], int]) -> None:
        """`most(used)`: how many bytes are kept that nobody uses."""
        self._most = most
        self._mappings: tuple[_Mapping, ...] = ()
        self._lock = threading.Lock()
        self._returned: deque[tuple[_Mapping, int, int]] = deque()
        self._watched: dict[object, weakref.ref[NDArray[np.uint8]]] = {}  # arrays in use
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it

    @property
    def used(self) -> int:
        return sum(each.used for each in self._mappings)

    @property
    def kept(self) -> int:
        return sum(each.kept for each in self._mappings)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Bytes from a huge page on, which are free when the last array goes that uses them."""
        length = max(1, -(-size // HUGE_PAGE)) * HUGE_PAGE
        if not self._lock.acquire(timeout=_PATIENCE):  # a handler of signals has interrupted this very function, say
            alone = _Mapping(length)
            return np.frombuffer(alone.memory, np.uint8, size, alone.first)
        try:
            self._collect()
            mapping, start = self._place(length)
            mapping.take(start, length)
            self._let_go()
        finally:
            self._lock.release()
        whole = np.frombuffer(mapping.memory, np.uint8, size, mapping.first + start)
        self._watch(whole, (mapping, start, length))
        return whole

    def let_go(self) -> None:
        """Gives back to the system what is more than may be kept, unless another thread is about to."""
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
                self._let_go()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Gives back to the system all that nobody uses."""
        if self._lock.acquire(timeout=_PATIENCE):
            try:
                self._collect()
                for each in self._mappings:
                    each.let_go(0)
                self._mappings = tuple(each for each in self._mappings if each.used)
            finally:
                self._lock.release()

    def _place(self, length: int) -> tuple[_Mapping, int]:
        """With the fewest fresh pages, in the smallest hole."""
        found = [(*place[:2], at, place[2]) for at, each in enumerate(self._mappings) for place in each.places(length)]
        if found:
            *_, at, start = min(found)
            return self._mappings[at], start
        try:
            made = _Mapping(max(length, RESERVED))
        except OSError:  # addresses are scarce
            made = _Mapping(length)
        self._mappings += (made,)
        return made, 0

    def _collect(self) -> None:
        while self._returned:
            with suppress(IndexError):
                mapping, start, length = self._returned.popleft()
                mapping.give_back(start, length)

    def _let_go(self) -> None:
        most = self._most(self.used)
        if self.kept <= most:
            return
        over = self.kept - most
        for each in reversed(self._mappings):
            before = each.kept
            over -= before - each.let_go(max(0, before - over))
            if over <= 0:
                break
        self._mappings = tuple(each for each in self._mappings if each.used or each.kept)

    def _watch(self, whole: NDArray[np.uint8], place: tuple[_Mapping, int, int]) -> None:
        """No weakref.finalize: at the end of the interpreter it walks over its table, which other threads may still
        change."""
        key = object()

        def gone(_: object, arena: Any = self, ending: Any = sys.is_finalizing) -> None:
            arena._watched.pop(key, None)
            if not ending():
                arena._returned.append(place)
                arena.let_go()

        self._watched[key] = weakref.ref(whole, gone)
