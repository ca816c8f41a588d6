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
from ..cpu.runtime.ready import Owner
from ..errors import ArgumentError, DTypeError, ShapeError, described
from ..front.boxes import Boxes, Request, Storage, Take
from ..front.memory import status
from ..spec.dtypes import DTYPES
from ..spec.lazy import lazy
from ..spec.pipeline import Pipeline
from ..spec.rewrite import with_all_axes
from ..spec.shapes import Box
from ..spec.text import write_pipeline
from ..spec.window import over_space
from .grid import Grid, choose
from .journal import Journal, alone
from .ngff import SPATIAL, result_metadata, steps
from .source import AXES, Source, open_source, zarr_module

Told = Callable[[int, int], None]  # boxes finished, and all


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
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.asked = with_all_axes(self.asked)
        self.operands = _operands(self.asked, self.weights)
        (self.dtype,) = {array.dtype for array in self.operands}
        trace = self.asked.trace(self.source.shape, [array.shape for array in self.operands])
        self.steps = steps(self.asked, trace)
        self.pipeline, lazy = self._settled((-1,) * 5)
        shapes = tuple(tuple(array.shape) for array in lazy)
        self.boxes: Boxes = Request(self.pipeline, self.source.shape, shapes, self.dtype.name, self.options).boxes
        self.base = status("VmRSS") or 0
        self._look()

    def _look(self) -> None:
        """At what an earlier run has left."""
        self.journal = Journal(self.target.with_name(self.target.name + ".journal"))
        known = self.journal.header
        if known is not None and known.get("job") == self.fingerprint:
            self.grid = Grid(self.boxes.output, tuple(known["chunk"]), tuple(known["shard"]))
        else:
            self.grid = choose(self.boxes, self.memory, self.source, self.base, self.chunk)

    def _settled(self, chunks: Sequence[int]) -> tuple[Pipeline, Sequence[Any]]:
        """The pipeline whose boxes depend on boxes, and its operands: statistics over space, of chunks of that size,
        are computed later."""
        plain = Pipeline(*self.asked.stages)
        if not any(map(over_space, plain.stages)):
            return plain, self.operands
        if self.dtype.itemsize == 2:
            rule = "must be float32 or float64 for stages with statistics over space"
            raise DTypeError("volume", "--weights", described(self.dtype.name), rule, "Convert them")
        try:
            import dask.array as da
        except ImportError:
            rule = "is not installed, which statistics over space need"
            raise ArgumentError("volume", "dask", None, rule, "Use pip install 'convt3d[dask]'") from None
        from ..dask.pipeline import settled

        lazy = da.from_array(_Lazy(self.source, self.dtype), chunks=chunks, asarray=False, fancy=False, name=False)
        found = settled(plain, lazy, self.operands, self.options)
        if found is None:
            received, rule = described(write_pipeline(plain)), "gives one number for each channel, and no volume"
            raise ArgumentError("volume", "--pipeline", received, rule, "Use convt3d.dask")
        return found

    @property
    def axes(self) -> tuple[str, ...]:
        """Of the result: those of the input, and channels where there are some."""
        return tuple(name for name in AXES if name in self.source.axes or (name == "c" and self.boxes.output[1] > 1))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result, along these axes."""
        return self._kept(self.boxes.output)

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

    def run(self, told: Told = lambda done, total: None, overwrite: bool = False) -> int:
        """Computes what is missing; how many boxes that was."""
        try:
            threads = {"async.concurrency": get_num_threads()}  # chunks that are decoded or encoded at once
            with alone(self.target), zarr_module().config.set(threads):
                return self._run(told, overwrite)
        except OSError as problem:
            rule = f"cannot be written ({problem.strerror or problem})"
            remedy = "Run the same command again when that is mended: finished boxes are kept"
            raise ArgumentError("volume", "OUT", str(self.target), rule, remedy) from None

    def _run(self, told: Told, overwrite: bool) -> int:
        self._look()
        self.journal.mend()
        if self.finished() and not overwrite:
            self.journal.end()
            return 0
        root, array = self._target(overwrite)
        for stray in root.rglob("*.partial"):  # of a write that was ended
            stray.unlink()
        names = [(array.metadata.encode_chunk_key(self._kept(at)), sample, box) for at, sample, box in self.grid]
        missing = [row for row in names if not self.journal.holds(root, row[0])]
        for name, _, _ in missing:  # zarr would read what is there where a box is smaller than a shard
            (root / name).unlink(missing_ok=True)
        total = len(names)
        told(total - len(missing), total)
        boxes, operands = self.boxes, self._known_operands() if missing else []
        owner = Owner()
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
            behind: Future[None] | None = None
            ahead = reader.submit(self._read, boxes, missing[0]) if missing else None
            for number, (name, sample, box) in enumerate(missing):
                assert ahead is not None
                x, part = ahead.result()
                later = number + 1
                ahead = reader.submit(self._read, boxes, missing[later]) if later < len(missing) else None
                own = _of_sample(self.pipeline, operands, sample)
                made = boxes.compute(part, x, own, owner)
                del x
                if behind is not None:
                    behind.result()
                    told(total - len(missing) + number, total)
                behind = writer.submit(self._write, array, root, name, sample, box, made)
                del made
            if behind is not None:
                behind.result()
        told(total, total)
        array.attrs["convt3d"] = {**array.attrs["convt3d"], "complete": True}
        self.journal.end()
        return len(missing)

    def _known_operands(self) -> list[Storage]:
        """Statistics over space are computed here."""
        _, arrays = self._settled(self._source_chunks())
        return [np.asarray(array) for array in arrays]

    def _source_chunks(self) -> tuple[int, ...]:
        """Of the input, such that two of them, with what is made of them, fit as the boxes of the result do."""
        ratios = [
            max(1, size * step // out)
            for size, step, out in zip(self.source.shape[2:], self.grid.shard, self.boxes.output[2:], strict=True)
        ]
        return 1, self.source.shape[1], *(min(n, size) for n, size in zip(ratios, self.source.shape[2:], strict=True))

    def _read(self, boxes: Boxes, row: tuple[str, int, Box]) -> Any:
        part = boxes.part(row[2])
        return self.source.read(row[1], part.reads, self.dtype), part

    def _write(self, array: Any, root: Path, name: str, sample: int, box: Box, made: Storage) -> None:
        index = [slice(sample, sample + 1), *(slice(low, high) for low, high in box)]
        kept = [axis in self.axes for axis in AXES]
        values = made[tuple(slice(None) if keep else 0 for keep in kept)]
        array[tuple(part for part, keep in zip(index, kept, strict=True) if keep)] = values
        self.journal.add(root, name)

    def _kept(self, at: Sequence[int]) -> tuple[int, ...]:
        return tuple(number for number, name in zip(at, AXES, strict=True) if name in self.axes)

    # --- the result's files -------------------------------------------------------------------------------------------

    def _target(self, overwrite: bool) -> tuple[Path, Any]:
        """The array that takes the result, with the folder of its files: the one of an earlier run, or a new one."""
        zarr, header = zarr_module(), self.journal.header
        root = self.target / "0" if self.source.image is not None else self.target
        if header is not None and header.get("job") == self.fingerprint and not overwrite and header.get("created"):
            return root, zarr.open_array(str(root), mode="r+")
        if self.target.exists() and not overwrite and (header is None or header.get("job") != self.fingerprint):
            rule = "exists, and is not what a run of this pipeline, with these weights and this input, has begun"
            raise ArgumentError("volume", "OUT", str(self.target), rule, "Give --overwrite, or another name")
        if self.target.exists():
            if header is None and not _may_go(self.target):
                rule = "exists, and is no zarr volume"
                raise ArgumentError("volume", "OUT", str(self.target), rule, "Choose another name, or remove it")
            shutil.rmtree(self.target)
        head = {"job": self.fingerprint, "chunk": self.grid.chunk, "shard": self.grid.shard, "created": False}
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
        cut = {"t": 1, "c": self.boxes.output[1], **dict(zip(SPATIAL, self.grid.chunk, strict=True))}
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

    def seconds_of_a_box(self) -> float:
        """What one box takes to compute, from one on random numbers; reading and writing go on beside it."""
        middle = list(self.grid)[len(self.grid) // 2]
        part = self.boxes.part(middle[2])
        shape = (1, *(take.size for take in part.reads))
        x = np.random.default_rng(0).standard_normal(shape, np.float32).astype(self.dtype)
        given = [np.ones(shape, self.dtype) for shape in self.boxes.request.operands]
        owner, own = Owner(), _of_sample(self.pipeline, given, middle[1])
        taken = []
        for _ in range(2):  # the first compiles
            begun = time.perf_counter()
            self.boxes.compute(part, x, own, owner)
            taken.append(time.perf_counter() - begun)
        return min(taken)


class _Lazy:
    """The input as dask reads it: (B, C, D, H, W), of the type that is computed in."""

    def __init__(self, source: Source, dtype: Any) -> None:
        self.source, self.dtype, self.shape, self.ndim = source, dtype, source.shape, 5

    def __getitem__(self, index: tuple[slice, ...]) -> Storage:
        samples, *takes = (part.indices(size)[:2] for part, size in zip(index, self.shape, strict=True))
        parts = [Take((each,)) for each in takes]
        return np.concatenate([self.source.read(at, parts, self.dtype) for at in range(*samples)])


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
    convolutions = len(pipeline.convolutions)
    if convolutions > 1:
        rule = f"must hold one convolution, not {convolutions}: values between them are as large as the volume"
        remedy = "Run one after the other, each into a volume of its own, or use convt3d.dask"
        raise ArgumentError("volume", "--pipeline", described(write_pipeline(pipeline)), rule, remedy)
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


def _of_sample(pipeline: Pipeline, operands: Sequence[Storage], sample: int) -> list[Storage]:
    """Tensors that differ from sample to sample, cut to one."""
    return [
        array[sample : sample + 1] if slot.operand.kind == "tensor" and array.shape[0] > 1 else array
        for slot, array in zip(pipeline.slots, operands, strict=True)
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
