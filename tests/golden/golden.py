"""Code and results that a change of the house must not change: digests of the LLVM IR of tiny plans, and of the bits of
drawn cases, on a machine whose caches and cores are fixed.

    PYTHONPATH=tests .venv/bin/python -m golden.golden        # writes them anew; say in the commit why they change
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest import mock

import llvmlite
import numpy as np
from helpers.guard import Fence
from helpers.tilings import drawn_tiles
from soak.draw import Draw, drawn, read

import convt3d as ct
from convt3d.cpu.code.tile import emit
from convt3d.cpu.plan import machine as machines
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.machine import LEVELS, Machine
from convt3d.cpu.plan.plan import _make_plan
from convt3d.spec.dtypes import DTYPES

FILE = Path(__file__).with_name("golden.json")
ISA = "avx2"  # of the drawn results: most processors have it
CACHES = (32 << 10, 1 << 20, 16 << 20)
CASES = 100

_CONV = "ConvTranspose3d(stride=2, padding=1, bias=True)"
_FORWARD = "Conv3d(stride=2, padding=1, bias=True)"
PLANS = {
    "conv": (_CONV, "float32", "direct", "avx512"),
    "conv, minimal": ("ConvTranspose3d(stride=2, padding=1)", "float32", "winograd", "avx512"),
    "conv in float16": (_CONV, "float16", "direct", "avx2"),
    "conv of pairs": (_CONV, "bfloat16", "direct", "avx512+avx512bf16"),
    "conv on a plain processor": (_CONV, "bfloat16", "direct", "baseline"),
    "max-max-sum": (f"{_CONV} -> MaxPool3d(2) -> MaxPool3d(3) -> Sum('channels')", "float32", "auto", "avx512"),
    "layernorm-gelu": (
        f"{_CONV} -> LayerNorm('channels', affine=True) -> GELU() -> Multiply(0.5)",
        "float32",
        "auto",
        "avx2",
    ),
    "pool over phases": (f"{_CONV} -> MaxPool3d(2) -> Tanh()", "float64", "direct", "avx512"),
    "clamp-softmax": (
        f"AvgPool3d(2) -> {_CONV} -> Clamp(0, 1) -> Softmax('spatial') -> Multiply('channel')",
        "float32",
        "direct",
        "avx2",
    ),
    "instance norm, residual": (
        f"{_CONV} -> Keep('y') -> InstanceNorm() -> Add('y') -> Mean('spatial')",
        "float32",
        "direct",
        "avx512",
    ),
    "norm along rows": (
        f"{_CONV} -> LayerNorm('width', affine=True) -> MaxPool3d(3, 1, 1) -> Add('tensor')",
        "float32",
        "direct",
        "avx2",
    ),
    "kept in a chain": (
        f"{_CONV} -> Keep('y') -> Sigmoid() -> Multiply('y') -> LogSumExp('channels')",
        "float64",
        "direct",
        "avx2",
    ),
    "strided convolution": (f"{_FORWARD} -> InstanceNorm() -> LeakyReLU()", "float32", "direct", "avx512"),
    "convolution": ("Conv3d(padding=1) -> ReLU()", "float32", "winograd", "avx2"),
    "pointwise": ("ConvTranspose3d(stride=(4, 3, 5), bias=True)", "float32", "direct", "avx512"),
    "reflected": ("Conv3d(padding=1, padding_mode='reflect') -> ReLU()", "float32", "direct", "avx512"),
}


X = (2, 6, 7, 8, 9)


def operand_shapes(pipeline: ct.Pipeline) -> tuple[tuple[int, ...], ...]:
    """Of a plan: 6 to 10 channels."""
    return pipeline.operand_shapes(X, (10, 6, 4, 3, 5) if isinstance(pipeline.conv, ct.Conv3d) else (6, 10, 4, 3, 5))


def fixed_machine(isa: str) -> Machine:
    """Of a level, and of a feature beyond it where one is named."""
    isa, _, more = isa.partition("+")
    level = next(level for level in LEVELS["x86_64"] if level.name == isa)
    features = ",".join(f"+{name}" for name in sorted({*level.features, *more.split()}))
    return Machine(isa, level.generic_cpu, features, level.vector_bytes, level.vector_registers, *CACHES, 4, 4)


def ir_digests() -> dict[str, str]:
    found = {}
    for name, (text, dtype, algorithm, isa) in PLANS.items():
        pipeline, host = ct.Pipeline(*ct.spec.text.read_stages(text)), fixed_machine(isa)
        plan = _make_plan(pipeline, X, operand_shapes(pipeline), DTYPES[dtype], Options(algorithm), True, host)
        found[name] = _digest("".join(emit(one.structure, host) for one in plan.sweeps).encode())
    return found


def result_digest(draw: Draw) -> str:
    """Of the numbers: which NaN one is does not count."""
    fences: list[Fence] = []
    try:
        x, operands, out = draw.arrays(fences)
        from soak.check import _public

        given = [_public(array, draw) for array in (x, *operands, out.squeeze(draw.asked().dropped))]
        with _fixed(), np.errstate(all="ignore"), ct.num_threads(1), drawn_tiles(draw.tiles or 1):
            draw.asked()(given[0], *given[1:-1], out=given[-1], algorithm=draw.algorithm)
        wide = draw.kind.widen(out.copy())
        return _digest(np.where(np.isnan(wide), np.nan, wide).tobytes())
    finally:
        from convt3d.cpu.runtime import folded, weights

        for kept in (weights._kept, folded._kept):
            kept.entries.clear()
        for fence in fences:
            fence.free()


@contextmanager
def _fixed() -> Iterator[None]:
    """This machine with the vectors, caches and cores that the results were written with."""
    caches = mock.patch.object(machines, "cache_sizes", return_value=CACHES)
    cores = mock.patch.object(os, "cpu_count", return_value=4)
    with caches, cores, mock.patch.dict(os.environ, {machines.ISA_VARIABLE: ISA}):
        machines._detect.cache_clear()
        try:
            yield
        finally:
            machines._detect.cache_clear()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _draws() -> Iterator[Draw]:
    """NumPy's own exponentials differ from processor to processor: statistics of a softmax over space are left out."""
    rng = np.random.default_rng(17)
    while True:
        for number, draw in enumerate(drawn(rng)):
            if number < 5 and not any(word in draw.pipeline for word in ("Softmax", "LogSumExp")):
                yield replace(draw, threads=1)


if __name__ == "__main__":
    known = list(json.loads(FILE.read_text())["results"]) if FILE.exists() else []  # the same cases again
    drawn_anew = (repr(draw) for draw in _draws())
    results = {text: result_digest(read(text)) for text in known or islice(drawn_anew, CASES)}
    document = {"llvmlite": llvmlite.__version__, "ir": ir_digests(), "results": results}
    FILE.write_text(json.dumps(document, indent=1) + "\n")
