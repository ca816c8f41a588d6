"""What code that checks its accesses is told, and what it tells: regions of arrays, and the first access outside.

Only with `CONVT3D_CHECK_BOUNDS=1`; see cpu/ir/bounds.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import BoundsError, described

_WORDS, _ALIGNED = 40, 8  # as in cpu/ir/bounds.py; words of a cache line


def region(name: str, array: npt.NDArray[Any]) -> dict[str, int]:
    """The parameters that say where an array begins and ends, whatever its strides."""
    begin = array.ctypes.data
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    low, high = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    end = begin + high + array.itemsize if array.size else begin
    return {f"begin {name}": begin + low if array.size else begin, f"end {name}": end}


def regions_of(words: dict[str, int], arrays: Sequence[npt.NDArray[Any]]) -> dict[str, int]:
    """The same for all words that are addresses of contiguous arrays."""
    by_address = {int(array.ctypes.data): array for array in arrays}
    found: dict[str, int] = {}
    for name, address in words.items():
        if address in by_address:
            found |= region(name, by_address[address])
    return found


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
