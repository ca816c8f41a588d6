"""One call of one pipeline on the caller's arrays: checks all of it first, then runs, then hands back the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..cpu.plan.choice import AUTO, Options
from ..cpu.plan.plan import Plan, make_plan
from ..cpu.plan.sequence import PlanSequence, make_sequence
from ..cpu.runtime.again import Again
from ..cpu.runtime.execute import EVERYONE, execute_plan
from ..cpu.runtime.memory import check_size, empty
from ..cpu.runtime.ready import Keeper
from ..cpu.runtime.sequence import execute_sequence
from ..errors import AllocationError, DTypeError, OutputError, described, named
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from .arrays import Storage, mark_written, overlap, overlap_within, take

# What takes the place of `apply` for arrays that are computed later, by the library of their type.
LATER: dict[str, Callable[..., Any]] = {}


def options_of(algorithm: str, precision: str) -> Options:
    """What a caller asked for, checked."""
    usual = algorithm is AUTO.algorithm and precision is AUTO.precision  # the defaults themselves
    return AUTO if usual else Options(algorithm, precision)


def apply(
    operator: str, pipeline: Pipeline, x: Any, operands: Sequence[Any], out: Any = None, options: Options = AUTO
) -> Any:
    """pipeline(x, *operands) for 5-D or unbatched 4-D `x`; the result is of x's kind, or `out` itself."""
    later = LATER.get(type(x).__module__.partition(".")[0])
    with named(operator):
        if later is not None:
            return later(operator, pipeline, x, operands, out, options)
        source = take(operator, "input", x)
        tensors = tuple(
            take(operator, slot.name, operand) for slot, operand in zip(pipeline.slots, operands, strict=True)
        )
        for slot, taken in zip(pipeline.slots, tensors, strict=True):
            same_dtype(operator, slot.name, taken.dtype, "input", source.dtype)

        def allocate(shape: tuple[int, ...], inputs: Sequence[Storage]) -> Storage:
            if out is None:
                return allocated(operator, shape, source.dtype)
            return take_out(operator, out, shape, source.dtype, inputs)

        arrays = [taken.storage for taken in tensors]
        target, _ = compute(operator, pipeline, source.dtype, source.storage, arrays, allocate, options)
        if out is None:
            return source.wrap(target)
        mark_written(out)
        return out


def compute(
    operator: str,
    pipeline: Pipeline,
    dtype: DType,
    x: Storage,
    operands: Sequence[Storage],
    allocate: Callable[[tuple[int, ...], Sequence[Storage]], Storage],
    options: Options = AUTO,
    keeper: Keeper = EVERYONE,
) -> tuple[Storage, Again | None]:
    """The result for storage of one type, in the array that allocate(its shape, all inputs) gives; and what gives it
    again for arrays of the same layout, where weights have an owner."""
    unbatched = x.ndim == 4
    batch = x[None] if unbatched else x
    arrays = [
        array[None] if slot.operand.kind == "tensor" and unbatched and array.ndim == 4 else array
        for slot, array in zip(pipeline.slots, operands, strict=True)
    ]
    for slot, array in zip(pipeline.slots, arrays, strict=True):
        if slot.operand.kind == "kernel":  # it is copied
            _check_memory(operator, slot.name, array)
    make = make_plan if len(pipeline.convolutions) == 1 else make_sequence
    plan: Plan | PlanSequence = make(pipeline, batch.shape, tuple(array.shape for array in arrays), dtype, options)
    vectors = tuple(
        array.reshape(flat) if array.ndim else np.full(flat, array)
        for array, flat in zip(arrays, plan.trace.operand_shapes, strict=True)
    )
    target = allocate(pipeline.result_shape(plan.trace.output, not unbatched), (batch, *vectors))
    missing = (0, *pipeline.dropped) if unbatched else pipeline.dropped
    for name, array in zip(("input", *pipeline.operand_names), (batch, *vectors), strict=True):
        if 0 in array.strides:
            _check_memory(operator, name, array)
    out = np.expand_dims(target, missing) if missing else target
    again = None
    try:
        if isinstance(plan, Plan):
            again = execute_plan(plan, batch, vectors, out, keeper)
        else:
            execute_sequence(plan, batch, vectors, out, keeper)
    except AllocationError:
        raise
    except MemoryError as problem:
        received = described(f"out of memory: {problem}")
        rule = "scratch, packed weights and intermediate values must fit in memory"
        raise AllocationError(operator, "scratch", received, rule, "Use a smaller batch, or fewer threads") from None
    return target, again


def _check_memory(operator: str, name: str, array: Storage) -> None:
    """Repeated by zero strides, an array of a few bytes can be larger than any memory: to go through it would take for
    ever."""
    if array.nbytes < _LARGE:
        return
    try:
        check_size(array.nbytes)
    except MemoryError as problem:
        received = described(f"array of shape {array.shape}, {array.nbytes:,} bytes")
        raise AllocationError(operator, name, received, f"must fit in memory: {problem}", "Use a smaller one") from None


_LARGE = 1 << 30


def same_dtype(operator: str, name: str, dtype: DType, other: str, wanted: DType) -> None:
    if dtype.name != wanted.name:
        raise DTypeError(
            operator,
            name,
            described(f"array of {dtype.name}"),
            f"must have the same type as {other}, which is {wanted.name}",
            "Convert one of them",
        )


def allocated(operator: str, shape: tuple[int, ...], dtype: DType) -> Storage:
    """Memory for a result."""
    try:
        return empty(shape, dtype.storage)
    except MemoryError:
        raise AllocationError(
            operator,
            "output",
            described(f"shape {shape}, {prod(shape) * dtype.itemsize:,} bytes"),
            "does not fit in memory",
            "Use a smaller batch or volume",
        ) from None


def take_out(operator: str, out: Any, shape: tuple[int, ...], dtype: DType, inputs: Sequence[Storage]) -> Storage:
    taken = take(operator, "out", out, writable=True)
    received = described(f"array of shape {taken.storage.shape}, {taken.dtype.name}")
    if taken.dtype != dtype:
        raise DTypeError(
            operator, "out", received, f"must be {dtype.name}, the type of input", "Give an array of that type"
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
