"""Packed weights, kept for the next call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..plan.winograd import HUGE
from .content_cache import Array, ContentCache
from .packing import WeightLayout, pack


class Packed(NamedTuple):
    weights: Array  # one row for each group
    address: int  # of them
    finite: bool
    transformable: bool  # of a size that Winograd's method can take


_kept: ContentCache[Packed] = ContentCache(256 << 20)


def packed(weights: Array, layout: WeightLayout) -> Packed:
    """weights (Cin, Cout/groups, Kd, Kh, Kw) in the layout's order."""

    def make(own: tuple[Array, ...]) -> tuple[Packed, list[Array]]:
        made = pack_now(own[0], layout)
        return made, [made.weights]

    return _kept.get(layout, [weights], make)


def pack_now(weights: Array, layout: WeightLayout) -> Packed:
    """The same, for one who keeps them."""
    rows, largest = pack(weights, layout)
    return Packed(rows, rows.ctypes.data, bool(np.isfinite(largest)), _tame(largest, layout.number))


def _tame(largest: float, number: str) -> bool:
    """Neither so large that a transform might overflow, nor so small that halves would be rounded."""
    return largest == 0 or HUGE[number] ** -2 <= largest < HUGE[number]
