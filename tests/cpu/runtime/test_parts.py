"""Output channels in parts: which there are, and that no bit of a result depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.draws import make
from helpers.tilings import planned_by

import convt3d as ct
from convt3d.cpu.plan import plan as planning
from convt3d.cpu.plan.choice import DIRECT, Options
from convt3d.cpu.plan.explain import explain
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.plan.tiles import Part
from convt3d.spec.dtypes import float32
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.stage import Stage

APART: dict[str, list[Stage]] = {
    "alone": [],
    "activation": [ct.ReLU()],
    "vectors": [ct.Multiply("channel"), ct.PReLU(), ct.Add("channel")],
    "tensor": [ct.Add("tensor"), ct.ReLU()],
    "kept": [ct.Keep("y"), ct.Sigmoid(), ct.Multiply("y")],
    "pool": [ct.MaxPool3d(3, 2, 1), ct.GELU()],
    "pool of phases": [ct.Tanh(), ct.AvgPool3d(2), ct.Clamp(-0.5, 0.5)],
    "norm of channels": [ct.InstanceNorm(affine=True), ct.LeakyReLU(0.1)],
    "softmax over space": [ct.Softmax("spatial"), ct.Multiply(3.0)],
    "norm of rows": [ct.LayerNorm("width", affine=True)],
    "sum over space": [ct.Tanh(), ct.Sum("spatial")],
    "norm of groups": [ct.GroupNorm(1, affine=True), ct.ReLU()],
}
COUPLED: dict[str, list[Stage]] = {
    "layer norm": [ct.LayerNorm(), ct.GELU()],
    "sum": [ct.ReLU(), ct.Sum()],
    "softmax": [ct.Softmax("channels")],
}


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_and_stages_before(dtype: str) -> None:
    stages = ct.Sigmoid(), ct.AvgPool3d(2, 1), ct.ConvTranspose3d(stride=2), ct.InstanceNorm(), ct.Add("tensor")
    case = make(ct.Pipeline(*stages), (2, 5, 4, 5, 6), (5, 37, 2, 3, 2), dtype)
    with parts(None):
        case.check()
        whole = case.run().tobytes()
    for part in (Part(1, 1, 1), Part(1, 2, 2)):
        with parts(part):
            assert case.run().tobytes() == whole


def pipeline_of(stages: list[Stage], groups: int) -> Pipeline:
    return Pipeline(
        ct.ConvTranspose3d(
            stride=(2, 2, 2), padding=(1, 0, 1), output_padding=(1, 0, 0), groups=groups, dilation=(1, 2, 1), bias=True
        ),
        *stages,
    )


@contextmanager
def parts(part: Part | None, algorithm: str = "direct") -> Iterator[None]:
    """Plans made inside use this algorithm, unless direct is asked for, and take channels in these parts."""
    honest = planning.choose_method

    def choose_method(*given: Any) -> Any:
        *others, options = given
        wanted = options.algorithm if options.algorithm == "direct" else algorithm
        choice = honest(*others, replace(options, algorithm=wanted))
        return replace(choice, tiling=replace(choice.tiling, part=part))

    with planned_by(choose_method):
        yield


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("stages", [*APART, *COUPLED])
def test_results_do_not_depend_on_parts(stages: str, groups: int) -> None:
    """Blocks of one group with a rest, whole groups with a rest; also where channels lie side by side."""
    pipeline = pipeline_of((APART | COUPLED)[stages], groups)
    case = make(pipeline, (2, 3 * groups, 3, 4, 5), (3 * groups, 47 if groups == 1 else 17, 3, 2, 3))
    with parts(None):
        case.check()
        whole = case.run().tobytes()
    channels_last = np.empty(np.array(case.output)[[0, 2, 3, 4, 1]], np.float32).transpose(0, 4, 1, 2, 3)
    with_gaps = np.empty([2 * size for size in case.output], np.float32)[tuple(slice(0, None, 2) for _ in range(5))]
    for part in (Part(1, 1, 1), Part(1, 2, 2), Part(2, 1 << 20, 3), Part(1, 1 << 20, 1)):
        with parts(part):
            for out in (None, channels_last, with_gaps):
                assert case.run(out).tobytes() == whole, f"{part}, {'own' if out is None else out.strides}"


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("stages", [*APART, *COUPLED])
def test_results_of_minimal_multiplication_do_not_depend_on_parts(stages: str, groups: int) -> None:
    """The convolution makes all channels; what follows takes some at a time."""
    conv = ct.ConvTranspose3d(stride=2, padding=1, output_padding=1, groups=groups, bias=True)
    case = make(Pipeline(conv, *(APART | COUPLED)[stages]), (2, 4 * groups, 3, 4, 5), (4 * groups, 7, 3, 3, 3))
    with parts(None, "winograd"):
        assert not plan_of(case.pipeline, case.x.shape, (4 * groups, 7, 3, 3, 3), Options()).method.direct
        case.check()
        whole = case.run().tobytes()
    channels_last = np.empty(np.array(case.output)[[0, 2, 3, 4, 1]], np.float32).transpose(0, 4, 1, 2, 3)
    for channels in (1, 3, 7 * groups, 1 << 20):
        with parts(Part(groups, 1, channels), "winograd"):
            for out in (None, channels_last):
                assert case.run(out).tobytes() == whole, f"{channels}, {'own' if out is None else out.strides}"


@pytest.mark.parametrize("stages", APART)
def test_channels_that_never_meet_are_taken_in_parts(stages: str) -> None:
    """As many as a share of the second-level cache holds, and at least one block."""
    pipeline = pipeline_of(APART[stages], 1)
    plan = plan_of(pipeline, (1, 4, 16, 16, 16), (4, 200, 3, 2, 3), DIRECT)
    one = plan.sweeps[0]
    assert not any(op.couples_channels for op in one.sweep.ops)
    part = one.tiling.part
    assert part is not None
    assert part.channels < 200
    pitch = pitches_of(one)["Convolution.phased"]
    assert part.channels * pitch * 4 <= plan.machine.l2 // 4 or part.blocks == 1
    assert f"{part.channels} of 200 channels at a time" in explain(plan)
    assert one.tiling.passing < one.tiling.scratch


def test_parts_behind_minimal_multiplication() -> None:
    """Its result and its input pass through a tile as a whole, what is added and what is stored a part at a time."""
    pipeline = Pipeline(ct.ConvTranspose3d(stride=2, padding=1, output_padding=1), ct.Add("tensor"), ct.ReLU())
    plan = plan_of(pipeline, (1, 64, 12, 16, 32), (64, 64, 3, 3, 3), Options("winograd"))
    tiling, pitches = plan.sweeps[0].tiling, pitches_of(plan.sweeps[0])
    behind = pitches["Interleave"] + pitches["Chain"]
    assert 1 <= tiling.part.channels < 64
    assert tiling.part.channels * (pitches["Convolution.phased"] + behind) * 4 <= plan.machine.l2 // 4
    assert tiling.near == 4 * 64 * behind
    assert tiling.moved - tiling.passing == 4 * (64 - tiling.part.channels) * behind
    text = explain(plan)
    assert f"{tiling.part.channels} of 64 channels at a time, through the steps behind the convolution" in text


@pytest.mark.parametrize("stages", COUPLED)
def test_channels_that_meet_are_not(stages: str) -> None:
    plan = plan_of(pipeline_of(COUPLED[stages], 1), (1, 4, 16, 16, 16), (4, 200, 3, 2, 3), DIRECT)
    assert plan.sweeps[0].tiling.part is None


def test_small_groups_are_taken_together() -> None:
    """Each by itself would be a loop of its own for every channel of a depthwise convolution."""
    plan = plan_of(
        Pipeline(ct.ConvTranspose3d(stride=2, padding=1, output_padding=1, groups=64)),
        (1, 64, 4, 8, 8),
        (64, 1, 3, 3, 3),
        DIRECT,
    )
    part = plan.sweeps[0].tiling.part
    assert part is not None
    assert part.blocks == 1
    assert part.groups > 1


@pytest.mark.parametrize(
    ("x", "w", "stride"),
    [
        ((1, 8, 64, 64, 64), (8, 512, 2, 2, 2), 2),
        ((1, 32, 1, 1, 8192), (32, 1024, 2, 2, 2), 3),
        ((1, 8, 4, 4, 2048), (8, 512, 3, 3, 3), 2),
    ],
)
def test_scratch_stays_bounded(x: tuple[int, ...], w: tuple[int, ...], stride: int) -> None:
    """Parts make large tiles cheap, but scratch memory has room for all channels, which a result with channels side by
    side stores together. Long rows were not cut: 1 GB."""
    plan = plan_of(Pipeline(ct.ConvTranspose3d(stride=stride)), x, w, DIRECT)
    assert prod(plan.sweeps[0].tiling.counts) > 1
    assert plan.scratch <= 4 * plan.machine.l2


@pytest.mark.parametrize("channels", [16, 200, 1024])
def test_what_passes_through_a_tile(channels: int) -> None:
    """The slab, and of the channels a part: rows on their way out were once taken off twice."""
    plan = plan_of(Pipeline(ct.ConvTranspose3d(stride=2)), (1, 16, 8, 16, 16), (16, channels, 3, 3, 3), DIRECT)
    tiling, pitches = plan.sweeps[0].tiling, pitches_of(plan.sweeps[0])
    numbers = 16 * pitches["Convolution.slab"] + tiling.part.channels * pitches["Convolution.phased"]
    assert 4 * numbers <= tiling.passing <= 4 * numbers + 1024
    # What the cost counts is all channels: with a part alone direct summation looked too cheap beside minimal.
    assert tiling.moved - tiling.passing == 4 * (channels - tiling.part.channels) * pitches["Convolution.phased"]


def pitches_of(one: Any) -> dict[str, int]:
    """Of the first room of each step, and of both ends of the convolution."""
    found = {}
    for step, rooms in zip(one.structure.steps, one.tiling.rooms, strict=True):
        if step.convolves:
            found |= {"Convolution.slab": rooms[0].pitch, "Convolution.phased": rooms[-1].pitch}
        elif rooms:
            found[type(step).__name__] = rooms[0].pitch
    return found


def plan_of(pipeline: Pipeline, x: tuple[int, ...], w: tuple[int, ...], options: Options) -> Any:
    return make_plan(pipeline, x, tuple(pipeline.operand_shapes(x, w)), float32, options)
