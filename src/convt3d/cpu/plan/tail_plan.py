"""The plan of a gradient's way back through stages beside the convolution, from shapes and type: its sweeps, which
start from a stored value, and their tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...plan.base import BasePlan
from ...plan.names import OUTPUT, ArrayName
from ...plan.tail_ways import Segment
from ...plan.tails import cut_tail
from ...spec.dtypes import DType
from ...spec.pipeline import Pipeline
from ...spec.rewrite import Rewritten, round_scalars
from ..steps.base import Where
from .choice import DIRECT, choose_method, direct_method
from .machine import Machine, machine
from .plan import SweepPlan, cached_bytes
from .structure import Structure


@dataclass(frozen=True, eq=False, kw_only=True)
class TailPlan(BasePlan):
    machine: Machine
    sweeps: tuple[SweepPlan, ...]
    segment: Segment
    norms: Mapping[ArrayName, int]  # their places, by the names of what is made of their moments
    aliases: tuple[ArrayName, ...] = ()

    @property
    def operations(self) -> int:
        """Roughly."""
        largest = max(self.trace.values[self.segment.first :][: self.segment.last - self.segment.first + 1], key=prod)
        return 64 * max(prod(largest), prod(self.trace.values[self.segment.start]))


def make_tail_plan(
    pipeline: Pipeline,
    x: Sequence[int],
    operands: Sequence[Sequence[int]],
    dtype: DType,
    segment: Segment,
    wanted: Sequence[bool] = (),
    in_place: bool = False,
) -> TailPlan:
    """For an input of shape `x`, and operands of these shapes in slot order, with `wanted` for each. `in_place`: the
    gradient takes the place of the value that the sweeps start from."""
    shapes = tuple(map(tuple, operands))
    return _make(pipeline, tuple(x), shapes, dtype, segment, tuple(wanted), in_place, machine())


@lru_cache(maxsize=512)
def _make(
    pipeline: Pipeline,
    x: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    dtype: DType,
    segment: Segment,
    wanted: tuple[bool, ...],
    in_place: bool,
    host: Machine,
) -> TailPlan:
    pipeline = round_scalars(pipeline, dtype)
    trace = pipeline.trace(x, operands)
    where = Where(pipeline, trace, host, dtype.number_bytes, direct_method(pipeline, trace, DIRECT))
    sweeps = []
    cut, norms = cut_tail(pipeline, trace, segment, wanted)
    for sweep in cut:
        choice = choose_method(sweep, where, DIRECT)
        structure = Structure(choice.steps, dtype.name, host.isa)
        large = prod(sweep.result) * dtype.itemsize >= cached_bytes(host)
        streamed = sweep.dest == OUTPUT and large and not in_place and dtype.itemsize == dtype.number_bytes
        sweeps.append(SweepPlan(sweep, choice.where, structure, choice.tiling, streamed))
    return TailPlan(
        asked=pipeline,
        dtype=dtype,
        trace=trace,
        rewritten=Rewritten(pipeline, ()),
        simplified=trace,
        machine=host,
        sweeps=tuple(sweeps),
        segment=segment,
        norms=norms,
    )
