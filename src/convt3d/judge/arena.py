"""The memory a kernel works on: arrays between guard zones and pages without access, in files only two processes see.

    begin:   | no access | array | zone ........ | no access |
    end:     | no access | zone ........ | array | no access |

The kernel's process maps the same files, each array into a wide slot of addresses without access; what it finds there
are the inputs of one call and an output full of NaN. A step over the fence ends its process, and the address says how
far it went; a write into a zone is seen here afterwards. Inputs lie in a file of their own, which can be sealed, so
that not even the owner of the other process could map it for writing.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..front.verify import Storage
from ..spec.dtypes import DType

PAGE = mmap.PAGESIZE
ZONE = 4 * PAGE
ZONE_BYTE = 0xFF  # read as a number of any of the four types it is NaN
F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 1033, 0x1, 0x2, 0x4, 0x10

# NaN with a payload of its own: a voxel that still holds these bits was never written.
UNWRITTEN = {"float32": 0x7FD5A5A5, "float64": 0x7FFD5A5A5A5A5A5A, "float16": 0x7F5A, "bfloat16": 0x7FDA}
SIDES = ("end", "begin")


def unwritten(dtype: DType) -> Any:
    """The bits of one voxel, as an unsigned integer of its size."""
    return np.dtype(f"u{dtype.itemsize}").type(UNWRITTEN[dtype.name])


@dataclass(frozen=True)
class Place:
    """Where an array lies: its file (0 inputs, 1 output), the region with its fences, the array itself; in bytes."""

    file: int
    region: tuple[int, int]
    array: tuple[int, int]


@dataclass(frozen=True)
class Spot:
    """An address near an array: the array, how many elements it lies before or behind it, or inside which index."""

    name: str
    before: int = 0
    behind: int = 0
    inside: int | None = None

    def words(self) -> str:
        count, side = (self.before, "before") if self.before else (self.behind, "behind")
        return f"{count} element{'s' * (count > 1)} {side} `{self.name}`"


class Arena:
    """Two memory files; `lay` gives every tensor of a case its place in them."""

    def __init__(self, input_bytes: int, output_bytes: int, sealed: bool = False) -> None:
        self.sealed = sealed
        self.sizes = (input_bytes, output_bytes)
        self.fds = [_memory_file(size) for size in self.sizes]
        self.maps = [mmap.mmap(fd, size) for fd, size in zip(self.fds, self.sizes, strict=True)]
        self.bytes = [np.frombuffer(view, np.uint8) for view in self.maps]
        self.places: dict[str, Place] = {}
        for index, fd in enumerate(self.fds):
            _seal(fd, writable=bool(index) or not sealed)

    def close(self) -> None:
        self.bytes.clear()
        for view in self.maps:
            view.close()
        for fd in self.fds:
            os.close(fd)

    def lay(self, sizes: Mapping[str, int], side: str, alignment: int = 1) -> None:
        """Places for tensors of these bytes; zones and fences are filled, arrays are not. With an alignment, some bytes
        of zone may lie between an array and the fence at its end."""
        self.places.clear()
        at = [0, 0]
        for name, size in sizes.items():
            file = int(name == "output")
            room = region_bytes(size)
            low, high = at[file] + PAGE, at[file] + room - PAGE
            start = (high - size) // alignment * alignment if side == "end" else low
            self.places[name] = Place(file, (at[file], at[file] + room), (start, start + size))
            at[file] += room
        for name, place in self.places.items():
            self.bytes[place.file][slice(*place.region)] = ZONE_BYTE
            self.view(name)[...] = 0

    def view(self, name: str) -> Any:
        place = self.places[name]
        return self.bytes[place.file][slice(*place.array)]

    def write(self, name: str, array: Storage) -> None:
        self.view(name)[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def clear_output(self, dtype: DType) -> None:
        target = self.view("output")
        target[...] = np.full(target.size // dtype.itemsize, unwritten(dtype)).view(np.uint8)

    def read_output(self, dtype: DType, shape: tuple[int, ...]) -> Storage:
        """A copy."""
        copy: Storage = self.view("output").copy()
        return copy.view(dtype.storage).reshape(shape)

    def holds(self, name: str, array: Storage) -> bool:
        """Whether the tensor still has the bits that were written."""
        return bool(np.array_equal(self.view(name), np.ascontiguousarray(array).reshape(-1).view(np.uint8)))

    def damage(self, itemsize: int) -> str | None:
        """Which zone was written to, in words."""
        for name, place in self.places.items():
            around = self.bytes[place.file][slice(*place.region)]
            start, stop = (edge - place.region[0] for edge in place.array)
            for part, first, where in ((around[:start], start, "before"), (around[stop:], 0, "behind")):
                hit = np.flatnonzero(part != ZONE_BYTE)
                if hit.size:
                    distance = (first - int(hit[-1])) if where == "before" else int(hit[0]) + 1
                    elements = -(-distance // itemsize)
                    return f"{hit.size} bytes {where} `{name}` were written, the nearest {elements} elements away"
        return None

    def regions(self) -> list[dict[str, Any]]:
        """What the kernel's process needs to map it all: of each array its file, the region, its place in that."""
        return [
            {
                "name": name,
                "fd": self.fds[place.file],
                "offset": place.region[0],
                "size": place.region[1] - place.region[0],
                "array": place.array[0] - place.region[0],
                "writable": bool(place.file) or not self.sealed,
            }
            for name, place in self.places.items()
        ]

    def spot(self, address: int, base: int, slot: int, itemsize: int) -> Spot | None:
        """Which array an address of the kernel's process is near, given its first slot and how wide they are."""
        number, within = divmod(address - base, slot)
        if not 0 <= number < len(self.places):
            return None
        name = list(self.places)[number]
        place = self.places[name]
        at = within - slot // 2 - (place.array[0] - place.region[0])
        size = place.array[1] - place.array[0]
        if at < 0:
            return Spot(name, before=-(at // itemsize))
        return Spot(name, behind=(at - size) // itemsize + 1) if at >= size else Spot(name, inside=at // itemsize)


def region_bytes(size: int) -> int:
    """Of an array with its zone and two fences."""
    return -(-size // PAGE) * PAGE + ZONE + 2 * PAGE


def tensor_bytes(shapes: Mapping[str, tuple[int, ...]], dtype: DType) -> dict[str, int]:
    return {name: prod(shape) * dtype.itemsize for name, shape in shapes.items()}


def _memory_file(size: int) -> int:
    """A file without a name: gone with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("convt3d-judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _seal(fd: int, writable: bool) -> None:
    """The size stays (a page cut off would kill whoever reads it), and unless `writable` there is no new writable
    mapping; those that are there go on. A system that cannot leaves the mapping read-only."""
    import fcntl
    from contextlib import suppress

    for seals in (0 if writable else F_SEAL_FUTURE_WRITE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL):
        with suppress(OSError):
            fcntl.fcntl(fd, F_ADD_SEALS, seals)
