"""Arrays between unreadable pages: touching one byte before or behind them ends the process.

As a program it runs drawn pipelines whose arrays, intermediate values and scratch all lie so; each case is printed
before it runs, so that the last line names the one that died. Arguments: first seed, number of draws.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
NO_ACCESS, READ_WRITE = 0, 3
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
SENTINEL = 0xFF  # NaN in every type

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Fence:
    """`size` bytes that end (or begin) where an unreadable page begins (or ends)."""

    def __init__(self, size: int, at_end: bool) -> None:
        pages = max(1, -(-size // PAGE)) * PAGE
        self.length = pages + 2 * PAGE
        self.base = _libc.mmap(None, self.length, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
        assert self.base not in (None, ctypes.c_void_p(-1).value)
        assert _libc.mprotect(self.base, PAGE, NO_ACCESS) == 0
        assert _libc.mprotect(self.base + PAGE + pages, PAGE, NO_ACCESS) == 0
        start = self.base + PAGE + (pages - size if at_end else 0)
        self.bytes: Any = np.frombuffer((ctypes.c_ubyte * size).from_address(start), np.uint8)
        self.bytes[...] = SENTINEL

    def free(self) -> None:
        _libc.munmap(self.base, self.length)


def fenced_like(array: Any, at_end: bool, fences: list[Fence]) -> Any:
    """A copy with the same strides whose outermost elements touch the fence."""
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + array.itemsize
    fence = Fence(high - low, at_end)
    fences.append(fence)
    copy = np.ndarray(array.shape, array.dtype, fence.bytes, -low, array.strides)
    copy[...] = array
    return copy


def untouched_gaps(array: Any, fence: Fence) -> bool:
    """Whether the bytes between the elements of a strided array still hold what was there before."""
    own = np.zeros(fence.bytes.size, bool)
    start = array.ctypes.data - fence.bytes.ctypes.data
    marks = np.ndarray(array.shape, f"V{array.itemsize}", own, start, array.strides)
    marks[...] = np.frombuffer(b"\1" * array.itemsize, f"V{array.itemsize}")[0]
    return bool((fence.bytes[~own] == SENTINEL).all())


@contextmanager
def fenced_scratch(at_end: bool, fences: list[Fence]) -> Iterator[None]:
    """Scratch, intermediate values and results of the engine come from fenced memory too; none of it is kept."""
    from convt3d.cpu.runtime import folded, memory, weights

    def fenced(size: int) -> Any:
        fences.append(Fence(size, at_end))
        return fences[-1].bytes

    usual = memory._aligned, memory._mapped
    memory.free_scratch()
    memory._aligned = memory._mapped = fenced
    try:
        yield
    finally:
        memory._aligned, memory._mapped = usual
        memory.free_scratch()
        for kept in (weights._kept, folded._kept):
            kept.entries.clear()


def main(first: int, count: int) -> None:
    from helpers.draws import Case, drawn, relaid
    from helpers.tilings import drawn_tiles, streamed

    types = ("float32", "float64", "float16", "bfloat16")
    for seed in range(first, first + count):
        rng, fences = np.random.default_rng(seed), []
        case = drawn(rng, types[seed % 4])
        at_end = bool(rng.integers(3))  # reading too far is the likelier mistake
        print(f"seed {seed}, {'end' if at_end else 'begin'}: {case!r}", flush=True)
        with fenced_scratch(at_end, fences):
            x = fenced_like(case.x, at_end, fences)
            operands = tuple(fenced_like(operand, at_end, fences) for operand in case.operands)
            out = fenced_like(relaid(rng, np.empty(case.output, case.dtype.storage)), at_end, fences)
            out_fence = fences[-1]
            with drawn_tiles(seed) if seed % 2 else nullcontext(), streamed(seed % 3 > 0):
                Case(case.pipeline, case.dtype, x, operands).check(out, f"seed {seed}: ")
            assert untouched_gaps(out, out_fence), "bytes between the elements of out were written"
        for fence in fences:
            fence.free()
    print("all inside", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
