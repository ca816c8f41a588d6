"""Tables that tell a convolution's code where things are: offsets in the slab, weights, phases of the result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from ..plan.geometry import phases, shift_range
from ..plan.schemes import Method
from ..plan.tiles import Slab, Tiling

Words = npt.NDArray[np.int64]


class _Places:
    """Offsets in the slab of inputs given by their shifts."""

    def __init__(self, method: Method, slab: Slab) -> None:
        self.slab = slab
        self.least = [shift_range(walk)[0] for walk in method.walks]
        self.pace_h = method.walks[1].pace

    def depth(self, shift: int) -> int:
        return (shift - self.least[0]) * self.slab.height * self.slab.pitch

    def height(self, shift: int) -> int:
        turn, remainder = divmod(shift - self.least[1], self.pace_h)
        return (remainder * (self.slab.height // self.pace_h) + turn) * self.slab.pitch

    def width(self, shift: int) -> int:
        return (shift - self.least[2]) * (1 if self.slab.copies == 1 else self.slab.copy)


def direct_tables(method: Method, tiling: Tiling, in_group: int, per_out: int) -> dict[str, int | Words]:
    """For each phase with taps: its steps (a tap and an input channel each) and where its weights begin."""
    slab = tiling.slab
    assert slab is not None
    places = _Places(method, slab)
    offsets: list[Words] = []
    table: list[list[int]] = []
    offset = weight = 0
    channel = np.arange(in_group) * slab.channel
    periods = [walk.period for walk in method.walks]
    for phase in product(*(phases(walk) for walk in method.walks)):
        d, h, w = (axis.shifts for axis in phase)
        taps = np.array(
            [places.depth(a) + places.height(b) + places.width(c) for a, b, c in product(d, h, w)], dtype=np.int64
        )
        steps = (taps[:, None] + channel).reshape(-1)
        apart = d[0] - d[1] if len(d) > 1 else 1
        number = _number([axis.phase for axis in phase], periods)
        table.append([number, len(steps), offset, weight, len(d), d[0], apart])
        offsets.append(steps)
        offset += len(steps)
        weight += len(steps) * per_out
    return {
        "offsets": np.concatenate([*offsets, [0]]).astype(np.int64),
        "phase table": np.array(table, dtype=np.int64),
        "phases with taps": len(table),
        "weights group": weight,
        "in depth": method.walks[0].axis.size,
    }


def minimal_tables(method: Method, tiling: Tiling, in_group: int, per_out: int) -> dict[str, int | Words]:
    """For each group of outputs made together: its kind, pieces, and where its inputs, outputs and weights are."""
    slab, blocking = tiling.slab, tiling.blocking
    assert slab is not None
    assert blocking is not None
    places = _Places(method, slab)
    periods = [walk.period for walk in method.walks]
    factors = periods[1] * periods[2], periods[2], 1
    table: list[list[int]] = []
    gather: list[int] = []
    scatter: list[int] = []
    weight = 0
    kinds = method.kinds
    for group in method.groups():
        schemes = group[0].scheme, group[1].scheme, group[2].scheme
        pieces = list(product(*(range(one.pieces) for one in group)))
        steps = len(pieces) * in_group
        table.append([kinds.index(schemes), len(pieces), steps, len(gather), len(scatter), weight])
        for piece in pieces:
            along = zip(group, piece, (places.depth, places.height, places.width), strict=True)
            gather += [place(one.shift(at, point)) for one, at, place in along for point in range(one.scheme.points)]
        scatter += [j * factor * slab.phase for one, factor in zip(group, factors, strict=True) for j in one.outputs]
        weight += prod(one.points for one in schemes) * steps * per_out
    return {
        "groups together": len(table),
        "together": np.array(table, dtype=np.int64),
        "gather": np.array(gather, dtype=np.int64),
        "scatter": np.array(scatter, dtype=np.int64),
        "offsets": np.arange(method.most_steps * in_group + 1, dtype=np.int64) * blocking.positions,
        "zeros": np.zeros(per_out, dtype=np.float64),
        "weights group": weight,
        "chunk": blocking.vectors,
        "chunk positions": blocking.positions,
        "chunk blocks": blocking.blocks,
        "input point": blocking.input_point,
        "product point": blocking.product_point,
        "depth step": method.walks[0].pace * slab.height * slab.pitch,
        "phases with taps": prod(len(phases(walk)) for walk in method.walks),
    }


def _number(along: Sequence[int], periods: Sequence[int]) -> int:
    """Of a phase of the volume."""
    return (along[0] * periods[1] + along[1]) * periods[2] + along[2]

