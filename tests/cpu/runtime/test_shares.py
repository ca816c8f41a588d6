"""Channels that threads share, rows that are summed together, planes that are moved at once: drawn geometries against
the float64 meaning and PyTorch."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers.draws import make
from helpers.tilings import drawn_tiles
from torch.nn import functional

import convt3d as ct
from convt3d.cpu.plan.choice import DIRECT
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.steps.direct import DirectConvolution
from convt3d.spec.dtypes import float32
from convt3d.spec.pipeline import Pipeline

ISAS = ["avx512", "avx2", "baseline"] if machine().isa == "avx512" else [machine().isa]


def _draw(rng: np.random.Generator, kernel: int, groups: int) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """A convolution of either kind, the shape of its input and that of its weight."""
    taps = tuple(int(rng.integers(1, kernel + 1)) for _ in range(3))
    size = tuple(int(rng.integers(max(taps), max(taps) + high)) for high in (4, 14, 40))
    each_in, each_out = (1, 1) if rng.integers(2) else (int(rng.integers(1, 4)), int(rng.integers(1, 9)))
    batch, channels = int(rng.integers(1, 3)), each_in * groups
    stride = tuple(int(rng.choice([1, 1, 1, 2])) for _ in range(3))
    padding = tuple(int(rng.integers(0, tap // 2 + 1)) for tap in taps)
    chosen = {"stride": stride, "padding": padding, "groups": groups, "bias": bool(rng.integers(2))}
    if rng.integers(2):
        return ct.Conv3d(**chosen), (batch, channels, *size), (each_out * groups, each_in, *taps)
    return ct.ConvTranspose3d(**chosen), (batch, channels, *size), (channels, each_out, *taps)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(3))
def test_groups_of_drawn_convolutions(seed: int, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_ISA", isa)
    rng = np.random.default_rng(seed)
    for groups in (1, 3, 37):
        conv, x, w = _draw(rng, 5, groups)
        tail = [[], [ct.ReLU()], [ct.InstanceNorm()], [ct.MaxPool3d((1, 1, 2), 1)]][int(rng.integers(4))]
        before = [[], [ct.Sigmoid()], [ct.AvgPool3d((1, 1, 2), 1)]][int(rng.integers(3))]
        case = make(Pipeline(*before, conv, *tail), x, w)
        case.check()
        out = np.empty(case.output, np.float32)
        last = np.empty([case.output[axis] for axis in (0, 2, 3, 4, 1)], np.float32).transpose(0, 4, 1, 2, 3)
        assert case.run(last).tobytes() == case.run(out).tobytes()
        with drawn_tiles(seed):
            case.check()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types(dtype: str) -> None:
    make(Pipeline(ct.Conv3d(padding=1, groups=19)), (2, 19, 3, 11, 34), (19, 1, 3, 3, 3), dtype).check()
    make(Pipeline(ct.Conv3d(bias=True)), (2, 19, 3, 5, 17), (23, 19, 1, 1, 1), dtype).check()


@pytest.mark.parametrize("width", [15, 16, 33, 48])
@pytest.mark.parametrize("height", [1, 5, 8, 17])
def test_rows_of_any_length(width: int, height: int) -> None:
    """The last block of rows, and the last vectors of a row, are computed together with those before them."""
    x, w = (1, 3, 3, height, width), (3, 1, 3, 3, 3)
    case = make(Pipeline(ct.Conv3d(padding=1, groups=3, bias=True)), x, w)
    case.check()
    tensors = [torch.from_numpy(np.asarray(array)).double() for array in (case.x, *case.operands)]
    truth = functional.conv3d(*tensors, padding=1, groups=3).numpy()
    np.testing.assert_allclose(case.run(), truth, rtol=0, atol=1e-5)


def test_nan_reaches_only_outputs_that_meet_it() -> None:
    case = make(Pipeline(ct.Conv3d(padding=1, groups=20)), (1, 20, 5, 12, 40), (20, 1, 3, 3, 3))
    case.x[0, 7, 2, 5, 20], case.x[0, 13, 4, 11, 39] = np.nan, np.inf
    found = ~np.isfinite(case.run())
    expected = np.zeros_like(found)
    expected[0, 7, 1:4, 4:7, 19:22] = True
    expected[0, 13, 3:, 10:, 38:] = True
    assert (found == expected).all()


def _relaid(x: Any, layout: str) -> Any:
    if layout == "channels last":
        return np.ascontiguousarray(x.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    room = np.full((*x.shape[:3], x.shape[3] + 1, x.shape[4] + (layout == "gaps")), np.nan, x.dtype)
    room[..., : x.shape[3], : x.shape[4]] = x
    return room[..., : x.shape[3], : x.shape[4]]


@pytest.mark.parametrize("layout", ["gaps", "gaps behind planes", "channels last"])
@pytest.mark.parametrize("size", [(3, 5, 7), (1, 1, 33), (4, 4, 4), (2, 16, 16), (7, 1, 1)])
def test_planes_that_follow_each_other(size: tuple[int, int, int], layout: str) -> None:
    """Where nothing lies between rows, they are moved as one; from arrays of any layout, and into them."""
    convs = (ct.Conv3d(bias=True), (21, 19)), (ct.ConvTranspose3d(stride=(1, 1, 2)), (19, 21))
    for (conv, w), tail in product(convs, ([], [ct.Tanh()])):
        kernel = (1, 1, 1) if isinstance(conv, ct.Conv3d) else (1, 1, 2)
        case = make(Pipeline(conv, *tail), (2, 19, *size), (*w, *kernel))
        plain = case.run().tobytes()
        case = replace(case, x=_relaid(case.x, layout))
        case.check()
        assert case.run(_relaid(np.empty(case.output, np.float32), layout)).tobytes() == plain


@pytest.mark.parametrize("size", [(2, 4, 4), (3, 16, 1), (2, 5, 16), (1, 1, 48)])
def test_sums_go_straight_into_the_result(size: tuple[int, int, int]) -> None:
    """Nothing behind the last voxel of a channel, or of the array, is written."""
    case = make(Pipeline(ct.Conv3d(bias=True)), (3, 700, *size), (29, 700, 1, 1, 1))
    room = np.full((3, 31, size[0] + 1, *size[1:]), np.nan, np.float32)
    case.check(room[:, 1:-1, : size[0]])
    assert np.isnan(room[:, [0, -1]]).all()
    assert np.isnan(room[:, :, size[0] :]).all()


def _convolution(pipeline: Pipeline, x: tuple[int, ...], w: tuple[int, ...]) -> Any:
    plan = make_plan(pipeline, x, pipeline.operand_shapes(x, w), float32, DIRECT)
    return plan.sweeps[0]


def test_what_is_shared() -> None:
    """Groups always; blocks of channels where there are fewer tiles than cores; never what channels share."""
    depthwise = Pipeline(ct.Conv3d(padding=1, groups=64))
    planned = _convolution(depthwise, (1, 64, 16, 32, 32), (64, 1, 3, 3, 3))
    share = planned.tiling.share
    assert share.groups == machine().lanes(4)
    assert share.number * share.groups == 64
    assert planned.tiling.part.groups == 1
    assert isinstance(planned.structure.steps[0], DirectConvolution)
    assert planned.structure.steps[0].heights == (3,)
    few = _convolution(Pipeline(ct.Conv3d()), (1, 320, 2, 2, 2), (320, 320, 1, 1, 1)).tiling
    assert few.items > 1 or machine().cores == 1
    coupled = Pipeline(ct.Conv3d(padding=1, groups=64), ct.Softmax("channels"))
    assert _convolution(coupled, (1, 64, 16, 32, 32), (64, 1, 3, 3, 3)).tiling.share.number == 1
