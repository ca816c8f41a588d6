"""Tables that tell a convolution's code where things are: offsets in the slab, weights, phases of the result."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..plan.geometry import phases
from ..plan.schemes import TOGETHER, Matrix, Method, kind_of
from ..plan.tiles import Slab, Tiling

Words = npt.NDArray[np.int64]


class _Places:
    """Offsets in the slab of inputs given by their shifts."""

    def __init__(self, method: Method, slab: Slab) -> None:
        self.slab = slab
        self.walks = method.walks
        self.least = [walk.shift_range[0] for walk in method.walks]
        self.pace_h = method.walks[1].pace

    def depth(self, shift: int) -> int:
        return (self.walks[0].clipped(shift) - self.least[0]) * self.slab.height * self.slab.pitch

    def height(self, shift: int) -> int:
        turn, remainder = divmod(self.walks[1].clipped(shift) - self.least[1], self.pace_h)
        return (remainder * (self.slab.height // self.pace_h) + turn) * self.slab.pitch

    def width(self, shift: int) -> int:
        """A copy for each shift, or one for each remainder."""
        turn, copy = divmod(self.walks[2].clipped(shift) - self.least[2], self.slab.copies)
        return copy * self.slab.copy + turn


def direct_tables(method: Method, tiling: Tiling, in_group: int, per_out: int) -> dict[str, int | npt.NDArray[Any]]:
    """For each phase with taps: its steps (a tap and an input channel each) and where its weights begin."""
    slab = tiling.slab
    assert slab is not None
    places = _Places(method, slab)
    axes = [phases(walk) for walk in method.walks]
    # All phases at once, since there may be thousands: sizes (phases of D, H, W), places (taps of D, H, W).
    counts = [np.array([len(phase.taps) for phase in axis]) for axis in axes]
    taps = counts[0][:, None, None] * counts[1][:, None] * counts[2]
    starts = (np.cumsum(taps) - taps.reshape(-1)).reshape(taps.shape)
    phase = np.ix_(*(np.repeat(np.arange(len(count)), count) for count in counts))
    number = np.ix_(*(np.concatenate([np.arange(n) for n in count]) for count in counts))
    where = np.ix_(
        *(
            np.array([place(shift) for phase in axis for shift in phase.shifts])
            for axis, place in zip(axes, (places.depth, places.height, places.width), strict=True)
        )
    )
    at = starts[phase] + (number[0] * counts[1][phase[1]] + number[1]) * counts[2][phase[2]] + number[2]
    offsets = np.empty(at.size, np.int64)
    offsets[at] = where[0] + where[1] + where[2]

    kept = [np.array([walk.place(one.phase) for one in axis]) for walk, axis in zip(method.walks, axes, strict=True)]
    numbers = (kept[0][:, None, None] * method.walks[1].kept + kept[1][:, None]) * method.walks[2].kept + kept[2]
    first = np.array([phase.shifts[0] for phase in axes[0]])
    apart = np.array([phase.shifts[0] - phase.shifts[1] if len(phase.shifts) > 1 else 1 for phase in axes[0]])
    steps, begin = taps * in_group, starts * in_group
    depth = [np.broadcast_to(column[:, None, None], taps.shape) for column in (counts[0], first, apart)]
    table = np.stack([numbers, steps, begin, begin * per_out, *depth], axis=-1).reshape(-1, 7).astype(np.int64)
    channel = np.arange(in_group) * slab.channel
    return {
        "offsets": np.append((offsets[:, None] + channel).reshape(-1), 0),
        "phase table": table,
        "phases with taps": len(table),
        "weights group": offsets.size * in_group * per_out,
        "in depth": method.walks[0].axis.size,
    }


def minimal_tables(
    method: Method, tiling: Tiling, in_group: int, per_out: int, number: str
) -> dict[str, int | npt.NDArray[Any]]:
    """For each group of outputs made together: its kind, pieces, and where its inputs, outputs and weights are."""
    slab, blocking = tiling.slab, tiling.blocking
    assert slab is not None
    assert blocking is not None
    places = _Places(method, slab)
    depth, height, width = method.walks
    axes = (height, width.kept), (width, 1), (depth, height.kept * width.kept)
    table: list[dict[str, int]] = []
    gather: list[int] = []
    scatter: list[int] = []
    factors: list[float] = []
    weight = 0
    for group in method.groups:
        d, h, w = group
        kind = kind_of(group)
        pieces = list(product(*(range(one.pieces) for one in group)))
        points = [one.scheme.points for one in group]
        row = {
            "kind": method.kinds.index(kind),
            "pieces": len(pieces),
            "steps": len(pieces) * in_group,
            "points": prod(points),
            "depth in": points[0],
            "depth out": d.scheme.outputs,
            "gather": len(gather),
            "scatter": len(scatter),
            "weight": weight,
        }
        for piece in pieces:
            gather += [places.height(h.shift(piece[1], point)) for point in range(points[1])]
            gather += [places.width(w.shift(piece[2], point)) for point in range(points[2])]
            inputs = [places.depth(d.shift(piece[0], point)) for point in range(points[0])]
            gather += [inputs[at] for terms in _terms(d.scheme.inputs_matrix, kind[0]) for at, _ in terms]
        for one, (walk, factor) in zip((h, w, d), axes, strict=True):
            scatter += [walk.place(j) * factor * slab.phase for j in one.outputs]
        products = blocking.product_point * points[1] * points[2]
        scatter += [at * products for terms in _terms(d.scheme.outputs_matrix, kind[1]) for at, _ in terms]
        for name, matrix, most in (
            ("factors in", d.scheme.inputs_matrix, kind[0]),
            ("factors out", d.scheme.outputs_matrix, kind[1]),
        ):
            row[name] = len(factors)
            factors += [float(factor) for terms in _terms(matrix, most) for _, factor in terms]
        table.append(row)
        weight += prod(points) * row["steps"] * per_out
    return {
        "groups together": len(table),
        "together": np.array([[row[word] for word in TOGETHER] for row in table], dtype=np.int64),
        "factors": np.array(factors, dtype=number),
        "gather": np.array(gather, dtype=np.int64),
        "scatter": np.array(scatter, dtype=np.int64),
        "offsets": np.arange(method.most_pieces * in_group + 1, dtype=np.int64) * blocking.positions,
        "weights group": weight,
        "chunk": blocking.vectors,
        "chunk positions": blocking.positions,
        "chunk blocks": blocking.blocks,
        "input point": blocking.input_point,
        "product point": blocking.product_point,
        "depth step": method.walks[0].pace * slab.height * slab.pitch,
        "phases with taps": prod(len(phases(walk)) for walk in method.walks),
    }


def _terms(matrix: Matrix, count: int) -> Iterator[list[tuple[int, Fraction]]]:
    """For each row of a matrix its `count` terms, column and factor; filled up with zeros."""
    for row in matrix:
        found = [(at, factor) for at, factor in enumerate(row) if factor]
        yield found + [(found[0][0], Fraction(0))] * (count - len(found))
