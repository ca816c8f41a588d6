"""A Plan: how one pipeline runs on arrays of given shapes and type. Frozen; making one touches no array."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ..spec import work
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline, Trace
from ..spec.rewrite import Rewritten, pool_over_phases, simplify


@dataclass(frozen=True)
class Plan:
    asked: Pipeline
    dtype: DType
    trace: Trace  # of the pipeline as asked
    rewritten: Rewritten
    simplified: Trace  # of the pipeline as it runs
    reach: tuple[int, int, int]  # outputs of the convolution along D, H, W that later stages read
    phase_pool: int | None  # stage that pools over the convolution's phases
    work: work.Work
    algorithm: str
    scratch: int  # bytes beyond inputs, output and operands


@lru_cache(maxsize=1024)
def make_plan(
    pipeline: Pipeline,
    x: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    dtype: DType,
    tame: bool = True,
) -> Plan:
    """The plan for input shape `x` (5-D) and operand shapes in slot order; raises ShapeError where they do not fit.

    `tame=False` plans without the rewrites that need finite operands of moderate size.
    """
    trace = pipeline.trace(x, operands)
    rewritten = simplify(pipeline, dtype, tame)
    simplified = rewritten.pipeline.trace(x, _operand_shapes(rewritten.pipeline, pipeline, trace))
    largest = max(prod(shape[1:]) for shape in simplified.values)
    return Plan(
        asked=pipeline,
        dtype=dtype,
        trace=trace,
        rewritten=rewritten,
        simplified=simplified,
        reach=work.reach(rewritten.pipeline, simplified),
        phase_pool=pool_over_phases(rewritten.pipeline),
        work=work.count(rewritten.pipeline, simplified),
        algorithm="meaning",
        scratch=3 * 8 * largest,  # float64 values of one sample: a stage's input, its output, and a temporary
    )


def _operand_shapes(simplified: Pipeline, asked: Pipeline, trace: Trace) -> list[tuple[int, ...]]:
    """Shapes of the simplified pipeline's operands. Rewrites never touch tensors and slopes, so these keep theirs."""
    given = [shape for shapes in trace.operands for shape in shapes]
    kernel = trace.operands[asked.conv_index][0]
    kept = iter([shape for slot, shape in zip(asked.slots, given, strict=True) if slot.operand.kind in _UNTOUCHED])
    usual = simplified.operand_shapes(trace.values[0], kernel)
    return [
        next(kept) if slot.operand.kind in _UNTOUCHED else shape
        for slot, shape in zip(simplified.slots, usual, strict=True)
    ]


_UNTOUCHED = ("tensor", "slope")
