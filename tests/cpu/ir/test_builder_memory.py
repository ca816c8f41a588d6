"""Lanes, loads and stores of the builder: every lane goes where it should, and none is touched that does not count."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from helpers.jit import NUMPY_TYPE, X86, build, run_on_arrays

from convt3d.cpu.ir.values import F32, F64, I64, PTR

WIDTHS = (1, 2, 4, 8, 16)
i64, address = ctypes.c_int64, ctypes.c_void_p


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 8])
def test_interleave_and_its_inverse(count, width):
    x = np.arange(count * width, dtype=np.float32)
    mixed, back = np.empty_like(x), np.empty_like(x)

    def body(b, x, mixed, back):
        vectors = [b.load(x, k * width, F32, width) for k in range(count)]
        interleaved = b.interleave(vectors)
        for k, (one, two) in enumerate(zip(interleaved, b.deinterleave(interleaved), strict=False)):
            b.store(one, mixed, k * width)
            b.store(two, back, k * width)

    run_on_arrays(body, x, mixed, back)
    np.testing.assert_array_equal(mixed, x.reshape(count, width).T.ravel())
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("element", [F32, F64])
@pytest.mark.parametrize("stride", [1, 2, -3])
@pytest.mark.parametrize("constant_stride", [True, False])
def test_loads_and_stores_with_stride_and_count(element, width, stride, constant_stride):
    source = np.arange(200, dtype=NUMPY_TYPE[element])
    for count in (None, -1, 0, 1, width - 1, width, width + 5):
        target = np.full(200, -1, source.dtype)

        def body(b, source, target, run_stride, run_count, count=count):
            step = stride if constant_stride else run_stride
            limit = None if count is None else run_count
            loaded = b.load(source, 100, element, width, stride=step, count=limit)
            b.store(b.add(loaded, 1000.0), target, 100, stride=step, count=limit)
            b.store(loaded, target, 0)

        run_on_arrays(body, source, target, ints=(stride, count or 0))
        exists = np.arange(width) < (width if count is None else count)
        lanes = 100 + stride * np.arange(width)
        expected = np.full(200, -1, source.dtype)
        expected[lanes[exists]] = lanes[exists] + 1000
        expected[:width] = np.where(exists, lanes, 0)
        np.testing.assert_array_equal(target, expected)


def test_masked_access_does_not_touch_the_next_page():
    """The array ends where an unreadable page begins."""
    libc, page = ctypes.CDLL(None), 4096
    libc.mmap.restype, libc.mmap.argtypes = address, [address, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [address, ctypes.c_size_t, ctypes.c_int]
    base = libc.mmap(None, 2 * page, 3, 0x22, -1, 0)
    assert libc.mprotect(base + page, page, 0) == 0

    def body(b, p, n):
        b.store(b.add(b.load(p, 0, F32, 16, count=n), 1.0), p, 0, count=n)
        b.ret()

    compiled = build([("p", PTR), ("n", I64)], body)
    for count in range(16):
        compiled.function("f", address, i64)(base + page - 4 * count, count)


@pytest.mark.parametrize("width", WIDTHS)
def test_reduce_splat_and_join(width):
    out = np.zeros(3 * width, np.float32)

    def body(b, out, n):
        lanes = b.join([b.cast(b.add(n, k), F32) for k in range(width)])
        b.store(lanes, out, 0)
        b.store(b.splat(b.reduce(lanes, b.add), width), out, width)
        b.store(b.splat(b.reduce(lanes, b.max), width), out, 2 * width)

    run_on_arrays(body, out, ints=(3,))
    lanes = np.arange(3, 3 + width)
    np.testing.assert_array_equal(out, np.concatenate([lanes, [lanes.sum()] * width, [lanes.max()] * width]))


def test_fetch_add_and_prefetch():
    counter, old = np.array([5], np.int64), np.zeros(2, np.int64)

    def body(b, counter, old):
        b.prefetch(old, 0, I64, for_write=True)
        b.store(b.fetch_add(counter), old, 0)
        b.store(b.fetch_add(counter, 10), old, 1)

    compiled = run_on_arrays(body, counter, old)
    assert counter[0] == 16
    assert old.tolist() == [5, 6]
    assert not X86 or "prefetchw" in compiled.assembly


def test_every_item_is_drawn_once_by_one_of_the_workers():
    """Workers share one counter: what one has drawn the others must not see, and the end must stop all of them."""
    counter, seen = np.zeros(1, np.int64), np.zeros(12, np.int64)

    def body(b, counter, seen, items):
        with b.drawn_from(counter, items) as item:
            b.store(b.add(b.load(seen, item, I64), 1), seen, item)
            b.store(b.i64(7), seen, 11)
        b.ret()

    compiled = build([("counter", PTR), ("seen", PTR), ("items", I64)], body)
    draw = compiled.function("f", address, address, i64)
    for items in (0, 3, 10, 10):
        draw(counter.ctypes.data, seen.ctypes.data, items)
        assert seen[:10].tolist() == [1] * min(items, int(counter[0])) + [0] * (10 - items)
        counter[0] = min(items, counter[0])  # each worker that found nothing has counted on
    assert seen[11] == 7
