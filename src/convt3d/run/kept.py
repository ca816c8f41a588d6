"""What was made from the caller's arrays, kept for the next call on the same numbers.

An entry holds copies of the arrays it was made from and is used only if all their bits are the same, so arrays changed
in place can never give an old answer.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .compare import LARGE, same_bits
from .memory import empty

Array = npt.NDArray[Any]
Value = TypeVar("Value")


class Made(np.ndarray[Any, np.dtype[Any]]):
    """An array that we made and nobody changes: the same object holds the same bits."""


class Entry(NamedTuple, Generic[Value]):
    sources: tuple[Array, ...]
    value: Value
    bytes: int


class Kept(Generic[Value]):
    """Values by key and source arrays, up to so many bytes; the oldest go first."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.entries: OrderedDict[Hashable, Entry[Value]] = OrderedDict()
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            # For a forked child: a thread that held the lock in the parent does not exist here to release it.
            os.register_at_fork(after_in_child=self._renew_lock)

    def get(
        self, key: Hashable, sources: Sequence[Array], make: Callable[[tuple[Array, ...]], tuple[Value, int]]
    ) -> Value:
        """The value, made by make(sources) -> (value, its bytes) where none is kept."""
        full_key = (key, *(_sample(source) for source in sources))
        entry = self.entries.get(full_key)
        if entry is not None and all(map(_same_bits, entry.sources, sources)):
            return entry.value
        # Copied first: another thread may write to the caller's array while the value is made.
        own = tuple(source if isinstance(source, Made) else _copy(source) for source in sources)
        value, size = make(own)
        with self._lock:
            self.entries[full_key] = Entry(own, value, size + sum(source.nbytes for source in own))
            self.entries.move_to_end(full_key)
            while len(self.entries) > 1 and sum(one.bytes for one in self.entries.values()) > self.most_bytes:
                self.entries.popitem(last=False)
        return value

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def _copy(array: Array) -> Array:
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _sample(array: Array) -> tuple[Any, ...]:
    """Layers of equal shape differ in some of these numbers, so each has an entry of its own."""
    step = max(1, array.size // 64)
    return array.shape, array.dtype.str, array.reshape(-1)[::step].tobytes()


def _same_bits(kept: Array, given: Array) -> bool:
    if kept is given and isinstance(given, Made):
        return True
    kept, given = np.ascontiguousarray(kept), np.ascontiguousarray(given)
    if given.nbytes >= LARGE:
        return same_bits(kept, given)
    word = f"u{kept.itemsize}"
    return bool((kept.view(word) == given.view(word)).all())
