"""What a worker does: boxes of a result, partial statistics. Everything here can be pickled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..cpu.plan.cores import num_threads
from ..cpu.runtime.memory import empty
from ..cpu.runtime.ready import Owner
from ..cpu.runtime.strips import InPieces, Piece
from ..front.apply import apply
from ..front.arrays import TakenArray, take
from ..front.boxes import Request, Storage
from ..spec.pipeline import Pipeline
from ..spec.shapes import Box, Range
from .memory import KEPT

SMALL = 2  # a part of a block that is smaller by this factor is copied, where the block is, and only it is sent


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


Orders: TypeAlias = "tuple[tuple[int, ...] | None, ...]"


class Layout(NamedTuple):
    """How an array is put together from blocks: a part of each, at its place; then voxels in another order along those
    axes that have one."""

    shape: tuple[int, ...]
    parts: tuple[tuple[tuple[Range, ...], tuple[Range, ...]], ...]
    orders: Orders = ()


def assemble(layout: Layout, *blocks: Any) -> Any:
    """The array, or a view of the block, where there is one that holds little else."""
    if len(blocks) == 1:
        ((inside, _),) = layout.parts
        made = blocks[0][_slices(inside)]
        if SMALL * made.nbytes < blocks[0].nbytes:  # the block can be forgotten
            made = np.ascontiguousarray(made)
    else:
        made = empty(layout.shape, blocks[0].dtype)  # of memory that has been used before
        for (inside, place), block in zip(layout.parts, blocks, strict=True):
            made[_slices(place)] = block[_slices(inside)]
    for axis, order in enumerate(layout.orders):
        if order:
            made = made.take(order, axis)
    return made


def _slices(ranges: Sequence[Range]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in ranges)


def compute(request: Request, box: Box, operands: Operands, layouts: Sequence[Layout], *blocks: Any) -> Any:
    """One box of a result, as an array of the input's kind. Blocks of the input, then of each tensor, in order."""
    boxes, given = request.boxes, iter(blocks)
    first, *others = layouts
    source, x = _input(first, *islice(given, len(first.parts)))
    tensors = [assemble(layout, *islice(given, len(layout.parts))) for layout in others]
    rest, whole = iter(tensors), iter(operands.arrays)
    arrays: list[Storage] = [
        take("dask", slot.name, next(rest) if slot.operand.kind == "tensor" else next(whole)).storage
        for slot in request.pipeline.slots
    ]
    with own_threads():
        made = boxes.compute(boxes.part(box), x, arrays, operands.owner)
    KEPT.work_with(made.nbytes if isinstance(x, InPieces) else x.nbytes + made.nbytes)
    return source.wrap(np.ascontiguousarray(made))


def _input(layout: Layout, *blocks: Any) -> tuple[TakenArray, Storage | InPieces]:
    """What a box reads, as it is stored, and an array of its kind: in pieces that have all samples and channels, or put
    together."""
    every = tuple((0, size) for size in layout.shape[:2])
    if len(blocks) == 1 or layout.orders or any(place[:2] != every for _, place in layout.parts):
        source = take("dask", "input", assemble(layout, *blocks))
        return source, source.storage
    pieces = []
    for (inside, place), block in zip(layout.parts, blocks, strict=True):
        source = take("dask", "input", block[_slices(inside)])
        pieces.append(Piece(source.storage, tuple(low for low, _ in place[2:])))
    return source, InPieces(layout.shape, pieces)


def compute_small(pipeline: Pipeline, operands: Operands, x: Any) -> Any:
    """All of a result that is small."""
    with own_threads():
        return apply("dask", pipeline, x, operands.arrays)


def narrow(block: Any, dtype: Any) -> Any:
    """Numbers of a narrower type, infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return block.astype(dtype)
