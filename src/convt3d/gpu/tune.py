"""Autotuning on request: measures the few configurations of a plan once and remembers the fastest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

MOST_REMEMBERED = 1024
_asked: ContextVar[bool] = ContextVar("convt3d autotuning", default=False)
_fastest: dict[Hashable, int | None] = {}
_learned = 0  # how often something was
_lock = Lock()  # of what is remembered; two threads may measure the same at a time


@contextmanager
def autotune() -> Iterator[None]:
    """Calls on CUDA tensors in here that were never tuned are measured; what they find serves all later calls. A call
    that is recorded into a CUDA graph is not measured: tune it before.

    Returns
    -------
    context manager
        To be written after `with`.

    Examples
    --------
    >>> import torch, convt3d.torch
    >>> x, w = torch.ones(1, 8, 4, 4, 4), torch.ones(8, 4, 2, 2, 2)
    >>> with convt3d.torch.autotune():
    ...     y = convt3d.torch.conv_transpose3d(x, w, stride=2)  # on the CPU nothing is measured
    """
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)


def state() -> int | None:
    """A number that changes with what is remembered; None where calls are to be measured."""
    return None if _asked.get() else _learned


def choice(key: Hashable, numbers: int, seconds: Callable[[int], float | None] | None) -> int | None:
    """The configuration that was found for `key`, or is found now, if that was asked for, by seconds(number), which is
    None for one that does not run; else None, which stands for the heuristic's. Without `seconds` none is found."""
    global _learned
    if key not in _fastest and seconds is not None and _asked.get():
        measured = {number: taken for number in range(numbers) if (taken := seconds(number)) is not None}
        with _lock:
            while len(_fastest) >= MOST_REMEMBERED:
                del _fastest[next(iter(_fastest))]
            _fastest[key] = min(measured, key=lambda number: measured[number], default=None)
            _learned += 1
    return _fastest.get(key)
