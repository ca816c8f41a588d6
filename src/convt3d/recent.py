"""Values by key up to a total size; the least recently used go first.

One class for every cache whose values must not be made twice or dropped at the wrong moment. Threads, forks and Ctrl-C
may come between any two steps: each step leaves the dict as good as before, and a total that an interrupted step may
have left wrong is counted anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    def __init__(self, most: int) -> None:
        self.most = most  # sizes of all values together; one value may be larger, and then is alone
        self._entries: dict[Hashable, tuple[Value, int]] = {}  # least recently used first
        self._total = 0
        self.renew_locks()
        _all.add(self)

    def renew_locks(self) -> None:
        """For a forked child: a thread that held a lock in the parent does not exist here to release it."""
        # Reentrant: a signal handler or a finalizer on this thread may ask while this thread is inside.
        self._lock = threading.RLock()
        self._being_made: dict[Hashable, threading.RLock] = {}
        self._counted = False  # whether the total is right

    @property
    def total(self) -> int:
        """Sizes of all values together."""
        with self._lock:
            self._count()
            return self._total

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            counted, self._counted = self._counted, False
            self._entries.pop(key, None)
            self._entries[key] = entry
            self._counted = counted
        return entry[0]

    def put(self, key: Hashable, value: Value, size: int = 1) -> None:
        gone = []  # kept until the lock is free: what goes with them is none of our business
        with self._lock:
            self._count()
            self._counted = False
            gone.append(self._entries.pop(key, (None, 0)))
            self._entries[key] = (value, size)
            total = self._total + size - gone[0][1]
            if total > self.most:
                # A good part at once: finding the oldest key of a dict passes over all that were removed before it.
                going: list[Hashable] = []
                for old, (_, old_size) in list(self._entries.items())[:-1]:
                    if total <= self.most - self.most // 8:
                        break
                    going.append(old)
                    total -= old_size
                gone += [self._entries.pop(old, (None, 0)) for old in going]
            self._total = total
            self._counted = True

    def once(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """The value of `key`, else of make() -> (value, its size). Threads that ask meanwhile wait for that one."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            making = self._being_made.setdefault(key, threading.RLock())
        try:
            with making:
                found = self.get(key)
                if found is None:
                    found, size = make()
                    self.put(key, found, size)
                return found
        finally:
            with self._lock:
                self._being_made.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._counted = False
            gone, self._entries = self._entries, {}
        del gone

    def _count(self) -> None:
        if not self._counted:
            self._total = sum(size for _, size in self._entries.values())
            self._counted = True


_all: weakref.WeakSet[Recent[Any]] = weakref.WeakSet()


def _renew_all_locks() -> None:
    for one in list(_all):
        one.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all_locks)
