"""Operands as the simplified pipeline takes them, such as weights with a batch norm folded in: made once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...spec.dtypes import DType, float32, float64
from ...spec.pipeline import Pipeline
from ...spec.rewrite import Holds, Rewritten
from .content_cache import Array, ContentCache, ImmutableArray

_kept: ContentCache[tuple[Array, ...] | None] = ContentCache(128 << 20)


def folded(
    rewritten: Rewritten, pipeline: Pipeline, dtype: DType, operands: Sequence[Array]
) -> tuple[tuple[Array, ...], DType] | None:
    """The simplified pipeline's operands and the type that they are stored as; None where one is not tame."""
    if rewritten.left_out is not None:
        return (remaining(rewritten, operands), dtype) if all_hold(rewritten, dtype, operands) else None

    def make(own: tuple[Array, ...]) -> tuple[tuple[Array, ...] | None, tuple[Array, ...]]:
        made = fold(rewritten, pipeline, dtype, own)
        return made, made or ()

    found = _kept.get((rewritten.pipeline, pipeline, dtype.name), without_tensors(pipeline, operands), make)
    return None if found is None else (with_tensors(rewritten, found, operands), float64)


def remaining(rewritten: Rewritten, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Where operands are left out and none is changed: the others."""
    gone = rewritten.left_out or {}
    return tuple(operand for at, operand in enumerate(operands) if at not in gone)


def all_hold(rewritten: Rewritten, dtype: DType, operands: Sequence[Array]) -> bool:
    """Whether those that are left out are such that they may be."""
    return all(_holds(holds, operands[at].tobytes(), dtype) for at, holds in (rewritten.left_out or {}).items())


@lru_cache(maxsize=256)
def _holds(holds: Holds, numbers: bytes, dtype: DType) -> bool:
    return holds([dtype.widen(np.frombuffer(numbers, dtype.storage))])


def fold(rewritten: Rewritten, pipeline: Pipeline, dtype: DType, own: Sequence[Array]) -> tuple[Array, ...] | None:
    """What the operands that are no tensors of the value's shape become. In the place of such a tensor stands an array
    that says which one it is."""
    rest = iter(own)
    wide = tuple(
        np.array([float(at)]) if slot.operand.kind == "tensor" else _wide(next(rest), slot.operand.kind, dtype)
        for at, slot in enumerate(pipeline.slots)
    )
    made = rewritten.operands(wide)
    return None if made is None else tuple(np.ascontiguousarray(array).view(ImmutableArray) for array in made)


def without_tensors(pipeline: Pipeline, operands: Sequence[Array]) -> list[Array]:
    """Operands that are no tensors of the value's shape."""
    return [operand for operand, slot in zip(operands, pipeline.slots, strict=True) if slot.operand.kind != "tensor"]


def with_tensors(rewritten: Rewritten, made: Sequence[Array], operands: Sequence[Array]) -> tuple[Array, ...]:
    """What `fold` made, and the tensors of a call."""
    after = [slot.operand.kind for slot in rewritten.pipeline.slots]
    return tuple(
        operands[int(array[0])] if kind == "tensor" else array for kind, array in zip(after, made, strict=True)
    )


def _wide(operand: Array, kind: str, dtype: DType) -> Array:
    """Numbers as exact as float64. A kernel of float32 serves as it is: what multiplies it is float64."""
    return operand if kind == "kernel" and dtype == float32 else dtype.widen(operand)
