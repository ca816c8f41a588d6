"""Cases that once failed, each with what went wrong."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from helpers.draws import make

import convt3d
from convt3d.cpu.runtime import weights as packing
from convt3d.cpu.runtime.execute import execute
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate


def test_a_long_stride_does_not_enumerate_its_phases() -> None:
    """Planning took time quadratic in the phases, 100^3 of them here, of which one has a tap: it would not end."""
    x, w, bias = np.ones((1, 1, 2, 2, 2), "f4"), np.full((1, 1, 1, 1, 1), 3.0, "f4"), np.full(1, 0.5, "f4")
    y = convt3d.conv_transpose3d(x, w, bias, stride=100)
    assert y.shape == (1, 1, 101, 101, 101)
    assert np.count_nonzero(y == 3.5) == 8
    assert np.count_nonzero(y == 0.5) == y.size - 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_put_together_one_by_one_write_nothing_behind_them(dtype: str, threads: int) -> None:
    """Two bytes behind each bfloat16 of a row with more than eight phases were overwritten: LLVM turns a masked store
    of one constant lane, narrowed from 32 bits, into a store of 32 bits."""
    pipeline, kind = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=(1, 1, 9), bias=True)), DTYPES[dtype]
    case = make(pipeline, (1, 2, 1, 3, 2), (2, 3, 1, 1, 4), dtype)
    room = np.full((*case.output[:4], case.output[4] + 1), 7, kind.storage)
    with convt3d.num_threads(threads):
        execute(pipeline, kind, case.x, case.operands, room[..., :-1])
    assert (room[..., -1] == 7).all()


def test_long_sums_stay_exact() -> None:
    """One chain of 27000 additions erred by 8e-6; sums are taken in pieces now."""
    rng = np.random.default_rng(0)
    x, w = rng.random((1, 1000, 3, 3, 3), np.float32), rng.random((1000, 2, 3, 3, 3), np.float32)
    pipeline = convt3d.Pipeline(convt3d.ConvTranspose3d(padding=2))
    expected = evaluate(pipeline, x.astype(np.float64), [w.astype(np.float64)])
    assert np.max(np.abs(pipeline(x, w) / expected - 1.0)) < 1.5e-6


def test_weights_that_change_while_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed old weights were kept beside a copy of the new ones, and served from then on."""
    w = np.ones((2, 2, 3, 3, 3), np.float32)
    x = np.ones((1, 2, 3, 3, 3), np.float32)
    honest = packing.pack

    def slow(weights: Any, layout: Any) -> Any:
        made = honest(weights, layout)
        w[...] = 7.0  # another thread
        return made

    monkeypatch.setattr(packing, "pack", slow)
    convt3d.conv_transpose3d(x, w)
    monkeypatch.setattr(packing, "pack", honest)
    again = convt3d.conv_transpose3d(x, w)
    assert again[0, 0, 2, 2, 2] == 2 * 27 * 7.0


def test_layers_of_equal_shape_keep_their_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of one network evicted each other at every call."""
    rng = np.random.default_rng(1)
    layers = [rng.standard_normal((3, 5, 2, 2, 2), np.float32) for _ in range(3)]
    x = rng.standard_normal((1, 3, 2, 2, 2), np.float32)
    packs: list[int] = []
    honest = packing.pack
    monkeypatch.setattr(packing, "pack", lambda weights, layout: packs.append(1) or honest(weights, layout))
    for _ in range(4):
        for w in layers:
            convt3d.conv_transpose3d(x, w, stride=2)
    assert len(packs) == len(layers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fork_while_another_thread_compiles() -> None:
    """The child inherited a lock held for the time of a compilation, and hung at its first call."""
    x, w = np.ones((1, 2, 3, 3, 3), np.float32), np.ones((2, 2, 3, 3, 3), np.float32)
    convt3d.conv_transpose3d(x, w)
    busy, enough = threading.Event(), threading.Event()

    def compile_many() -> None:
        for channels in range(40, 60):  # another register tile each: another kernel
            if enough.is_set():
                break
            busy.set()
            convt3d.conv_transpose3d(x, np.ones((2, channels, 1, 1, 1), np.float32))

    thread = threading.Thread(target=compile_many)
    thread.start()
    busy.wait()
    try:
        for _ in range(4):
            time.sleep(0.03)
            child = os.fork()
            if child == 0:
                y = convt3d.conv_transpose3d(x, w)
                os._exit(0 if y[0, 0, 2, 2, 2] == 54.0 else 1)
            assert _exit_code(child, 600.0) == 0
    finally:
        enough.set()
        thread.join()


def _exit_code(child: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def test_windows_of_zeros_at_both_ends_of_a_row() -> None:
    """More padding than the kernel is wide: the last row of a channel was written over the next channel."""
    for taps, padding in ((1, 3), (1, 8), (2, 5), (3, 16)):
        for width in (7, 13, 16):
            pipeline = convt3d.Pipeline(convt3d.Conv3d(padding=(0, 3, padding), bias=True))
            make(pipeline, (1, 2, 1, 7, width), (3, 2, 1, 2, taps)).check()
