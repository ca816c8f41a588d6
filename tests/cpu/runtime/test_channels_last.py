"""Arrays whose channels lie side by side are read in squares: the same bits as from contiguous ones, nothing beyond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import guard
from helpers.draws import Case, make
from helpers.tilings import drawn_tiles

import convt3d as ct
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.stage import Stage

AFTER: dict[str, list[Stage]] = {
    "alone": [],
    "tensor": [ct.Add("tensor"), ct.ReLU()],
    "two passes": [ct.InstanceNorm(), ct.Multiply("tensor")],
}
BEFORE: dict[str, list[Stage]] = {"nothing": [], "norm": [ct.LayerNorm()], "pool": [ct.AvgPool3d(2, 1)]}


def channels_last(array: Any, at_end: bool, fences: list[guard.Fence]) -> Any:
    """The same values, channels side by side, the last (or first) of them at an unreadable page."""
    relaid = np.ascontiguousarray(array.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    return guard.fenced_like(relaid, at_end, fences)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("width", [1, 7, 16, 35])
@pytest.mark.parametrize("channels", [2, 15, 16, 17, 40])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_bits(channels: int, width: int, stride: int, at_end: bool) -> None:
    """Around whole vectors of every instruction set; strides 1 and 2, which may multiply less, and so pace the slab."""
    pipeline = ct.Pipeline(ct.ConvTranspose3d(stride=stride, padding=1, bias=True))
    check(make(pipeline, (2, channels, 3, 4, width), (channels, 5, 3, 3, 3)), at_end)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("channels", [3, 16, 21])
def test_other_types(dtype: str, channels: int) -> None:
    pipeline = ct.Pipeline(ct.ConvTranspose3d(stride=2, padding=1))
    check(make(pipeline, (1, channels, 3, 4, 18), (channels, 5, 4, 4, 4), dtype), True)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("groups", [1, 3])
def test_boxes_and_tensors(before: str, after: str, groups: int) -> None:
    """What stages before and after the convolution read, in drawn tiles and parts of channels."""
    pipeline = ct.Pipeline(*BEFORE[before], ct.ConvTranspose3d(stride=2, groups=groups), *AFTER[after])
    case = make(pipeline, (2, 18, 4, 5, 9), (18, 19, 2, 3, 2))
    for seed in range(3):
        with drawn_tiles(seed):
            check(case, bool(seed % 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("after", [[], [ct.ReLU()]], ids=["last", "first"])
def test_values_between_passes_are_not_of_the_callers_type(dtype: str, after: list[Stage]) -> None:
    """Sums over space have one voxel for each channel, side by side: they were read as if they were float16."""
    pipeline = ct.Pipeline(ct.ConvTranspose3d(), ct.Mean("spatial"), *after)
    make(pipeline, (1, 4, 2, 2, 2), (4, 8, 1, 1, 1), dtype).check()


def check(case: Case, at_end: bool) -> None:
    case.check()
    fences: list[guard.Fence] = []
    tensors = [slot.operand.kind == "tensor" for slot in case.pipeline.slots]
    operands = tuple(
        channels_last(array, at_end, fences) if tensor else array
        for array, tensor in zip(case.operands, tensors, strict=True)
    )
    relaid = Case(case.pipeline, case.dtype, channels_last(case.x, at_end, fences), operands)
    assert relaid.run().tobytes() == case.run().tobytes()
    del relaid, operands
    for fence in fences:
        fence.free()
