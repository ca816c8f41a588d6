"""The convolution's weights as the kernel reads them: for each group and phase, blocks of [step][row].

Packed weights are kept for the next call. An entry holds a copy of the weights it was made from and is used only if all
their bits are the same, so weights changed in place can never give an old answer.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..plan.geometry import PhaseAxis
from ..plan.structure import RegisterTile

Array = npt.NDArray[Any]

_KEPT_BYTES = 256 << 20


@dataclass(frozen=True)
class WeightLayout:
    groups: int
    phases: tuple[tuple[PhaseAxis, ...], tuple[PhaseAxis, ...], tuple[PhaseAxis, ...]]
    tile: RegisterTile
    number: str  # "float32" or "float64"


class _Kept:
    def __init__(self) -> None:
        self.entries: OrderedDict[Any, tuple[Array, Packed]] = OrderedDict()
        self.lock = threading.Lock()


_kept = _Kept()


class Packed(NamedTuple):
    weights: Array  # one row for each group
    finite: bool


def packed(weights: Array, layout: WeightLayout) -> Packed:
    """weights (Cin, Cout/groups, Kd, Kh, Kw) in the layout's order."""
    # Layers of equal shape differ in some of these numbers, so each has an entry of its own.
    sample = weights.reshape(-1)[:: max(1, weights.size // 64)].tobytes()
    key = (layout, weights.shape, weights.dtype.str, sample)
    entry = _kept.entries.get(key)
    if entry is not None and _same_bits(entry[0], weights):
        return entry[1]
    own = weights.copy()  # first: another thread may write to the caller's array while it is packed
    rows = pack(own, layout)
    made = Packed(rows, bool(np.isfinite(rows).all()))
    with _kept.lock:
        _kept.entries[key] = (own, made)
        _kept.entries.move_to_end(key)
        while (
            len(_kept.entries) > 1 and sum(a.nbytes + b.weights.nbytes for a, b in _kept.entries.values()) > _KEPT_BYTES
        ):
            _kept.entries.popitem(last=False)
    return made


def pack(weights: Array, layout: WeightLayout) -> Array:
    cin, per_out = weights.shape[:2]
    grouped = weights.reshape(layout.groups, cin // layout.groups, *weights.shape[1:])
    parts = []
    for phase in product(*layout.phases):
        d, h, w = (list(axis.taps) for axis in phase)
        taps = grouped[:, :, :, d][:, :, :, :, h][:, :, :, :, :, w]  # (G, Cin/g, Cout/g, nd, nh, nw)
        steps = taps.transpose(0, 3, 4, 5, 1, 2).reshape(layout.groups, -1, per_out)  # step = tap, then channel
        start = 0
        for rows in layout.tile.blocks(per_out):
            parts.append(steps[:, :, start : start + rows].reshape(layout.groups, -1))
            start += rows
    return np.ascontiguousarray(np.concatenate(parts, axis=1), dtype=layout.number)


def _same_bits(a: Array, b: Array) -> bool:
    word = f"u{a.itemsize}"
    return bool(np.array_equal(a.view(word), b.view(word)))


def _renew_lock() -> None:
    """For a forked child: a thread that held the lock in the parent does not exist here to release it."""
    _kept.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
