"""Operands as the simplified pipeline takes them, such as weights with a batch norm folded in: made once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...spec.dtypes import DType, float32
from ...spec.pipeline import Pipeline
from ...spec.rewrite import Rewritten
from .content_cache import Array, ContentCache, ImmutableArray

_kept: ContentCache[tuple[Array, ...] | None] = ContentCache(128 << 20)


def folded(
    rewritten: Rewritten, pipeline: Pipeline, dtype: DType, operands: Sequence[Array]
) -> tuple[Array, ...] | None:
    """The simplified pipeline's operands; None where one is not tame. Tensors of the value's shape pass as they are."""
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
