"""A pipeline over a volume on disk: boxes are read ahead, computed and written behind, and kept if the run is ended."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cpu.plan.choice import AUTO, Options
from ..cpu.plan.cores import get_num_threads
from ..errors import ArgumentError, DTypeError, ShapeError, described
from ..front.boxes import Storage
from ..front.chain import Chain, ChainPart, Guessed, Known, Link, Value, chain_of, walked
from ..front.memory import status
from ..front.partial import combine, kind_of, statistics
from ..spec.dtypes import DTYPES
from ..spec.lazy import lazy
from ..spec.pipeline import Pipeline
from ..spec.rewrite import with_all_axes
from ..spec.shapes import Box
from ..spec.stage import Stage
from ..spec.text import write_pipeline
from ..units import amount
from .grid import Grid, choose, need
from .journal import Journal, alone
from .ngff import SPATIAL, result_metadata, steps
from .source import AXES, Source, open_source, zarr_module

Told = Callable[[int, int, str], None]  # boxes finished, and all; of what


@dataclass
class Job:
    """One run, planned: nothing has been read or written."""

    source: Source
    target: Path
    asked: Pipeline
    weights: Mapping[str, Storage]
    memory: int
    chunk: Sequence[int] | None = None
    options: Options = AUTO
    overwrite: bool = False  # begin anew, whatever is there
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.asked = with_all_axes(self.asked)
        self.operands = _operands(self.asked, self.weights)
        (self.dtype,) = {array.dtype for array in self.operands}
        trace = self.asked.trace(self.source.shape, [array.shape for array in self.operands])
        self.steps = steps(self.asked, trace)
        source = Value(self.source.shape, self.dtype)
        result = chain_of(self.asked, source, self.operands, self.options)
        if not isinstance(result, Link):
            received, rule = described(write_pipeline(self.asked)), "gives one number for each channel, and no volume"
            raise ArgumentError("volume", "--pipeline", received, rule, "Use convt3d.dask")
        self.chain = Chain(result, source)
        self.walks = [Chain(value, source) for value in walked(result)]
        self.base = status("VmRSS") or 0
        self._look()

    def _look(self) -> None:
        """At what an earlier run has left: one that goes on computes the same boxes, so they must fit."""
        self.journal = Journal(self.target.with_name(self.target.name + ".journal"))
        known, chains = self.journal.header, (*self.walks, self.chain)
        if known is None or known.get("job") != self.fingerprint or self.overwrite:
            *self.walk_grids, self.grid = (
                choose(chain, self.memory, self.source, self.base, self.chunk) for chain in chains
            )
            return
        *self.walk_grids, self.grid = (
            Grid(chain.output, tuple(known["chunk"]), tuple(shard))
            for chain, shard in zip(chains, (*known.get("walks", []), known["shard"]), strict=True)
        )
        least = self.need
        if least > self.memory:
            rule = f"must be at least {amount(least)}: the run that goes on began boxes that take as much"
            remedy = "Give more memory, or begin anew with --overwrite"
            raise ArgumentError("volume", "--memory", described(amount(self.memory)), rule, remedy)

    @property
    def need(self) -> int:
        """Bytes that the run takes at most."""
        every = zip((*self.walk_grids, self.grid), (*self.walks, self.chain), strict=True)
        return max(need(grid, chain, self.source, self.base) for grid, chain in every)

    @property
    def axes(self) -> tuple[str, ...]:
        """Of the result: those of the input, and channels where there are some."""
        return tuple(name for name in AXES if name in self.source.axes or (name == "c" and self.chain.output[1] > 1))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result, along these axes."""
        return self._kept(self.chain.output)

    @lazy
    def fingerprint(self) -> str:
        """Of all that the result's bytes depend on."""
        digest = hashlib.sha256()
        for part in (write_pipeline(self.asked), self.source.state, repr((self.options, self.chunk))):
            digest.update(part.encode())
        for array in self.operands:
            digest.update(repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def finished(self) -> bool:
        """Whether the result is there, whole, from the same job."""
        return (
            self.target.exists()
            and _attributes(self.target).get("convt3d", {}).get("job") == self.fingerprint
            and (_attributes(self.target)["convt3d"]["complete"] is True)
        )

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, told: Told = lambda done, total, what: None) -> int:
        """Computes what is missing; how many boxes that was."""
        try:
            threads = {"async.concurrency": get_num_threads()}  # chunks that are decoded or encoded at once
            with alone(self.target), zarr_module().config.set(threads):
                return self._run(told)
        except OSError as problem:
            rule = f"cannot be written ({problem.strerror or problem})"
            remedy = "Run the same command again when that is mended: finished boxes are kept"
            raise ArgumentError("volume", "OUT", str(self.target), rule, remedy) from None

    def _run(self, told: Told) -> int:
        self._look()
        self.journal.mend()
        if self.finished() and not self.overwrite:
            self.journal.end()
            return 0
        root, array = self._target()
        for stray in root.rglob("*.partial"):  # of a write that was ended
            stray.unlink()
        names = [(array.metadata.encode_chunk_key(self._kept(at)), sample, box) for at, sample, box in self.grid]
        missing = [row for row in names if not self.journal.holds(root, row[0])]
        for name, _, _ in missing:  # zarr would read what is there where a box is smaller than a shard
            (root / name).unlink(missing_ok=True)
        total = len(names)
        known = self._known(told) if missing else None
        told(total - len(missing), total, "boxes")
        owners = [(name, sample, box) for name, sample, box in missing]
        boxes = ((sample, box) for _, sample, box in missing)

        def write(number: int, made: Storage) -> None:
            self._write(array, root, *owners[number], made)
            told(total - len(missing) + number + 1, total, "boxes")

        if known is not None:
            self._each(self.chain, list(boxes), known, write)
        array.attrs["convt3d"] = {**array.attrs["convt3d"], "complete": True}
        self.journal.end()
        return len(missing)

    def _each(
        self, chain: Chain, boxes: Sequence[tuple[int, Box]], known: Known, take: Callable[[int, Storage], None]
    ) -> None:
        """Computes boxes of samples, one after the other, while the next is read and the last is taken."""
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as taker:
            behind: Future[None] | None = None
            ahead = reader.submit(self._read, chain, *boxes[0])
            for number, (sample, _) in enumerate(boxes):
                x, part = ahead.result()
                if number + 1 < len(boxes):
                    ahead = reader.submit(self._read, chain, *boxes[number + 1])
                made = chain.compute(part, x, sample, known)
                del x
                if behind is not None:
                    behind.result()
                behind = taker.submit(take, number, made)
                del made
            if behind is not None:
                behind.result()

    def _read(self, chain: Chain, sample: int, box: Box) -> tuple[Storage, ChainPart]:
        part = chain.part(box)
        return self.source.read(sample, chain.reads(part), self.dtype), part

    def _known(self, told: Told) -> Known:
        """Statistics over space, of an earlier run or taken now."""

        def walk(stage: Stage, value: Link) -> Storage:
            number = next(at for at, chain in enumerate(self.walks) if chain.result is value)
            name = f"{number} {stage!r}"
            if name not in self.journal.statistics:
                what = f"boxes for statistics, {number + 1} of {len(self.walks)}"
                self.journal.keep(name, self._statistics(number, kind_of(stage), known, told, what))
            return self.journal.statistics[name]

        known = Known(walk)
        for value in self.chain.smalls:
            known.array(value)
        return known

    def _statistics(self, number: int, kind: str, known: Known, told: Told, what: str) -> Storage:
        chain, grid = self.walks[number], self.walk_grids[number]
        for value in chain.smalls:
            known.array(value)
        boxes = [(sample, box) for _, sample, box in grid]
        found: list[list[Storage]] = [[] for _ in range(chain.output[0])]

        def take(number: int, made: Storage) -> None:
            found[boxes[number][0]].append(statistics(kind, made))
            told(number + 1, len(boxes), what)

        told(0, len(boxes), what)
        self._each(chain, boxes, known, take)
        return np.concatenate([combine(kind, own) for own in found])

    def _write(self, array: Any, root: Path, name: str, sample: int, box: Box, made: Storage) -> None:
        index = [slice(sample, sample + 1), *(slice(low, high) for low, high in box)]
        kept = [axis in self.axes for axis in AXES]
        values = made[tuple(slice(None) if keep else 0 for keep in kept)]
        array[tuple(part for part, keep in zip(index, kept, strict=True) if keep)] = values
        self.journal.add(root, name)

    def _kept(self, at: Sequence[int]) -> tuple[int, ...]:
        return tuple(number for number, name in zip(at, AXES, strict=True) if name in self.axes)

    # --- the result's files -------------------------------------------------------------------------------------------

    def _target(self) -> tuple[Path, Any]:
        """The array that takes the result, with the folder of its files: the one of an earlier run, or a new one."""
        zarr, header = zarr_module(), self.journal.header
        root = self.target / "0" if self.source.image is not None else self.target
        if (
            header is not None
            and header.get("job") == self.fingerprint
            and not self.overwrite
            and header.get("created")
        ):
            return root, zarr.open_array(str(root), mode="r+")
        if self.target.exists() and not self.overwrite and (header is None or header.get("job") != self.fingerprint):
            rule = "exists, and is not what a run of this pipeline, with these weights and this input, has begun"
            raise ArgumentError("volume", "OUT", str(self.target), rule, "Give --overwrite, or another name")
        if self.target.exists():
            if header is None and not _may_go(self.target):
                rule = "exists, and is no zarr volume"
                raise ArgumentError("volume", "OUT", str(self.target), rule, "Choose another name, or remove it")
            shutil.rmtree(self.target)
        head = {"job": self.fingerprint, "chunk": self.grid.chunk, "shard": self.grid.shard, "created": False}
        head["walks"] = [grid.shard for grid in self.walk_grids]
        self.journal.begin(head)
        self._create(zarr, root)
        self.journal.begin({**head, "created": True})
        return root, zarr.open_array(str(root), mode="r+")

    def _create(self, zarr: Any, root: Path) -> None:
        if self.source.image is not None:
            along = dict(zip(SPATIAL, self.steps, strict=True))
            zarr.create_group(
                str(self.target), attributes=result_metadata(self.source.image, self.axes, along), zarr_format=3
            )
        cut = {"t": 1, "c": self.chain.output[1], **dict(zip(SPATIAL, self.grid.chunk, strict=True))}
        shard = {**cut, **dict(zip(SPATIAL, self.grid.shard, strict=True))}
        zarr.create_array(
            str(root),
            shape=self.shape,
            chunks=tuple(cut[name] for name in self.axes),
            shards=tuple(shard[name] for name in self.axes),
            dtype=self.dtype,
            fill_value=float("nan"),  # of boxes that are not there yet
            dimension_names=self.axes,
            attributes={
                "convt3d": {"pipeline": write_pipeline(self.asked), "job": self.fingerprint, "complete": False}
            },
            zarr_format=3,
        )

    def seconds(self) -> tuple[float, float]:
        """What one box takes to compute, from one on random numbers, and all of them with those for statistics; reading
        and writing go on beside it."""
        each = [
            _seconds_of_a_box(chain, grid)
            for chain, grid in zip((*self.walks, self.chain), (*self.walk_grids, self.grid), strict=True)
        ]
        grids = (*self.walk_grids, self.grid)
        return each[-1], sum(one * len(grid) for one, grid in zip(each, grids, strict=True))


