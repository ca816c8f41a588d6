"""Executes a Plan on stored arrays. The algorithm "meaning" computes in float64, one sample at a time, rounded once."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..plan.plan import make_plan
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from ..spec.reference import evaluate


def execute(
    pipeline: Pipeline,
    dtype: DType,
    x: npt.NDArray[Any],
    operands: tuple[npt.NDArray[Any], ...],
    out: npt.NDArray[Any],
) -> None:
    """Writes the pipeline's result into `out`. Arrays hold storage values; x is (B, C, D, H, W), vectors are 1-D."""
    shapes = tuple(operand.shape for operand in operands)
    wide = tuple(
        operand if slot.operand.kind == "tensor" else dtype.widen(operand)  # whole tensors are widened sample by sample
        for slot, operand in zip(pipeline.slots, operands, strict=True)
    )
    plan = make_plan(pipeline, x.shape, shapes, dtype)
    prepared = plan.rewritten.operands(wide)
    if prepared is None:  # some tensor is not tame: the rewrites that rely on it do not hold
        plan = make_plan(pipeline, x.shape, shapes, dtype, tame=False)
        prepared = wide
    pipeline = plan.rewritten.pipeline
    for sample in range(x.shape[0]):
        own = [
            dtype.widen(_sample_of(array, sample)) if slot.operand.kind == "tensor" else array
            for slot, array in zip(pipeline.slots, prepared, strict=True)
        ]
        out[sample] = dtype.narrow(evaluate(pipeline, dtype.widen(_sample_of(x, sample)), own))[0]


def _sample_of(array: npt.NDArray[Any], sample: int) -> npt.NDArray[Any]:
    """(1, C, D, H, W) of a (B, C, D, H, W) array; an array of batch 1 serves every sample."""
    return array if array.shape[0] == 1 else array[sample : sample + 1]
