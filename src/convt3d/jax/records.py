"""Calls that native code can do again by itself: a record for each, which Python writes and only then makes known.

A record is there for as long as the process: native code may be reading it. Its contents are replaced, under its lock,
when a call on the same shapes comes twice with other operands.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..cpu.plan.cores import changes
from ..cpu.runtime.again import Again, Standing
from ..cpu.runtime.team import LISTEN_TURNS, SUPPORTED, team
from ..front.arrays import Storage
from .native import CALLBACK, CHANGES, MASK, RECORD, SLOTS, handler

_COUNT = 1024  # slots, of which half are used: so there is always an empty one
_MOST_BYTES = 256 << 20  # of copies, packed weights and scratch memory
RESULT = -1

Words = npt.NDArray[np.int64]
Key: TypeAlias = tuple[int, int]


class _Kept(NamedTuple):
    """What a record points to."""

    standing: Standing
    copies: Sequence[Storage]
    lists: Sequence[Words]
    nbytes: int


class Records:
    def __init__(self, callback: int) -> None:
        self.state = np.zeros(SLOTS + _COUNT, np.int64)
        self.state[CALLBACK], self.state[MASK] = callback, _COUNT - 1
        self.state[CHANGES] = ctypes.addressof(changes)
        self.code = handler(self.state.ctypes.data)
        pointer = ctypes.c_void_p
        self._claim: Any = ctypes.CFUNCTYPE(ctypes.c_int64, pointer)(self.code.addresses["claim"])
        self._release: Any = ctypes.CFUNCTYPE(None, pointer)(self.code.addresses["release"])
        self._lock = threading.Lock()
        self._records: dict[Key, Words] = {}
        self._kept: dict[Key, _Kept] = {}

    @property
    def nbytes(self) -> int:
        """Memory of all that is kept."""
        return sum(kept.nbytes for kept in self._kept.values())

    def keep(self, key: Key, again: Again, owned: int, copies: Mapping[int, Storage], changing: Sequence[int]) -> None:
        """From now on calls of `key` are done again natively while the arguments numbered in `copies` hold the same
        bits; `changing` are the numbers of the arrays whose addresses are filled in, in the order of `again`, which
        has `owned` bytes."""
        standing = again.standing()
        if standing.threads > 1 and not SUPPORTED:
            return
        nbytes = standing.nbytes + owned + sum(array.nbytes for array in copies.values())
        kept = np.array([[at, copy.ctypes.data, copy.nbytes] for at, copy in copies.items()], np.int64)
        places = np.array([[address, changing[number]] for address, number in standing.places], np.int64)
        with self._lock:
            before = self._kept[key].nbytes if key in self._kept else 0
            full = key not in self._records and len(self._records) >= _COUNT // 2
            if full or self.nbytes - before + nbytes > _MOST_BYTES:
                return
            words = self._records.get(key)
            known = words is not None
            if words is None:
                words = self._records[key] = np.zeros(len(RECORD), np.int64)
            elif not self._claim(words.ctypes.data):  # a call runs by it: another time
                return
            launch, boxes, workers = team(standing.threads)
            values = (
                *(*key, 1, changes.value, standing.function, launch, boxes, workers, standing.threads, LISTEN_TURNS),
                *(standing.table, standing.counter, kept.ctypes.data, len(kept), places.ctypes.data, len(places)),
                *standing.marks,
            )
            words[:] = values
            self._kept[key] = _Kept(standing, tuple(copies.values()), (kept, places), nbytes)
            self._release(words.ctypes.data)
            if not known:
                self._make_known(key, words)

    def _make_known(self, key: Key, words: Words) -> None:
        slot = key[1] & (_COUNT - 1)
        while self.state[SLOTS + slot]:
            slot = (slot + 1) & (_COUNT - 1)
        self.state[SLOTS + slot] = words.ctypes.data
