"""No access outside of any array: drawn pipelines between unreadable pages, in a process that a fault may kill."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convt3d.cpu.plan.machine import machine

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect")
HELPERS = Path(__file__).resolve().parents[2]
ISAS = ["avx512", "avx2", "baseline"] if machine().isa == "avx512" else [machine().isa]


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HELPERS), *sys.path])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("first", [1000, 2000])
def test_drawn_pipelines_stay_inside(isa: str, first: int) -> None:
    """x, weights, vectors, tensors and out of any strides, scratch and intermediate values; all types."""
    seed = first + 100 * ISAS.index(isa)
    done = python(
        str(HELPERS / "helpers" / "guard.py"), str(seed), "16", CONVT3D_ISA=isa, CONVT3D_NUM_THREADS=str(first // 1000)
    )
    last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
    assert last == "all inside", f"exit {done.returncode} after {last}\n{done.stderr[-2000:]}"


def test_the_fence_holds() -> None:
    """Otherwise the test above would prove nothing."""
    code = (
        "import ctypes; from helpers.guard import Fence\n"
        "fence = Fence(10, {at_end}); start = fence.bytes.ctypes.data\n"
        "ctypes.string_at(start, 10); print('inside', flush=True); ctypes.string_at(start + {offset}, 1)\n"
        "print('outside')"
    )
    for at_end, offset in ((True, 10), (False, -1)):
        done = python("-c", code.format(at_end=at_end, offset=offset))
        assert done.stdout == "inside\n"
        assert done.returncode < 0
    assert ctypes.sizeof(ctypes.c_void_p) == 8