def _seconds_of_a_box(chain: Chain, grid: Grid) -> float:
    if not len(grid):
        return 0.0
    sample, box = [row[1:] for row in grid][len(grid) // 2]
    part = chain.part(box)
    shape = (1, *(take.size for take in chain.reads(part)))
    x = np.random.default_rng(0).standard_normal(shape, np.float32).astype(chain.source.dtype)
    taken = []
    for _ in range(2):  # the first compiles
        begun = time.perf_counter()
        chain.compute(part, x, sample, Guessed())
        taken.append(time.perf_counter() - begun)
    return min(taken)


def plan_job(
    source: str, target: str, pipeline: Pipeline, weights: Mapping[str, Storage], memory: int, **how: Any
) -> Job:
    """A run that is ready to begin, or an error that says what does not fit."""
    path, given = Path(target).resolve(), Path(source).resolve()
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        rule = "must lie in a directory that exists and can be written"
        raise ArgumentError("volume", "OUT", target, rule, "Create the directory, or choose another")
    if path == given or path in given.parents or given in path.parents:
        rule = "must not be the input, nor hold it, nor lie in it"
        raise ArgumentError("volume", "OUT", target, rule, "Choose another name")
    return Job(open_source(source), path, pipeline, weights, memory, **how)


def _operands(pipeline: Pipeline, weights: Mapping[str, Storage]) -> list[Storage]:
    names = pipeline.operand_names
    unknown = [name for name in weights if name not in names]
    missing = [name for name in names if name not in weights]
    if unknown or missing:
        said = [f"lacks {', '.join(missing)}"] if missing else []
        said += [f"holds {', '.join(unknown)}, which the pipeline does not take"] if unknown else []
        remedy = f"Write it with numpy.savez(path, {', '.join(f'{name}=...' for name in names)})"
        raise ArgumentError(
            "volume", "--weights", described(", ".join(weights) or "nothing"), "; it ".join(said), remedy
        )
    for slot in pipeline.slots:
        if slot.operand.kind == "tensor" and any(size > 1 for size in weights[slot.name].shape[-3:]):
            rule = "must be one number for each channel: a tensor of the value's shape may not fit in memory"
            raise ShapeError(
                "volume",
                slot.name,
                described(f"array of shape {weights[slot.name].shape}"),
                rule,
                "Use convt3d.dask, where tensors are dask arrays",
            )
    arrays = [weights[name] for name in names]
    kinds = {array.dtype.name for array in arrays}
    if len(kinds) > 1 or not kinds <= set(DTYPES):
        raise DTypeError(
            "volume",
            "--weights",
            described(", ".join(sorted(kinds))),
            "must be of one type: float32, float64 or float16, in which all is computed",
            "Convert them",
        )
    return [
        array.reshape((1,) * (5 - array.ndim) + array.shape) if slot.operand.kind == "tensor" else array
        for slot, array in zip(pipeline.slots, arrays, strict=True)
    ]


def _may_go(target: Path) -> bool:
    """Whether it is an array or a group of zarr, or empty."""
    known = (target / name for name in ("zarr.json", ".zarray", ".zgroup"))
    return target.is_dir() and (any(path.exists() for path in known) or not any(target.iterdir()))


def _attributes(target: Path) -> dict[str, Any]:
    """Of the result's array, where there is one."""
    zarr = zarr_module()
    for path in (target / "0", target):
        try:
            return dict(zarr.open_array(str(path), mode="r").attrs)
        except Exception:  # no array, or one that was cut short
            continue
    return {}
