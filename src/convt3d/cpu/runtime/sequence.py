"""Executes plans one after the other, each on what those before it gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...plan.segments import run_segments
from ..plan.sequence import PlanSequence
from .execute import EVERYONE, execute_plan
from .memory import empty
from .ready import Keeper

Array = npt.NDArray[Any]


def execute_sequence(
    sequence: PlanSequence, x: Array, operands: tuple[Array, ...], out: Array, keeper: Keeper = EVERYONE
) -> None:
    """Writes the result into `out`. Arrays hold storage values, as for `execute_plan`."""
    dtype, last = sequence.dtype, len(sequence.plans) - 1

    def run(number: int, source: Array, own: tuple[Array, ...]) -> Array:
        segment, plan = sequence.segments[number], sequence.plans[number]
        repeated = source if source.shape == segment.shape else np.broadcast_to(source, segment.shape)
        target: Array = out if number == last else empty(plan.trace.output, dtype.storage)
        execute_plan(plan, repeated, own, target, keeper.part(number))
        return target

    run_segments(sequence.segments, x, operands, lambda one: dtype.narrow(np.full(one.sizes, one.number)), run)
