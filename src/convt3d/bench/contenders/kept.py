"""PyTorch as a server would run it: the memory of its large results is kept for the next call.

glibc gives arrays beyond 32 MiB back to the system as soon as they are freed, and every call then waits for fresh
pages, which takes about half of the time of large results. Told otherwise, it keeps them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

from ..cases import Arrays, Case
from .base import Contender, Ready, UnsupportedError

SUFFIX = "-kept"
_MODULES = {"torch": "eager", "torch-channels-last": "eager", "torch-compile": "compiled"}

GIVEN_BACK_FROM = 32 << 20  # bytes: the most that glibc's threshold, which follows the program, grows to
# Parameters of mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}
_USUAL = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 2 * GIVEN_BACK_FROM, _MMAP_THRESHOLD: GIVEN_BACK_FROM}


def contender(name: str) -> Kept:
    plain = name.removesuffix(SUFFIX)
    return Kept(import_module(f".{_MODULES[plain]}", __package__).contender(plain))


@dataclass(frozen=True)
class Kept:
    plain: Contender

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        values = case.pipeline.trace(case.x, case.operand_shapes).values
        if max(map(prod, values)) * case.dtype.itemsize < GIVEN_BACK_FROM:
            raise UnsupportedError("nothing here is large enough to be given back")
        tune = _mallopt()
        ready = self.plain.prepare(case, arrays)

        @contextmanager
        def around() -> Iterator[None]:
            _set(tune, _KEEP)
            try:
                ready.run()  # takes the memory
                yield
            finally:
                _set(tune, _USUAL)
                ctypes.CDLL(None).malloc_trim(0)  # no other contender shall find it

        return Ready(ready.run, ready.stored, ready.allocates, around, ready.note)


def _mallopt() -> Callable[[int, int], int]:
    try:
        found: Any = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        raise UnsupportedError("needs glibc's mallopt") from None
    tune: Callable[[int, int], int] = found
    return tune


def _set(tune: Callable[[int, int], int], values: dict[int, int]) -> None:
    for parameter, value in values.items():
        tune(parameter, value)
