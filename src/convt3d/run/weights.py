"""The convolution's weights as the kernel reads them: for each group and phase, blocks of [step][row]; for minimal
multiplication transformed, and so for each group, outputs made together and point.

Packed weights are kept for the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..plan.geometry import phases
from ..plan.schemes import Method, Scheme
from ..plan.structure import WILD, RegisterTile
from .kept import Array, Kept


class TapsOfPhase(NamedTuple):
    """What the weights of a phase along one axis depend on."""

    taps: tuple[int, ...]
    scheme: Scheme
    pieces: int

    def matrix(self) -> npt.NDArray[np.float64]:
        """(points, pieces, taps): what each point of each piece is of the taps."""
        matrix = np.zeros((self.scheme.points, self.pieces, len(self.taps)))
        weights = np.array(self.scheme.weights_matrix, dtype=np.float64)
        for number in range(len(self.taps)):
            piece, at = divmod(number, self.scheme.taps)
            matrix[:, piece, number] = weights[:, at]
        return matrix


@dataclass(frozen=True)
class WeightLayout:
    groups: int
    axes: tuple[tuple[TapsOfPhase, ...], tuple[TapsOfPhase, ...], tuple[TapsOfPhase, ...]]
    tile: RegisterTile
    number: str  # "float32" or "float64"

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
        return WeightLayout(groups, (d, h, w), tile, number)


class Packed(NamedTuple):
    weights: Array  # one row for each group
    address: int  # of them
    finite: bool
    tame: bool  # of a size that minimal multiplication can take


_kept: Kept[Packed] = Kept(256 << 20)

_CHUNK = 1 << 16  # weights that are transformed together, in cache


def packed(weights: Array, layout: WeightLayout) -> Packed:
    """weights (Cin, Cout/groups, Kd, Kh, Kw) in the layout's order."""

    def make(own: tuple[Array, ...]) -> tuple[Packed, int]:
        largest = max(float(own[0].max(initial=0.0)), -float(own[0].min(initial=0.0)))  # NaN, if there is one
        rows = pack(own[0], layout)
        return Packed(rows, rows.ctypes.data, bool(np.isfinite(largest)), _tame(largest, layout.number)), rows.nbytes

    return _kept.get(layout, [weights], make)


def _tame(largest: float, number: str) -> bool:
    """Neither so large that a transform might overflow, nor so small that halves would be rounded."""
    return largest == 0 or WILD[number] ** -2 <= largest < WILD[number]


def pack(weights: Array, layout: WeightLayout) -> Array:
    """(groups, all): for each phase and point the blocks of rows of the register tile, a block as [step][row].
    A step is a piece, then a channel."""
    channels, rows = weights.shape[0] // layout.groups, weights.shape[1]
    by_tap = weights.reshape(layout.groups, channels, rows, *weights.shape[2:]).transpose(3, 4, 5, 0, 1, 2)
    by_tap = np.ascontiguousarray(by_tap)  # once: each phase takes its taps from it, in long pieces
    phases = list(product(*layout.axes))
    sizes = [prod(one.scheme.points * one.pieces for one in phase) * channels * rows for phase in phases]
    result = np.empty((layout.groups, sum(sizes)), layout.number)
    starts = accumulate(sizes, initial=0)
    with np.errstate(over="ignore", invalid="ignore"):
        for phase, start, size in zip(phases, starts, sizes, strict=False):
            taps = by_tap[np.ix_(*(one.taps for one in phase))]
            chunk = max(1, _CHUNK * channels // taps.size)
            for channel in range(0, channels, chunk):
                values = _transformed(taps[:, :, :, :, channel : channel + chunk], phase)
                _store_blocks(values, result[:, start : start + size], layout.tile, channel, channels)
    return result


def _transformed(taps: Array, phase: Sequence[TapsOfPhase]) -> Array:
    """taps (Td, Th, Tw, G, Cin/g, Cout/g) -> (G, points of each axis, pieces of each axis, Cin/g, Cout/g).
    In float64, axis by axis, and rounded once, when it is stored; direct summation leaves the taps as they are."""
    values = taps
    if any(one.scheme.points > 1 for one in phase):
        values = taps.astype(np.float64)
        for one in phase:  # the first axis, of taps, becomes points and pieces behind the others of the kernel
            matrix = one.matrix().reshape(-1, len(one.taps))
            values = np.moveaxis(_times(matrix, values), 0, 2)
    shape = [size for one in phase for size in (one.scheme.points, one.pieces)]
    shaped: Array = values.reshape(*shape, *taps.shape[3:]).transpose(6, 0, 2, 4, 1, 3, 5, 7, 8)
    return shaped


def _times(matrix: Array, values: Array) -> Array:
    """matrix @ values along the first axis. Most factors are 0 or 1; and no library of matrix products has to be woken
    up in the first call of a process."""
    result = np.empty((len(matrix), *values.shape[1:]))
    for row, out in zip(matrix, result, strict=True):
        first, *others = np.flatnonzero(row).tolist() or [0]
        np.multiply(values[first], row[first], out=out)
        for at in others:
            out += values[at] if row[at] == 1 else values[at] * row[at]
    return result


def _store_blocks(values: Array, into: Array, tile: RegisterTile, first: int, of: int) -> None:
    """values (G, points, pieces, channels, rows), three axes of points and pieces, -> their place in (G, all), rounded;
    `first` is the first channel `of` all."""
    groups, count, channels = len(values), values.shape[7], values.shape[8]
    points, pieces = values.shape[1:4], values.shape[4:7]
    each = into.reshape(groups, *points, -1)
    steps = prod(pieces) * of
    start = 0
    for rows in tile.blocks(channels):
        block = each[..., start * steps : (start + rows) * steps].reshape(groups, *points, *pieces, of, rows)
        block[..., first : first + count, :] = values[..., start : start + rows]
        start += rows
