"""Stages over all of space on dask arrays: statistics of chunks, a tree of them, and the pipeline that applies them.

Such a stage needs numbers for each sample and channel that all chunks have a part in. They are computed from the value
that enters it; then the stage is arithmetic with them, and part of a pipeline whose boxes depend on boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ..cpu.plan.choice import AUTO, Options
from ..cpu.runtime.statistics import finish
from ..plan.names import StatisticsName, ValueName
from ..plan.segments import run_segments, segments
from ..plan.sweeps import Finish
from ..spec.pipeline import Pipeline
from ..spec.rewrite import with_all_axes
from ..spec.stage import Stage
from ..spec.stages import (
    Add,
    Binary,
    Convolution,
    ConvTranspose3d,
    Exp,
    Keep,
    LogSumExp,
    Max,
    Mean,
    Multiply,
    Recall,
    Softmax,
    Subtract,
    Sum,
)
from ..spec.window import over_space
from .lazy import blockwise
from .tasks import Operands, combine, compute_small, narrow, statistics

FAN_IN = 8  # statistics that are combined at once
_KINDS: dict[type[Stage], str] = {Sum: "sum", Mean: "sum", Max: "max", LogSumExp: "maxexp"}


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
    made = _Walk(pipeline, x, operands, options, persist).result(chunks)
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


def settled(
    pipeline: Pipeline, x: da.Array, operands: Sequence[Any], options: Options = AUTO
) -> tuple[Pipeline, list[Any]] | None:
    """A pipeline with the same result whose boxes depend on boxes, and its operands: statistics are lazy tensors among
    them. None where the result is one number for each sample and channel."""
    walk = _Walk(with_all_axes(pipeline), x, operands, options, persist=False)
    if walk.small is not None:
        return None
    stages, arrays = walk.final()
    return Pipeline(*stages), arrays


class _Walk:
    """Goes through the stages. The value is `large`, what `stages` make of `source`, or `small`: one number for each
    sample and channel, known to every chunk."""

    def __init__(
        self, pipeline: Pipeline, x: da.Array, operands: Sequence[Any], options: Options, persist: bool
    ) -> None:
        self.source, self.x, self.options, self.persist = x, x, options, persist
        self.stages: list[Stage] = []
        self.operands: list[Any] = []
        self.small: da.Array | None = None
        self.small_stages: list[Stage] = []
        self.small_operands: list[Any] = []
        self.small_kept: dict[str, da.Array] = {}
        for index, stage in enumerate(pipeline.stages):
            own = [array for slot, array in zip(pipeline.slots, operands, strict=True) if slot.stage == index]
            self.later = pipeline.stages[index + 1 :]
            self._stage(stage, own)

    def result(self, chunks: Any) -> da.Array:
        return self._small_value() if self.small is not None else self._value(chunks)

    def _value(self, chunks: Any = None) -> da.Array:
        """The large value as it stands."""
        if all(isinstance(stage, Keep) for stage in self.stages):
            return self.source
        stages, operands = self.final()
        return blockwise(Pipeline(*stages), self.source, operands, self.options, chunks)

    def final(self) -> tuple[list[Stage], list[Any]]:
        """Stages that make the large value of the source, and their operands."""
        used = {stage.uses for stage in self.stages}
        stages = [stage for stage in self.stages if not (isinstance(stage, Keep) and stage.label not in used)]
        if any(isinstance(stage, Convolution) for stage in stages):
            return stages, self.operands
        return _with_identity(stages, self.operands, self.source)

    def _small_value(self) -> da.Array:
        assert self.small is not None
        if self.small_stages:
            stages, operands = list(self.small_stages), list(self.small_operands)
            if not any(isinstance(stage, Convolution) for stage in stages):
                stages, operands = _with_identity(stages, operands, self.small)
            self.small = _in_one_task(Pipeline(*stages), self.small, operands)
            self.small_stages, self.small_operands = [], []
        return self.small

    def _stage(self, stage: Stage, own: Sequence[Any]) -> None:
        if stage.uses in self.small_kept:
            self._with_small(stage, self.small_kept[stage.uses])
        elif self.small is not None:
            self._on_small(stage, own)
        elif over_space(stage):
            self._statistics(stage, own)
        else:
            if stage.uses == "x" and self.source is not self.x and isinstance(stage, Binary):
                stage, own = replace(stage, other="tensor"), [self.x]
            self._append(stage, *own)

    def _append(self, stage: Stage, *own: Any) -> None:
        self.stages.append(stage)
        self.operands += own

    def _with_small(self, stage: Stage, kept: da.Array) -> None:
        """The value meets a small one by its name."""
        if isinstance(stage, Recall):
            self.small, self.small_stages, self.small_operands = kept, [], []
        elif self.small is not None:
            self.small_stages.append(replace(stage, other="tensor"))  # type: ignore[call-arg]
            self.small_operands.append(kept)
        else:
            self._append(replace(stage, other="tensor"), kept)  # type: ignore[call-arg]

    def _on_small(self, stage: Stage, own: Sequence[Any]) -> None:
        if isinstance(stage, Keep):
            self.small_kept[stage.label] = self._small_value()
        elif stage.uses:
            small = self._small_value()
            self.small = None
            self._back_to(stage.uses)
            if isinstance(stage, Binary):  # the two have changed sides
                turned = {} if isinstance(stage, (Add, Multiply)) else {"reverse": not stage.reverse}  # type: ignore[attr-defined]
                self._append(replace(stage, other="tensor", **turned), small)
        else:
            self.small_stages.append(stage)
            self.small_operands += own

    def _back_to(self, label: str) -> None:
        """The large value of that name is the current one again; what nobody will use is forgotten."""
        named = [stage.label if isinstance(stage, Keep) else None for stage in self.stages]
        wanted = {stage.uses for stage in self.later}
        last = max(
            (at for at, name in enumerate(named) if name is not None and (name in wanted or name == label)), default=-1
        )
        counts = [len(stage.operands()) for stage in self.stages]
        self.stages, self.operands = self.stages[: last + 1], self.operands[: sum(counts[: last + 1])]
        if (last < 0 or named[last] != label) and self.stages:
            self._append(Recall(label))

    def _statistics(self, stage: Stage, own: Sequence[Any]) -> None:
        value = self._value()
        names = {stage.label for stage in self.stages if isinstance(stage, Keep)} | {"x"}
        crossing = {later.uses for later in self.later} & names
        recalls = any(isinstance(later, Recall) and later.uses in names for later in self.later)
        if self.persist and crossing <= {"x"} and not recalls:
            self.source, self.stages, self.operands = value, [], []
        if stage.reduces:
            (self.small,) = _finished(stage, value, (), _KINDS[type(stage)], ("value",))
            self.small_stages, self.small_operands = [], []
        elif isinstance(stage, Softmax):
            shift, scale = _finished(stage, value, own, "maxexp", ("shift", "scale"))
            self._append(Subtract("tensor"), shift)
            self._append(Exp())
            self._append(Multiply("tensor"), scale)
        else:
            shift, scale, offset = _finished(stage, value, own, "moments", ("shift", "scale", "offset"))
            self._append(Subtract("tensor"), shift)
            self._append(Multiply("tensor"), scale)
            self._append(Add("tensor"), offset)


def _with_identity(stages: list[Stage], operands: list[Any], source: da.Array) -> tuple[list[Stage], list[Any]]:
    """With a convolution that changes nothing, since a pipeline has one."""
    channels = source.shape[1]
    ones = np.ones((channels, 1, 1, 1, 1), source.dtype)
    return [ConvTranspose3d(groups=channels), *stages], [ones, *operands]


def _in_one_task(pipeline: Pipeline, x: da.Array, operands: Sequence[Any]) -> da.Array:
    name = f"convt3d-small-{tokenize(pipeline, x.name, [getattr(o, 'name', o) for o in operands])}"
    arrays = [array.rechunk(-1) if isinstance(array, da.Array) else array for array in operands]
    source = x.rechunk(-1)
    shape = pipeline.trace(x.shape, [array.shape for array in arrays]).output
    given = [TaskRef((array.name, *(0,) * array.ndim)) if isinstance(array, da.Array) else array for array in arrays]
    made = Task(f"{name}-operands", Operands, *given)
    key = (name, *(0,) * 5)
    tasks = {
        made.key: made,
        key: Task(key, compute_small, pipeline, TaskRef(made.key), TaskRef((source.name, *(0,) * 5))),
    }
    dependencies = [source, *(array for array in arrays if isinstance(array, da.Array))]
    layers = HighLevelGraph.from_collections(name, tasks, dependencies=dependencies)
    return da.Array(layers, name, tuple((size,) for size in shape), dtype=x.dtype)


def _finished(
    stage: Stage, value: da.Array, own: Sequence[Any], kind: str, words: Sequence[str]
) -> tuple[da.Array, ...]:
    """What the statistics of a value come to: arrays (B, C, 1, 1, 1) of the value's type."""
    name = f"convt3d-statistics-{tokenize(stage, value.name, [getattr(o, 'name', o) for o in own])}"
    vectors = [array.rechunk(-1) if isinstance(array, da.Array) else array for array in own]
    given = [TaskRef((v.name, *(0,) * v.ndim)) if isinstance(v, da.Array) else v for v in vectors]
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
    tasks[whole] = Task(whole, _finish, stage, value.dtype.name, List(*totals), List(*given))
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
    """Statistics (B, C, 1 + numbers), in rows of samples and columns of channels, as the engine finishes them."""
    every = np.concatenate([np.concatenate(row, axis=1) for row in totals], axis=0)
    counts, partials = every[:1, 0, 0], every[:, None, :, 1:]
    vectors = [np.asarray(operand, np.float64).reshape(-1) for operand in operands]
    result = ValueName(0) if stage.reduces else StatisticsName(0)
    found = finish(Finish(stage, (), result), partials, counts, vectors, np.dtype(dtype))
    shape = (*every.shape[:2], 1, 1, 1)
    with np.errstate(over="ignore"):
        named = {getattr(name, "word", "value"): array.astype(dtype) for name, array in found.items()}
        return {
            word: np.ascontiguousarray(np.broadcast_to(array.reshape(-1, *shape[1:]), shape))
            for word, array in named.items()
        }


def _word(found: dict[str, Any], word: str) -> Any:
    return found[word]
