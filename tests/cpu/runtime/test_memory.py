"""Aligned arrays, huge mappings that live as long as their arrays, and scratch that is reused but never shared."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest

from convt3d.cpu.runtime import memory
from convt3d.cpu.runtime.arena import Arena
from convt3d.cpu.runtime.memory import (
    HUGE_FROM,
    HUGE_PAGE,
    OUTPUTS_KEPT,
    SCRATCH_KEPT,
    empty,
    free_scratch,
    shared_scratch,
)


@pytest.fixture(autouse=True)
def nothing_kept():
    free_scratch()
    yield
    free_scratch()


@pytest.mark.parametrize("shape", [(), 0, 5, (3, 0, 2), (2, 3, 5), (7, 11, 13)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.float16])
def test_small_arrays(shape, dtype):
    array = empty(shape, dtype)
    assert array.shape == np.empty(shape).shape
    assert array.dtype == dtype
    assert array.size == 0 or array.ctypes.data % 64 == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 1


def test_large_arrays_start_on_a_huge_page_and_hold_their_memory():
    whole = empty((3, HUGE_FROM // 4), np.float32)
    if sys.platform.startswith("linux"):
        assert whole.ctypes.data % HUGE_PAGE == 0
    part = whole[1, 5:10]
    whole[...] = 2.5
    del whole
    gc.collect()
    assert (part == 2.5).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_pages_are_returned_when_the_last_array_goes():
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    array = empty(OUTPUTS_KEPT + (128 << 20), np.uint8)
    array[::4096] = 1
    assert resident() - before >= OUTPUTS_KEPT + (127 << 20)
    del array
    assert resident() - before <= OUTPUTS_KEPT + HUGE_PAGE
    free_scratch()
    assert resident() - before < 32 << 20


needs_mappings = pytest.mark.skipif(sys.platform == "win32", reason="no mappings of our own there")


@needs_mappings
def test_memory_of_an_array_that_is_gone_is_used_again():
    array = empty((3, HUGE_FROM // 4), np.float32)
    address = array.ctypes.data
    view = array[1:].transpose()
    del array
    other = empty((3, HUGE_FROM // 4), np.float32)
    assert other.ctypes.data != address, "a view still uses it"
    del view
    again = empty((3, HUGE_FROM // 4), np.float32)
    assert again.ctypes.data == address
    assert empty((3, HUGE_FROM // 4), np.float32).ctypes.data not in (address, other.ctypes.data)


@needs_mappings
def test_memory_of_a_large_array_serves_smaller_ones_and_the_other_way_round():
    large = empty(8 * HUGE_FROM, np.uint8)
    address = large.ctypes.data
    del large
    parts = [empty(HUGE_FROM, np.uint8) for _ in range(8)]
    assert {part.ctypes.data for part in parts} == {address + at * HUGE_FROM for at in range(8)}
    assert memory._arena.kept == 0
    del parts
    assert empty(8 * HUGE_FROM - 1000, np.uint8).ctypes.data == address


@needs_mappings
def test_memory_left_over_is_bounded():
    arrays = [empty(5 << 20, np.uint8) for _ in range(40)]
    arrays.append(empty(2 * OUTPUTS_KEPT, np.uint8))
    del arrays
    assert 0 < memory._arena.kept <= OUTPUTS_KEPT


@needs_mappings
def test_more_is_kept_while_somebody_asks_for_it():
    spare = memory.Spare(2 * OUTPUTS_KEPT)
    first = empty(2 * OUTPUTS_KEPT, np.uint8)
    place = first.ctypes.data
    del first
    assert empty(2 * OUTPUTS_KEPT, np.uint8).ctypes.data == place
    assert memory._arena.kept > OUTPUTS_KEPT
    del spare
    assert memory._arena.kept <= OUTPUTS_KEPT
    assert not memory._spares


@needs_mappings
def test_with_what_is_kept_no_more_memory_is_taken_than_was_in_use_at_once(monkeypatch: pytest.MonkeyPatch):
    """Whatever the sizes of new arrays, and whether what is kept fits them."""
    arena = memory._arena

    def taken() -> int:
        return arena.kept + arena.used

    gc.collect()
    monkeypatch.setattr(memory, "_peak", 0)
    arrays = [empty(9 << 20, np.uint8), empty(17 << 20, np.uint8)]
    most = taken()
    for size in (33 << 20, 5 << 20, 18 << 20, 7 << 20, 40 << 20):
        arrays.pop(0)
        assert taken() <= most
        arrays.append(empty(size, np.uint8))
        most = max(most, arena.used)
        assert taken() <= most
    arrays.clear()
    assert 0 < arena.kept <= most
    with pytest.raises(MemoryError):
        empty(1 << 60, np.uint8)
    assert memory._peak == most


@needs_mappings
def test_ranges_never_meet_and_are_all_given_back():
    """Drawn sizes and lives: each array keeps what was written to it, and in the end there is one hole."""
    draw, arena = random.Random(3), Arena(lambda used: draw.choice((0, 20, 400)) << 20)
    alive: list[tuple[int, np.ndarray]] = []
    for turn in range(150):
        while alive and draw.random() < 0.45:
            number, array = alive.pop(draw.randrange(len(alive)))
            assert (array[::4096] == number % 251).all()
            assert array[-1] == number % 251
        array = arena.take(draw.randrange(1, 12 << 20))
        array[::4096] = array[-1] = turn % 251
        alive.append((turn, array))
        del array
        assert arena.used >= sum(array.size for _, array in alive)
        places = sorted((array.ctypes.data, array.size) for _, array in alive)
        assert all(start + size <= other for (start, size), (other, _) in pairwise(places))
    mappings = arena._mappings
    alive.clear()
    assert arena.used == 0
    arena.clear()
    assert not arena._mappings
    assert all(len(each.free) == 1 and each.free[0].size == each.size for each in mappings)


@needs_mappings
def test_an_array_taken_while_the_same_thread_takes_one():
    """By a handler of signals, say: it has memory of its own."""
    arena = Arena(lambda used: 0)
    with arena._lock:
        array = arena.take(5 << 20)
        array[:] = 7
    assert arena.used == 0
    assert (array == 7).all()


@needs_mappings
def test_threads_never_share_an_array():
    def fill(number: int) -> None:
        for turn in range(30):
            array = empty((5 << 20) // 8, np.int64)
            array[::512] = number * 1000 + turn
            wrong.extend(np.flatnonzero(array[::512] != number * 1000 + turn))

    wrong: list[int] = []
    threads = [threading.Thread(target=fill, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("shape", [(1 << 60,), (1 << 40, 1 << 40), (1 << 52, 4)])
def test_failed_allocation_is_a_clean_memory_error(shape):
    with pytest.raises(MemoryError, match=r"cannot allocate [\d,]+ bytes for shape \(\d+"):
        empty(shape, np.float32)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_large_arrays_are_private_to_a_forked_child():
    array = empty(HUGE_FROM, np.uint8)
    array[0] = 1
    child = os.fork()
    if child == 0:
        array[0] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert array[0] == 1


def test_scratch_is_reused_by_later_calls_and_distinct_when_nested():
    with shared_scratch(100_000) as (outer, _), shared_scratch(100_000) as (inner, _):
        places = {outer.ctypes.data, inner.ctypes.data}
        assert len(places) == 2
        assert outer.size == inner.size == 100_000
        assert outer.ctypes.data % 64 == 0
    with shared_scratch(90_000) as (again, _):
        assert again.size == 90_000
        assert again.ctypes.data in places


def test_scratch_is_returned_after_an_exception():
    places: list[int] = []

    def fail() -> None:
        with shared_scratch(1000) as (block, _):
            places.append(block.ctypes.data)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with shared_scratch(1000) as (block, _):
        assert [block.ctypes.data] == places


def test_scratch_kept_is_bounded():
    with shared_scratch(SCRATCH_KEPT + 1):
        pass
    assert not memory._kept.blocks
    blocks = [memory._take(SCRATCH_KEPT // 2) for _ in range(4)]
    for block in blocks:
        memory._give_back(block)
    assert sum(block.size for block in memory._kept.blocks) <= SCRATCH_KEPT


def test_threads_never_share_scratch():
    failures: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            with shared_scratch(10_000) as (block, _):
                block[:] = number
                if not (block == number).all():
                    failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
