"""What code that checks its accesses tells: the first access outside of an array.

Only with `CONVT3D_CHECK_BOUNDS=1`; see cpu/ir/bounds.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ...errors import BoundsError, described

_WORDS, _ALIGNED = 40, 8  # as in cpu/ir/bounds.py; words of a cache line


@contextmanager
def faults(what: str) -> Iterator[int]:
    """Address of the memory that checked code notes an access outside in; raises BoundsError if it did."""
    room = np.zeros(_WORDS + _ALIGNED, np.int64)
    words = room[-(room.ctypes.data // 8) % _ALIGNED :][:_WORDS]
    yield int(words.ctypes.data)
    if words[0]:
        count, text, address, size, begin, end = map(int, words[:6])
        access = ctypes.string_at(text).decode()
        place = f"bytes {address - begin} to {address - begin + size} of a region of {end - begin}"
        raise BoundsError(
            what,
            access,
            described(f"{place}, {count} such accesses"),
            "must stay inside the array",
            "This is a defect of convt3d: report it",
        )
