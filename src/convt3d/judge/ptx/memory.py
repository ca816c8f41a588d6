"""Memory of the machine: global memory is the caller's arrays, shared memory one of each block; who touched what when.

A fault is an access outside of all arrays, one that is not aligned, two warps of a block that touch the same place with
no barrier between, one of which writes, two blocks that do so in one launch, or an access to shared memory that an
asynchronous copy is still filling.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .numbers import WIDTHS, Array

NOBODY, MANY = -1, -2
CELL = 2  # bytes: no type of an access is smaller, but single bytes, which are not watched
_WARPS = 128  # in a token: epoch * _WARPS + warp, the last one for several


class Fault(Exception):
    """What a kernel did wrong: a word of the judge's, and where."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(f"{word}: {detail}")
        self.word, self.detail = word, detail


@dataclass
class Region:
    """Memory from `begin` to `end` that a launch may touch; who wrote and read each cell of it in this launch."""

    begin: int
    end: int
    name: str
    writer: Array = field(init=False)
    reader: Array = field(init=False)

    def __post_init__(self) -> None:
        self.base = self.begin & ~15  # never touched before `begin`; makes wide words possible
        kind = ctypes.c_uint8 * (-(-(self.end - self.base) // 16) * 16)
        self.bytes = np.ctypeslib.as_array(kind.from_address(self.base))
        cells = (self.end - self.base) // CELL + 1
        self.writer = np.full(cells, NOBODY, np.int32)
        self.reader = np.full(cells, NOBODY, np.int32)

    def words(self, width: int) -> Array:
        return self.bytes.view(WIDTHS[width])


def _cells(places: Array, width: int) -> Array:
    """Cells of accesses of `width` bits at these offsets: none of single bytes."""
    first = places // CELL
    return (first[..., None] + np.arange(width // (8 * CELL))).reshape(*first.shape[:-1], -1)


class GlobalMemory:
    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = sorted(regions, key=lambda region: region.begin)
        self.begins = np.array([region.begin for region in self.regions], np.uint64)
        self.ends = np.array([region.end for region in self.regions], np.uint64)

    def places(self, address: Array, width: int, count: int) -> tuple[list[tuple[Region, Array, Array]], Array | None]:
        """For the regions that the addresses lie in: which of the addresses do, and offsets (addresses, count) from its
        base; and which addresses lie in none, or None."""
        at = np.searchsorted(self.begins, address, "right").astype(np.int64) - 1
        size = np.uint64(count * width // 8)
        wrong = at < 0
        if len(self.ends):
            wrong = wrong | (address + size > self.ends[np.maximum(at, 0)])
        if wrong.any():
            return [], wrong
        found = []
        for number in np.unique(at):
            region = self.regions[number]
            chosen = np.flatnonzero(at == number)
            first = (address[chosen] - np.uint64(region.base)).astype(np.int64)
            found.append((region, chosen, first[:, None] + np.arange(count) * (width // 8)))
        return found, None

    def describe(self, address: int) -> str:
        """Where an address is that no array has."""
        if not self.regions:
            return "there are no arrays"
        near = min(self.regions, key=lambda one: min(abs(address - one.begin), abs(address - one.end)))
        if address < near.begin:
            return f"{near.begin - address} bytes before {near.name}"
        return f"{address - near.end} bytes after the end of {near.name}"

    def load(self, address: Array, blocks: Array, width: int, count: int) -> Array:
        """(addresses, count) words of `width` bits."""
        result = np.empty((len(address), count), WIDTHS[width])
        found, wrong = self.places(address, width, count)
        if wrong is not None:
            raise self._outside("load", address, wrong, width * count)
        for region, chosen, places in found:
            result[chosen] = region.words(width)[places * 8 // width]
            cells, own = _cells(places, width), blocks[chosen][:, None]
            writer = region.writer[cells]
            if ((writer != NOBODY) & (writer != own)).any():
                raise Fault("race", f"a block reads what another has written in the same launch, in {region.name}")
            seen = region.reader[cells]
            region.reader[cells] = np.where((seen == NOBODY) | (seen == own), own, MANY)
            region.reader[cells[region.reader[cells] != own]] = MANY  # several of these accesses
        return result

    def store(self, address: Array, blocks: Array, words: Array, width: int) -> None:
        found, wrong = self.places(address, width, words.shape[1])
        if wrong is not None:
            raise self._outside("store", address, wrong, width * words.shape[1])
        for region, chosen, places in found:
            memory, at, new = region.words(width), places * 8 // width, words[chosen]
            cells, own = _cells(places, width), blocks[chosen][:, None]
            old = np.repeat(memory[at] == new, width // (8 * CELL), 1)  # same numbers hurt nobody
            writer, reader = region.writer[cells], region.reader[cells]
            if ((writer != NOBODY) & (writer != own) & ~old).any():
                raise Fault("race", f"two blocks write different numbers to one place of {region.name}")
            if ((reader != NOBODY) & (reader != own) & ~old).any():
                raise Fault("race", f"a block writes what another has read in the same launch, in {region.name}")
            memory[at] = new
            if (memory[at] != new).any():
                raise Fault("race", f"two threads write different numbers to one place of {region.name} at once")
            region.writer[cells] = own

    def _outside(self, what: str, address: Array, wrong: Array, bits: int) -> Fault:
        first = int(address[np.flatnonzero(wrong)[0]])
        return Fault("out of bounds", f"a {what} of {bits // 8} bytes {self.describe(first)}")


class SharedMemory:
    """Of all blocks that run together, one behind the other; full of NaN at first."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size = max(16, -(-size // 16) * 16)
        self.bytes = np.full(blocks * self.size, 0xFF, np.uint8)
        cells = len(self.bytes) // CELL
        self.writer = np.full(cells, NOBODY, np.int64)
        self.reader = np.full(cells, NOBODY, np.int64)
        self.flight = np.zeros(cells, np.uint8)  # an asynchronous copy is on its way here
        self.epochs = np.zeros(blocks, np.int64)  # barriers so far

    def places(self, address: Array, blocks: Array, width: int, count: int) -> Array:
        """Offsets (addresses, count) of words."""
        last = address.astype(np.int64) + count * width // 8
        if (last > self.size).any():
            raise Fault("out of bounds", f"shared memory has {self.size} bytes, and byte {int(last.max()) - 1} is used")
        first = blocks.astype(np.int64) * self.size + address.astype(np.int64)
        return first[:, None] + np.arange(count) * (width // 8)

    def load(self, address: Array, blocks: Array, warps: Array, width: int, count: int) -> Array:
        places = self.places(address, blocks, width, count)
        self.touch(places, blocks, warps, width)
        return self.bytes.view(WIDTHS[width])[places * 8 // width]

    def touch(self, places: Array, blocks: Array, warps: Array, width: int) -> None:
        """A read, of cells that nobody else may write before the next barrier."""
        cells, epoch = _cells(places, width), self.epochs[blocks][:, None]
        own = epoch * _WARPS + warps[:, None]
        writer = self.writer[cells]
        if ((writer // _WARPS == epoch) & (writer != own)).any():
            raise Fault("race", "a warp reads shared memory that another has written, with no barrier between")
        self._flying(cells)
        seen = self.reader[cells]
        many = epoch * _WARPS + _WARPS - 1
        self.reader[cells] = np.where((seen // _WARPS == epoch) & (seen != own), many, own)
        several = self.reader[cells] != own
        self.reader[cells[several]] = np.broadcast_to(many, cells.shape)[several]

    def store(self, address: Array, blocks: Array, warps: Array, words: Array, width: int) -> None:
        places = self.places(address, blocks, width, words.shape[1])
        memory, at = self.bytes.view(WIDTHS[width]), places * 8 // width
        same = np.repeat(memory[at] == words, width // (8 * CELL), 1)
        cells = self._claimed(places, blocks, warps, width, same)
        self._flying(cells)
        memory[at] = words
        if (memory[at] != words).any() and not _copies_of_a_sum(memory[at], words):
            raise Fault("race", "two threads write different numbers to one place of shared memory at once")

    def begin_copy(self, address: Array, blocks: Array, warps: Array, width: int, count: int) -> Array:
        """Offsets of words that a copy will fill by and by."""
        places = self.places(address, blocks, width, count)
        cells = self._claimed(places, blocks, warps, width, np.False_)
        self._flying(cells)
        self.flight[cells] = 1
        return places

    def end_copy(self, places: Array, blocks: Array, warps: Array, words: Array, width: int) -> None:
        self.flight[_cells(places, width)] = 0
        self._claimed(places, blocks, warps, width, np.False_)
        self.bytes.view(WIDTHS[width])[places * 8 // width] = words

    def _claimed(self, places: Array, blocks: Array, warps: Array, width: int, same: Array) -> Array:
        """Cells of a write, after a look at who else was there since the last barrier."""
        cells, epoch = _cells(places, width), self.epochs[blocks][:, None]
        own = epoch * _WARPS + warps[:, None]
        for before, word in ((self.writer[cells], "written"), (self.reader[cells], "read")):
            if ((before // _WARPS == epoch) & (before != own) & ~same).any():
                raise Fault("race", f"a warp writes shared memory that another has {word}, with no barrier between")
        self.writer[cells] = own
        return cells

    def _flying(self, cells: Array) -> None:
        if self.flight[cells].any():
            raise Fault("race", "shared memory is used while an asynchronous copy fills it: a wait is missing")


def _copies_of_a_sum(a: Array, b: Array) -> bool:
    """Whether numbers differ by rounding only: Triton lets several warps compute one sum, not all in the same order,
    and each store its own."""
    kinds: dict[int, Any] = {2: np.float16, 4: np.float32, 8: np.float64}
    kind = kinds.get(a.itemsize)
    if kind is None:
        return False
    x, y, close = a.view(kind), b.view(kind), 8 * np.finfo(kind).eps
    return bool(((a == b) | (np.abs(x - y) <= close * np.maximum(np.abs(x), np.abs(y)))).all())


def aligned(address: Array, size: int) -> Array:
    if (address % np.uint64(size)).any():
        raise Fault("crash", f"an access of {size} bytes at an address that is no multiple of it")
    return address
