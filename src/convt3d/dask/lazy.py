"""A pipeline on a dask array: the graph whose tasks compute the chunks of the result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from math import prod
from typing import Any

import dask
from dask._task_spec import Task, TaskRef
from dask.array.core import Array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.utils import parse_bytes

from ..cpu.plan.choice import AUTO, Options
from ..front.boxes import Request, Take
from ..spec.pipeline import Pipeline
from ..spec.shapes import Box
from .chunks import Chunks, Piece, Strip, pieces, result_chunks, spans, takes_of
from .priority import FIRST, STRIP
from .tasks import Layout, Operands, Orders, assemble, compute


def blockwise(
    pipeline: Pipeline,
    x: Array,
    operands: Sequence[Any],
    options: Options = AUTO,
    chunks: Chunks | None = None,
) -> Array:
    """A 5-D result of a pipeline whose boxes depend on boxes: 5-D `x`, operands in slot order. Tensors of the value's
    shape are dask arrays, all others whatever holds their numbers."""
    names = [slot.operand.kind == "tensor" for slot in pipeline.slots]
    shapes = tuple(tuple(operand.shape) for operand in operands)
    request = Request(pipeline, x.shape, shapes, x.dtype.name, options)
    boxes = request.boxes
    token = tokenize(request, x.name, [getattr(o, "name", o) for o in operands], chunks)
    name = f"convt3d-{token}"
    output: Chunks
    if chunks is None:
        limit = parse_bytes(dask.config.get("array.chunk-size"))
        given = prod(max(lengths, default=0) for lengths in x.chunks) * x.dtype.itemsize
        output = result_chunks(boxes, x.chunks, max(limit, given))
    else:
        output = tuple(tuple(filter(None, lengths)) for lengths in chunks)
    graph = _Graph(token)
    own = [_in_one(operand) for operand, tensor in zip(operands, names, strict=True) if not tensor]
    weights = graph.operands(own)
    tensors = [operand for operand, tensor in zip(operands, names, strict=True) if tensor]
    spatial = [spans(lengths) for lengths in output]
    for index in product(*(range(len(lengths)) for lengths in output)):
        samples, *rest = (own_spans[at] for own_spans, at in zip(spatial, index, strict=True))
        box: Box = tuple(rest)  # type: ignore[assignment]
        part = boxes.part(box)
        reads = [(x, [Take((samples,)), *part.reads])]
        for tensor, own_box in zip(tensors, boxes.own_tensors(part), strict=True):
            reads.append(
                (tensor, [Take((samples if tensor.shape[0] > 1 else (0, 1),)), *takes_of(own_box, tensor.shape)])
            )
        layouts, blocks = zip(*(graph.read(array, takes) for array, takes in reads), strict=True)
        graph.result((name, *index), compute, request, box, weights, layouts, *chain.from_iterable(blocks))
    collections = [x, *tensors, *(operand for operand in own if isinstance(operand, Array))]
    return Array(graph.layers(name, collections), name, output, dtype=x.dtype)


def _in_one(operand: Any) -> Any:
    return operand.rechunk(-1) if isinstance(operand, Array) else operand


class _Graph:
    """Tasks that make boxes, and those that they share; equal strips are put together once."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.tasks: dict[Any, Task] = {}
        self.shared: dict[str, Task] = {}
        self.strips: dict[tuple[str, Strip], TaskRef] = {}

    def layers(self, name: str, given: Sequence[Array]) -> HighLevelGraph:
        """Strips come before boxes, wherever there is a choice: another worker may wait for them."""
        below = f"convt3d-shared-{self.token}"
        first = MaterializedLayer(self.shared, annotations=FIRST)
        found = HighLevelGraph.from_collections(below, first, dependencies=given)
        needed = {below, *found.dependencies[below]}
        layers = {**found.layers, name: MaterializedLayer(self.tasks)}
        return HighLevelGraph(layers, {**found.dependencies, name: needed})

    def result(self, key: tuple[Any, ...], function: Any, *arguments: Any) -> None:
        self.tasks[key] = Task(key, function, *arguments)

    def _share(self, key: str, function: Any, *arguments: Any) -> TaskRef:
        """Schedulers tell by the first words of a key what kind of task it is, and how long it will take."""
        self.shared[key] = Task(key, function, *arguments)
        return TaskRef(key)

    def operands(self, arrays: Sequence[Any]) -> TaskRef:
        """One node with all of them, in one piece each."""
        given = [TaskRef((array.name, *(0,) * array.ndim)) if isinstance(array, Array) else array for array in arrays]
        return self._share(f"convt3d-operands-{self.token}", Operands, *given)

    def read(self, array: Array, takes: Sequence[Take]) -> tuple[Layout, list[TaskRef]]:
        """How a box is put together, and the nodes that it is put together from."""
        found = pieces(array.chunks, takes)
        shape = tuple(sum(high - low for low, high in take.ranges) for take in takes)
        return self._layout(array, shape, found, tuple(take.order for take in takes))

    def _layout(
        self, array: Array, shape: tuple[int, ...], found: Sequence[Piece], orders: Orders = ()
    ) -> tuple[Layout, list[TaskRef]]:
        layout = Layout(shape, tuple((piece.inside, piece.place) for piece in found), orders if any(orders) else ())
        return layout, [self._node(array, piece.source) for piece in found]

    def _node(self, array: Array, source: tuple[int, ...] | Strip) -> TaskRef:
        if not isinstance(source, Strip):
            return TaskRef((array.name, *source))
        known = array.name, source
        if known not in self.strips:
            layout, blocks = self._layout(array, source.shape, source.pieces)
            self.strips[known] = self._share(f"{STRIP}{self.token}-{len(self.strips)}", assemble, layout, *blocks)
        return self.strips[known]
