"""The convolution's weights as the kernel reads them: for each group and phase, blocks of [step][row]; for minimal
multiplication transformed, and so for each group, outputs made together and point.

Packed weights are kept for the next call. An entry holds a copy of the weights it was made from and is used only if all
their bits are the same, so weights changed in place can never give an old answer.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..plan.geometry import phases
from ..plan.schemes import Method, Scheme
from ..plan.structure import WILD, RegisterTile

Array = npt.NDArray[Any]

_KEPT_BYTES = 256 << 20


class TapsOfPhase(NamedTuple):
    """What the weights of a phase along one axis depend on."""

    taps: tuple[int, ...]
    scheme: Scheme
    pieces: int

    def matrix(self, kernel: int) -> npt.NDArray[np.float64]:
        """(pieces, points, kernel): what each point of each piece is of the kernel's taps."""
        matrix = np.zeros((self.pieces, self.scheme.points, kernel))
        weights = np.array(self.scheme.weights_matrix, dtype=np.float64)
        for number, tap in enumerate(self.taps):
            piece, at = divmod(number, self.scheme.taps)
            matrix[piece, :, tap] = weights[:, at]
        return matrix


@dataclass(frozen=True)
class WeightLayout:
    groups: int
    axes: tuple[tuple[TapsOfPhase, ...], tuple[TapsOfPhase, ...], tuple[TapsOfPhase, ...]]
    tile: RegisterTile
    number: str  # "float32" or "float64"
    direct: bool

    @staticmethod
    def of(groups: int, method: Method, tile: RegisterTile, number: str) -> WeightLayout:
        if method.direct:
            d, h, w = (
                tuple(TapsOfPhase(phase.taps, Scheme(1, 1), len(phase.taps)) for phase in phases(walk))
                for walk in method.walks
            )
        else:
            d, h, w = (
                tuple(TapsOfPhase(group.taps, group.scheme, group.pieces) for group in axis.groups())
                for axis in method.axes
            )
        return WeightLayout(groups, (d, h, w), tile, number, method.direct)


class _Kept:
    def __init__(self) -> None:
        self.entries: OrderedDict[Any, tuple[Array, Packed]] = OrderedDict()
        self.lock = threading.Lock()


_kept = _Kept()


class Packed(NamedTuple):
    weights: Array  # one row for each group
    finite: bool
    tame: bool  # below WILD: minimal multiplication cannot overflow


def packed(weights: Array, layout: WeightLayout) -> Packed:
    """weights (Cin, Cout/groups, Kd, Kh, Kw) in the layout's order."""
    # Layers of equal shape differ in some of these numbers, so each has an entry of its own.
    sample = weights.reshape(-1)[:: max(1, weights.size // 64)].tobytes()
    key = (layout, weights.shape, weights.dtype.str, sample)
    entry = _kept.entries.get(key)
    if entry is not None and _same_bits(entry[0], weights):
        return entry[1]
    own = weights.copy()  # first: another thread may write to the caller's array while it is packed
    largest = float(np.abs(own).max(initial=0.0))
    made = Packed(pack(own, layout), np.isfinite(largest), largest < WILD[layout.number])
    with _kept.lock:
        _kept.entries[key] = (own, made)
        _kept.entries.move_to_end(key)
        while (
            len(_kept.entries) > 1 and sum(a.nbytes + b.weights.nbytes for a, b in _kept.entries.values()) > _KEPT_BYTES
        ):
            _kept.entries.popitem(last=False)
    return made


def pack(weights: Array, layout: WeightLayout) -> Array:
    cin = weights.shape[0]
    grouped = weights.reshape(layout.groups, cin // layout.groups, *weights.shape[1:])
    parts = _phase_parts if layout.direct else _transformed_parts
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(np.concatenate(list(parts(grouped, layout)), axis=1), dtype=layout.number)


def _phase_parts(grouped: Array, layout: WeightLayout) -> Iterator[Array]:
    """grouped (G, Cin/g, Cout/g, Kd, Kh, Kw) -> for each phase (G, steps and rows); a step is a tap, then a channel."""
    for phase in product(*layout.axes):
        d, h, w = (list(axis.taps) for axis in phase)
        taps = grouped[:, :, :, d][:, :, :, :, h][:, :, :, :, :, w]
        yield from _blocks(taps.transpose(0, 3, 4, 5, 1, 2).reshape(layout.groups, -1, grouped.shape[2]), layout)


def _transformed_parts(grouped: Array, layout: WeightLayout) -> Iterator[Array]:
    """For each group of outputs made together and each point: (G, steps and rows); a step is a piece, then a channel.
    Transformed in float64 and rounded once."""
    wide = grouped.astype(np.float64)
    for together in product(*layout.axes):
        values = wide
        for one in together:  # the first axis of the kernel that is left becomes (pieces, points), at the end
            values = np.moveaxis(values, 3, -1)
            values = np.tensordot(values, one.matrix(values.shape[-1]), axes=(-1, 2))
        # (G, Cin/g, Cout/g, pieces d, points d, pieces h, points h, pieces w, points w)
        ordered = values.transpose(0, 4, 6, 8, 3, 5, 7, 1, 2)
        points = ordered.reshape(layout.groups, prod(one.scheme.points for one in together), -1, grouped.shape[2])
        for point in range(points.shape[1]):
            yield from _blocks(points[:, point], layout)


def _blocks(steps: Array, layout: WeightLayout) -> Iterator[Array]:
    """(G, steps, Cout/g) in blocks of rows of the register tile."""
    start = 0
    for rows in layout.tile.blocks(steps.shape[2]):
        yield steps[:, :, start : start + rows].reshape(layout.groups, -1)
        start += rows


def _same_bits(a: Array, b: Array) -> bool:
    word = f"u{a.itemsize}"
    return bool(np.array_equal(a.view(word), b.view(word)))


def _renew_lock() -> None:
    """For a forked child: a thread that held the lock in the parent does not exist here to release it."""
    _kept.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
