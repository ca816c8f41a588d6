"""What the machine can do at most, measured in every round beside the contenders: each limit gives one rate a call."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..cpu.plan.machine import machine
from .balance import copier, multiplier
from .cases import Case

GEMM_SIZE, QUICK_GEMM_SIZE = 2048, 1024
_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


def limits(case: Case, quick: bool) -> dict[str, Callable[[], float]]:
    """registers: FLOP/s of multiply-adds in registers; gemm: FLOP/s of numpy's matrix product; copy: bytes/s of a
    streaming copy. All with the threads of the case and the numbers in which it computes."""
    item = np.dtype(case.dtype.accumulate).itemsize
    return {
        "registers": _best(multiplier(machine(), item, case.threads)),
        "gemm": _gemm(case, QUICK_GEMM_SIZE if quick else GEMM_SIZE),
        "copy": _best(copier(machine(), case.threads)),
    }


def _best(rate: Callable[[], float]) -> Callable[[], float]:
    """Of three: the first wakes the threads, and each is over in a moment."""
    return lambda: max(rate() for _ in range(3))


def _gemm(case: Case, n: int) -> Callable[[], float]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(case.dtype.accumulate) for _ in range(2))
    out = np.empty_like(a)

    def rate() -> float:
        set_blas_threads(case.threads)
        begun = time.perf_counter()
        np.matmul(a, b, out=out)
        return float(2 * n**3 / (time.perf_counter() - begun))

    return rate


def set_blas_threads(count: int) -> bool:
    """Tells numpy's OpenBLAS how many threads to use; False where another BLAS is in place, which uses its default."""
    with suppress(OSError):
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "openblas" in line}
        for path in sorted(mapped):
            blas = ctypes.CDLL(path)
            for name in _SETTERS:
                if hasattr(blas, name):
                    getattr(blas, name)(ctypes.c_int(count))
                    return True
    return False
