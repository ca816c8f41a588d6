"""The pipeline as it runs on arrays of known shapes: simplified, averages folded, reductions along an axis as pools,
padding that is not zero as a stage of its own."""

from __future__ import annotations

from ..spec.dtypes import DType
from ..spec.linear import fold_averages
from ..spec.padding import padding_apart
from ..spec.pipeline import Pipeline, Trace
from ..spec.rewrite import Rewritten, simplify
from ..spec.windows import axes_as_windows


def rewrite(
    pipeline: Pipeline, trace: Trace, dtype: DType, tame: bool, keep_kernel: bool = False, averages: bool = True
) -> tuple[Rewritten, Trace]:
    """The pipeline as it runs on arrays of known shapes, and its shapes."""
    rewritten = simplify(pipeline, dtype, tame, keep_kernel)
    operands = operand_shapes(rewritten.pipeline, pipeline, trace)
    simplified = rewritten.pipeline.trace(trace.values[0], operands)
    if tame and averages:
        rewritten, kernel = fold_averages(rewritten, simplified)
        if kernel is not None:
            operands[0] = kernel
            simplified = rewritten.pipeline.trace(trace.values[0], operands)
    final = padding_apart(
        axes_as_windows(rewritten, simplified, dtype), simplified.operands[rewritten.pipeline.conv_index][0]
    )
    return final, simplified if final is rewritten else final.pipeline.trace(trace.values[0], operands)


def operand_shapes(simplified: Pipeline, asked: Pipeline, trace: Trace) -> list[tuple[int, ...]]:
    """Shapes of the simplified pipeline's operands. Rewrites never touch tensors and slopes, so these keep theirs."""
    given = zip(asked.slots, trace.operand_shapes, strict=True)
    kernel = trace.operands[asked.conv_index][0]
    kept = iter([shape for slot, shape in given if slot.operand.kind in _UNTOUCHED])
    usual = simplified.operand_shapes(trace.values[0], kernel)
    return [
        next(kept) if slot.operand.kind in _UNTOUCHED else shape
        for slot, shape in zip(simplified.slots, usual, strict=True)
    ]


_UNTOUCHED = ("tensor", "slope")
