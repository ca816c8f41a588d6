"""`convt3d volume`: a pipeline over a zarr volume of any size, in bounded memory; ended at any moment, it goes on."""

from __future__ import annotations

import argparse
import re
import sys
import time
import zipfile
import zlib
from math import prod
from typing import Any

import numpy as np

from ..cpu.plan.choice import Options
from ..errors import ArgumentError
from ..front.boxes import Storage
from ..spec.pipeline import Pipeline
from ..spec.text import read_stages, write_pipeline
from ..units import amount, counted, duration, operations
from ..volume.grid import bytes_read
from ..volume.run import Job, plan_job
from .report import OK, emit, emit_json
from .terminal import Progress, Screen

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def volume(args: argparse.Namespace) -> int:
    pipeline = Pipeline(*read_stages(args.pipeline))
    options = Options(args.algorithm, args.precision)
    how = {"chunk": args.chunks, "options": options, "overwrite": args.overwrite}
    job = plan_job(args.input, args.output, pipeline, read_weights(args.weights, pipeline), args.memory, **how)
    if args.plan:
        document = _plan(job)
        emit_json(document) if args.json else emit(_plan_text(Screen(sys.stdout), document))
        return OK
    begun = time.perf_counter()
    computed = _run(job)
    seconds = time.perf_counter() - begun
    document = {
        "output": args.output,
        "shape": list(job.shape),
        "boxes": len(job.grid),
        "computed": computed,
        "kept": len(job.grid) - computed,
        "seconds": seconds,
        "bytes_per_second": _box_bytes(job) * computed / seconds,
    }
    emit_json(document) if args.json else emit(_text(Screen(sys.stdout), document))
    return OK


def _run(job: Job) -> int:
    with Progress(sys.stderr) as progress:
        progress.begin("looking at what is there")
        first: dict[str, tuple[int, float]] = {}

        def told(done: int, total: int, what: str) -> None:
            now = time.perf_counter()
            start, begun = first.setdefault(what, (done, now))
            fresh, elapsed, all_fresh = done - start, now - begun, max(total - start, 1)
            bytes_of = prod(job.chain.output) * job.dtype.itemsize / max(total, 1)
            rate = f"{amount(int(bytes_of * fresh / elapsed))}/s" if fresh and elapsed else "beginning"
            each = elapsed / fresh if fresh else None
            share, until = fresh / all_fresh, min(fresh + 1, all_fresh) / all_fresh  # of what this run has to do
            progress.begin(f"{done} of {total} {what}, {rate}", share, until, each)

        return job.run(told)


def _box_bytes(job: Job) -> int:
    """Of the result, in each box."""
    return int(prod(job.chain.output) * job.dtype.itemsize / max(len(job.grid), 1))


def _plan(job: Job) -> dict[str, Any]:
    chain, grid = job.chain, job.grid
    each, seconds = job.seconds()
    plans = [link.boxes.plan for link in chain.links]
    grids = zip((*job.walks, chain), (*job.walk_grids, grid), strict=True)
    return {
        "pipeline": write_pipeline(job.asked),
        "algorithm": ", ".join(dict.fromkeys(plan.algorithm for plan in plans)),
        "type": job.dtype.name,
        "input": {
            "path": job.source.path,
            "axes": "".join(job.source.axes),
            "shape": list(job.source.array.shape),
            "bytes": prod(job.source.array.shape) * job.source.item,
        },
        "output": {
            "axes": "".join(job.axes),
            "shape": list(job.shape),
            "chunk": list(grid.chunk),
            "shard": list(grid.shard),
            "bytes": prod(chain.output) * job.dtype.itemsize,
        },
        "boxes": len(grid),
        "bytes_read": sum(bytes_read(*pair, job.source) for pair in grids),
        "memory": job.need,
        "flop": sum(plan.work.needed for plan in plans),
        "statistics": len(job.walks),
        "seconds_of_a_box": each,
        "seconds": seconds,
    }


def _plan_text(screen: Screen, plan: dict[str, Any]) -> str:
    given, made = plan["input"], plan["output"]
    rows = [
        ["pipeline", plan["pipeline"]],
        ["computed in", f"{plan['type']}, {plan['algorithm']}"],
        ["input", f"{given['axes']} {_by(given['shape'])}, {amount(given['bytes'])}"],
        ["result", f"{made['axes']} {_by(made['shape'])}, {amount(made['bytes'])}"],
        ["chunks", f"{_by(made['chunk'])} in shards of {_by(made['shard'])}"],
        ["boxes", f"{plan['boxes']}, a shard each"],
        ["read", f"{amount(plan['bytes_read'])}, overlaps counted each time{_before(plan['statistics'])}"],
        ["memory", f"{amount(plan['memory'])} at most"],
        ["work", operations(plan["flop"])],
        ["time", f"{duration(plan['seconds'])}, {duration(plan['seconds_of_a_box'])} for a box, without the disk"],
    ]
    return screen.table(["", "plan"], rows)


def _before(walks: int) -> str:
    """All of the input is read for statistics over space first, once for each stage that has some."""
    return f", and {counted(walks, 'time')} more for statistics" if walks else ""


def _text(screen: Screen, document: dict[str, Any]) -> str:
    rows = [
        ["result", _by(document["shape"])],
        ["boxes", f"{document['boxes']}: {document['computed']} computed, {document['kept']} kept of an earlier run"],
        ["time", duration(document["seconds"])],
    ]
    if document["computed"]:
        rows.append(["rate", f"{amount(int(document['bytes_per_second']))}/s of the result"])
    return screen.table(["", document["output"]], rows)


def _by(sizes: list[int]) -> str:
    return " x ".join(map(str, sizes))


def read_weights(path: str, pipeline: Pipeline) -> dict[str, Storage]:
    """Arrays by the names of the pipeline's operands; pickled objects are refused."""
    try:
        with open(path, "rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            with file:
                return {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        rule = f"cannot be read as an .npz file of plain arrays ({error})"
        remedy = f"Write it with numpy.savez(path, {', '.join(f'{name}=...' for name in pipeline.operand_names)})"
        raise ArgumentError("volume", "--weights", path, rule, remedy) from None


def memory_size(text: str) -> int:
    """Bytes, as people write them: 2GB, 500 MiB, 1e9."""
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?i?)b?", text.strip(), re.IGNORECASE)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError
    return int(float(match[1]) * _UNITS[match[2].upper()])


def chunk_sizes(text: str) -> tuple[int, int, int]:
    """Voxels along depth, height, width: 64, or 32,64,64."""
    sizes = [int(word) for word in text.split(",")]
    if len(sizes) not in (1, 3) or min(sizes) < 1:
        raise ValueError
    d, h, w = sizes * 3 if len(sizes) == 1 else sizes
    return d, h, w


# argparse names a type by this in its messages.
memory_size.__name__ = "size such as 2GB"
chunk_sizes.__name__ = "size such as 64 or 32,64,64"
