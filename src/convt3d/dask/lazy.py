"""A pipeline on a dask array: the graph whose tasks compute the chunks of the result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import dask
import numpy as np
from dask._task_spec import Task, TaskRef
from dask.array.core import Array, normalize_chunks
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_bytes

from ..cpu.plan.choice import AUTO, Options
from ..front.boxes import Request, Take
from ..spec.pipeline import Pipeline
from ..spec.shapes import Box
from .chunks import Chunks, pieces, result_chunks, spans, takes_of
from .tasks import Operands, assemble, compute

SMALL = 2  # a part of a chunk that is smaller by this factor is cut out where the chunk is, and only it is sent


def blockwise(
    pipeline: Pipeline,
    x: Array,
    operands: Sequence[Any],
    options: Options = AUTO,
    chunks: Any = None,
) -> Array:
    """A 5-D result of a pipeline whose boxes depend on boxes: 5-D `x`, operands in slot order. Tensors of the value's
    shape are dask arrays, all others whatever holds their numbers."""
    names = [slot.operand.kind == "tensor" for slot in pipeline.slots]
    shapes = tuple(tuple(operand.shape) for operand in operands)
    request = Request(pipeline, x.shape, shapes, x.dtype.name, options)
    boxes = request.boxes
    name = f"convt3d-{tokenize(request, x.name, [getattr(o, 'name', o) for o in operands], chunks)}"
    output: Chunks
    if chunks is None:
        limit = parse_bytes(dask.config.get("array.chunk-size"))
        output = result_chunks(boxes, x.chunks, limit)
    else:
        output = normalize_chunks(chunks, boxes.output, dtype=x.dtype, previous_chunks=x.chunks)
    graph = _Graph(name)
    own = [_in_one(operand) for operand, tensor in zip(operands, names, strict=True) if not tensor]
    weights = graph.operands(own)
    tensors = [operand for operand, tensor in zip(operands, names, strict=True) if tensor]
    spatial = [spans(lengths) for lengths in output]
    for index in product(*(range(len(lengths)) for lengths in output)):
        samples, *rest = (own_spans[at] for own_spans, at in zip(spatial, index, strict=True))
        box: Box = tuple(rest)  # type: ignore[assignment]
        part = boxes.part(box)
        source = graph.read(x, samples, part.reads)
        held = [
            graph.read(tensor, samples if tensor.shape[0] > 1 else (0, 1), takes_of(own_box, tensor.shape))
            for tensor, own_box in zip(tensors, boxes.own_tensors(part), strict=True)
        ]
        graph.add((name, *index), compute, request, box, weights, source, *held)
    collections = [x, *tensors, *(operand for operand in own if isinstance(operand, Array))]
    layers = HighLevelGraph.from_collections(name, graph.tasks, dependencies=collections)
    return Array(layers, name, output, dtype=x.dtype)


def _in_one(operand: Any) -> Any:
    return operand.rechunk(-1) if isinstance(operand, Array) else operand


class _Graph:
    """Tasks by their keys; equal parts of chunks are cut out once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: dict[Any, Task] = {}

    def add(self, key: Any, function: Any, *arguments: Any) -> TaskRef:
        if key not in self.tasks:
            self.tasks[key] = Task(key, function, *arguments)
        return TaskRef(key)

    def operands(self, arrays: Sequence[Any]) -> TaskRef:
        """One node with all of them, in one piece each."""
        given = [TaskRef((array.name, *(0,) * array.ndim)) if isinstance(array, Array) else array for array in arrays]
        return self.add(f"{self.name}-operands", Operands, *given)

    def read(self, array: Array, samples: tuple[int, int], takes: Sequence[Take]) -> TaskRef:
        shape = (samples[1] - samples[0], *(sum(high - low for low, high in take.ranges) for take in takes))
        parts, places = [], []
        for number, inside, place in pieces(array.chunks, samples, takes):
            parts.append(self._piece(array, number, inside))
            places.append(place)
        orders = (None, *(take.order for take in takes))
        if len(parts) == 1 and not any(orders):
            return parts[0]
        key = f"{self.name}-box-{tokenize(array.name, [p.key for p in parts], orders)}"
        return self.add(key, assemble, tuple(shape), places, orders, *parts)

    def _piece(self, array: Array, number: tuple[int, ...], inside: tuple[slice, ...]) -> TaskRef:
        """A part of a chunk."""
        lengths = [lengths[at] for lengths, at in zip(array.chunks, number, strict=True)]
        key = (array.name, *number)
        if all(part == slice(0, length) for part, length in zip(inside, lengths, strict=True)):
            return TaskRef(key)
        key_of_cut = f"{self.name}-part-{tokenize(key, inside)}"
        return self.add(key_of_cut, cut, TaskRef(key), inside)


def cut(block: Any, inside: tuple[slice, ...]) -> Any:
    part = block[inside]
    return np.ascontiguousarray(part) if SMALL * part.nbytes < block.nbytes else part
