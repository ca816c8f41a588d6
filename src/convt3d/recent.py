"""Values by key up to a total size; the least recently used go first.

One class for every cache whose values must not be made twice or dropped at the wrong moment. Threads, forks, Ctrl-C and
signal handlers that use the same cache may come between any two steps: each step leaves the dict as good as before, and
a total that an interrupted step may have left wrong is counted anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


# Held while something is made: by one thread at a time, as LLVM and the import system want it. A fork waits for it: a
# child that begins in the middle of another thread's import or build could never end it.
undisturbed = threading.RLock()


@dataclass(eq=False, slots=True)
class _Entry(Generic[Value]):
    value: Value
    size: int
    used: int  # when, by the clock below


_clock = count()


class Recent(Generic[Value]):
    def __init__(self, most: int) -> None:
        self.most = most  # sizes of all values together; one value may be larger, and then is alone
        self._entries: dict[Hashable, _Entry[Value]] = {}
        self._total = 0
        self.renew_locks()
        _all.add(self)

    def renew_locks(self) -> None:
        """For a forked child: a thread that held a lock in the parent does not exist here to release it."""
        # Reentrant: a signal handler or a finalizer on this thread may ask while this thread is inside.
        self._lock = threading.RLock()
        self._counted = False  # whether the total is right
        self._turn = object()  # of whoever came last

    @property
    def total(self) -> int:
        """Sizes of all values together."""
        with self._lock:
            self._turn = object()
            self._count()
            return self._total

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        entry = self._entries.get(key)  # one step of the dict: no lock
        if entry is None:
            return None
        entry.used = next(_clock)
        return entry.value

    def put(self, key: Hashable, value: Value, size: int = 1) -> None:
        entry = _Entry(value, size, next(_clock))
        gone = []  # kept until the lock is free: what goes with them is none of our business
        with self._lock:
            turn = self._turn = object()
            self._count()
            total, self._counted = self._total + size, False
            before = self._entries.get(key)
            self._entries[key] = entry
            if before is not None:
                gone.append(before)
                total -= before.size
            if total > self.most:
                # A good part at once: finding the oldest ones looks at all.
                going: list[Hashable] = []
                for old, each in sorted(self._entries.items(), key=lambda item: item[1].used):
                    if total <= self.most - self.most // 8:
                        break
                    if each is not entry:
                        going.append(old)
                        total -= each.size
                gone += [self._entries.pop(old, entry) for old in going]
            self._total = total
            self._counted = self._turn is turn  # else a signal handler on this thread was here meanwhile

    def once(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """The value of `key`, else of make() -> (value, its size), which no two threads do at a time."""
        found = self.get(key)
        if found is None:
            with undisturbed:
                found = self.get(key)
                if found is None:
                    found, size = make()
                    self.put(key, found, size)
        return found

    def clear(self) -> None:
        with self._lock:
            self._turn, self._counted = object(), False
            gone, self._entries = self._entries, {}
            self._counted = False
        del gone

    def _count(self) -> None:
        if not self._counted:
            self._total = sum(entry.size for entry in self._entries.values())
            self._counted = True


_all: weakref.WeakSet[Recent[Any]] = weakref.WeakSet()


def _renew_all_locks() -> None:
    for one in list(_all):
        one.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all_locks)
    os.register_at_fork(
        before=undisturbed.acquire, after_in_parent=undisturbed.release, after_in_child=undisturbed.release
    )
