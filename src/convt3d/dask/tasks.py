"""What a worker does: boxes of a result, partial statistics. Everything here can be pickled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ..cpu.plan.cores import num_threads
from ..cpu.runtime.memory import empty
from ..cpu.runtime.ready import Owner
from ..front.apply import apply
from ..front.arrays import take
from ..front.boxes import Request, Storage
from ..spec.pipeline import Pipeline
from ..spec.shapes import Box


class Operands:
    """Operands that are the same for every box: one node of a graph, sent to each worker once, where it keeps what was
    packed from them."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays
        self.owner = Owner()

    def __reduce__(self) -> tuple[Any, ...]:
        return Operands, self.arrays

    def __dask_tokenize__(self) -> Any:
        from dask.tokenize import tokenize

        return tokenize(*self.arrays)


def own_threads() -> AbstractContextManager[None]:
    """A scheduler with threads runs a task in each of them: so a task takes one. Alone, in the main thread, it may take
    all."""
    return nullcontext() if threading.current_thread() is threading.main_thread() else num_threads(1)


def assemble(shape: Sequence[int], places: Sequence[tuple[slice, ...]], orders: Any, *parts: Any) -> Any:
    """An array from its parts, voxels in another order where `orders` has one for an axis."""
    if len(parts) == 1 and not any(orders):
        return parts[0]
    made = empty(shape, parts[0].dtype)  # of memory that has been used before
    for place, part in zip(places, parts, strict=True):
        made[place] = part
    for axis, order in enumerate(orders):
        if order:
            made = made.take(order, axis)
    return made


def compute(request: Request, box: Box, operands: Operands, x: Any, *tensors: Any) -> Any:
    """One box of a result, as an array of the input's kind."""
    boxes = request.boxes
    source = take("dask", "input", x)
    rest = iter(tensors)
    whole = iter(operands.arrays)
    arrays: list[Storage] = [
        take("dask", slot.name, next(rest) if slot.operand.kind == "tensor" else next(whole)).storage
        for slot in request.pipeline.slots
    ]
    with own_threads():
        made = boxes.compute(boxes.part(box), source.storage, arrays, operands.owner)
    return source.wrap(np.ascontiguousarray(made))


def compute_small(pipeline: Pipeline, operands: Operands, x: Any) -> Any:
    """All of a result that is small."""
    with own_threads():
        return apply("dask", pipeline, x, operands.arrays)


def narrow(block: Any, dtype: Any) -> Any:
    """Numbers of a narrower type, infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return block.astype(dtype)


def statistics(kind: str, block: Any) -> Any:
    """(B, C, 1 + numbers): voxels, and the numbers that the engine keeps of a tile (plan/sweeps.py)."""
    batch, channels = block.shape[:2]
    found = np.empty((batch, channels, 2 if kind in ("sum", "max") else 3))
    found[..., 0] = float(np.prod(block.shape[2:]))
    with np.errstate(all="ignore"):
        for sample in range(batch):
            for channel in range(channels):
                found[sample, channel, 1:] = _NUMBERS[kind](block[sample, channel].astype(np.float64).ravel())
    return found


def _maxexp(values: Any) -> tuple[float, ...]:
    most = values.max()
    return most, np.exp(values - (0.0 if np.isinf(most) else most)).sum()


def _moments(values: Any) -> tuple[float, ...]:
    mean = values.mean()
    values -= mean
    return mean, np.dot(values, values)


_NUMBERS: dict[str, Any] = {
    "sum": lambda values: (values.sum(),),
    "max": lambda values: (values.max(),),
    "maxexp": _maxexp,
    "moments": _moments,
}


def combine(kind: str, parts: Sequence[Any]) -> Any:
    """Statistics of the union of some disjoint boxes."""
    each = np.stack(parts)
    voxels, first = each[..., 0], each[..., 1]
    total = voxels.sum(axis=0)
    with np.errstate(all="ignore"):
        if kind == "sum":
            numbers = [first.sum(axis=0)]
        elif kind == "max":
            numbers = [first.max(axis=0)]
        elif kind == "maxexp":
            most = first.max(axis=0)
            finite = [np.where(np.isinf(v), 0.0, v) for v in (first, most)]
            numbers = [most, (each[..., 2] * np.exp(finite[0] - finite[1])).sum(axis=0)]
        else:
            mean = (first * voxels).sum(axis=0) / total
            numbers = [mean, (each[..., 2] + voxels * (first - mean) ** 2).sum(axis=0)]
    return np.stack([total, *numbers], axis=-1)
