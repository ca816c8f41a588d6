"""One call of one pipeline on the caller's arrays: checks all of it first, then runs, then hands back the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..errors import AllocationError, DTypeError, OutputError, described, named
from ..plan.choice import AUTO, Options
from ..plan.plan import make_plan
from ..run.execute import execute
from ..run.memory import empty
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from .arrays import Storage, Taken, mark_written, overlap, overlap_within, take


def how(algorithm: str, precision: str) -> Options:
    """What a caller asked for, checked."""
    usual = algorithm == AUTO.algorithm and precision == AUTO.precision
    return AUTO if usual else Options(algorithm, precision)


def apply(
    operator: str, pipeline: Pipeline, x: Any, operands: Sequence[Any], out: Any = None, options: Options = AUTO
) -> Any:
    """pipeline(x, *operands) for 5-D or unbatched 4-D `x`; the result is of x's kind, or `out` itself."""
    with named(operator):
        source = take(operator, "x", x)
        tensors = tuple(
            take(operator, slot.name, operand) for slot, operand in zip(pipeline.slots, operands, strict=True)
        )
        _same_dtype(operator, pipeline, source, tensors)
        unbatched = source.storage.ndim == 4
        batch = source.storage[None] if unbatched else source.storage
        arrays = [
            taken.storage[None]
            if slot.operand.kind == "tensor" and unbatched and taken.storage.ndim == 4
            else taken.storage
            for slot, taken in zip(pipeline.slots, tensors, strict=True)
        ]
        trace = make_plan(pipeline, batch.shape, tuple(array.shape for array in arrays), source.dtype, options).trace
        shape = trace.output[1:] if unbatched else trace.output
        normal = [shape for shapes in trace.operands for shape in shapes]
        vectors = tuple(array.reshape(flat) for array, flat in zip(arrays, normal, strict=True))
        if out is None:
            target, result = _allocate(operator, shape, source.dtype), None
        else:
            target, result = _take_out(operator, out, shape, source.dtype, (batch, *vectors)), out
        try:
            execute(pipeline, source.dtype, batch, vectors, target[None] if unbatched else target, options)
        except MemoryError:
            raise AllocationError(
                operator, "scratch", described("out of memory"), "scratch must fit in memory", "Use a smaller batch"
            ) from None
        if result is None:
            return source.wrap(target)
        mark_written(result)
        return result


def _same_dtype(operator: str, pipeline: Pipeline, x: Taken, tensors: Sequence[Taken]) -> None:
    for slot, taken in zip(pipeline.slots, tensors, strict=True):
        if taken.dtype != x.dtype:
            raise DTypeError(
                operator,
                slot.name,
                described(f"array of {taken.dtype.name}"),
                f"must have the same type as x, which is {x.dtype.name}",
                "Convert one of them",
            )


def _allocate(operator: str, shape: tuple[int, ...], dtype: DType) -> Storage:
    try:
        return empty(shape, dtype.storage)
    except MemoryError:
        raise AllocationError(
            operator,
            "output",
            described(f"shape {shape}, {prod(shape) * dtype.itemsize / 1e9:.1f} GB"),
            "does not fit in memory",
            "Use a smaller batch or volume",
        ) from None


def _take_out(operator: str, out: Any, shape: tuple[int, ...], dtype: DType, inputs: Sequence[Storage]) -> Storage:
    taken = take(operator, "out", out, writable=True)
    received = described(f"array of shape {taken.storage.shape}, {taken.dtype.name}")
    if taken.dtype != dtype:
        raise DTypeError(
            operator, "out", received, f"must be {dtype.name}, the type of x", "Give an array of that type"
        )
    if taken.storage.shape != shape:
        raise OutputError(operator, "out", received, f"must have the result's shape {shape}", "Allocate that shape")
    if overlap_within(taken.storage):
        raise OutputError(
            operator, "out", received, "must not overlap itself", "Give a fresh array, not a broadcast view"
        )
    if any(overlap(taken.storage, array) for array in inputs):
        raise OutputError(operator, "out", received, "must not share memory with an input", "Give a fresh array")
    return taken.storage
