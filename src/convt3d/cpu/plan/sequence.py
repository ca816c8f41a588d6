"""Plans that run one after the other: one for each segment of a pipeline of several convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...plan.base import by, stage_lines
from ...plan.segments import Segment, Value, segments
from ...spec.dtypes import DType
from ...spec.pipeline import Pipeline, Trace
from ...units import amount, counted, operations
from .choice import AUTO, Options
from .explain import explain, scratch_of_all
from .plan import Plan, make_plan


@dataclass(frozen=True, eq=False)
class PlanSequence:
    asked: Pipeline
    dtype: DType
    trace: Trace
    segments: tuple[Segment, ...]
    plans: tuple[Plan, ...]  # one for each of them

    @property
    def between(self) -> int:
        """Bytes of the values that are stored between segments, at most at a time."""
        held: dict[Value, int] = {}
        most = 0
        for segment in self.segments[:-1]:
            held[segment.result] = prod(segment.result.shape(self.trace)) * self.dtype.itemsize
            most = max(most, sum(held.values()))
            held = {value: size for value, size in held.items() if value not in segment.frees}
        return most


def make_sequence(
    pipeline: Pipeline,
    x: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    dtype: DType,
    options: Options = AUTO,
) -> PlanSequence:
    """As `make_plan`, for a pipeline of several convolutions."""
    trace, cut = _cut(pipeline, x, operands)
    plans = (make_plan(each.pipeline, each.shape, each.operand_shapes(trace), dtype, options) for each in cut)
    return PlanSequence(pipeline, dtype, trace, cut, tuple(plans))


@lru_cache(maxsize=256)
def _cut(
    pipeline: Pipeline, x: tuple[int, ...], operands: tuple[tuple[int, ...], ...]
) -> tuple[Trace, tuple[Segment, ...]]:
    trace = pipeline.trace(x, operands)
    return trace, segments(pipeline, trace)


def explain_sequence(sequence: PlanSequence) -> str:
    """Each plan in words and figures, and what they come to together."""
    trace, plans = sequence.trace, sequence.plans
    count = len(sequence.asked.convolutions)
    lines = [f"{count} convolutions on {sequence.dtype.name}, in {counted(len(plans), 'segment')} one after the other"]
    lines += stage_lines("asked", sequence.asked, trace)
    for number, (segment, plan) in enumerate(zip(sequence.segments, plans, strict=True)):
        last = number == len(plans) - 1
        reads = _named([segment.source, *(each for each in segment.operands if isinstance(each, Value))])
        gives = "the result" if last else f"value {segment.result.number}, {by(segment.result.shape(trace))}"
        frees = f"; then {_named(segment.frees)} is freed" if segment.frees and not last else ""
        lines.append(f"segment {number + 1} of {len(plans)}: reads {reads}, gives {gives}{frees}")
        lines += [f"  {line}" for line in explain(plan).splitlines()]
    scratch = max(map(scratch_of_all, plans))
    lines += [
        f"all segments: needed  {operations(sum(plan.work.needed for plan in plans))}",
        f"all segments: nominal {operations(sum(plan.work.nominal for plan in plans))}",
        f"values between segments {amount(sequence.between)} at most at a time",
        f"scratch {amount(scratch)} for all threads of the greediest segment",
    ]
    return "\n".join(lines)


def _named(values: Sequence[Value]) -> str:
    names = ("the input" if value.number == 0 else f"value {value.number}" for value in values)
    return ", ".join(dict.fromkeys(names))
