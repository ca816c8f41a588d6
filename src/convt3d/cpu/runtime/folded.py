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
    if rewritten.left_out is None:
        made = _made(rewritten, pipeline, dtype, operands)
        return None if made is None else (made, float64)
    if not all(_holds(holds, operands[at].tobytes(), dtype) for at, holds in rewritten.left_out.items()):
        return None
    return tuple(operand for at, operand in enumerate(operands) if at not in rewritten.left_out), dtype


@lru_cache(maxsize=256)
def _holds(holds: Holds, numbers: bytes, dtype: DType) -> bool:
    return holds([dtype.widen(np.frombuffer(numbers, dtype.storage))])


def _made(
    rewritten: Rewritten, pipeline: Pipeline, dtype: DType, operands: Sequence[Array]
) -> tuple[Array, ...] | None:
    """Tensors of the value's shape pass as they are."""
    kinds = [slot.operand.kind for slot in pipeline.slots]
    # A tensor stands in by an array that says which one it is.
    places = [np.array([float(at)]) for at in range(len(kinds))]

    def make(own: tuple[Array, ...]) -> tuple[tuple[Array, ...] | None, tuple[Array, ...]]:
        rest = iter(own)
        wide = tuple(
            place if kind == "tensor" else _wide(next(rest), kind, dtype)
            for kind, place in zip(kinds, places, strict=True)
        )
        made = rewritten.operands(wide)
        if made is None:
            return None, ()
        arrays = tuple(np.ascontiguousarray(array).view(ImmutableArray) for array in made)
        return arrays, arrays

    own = [operand for kind, operand in zip(kinds, operands, strict=True) if kind != "tensor"]
    found = _kept.get((rewritten.pipeline, pipeline, dtype.name), own, make)
    if found is None:
        return None
    after = [slot.operand.kind for slot in rewritten.pipeline.slots]
    return tuple(
        operands[int(array[0])] if kind == "tensor" else array for kind, array in zip(after, found, strict=True)
    )


def _wide(operand: Array, kind: str, dtype: DType) -> Array:
    """Numbers as exact as float64. A kernel of float32 serves as it is: what multiplies it is float64."""
    return operand if kind == "kernel" and dtype == float32 else dtype.widen(operand)
