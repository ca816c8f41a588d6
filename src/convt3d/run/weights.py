"""The convolution's weights as the kernel reads them: for each group and phase, blocks of [step][row]; for minimal
multiplication transformed, and so for each group, outputs made together and point.

Packed weights are kept for the next call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
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


class Packed(NamedTuple):
    weights: Array  # one row for each group
    finite: bool
    tame: bool  # of a size that minimal multiplication can take


_kept: Kept[Packed] = Kept(256 << 20)


def packed(weights: Array, layout: WeightLayout) -> Packed:
    """weights (Cin, Cout/groups, Kd, Kh, Kw) in the layout's order."""

    def make(own: tuple[Array, ...]) -> tuple[Packed, int]:
        largest = float(np.abs(own[0]).max(initial=0.0))
        rows = pack(own[0], layout)
        return Packed(rows, bool(np.isfinite(largest)), _tame(largest, layout.number)), rows.nbytes

    return _kept.get(layout, [weights], make)


def _tame(largest: float, number: str) -> bool:
    """Neither so large that a transform might overflow, nor so small that halves would be rounded."""
    return largest == 0 or WILD[number] ** -2 <= largest < WILD[number]


def pack(weights: Array, layout: WeightLayout) -> Array:
    cin = weights.shape[0]
    grouped = weights.reshape(layout.groups, cin // layout.groups, *weights.shape[1:])
    parts = _phase_parts if layout.direct else _transformed_parts
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate(list(parts(grouped, layout)), axis=1)


def _phase_parts(grouped: Array, layout: WeightLayout) -> Iterator[Array]:
    """grouped (G, Cin/g, Cout/g, Kd, Kh, Kw) -> for each phase (G, steps and rows); a step is a tap, then a channel."""
    for phase in product(*layout.axes):
        taps = _taps(grouped, phase)
        steps = taps.transpose(0, 3, 4, 5, 1, 2).reshape(layout.groups, 1, -1, grouped.shape[2])
        yield _blocks(steps, layout)


def _transformed_parts(grouped: Array, layout: WeightLayout) -> Iterator[Array]:
    """For each group of outputs made together: (G, points, steps and rows); a step is a piece, then a channel.
    Transformed in float64, axis by axis, and rounded once."""
    for together in product(*layout.axes):
        values = _taps(grouped, together).transpose(3, 4, 5, 0, 1, 2).astype(np.float64)
        for one in together:  # the first axis, of taps, becomes points and pieces behind the others of the kernel
            matrix = one.matrix().reshape(-1, len(one.taps))
            values = np.moveaxis(_times(matrix, values), 0, 2)
        shape = [size for one in together for size in (one.scheme.points, one.pieces)]
        shaped = values.reshape(*shape, *grouped.shape[:3]).transpose(6, 0, 2, 4, 1, 3, 5, 7, 8)
        points = prod(one.scheme.points for one in together)
        yield _blocks(shaped.reshape(layout.groups, points, -1, grouped.shape[2]), layout)


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


def _taps(grouped: Array, along: Sequence[TapsOfPhase]) -> Array:
    d, h, w = (list(axis.taps) for axis in along)
    return grouped[:, :, :, d][:, :, :, :, h][:, :, :, :, :, w]


def _blocks(steps: Array, layout: WeightLayout) -> Array:
    """(G, points, steps, Cout/g) -> (G, all): for each point its blocks of rows of the register tile, rounded."""
    groups, points, count, channels = steps.shape
    packed = np.empty((groups, points, count * channels), layout.number)
    start = 0
    for rows in layout.tile.blocks(channels):
        block = steps[:, :, :, start : start + rows]
        packed[:, :, start * count : (start + rows) * count] = block.reshape(groups, points, -1)
        start += rows
    return packed.reshape(groups, -1)
