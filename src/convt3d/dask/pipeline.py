"""A pipeline on a dask array, whatever its stages: statistics over space are those of chunks, combined in a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ..cpu.plan.choice import AUTO, Options
from ..front.over_space import Walk
from ..front.partial import combine, finished, kind_of, statistics
from ..plan.segments import run_segments, segments
from ..spec.pipeline import Pipeline
from ..spec.rewrite import with_all_axes
from ..spec.stage import Stage
from ..spec.window import over_space
from .lazy import blockwise
from .tasks import Operands, compute_small, narrow

FAN_IN = 8  # statistics that are combined at once


def lazily(
    pipeline: Pipeline,
    x: da.Array,
    operands: Sequence[Any],
    options: Options = AUTO,
    chunks: Any = None,
    persist: bool = False,
) -> da.Array:
    """The result, 5-D, of a 5-D dask array; tensors of the value's shape are dask arrays."""
    if len(pipeline.convolutions) > 1:
        return _one_after_the_other(pipeline, x, operands, options, chunks, persist)
    pipeline = with_all_axes(pipeline)
    if not any(map(over_space, pipeline.stages)):
        return blockwise(pipeline, x, operands, options, chunks)
    dtype = x.dtype
    if dtype.itemsize == 2:  # values between stages, and statistics, are not rounded
        x, *operands = (array.astype(np.float32) for array in (x, *operands))
    made: da.Array = Walk(pipeline, x, operands, _Maker(options), persist).result(_Maker(options, chunks))
    return made if made.dtype == dtype else made.map_blocks(narrow, dtype, dtype=dtype)


def _one_after_the_other(
    pipeline: Pipeline, x: da.Array, operands: Sequence[Any], options: Options, chunks: Any, persist: bool
) -> da.Array:
    """The segments that run in memory, too: nothing is computed twice, and values between them have the same bits."""
    cut = segments(pipeline, pipeline.trace(x.shape, [operand.shape for operand in operands]))

    def run(number: int, source: da.Array, own: tuple[Any, ...]) -> da.Array:
        repeated = source if source.shape == cut[number].shape else da.broadcast_to(source, cut[number].shape)
        asked = chunks if number == len(cut) - 1 else None
        return lazily(cut[number].pipeline, repeated, own, options, asked, persist)

    made: da.Array = run_segments(cut, x, operands, lambda one: np.full(one.sizes, one.number).astype(x.dtype), run)
    return made


@dataclass(frozen=True)
class _Maker:
    """Of dask arrays."""

    options: Options
    chunks: Any = None

    def of_boxes(self, pipeline: Pipeline, source: da.Array, operands: Sequence[Any]) -> da.Array:
        return blockwise(pipeline, source, operands, self.options, self.chunks)

    def small(self, pipeline: Pipeline, source: da.Array, operands: Sequence[Any]) -> da.Array:
        """In one task."""
        name = f"convt3d-small-{tokenize(pipeline, source.name, [getattr(o, 'name', o) for o in operands])}"
        arrays = [array.rechunk(-1) if isinstance(array, da.Array) else array for array in operands]
        source = source.rechunk(-1)
        shape = pipeline.trace(source.shape, [array.shape for array in arrays]).output
        made = Task(f"{name}-operands", Operands, *map(_given, arrays))
        key = (name, *(0,) * 5)
        tasks = {
            made.key: made,
            key: Task(key, compute_small, pipeline, TaskRef(made.key), TaskRef((source.name, *(0,) * 5))),
        }
        dependencies = [source, *(array for array in arrays if isinstance(array, da.Array))]
        layers = HighLevelGraph.from_collections(name, tasks, dependencies=dependencies)
        return da.Array(layers, name, tuple((size,) for size in shape), dtype=source.dtype)

    def finished(self, stage: Stage, value: da.Array, own: Sequence[Any], words: Sequence[str]) -> tuple[da.Array, ...]:
        name = f"convt3d-statistics-{tokenize(stage, value.name, [getattr(o, 'name', o) for o in own])}"
        vectors = [array.rechunk(-1) if isinstance(array, da.Array) else array for array in own]
        kind = kind_of(stage)
        tasks: dict[Any, Task] = {}
        totals = []
        for sample in range(value.numblocks[0]):
            row = []
            for channel in range(value.numblocks[1]):
                level = []
                for at in product(*map(range, value.numblocks[2:])):
                    key = f"{name}-chunk-{(sample, channel, *at)}"
                    tasks[key] = Task(key, statistics, kind, TaskRef((value.name, sample, channel, *at)))
                    level.append(key)
                row.append(_tree(tasks, f"{name}-{sample}-{channel}", kind, level))
            totals.append(List(*map(TaskRef, row)))
        whole = f"{name}-finished"
        tasks[whole] = Task(whole, _finish, stage, value.dtype.name, List(*totals), List(*map(_given, vectors)))
        for word in words:
            block = (f"{name}-{word}", *(0,) * 5)
            tasks[block] = Task(block, _word, TaskRef(whole), word)
        dependencies = [value, *(v for v in vectors if isinstance(v, da.Array))]
        shape = (*value.shape[:2], 1, 1, 1)
        found = []
        for word in words:
            layers = HighLevelGraph.from_collections(f"{name}-{word}", tasks, dependencies=dependencies)
            found.append(da.Array(layers, f"{name}-{word}", tuple((n,) for n in shape), dtype=value.dtype))
        return tuple(found)


def _given(array: Any) -> Any:
    """An argument of a task."""
    return TaskRef((array.name, *(0,) * array.ndim)) if isinstance(array, da.Array) else array


def _tree(tasks: dict[Any, Task], name: str, kind: str, level: list[str]) -> str:
    """Combines some statistics at a time until one is left; its key."""
    height = 0
    while len(level) > 1:
        height += 1
        above = []
        for start in range(0, len(level), FAN_IN):
            key = f"{name}-{height}-{start}"
            tasks[key] = Task(key, combine, kind, List(*map(TaskRef, level[start : start + FAN_IN])))
            above.append(key)
        level = above
    return level[0]


def _finish(stage: Stage, dtype: str, totals: Any, operands: Any) -> dict[str, Any]:
    """Of statistics in rows of samples and columns of channels."""
    every = np.concatenate([np.concatenate(row, axis=1) for row in totals], axis=0)
    return finished(stage, dtype, every, operands)


def _word(found: dict[str, Any], word: str) -> Any:
    return found[word]
