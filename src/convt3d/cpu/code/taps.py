"""Which taps along the depth meet the array: those that leave it meet planes of zeros, and are skipped."""

from __future__ import annotations

from ..ir.builder import Builder
from ..ir.values import Number
from ..steps.direct import PhaseWords


def depth_taps(b: Builder, row: PhaseWords, at_depth: Number, in_depth: Number) -> tuple[Number, Number]:
    """The first tap along the depth that meets a plane of the array, and the one behind the last: tap i meets input
    plane  meets - i * apart."""
    meets, taps, apart = b.add(at_depth, row.shift), row.taps, row.apart
    beyond = b.max(b.add(b.sub(meets, in_depth), apart), 0)
    first = b.min(b.sdiv(beyond, apart), taps)
    last = b.max(b.min(b.sdiv(b.add(b.max(meets, -1), apart), apart), taps), first)
    return first, b.select(b.compare("<", meets, 0), first, last)
