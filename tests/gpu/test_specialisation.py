"""Triton compiles a kernel anew for numbers that are 1 or multiples of 16. Sizes must not be among those numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.triton import printed

import convt3d as ct
from convt3d.spec.pipeline import Pipeline

CONV = ct.ConvTranspose3d
# name -> pipeline, weights
PIPELINES = {
    "dot": (
        Pipeline(CONV(stride=2, padding=1, bias=True), ct.LayerNorm(), ct.GELU(), ct.Multiply(0.5)),
        (20, 24, 4, 4, 4),
    ),
    "pool": (Pipeline(CONV(stride=(2, 1, 3), padding=1), ct.MaxPool3d(2), ct.Sum()), (16, 16, 3, 3, 3)),
    "statistics": (
        Pipeline(ct.AvgPool3d(2), CONV(stride=2), ct.Clamp(0.0, 1.0), ct.Softmax("spatial")),
        (17, 5, 2, 2, 2),
    ),
    "norm": (Pipeline(CONV(stride=2), ct.GroupNorm(3, affine=True), ct.Add("tensor")), (8, 12, 2, 2, 2)),
    "plain": (Pipeline(CONV(stride=2), ct.ReLU()), (3, 5, 2, 2, 2)),
    "depthwise": (Pipeline(CONV(stride=2, groups=19), ct.ReLU()), (19, 1, 2, 2, 2)),
    "groups": (Pipeline(CONV(stride=2, groups=2), ct.LayerNorm()), (34, 6, 2, 2, 2)),
}

CODE = """
import json, random, sys
sys.path.insert(0, {here!r})
from test_specialisation import PIPELINES
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature
from convt3d.gpu.plan import gpu_plan
from gpu_proof.compile import launches
from convt3d.spec.dtypes import DTYPES
backend, draw, keys = make_backend(GPUTarget("cuda", 80, 32)), random.Random(7), {{}}
for name, (pipeline, weights) in PIPELINES.items():
    for _ in range(40):
        x = (draw.randint(1, 16), weights[0], *(draw.randint(2, 48) for _ in range(3)))
        plan = gpu_plan(pipeline, x, pipeline.operand_shapes(x, weights), DTYPES["float32"], choice=0)
        for launch in launches(plan):
            function = launch.function
            bind = create_function_from_signature(function.signature, function.params, backend)
            _, key, _ = bind(*launch.arguments, **launch.options)
            keys.setdefault(name, {{}}).setdefault(launch.text.name, set()).add(repr(key))
print(json.dumps({{name: {{kernel: len(found) for kernel, found in one.items()}} for name, one in keys.items()}}))
"""


@pytest.fixture(scope="module")
def compilations() -> dict[str, dict[str, int]]:
    """Of each kernel, for forty sizes; asked of Triton in a process where it compiles."""
    (found,) = printed(CODE.format(here=str(Path(__file__).parent)))
    return found


@pytest.mark.parametrize("name", PIPELINES)
def test_sizes_make_no_new_binaries(name: str, compilations: dict[str, dict[str, int]]) -> None:
    assert set(compilations[name].values()) == {1}, compilations[name]
