"""Times exported libraries beside Python's prepared calls, in turns, both with the same bits: a table for
docs/c_library.md.

python tools/library_speed.py --keep FOLDER            # export first, which takes minutes
python tools/library_speed.py --keep FOLDER --rounds 15
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.c_levels import own_level
from helpers.c_library import Loaded

import convt3d
from convt3d.export.forms import Subject
from convt3d.export.library import write_library
from convt3d.spec.dtypes import float32
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.problems import PROBLEMS
from convt3d.spec.text import read_stages

BATCHES = {"max-max-sum": 2, "sum-layernorm": 4, "avgpool-clamp": 4, "asym": 1, "layernorm-gelu": 4}
LAYERS = {
    "Conv3d(padding=1) -> InstanceNorm() -> LeakyReLU()": ((1, 32, 48, 48, 48), [(32, 32, 3, 3, 3)]),
    "ConvTranspose3d(stride=2) -> GroupNorm(4) -> ReLU()": ((1, 64, 24, 24, 24), [(64, 32, 2, 2, 2)]),
    "Conv3d() -> SiLU()": ((1, 64, 40, 40, 40), [(64, 64, 1, 1, 1)]),
    "Conv3d(padding=1) -> InstanceNorm() -> ReLU() -> Conv3d(padding=1) -> Add('x') -> ReLU()": (
        (1, 32, 32, 32, 32),
        [(32, 32, 3, 3, 3)] * 2,
    ),
}


def cases() -> list[tuple[str, Pipeline, tuple[int, ...], list[tuple[int, ...]]]]:
    """The operators as pipelines, with the parameters of their benchmark, and layers."""
    found = []
    for slug, problem in PROBLEMS.items():
        short, batch = next((word, size) for word, size in BATCHES.items() if word in slug)
        values = {**problem.benchmark, "batch_size": batch}
        shapes = problem.shapes(values)
        found.append((f"{short}, batch {batch}", problem.pipeline(values), shapes["input"], [shapes["kernel"]]))
    for text, (x, kernels) in LAYERS.items():
        found.append((text, Pipeline(*read_stages(text)), x, kernels))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", required=True, help="folder of the libraries")
    parser.add_argument("--rounds", type=int, default=0, help="0: export only")
    args, rng = parser.parse_args(), np.random.default_rng(0)
    for number, (title, pipeline, x, kernels) in enumerate(cases()):
        subject = Subject(f"timed_{number}", pipeline, None)
        folder = Path(args.keep) / subject.name
        if not folder.exists():
            with mock.patch("convt3d.export.library.levels", own_level):
                write_library(subject, float32, str(folder))
        if not args.rounds:
            continue
        loaded = Loaded(str(folder / f"lib{subject.name}.so"), subject, float32)
        shapes = pipeline.operand_shapes(x, *kernels)
        data, *operands = (rng.standard_normal(shape).astype(np.float32) for shape in (x, *shapes))
        got, expected = (np.empty(pipeline.trace(x, shapes).output, np.float32) for _ in range(2))
        call = loaded.arguments(data, operands, got, {})
        size = ctypes.c_size_t()
        assert loaded.function("workspace")(ctypes.byref(call), ctypes.byref(size)) == 0
        workspace = np.zeros(size.value, np.uint8)
        call.workspace, call.workspace_bytes = workspace.ctypes.data, size.value
        run, prepared = loaded.function("run"), convt3d.Pipeline(*pipeline.stages).prepare(*operands)
        taken: tuple[list[float], list[float]] = ([], [])
        for turn in range(args.rounds + 2):
            start = time.perf_counter()
            assert run(ctypes.byref(call)) == 0
            between = time.perf_counter()
            prepared(data, out=expected)
            end = time.perf_counter()
            if turn > 1:
                taken[0].append(between - start)
                taken[1].append(end - between)
        ours, theirs = (1e3 * median(each) for each in taken)
        same = "same bits" if got.tobytes() == expected.tobytes() else "OTHER BITS"
        print(f"| {title} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} | {same}", flush=True)


if __name__ == "__main__":
    main()
