"""Autotuning on request: measures the few configurations of a plan once and remembers the fastest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..plan.gpu_config import MOST_CONFIGURATIONS

_asked: ContextVar[bool] = ContextVar("convt3d autotuning", default=False)
_fastest: dict[Hashable, int] = {}


@contextmanager
def autotune() -> Iterator[None]:
    """Calls on CUDA tensors in here that were never tuned are measured; what they find serves all later calls."""
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)


def choice(key: Hashable, seconds: Callable[[int], float]) -> int | None:
    """The configuration that was found for `key`, or is found now by seconds(number) if that was asked for; else None,
    which stands for the heuristic's."""
    if key not in _fastest and _asked.get():
        _fastest[key] = min(range(MOST_CONFIGURATIONS), key=seconds)
    return _fastest.get(key)
