"""What a plan costs is bounded by the arrays, whatever the parameters: phases, tiles and tables are counted."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.draws import make

import convt3d as ct
from convt3d.cpu.plan.geometry import Walk, phases
from convt3d.cpu.plan.plan import Plan, make_plan
from convt3d.cpu.runtime.bind import Binding
from convt3d.cpu.runtime.packing import WeightLayout
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.shapes import PoolAxis, TransposedAxis

LONG = 100_000
ROW = (1, 1, 1, 1, 3)


def plan_of(x: tuple[int, ...], kernel: tuple[int, ...], *after: ct.Stage, **conv: Any) -> Plan:
    pipeline = ct.Pipeline(ct.ConvTranspose3d(**conv), *after)
    return make_plan(pipeline, x, pipeline.operand_shapes(x, kernel), DTYPES["float32"])


CASES = {
    "stride": (ROW, ROW, {"stride": (1, 1, LONG)}),
    "stride along the depth": ((1, 1, 3, 1, 1), ROW, {"stride": (LONG, 1, 1)}),
    "stride of one input": ((1, 1, 1, 1, 1), (1, 1, 1, 1, 1), {"stride": 2**62}),
    "strides of three axes": ((1, 1, 2, 2, 2), (1, 1, 2, 2, 2), {"stride": 200}),
    "a kernel as long as its stride": ((1, 1, 3, 3, 3), (1, 1, 30, 30, 30), {"stride": 30}),
    "dilation": (ROW, ROW, {"dilation": (1, 1, LONG)}),
    "dilation that just fits a cache": (ROW, ROW, {"dilation": (1, 1, 62_000)}),
    "dilation along the depth": ((1, 1, 3, 1, 3), (1, 1, 3, 1, 3), {"dilation": (LONG, 1, 1)}),
    "dilation along the height": ((1, 2, 3, 3, 3), (2, 2, 3, 3, 3), {"dilation": (1, 30_000, 1)}),
    "dilation and stride": (ROW, ROW, {"dilation": (1, 1, LONG), "stride": (1, 1, LONG - 1)}),
    "dilation that is the stride": (ROW, ROW, {"dilation": (1, 1, LONG), "stride": (1, 1, LONG)}),
    "padding": (ROW, ROW, {"dilation": (1, 1, 2**40), "padding": (0, 0, 2**40 - 1)}),
    "output padding": (ROW, ROW, {"stride": (1, 1, LONG), "output_padding": (0, 0, LONG - 1)}),
    "a long row": ((1, 1, 1, 1, 10**6), ROW, {"stride": (1, 1, 3)}),
    "a deep volume": ((1, 1, 10**6, 1, 1), (1, 1, 3, 1, 1), {"stride": (3, 1, 1)}),
}


@pytest.mark.parametrize("name", CASES)
def test_work_and_tables_grow_with_the_arrays_only(name: str) -> None:
    """Elements of scratch that all tiles go through, beside the elements of the arrays. It was their square."""
    x, kernel, conv = CASES[name]
    plan = plan_of(x, kernel, **conv)
    elements = prod(x) + prod(kernel) + prod(plan.trace.output)
    for one in plan.sweeps:
        tiles = prod(one.tiling.counts)
        assert tiles <= 1024 + elements // 256
        assert tiles * one.tiling.scratch // 4 <= 64 * elements + 100_000
        bound = Binding(plan, one)
        values = [value for words in bound.sets for value in vars(words).values()]
        arrays = [array for value in values for array in (value if isinstance(value, tuple) else (value,))]
        assert sum(array.size for array in arrays if isinstance(array, np.ndarray)) <= 64 * elements + 10_000
        assert bound.weights is not None
        assert sum(len(phase.taps) for axis in bound.weights.axes for phase in axis) == sum(kernel[2:])


def test_phases_without_taps_share_a_place() -> None:
    walk = Walk(TransposedAxis(size=3, kernel=3, stride=LONG, padding=1, output_padding=0, dilation=7))
    places = walk.places()
    assert walk.kept == 4
    assert [walk.place(phase.phase) for phase in phases(walk)] == [0, 1, 2]
    assert [int(places[phase.phase]) for phase in phases(walk)] == [0, 1, 2]
    assert np.count_nonzero(places == 3) == LONG - 3
    short = Walk(TransposedAxis(size=3, kernel=3, stride=8, padding=1, output_padding=0, dilation=7))
    assert short.kept == 8, "rows of short strides are put together by shuffles, which want them all"
    assert short.places().tolist() == list(range(8))


@pytest.mark.parametrize("kernel", [1, 2, 5, 2**40])
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (3, 1), (2**62, 0)])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("include_pad", [False, True])
def test_windows_of_a_pool_at_once(kernel: int, stride: int, padding: int, ceil_mode: bool, include_pad: bool) -> None:
    axis = PoolAxis(17, kernel, stride, min(padding, kernel // 2), ceil_mode)
    expected = [[*axis.window(o), axis.divisor(o, include_pad)] for o in range(axis.out)]
    assert axis.windows(include_pad).tolist() == expected


AFTER = {
    "nothing": (),
    "a chain of voxels": (ct.GELU(), ct.Multiply(2.0)),
    "channels": (ct.Softmax(), ct.Add("tensor")),
    "a pool as long as the stride": (ct.MaxPool3d((9, 20, 11)),),
    "a mean over the stride": (ct.AvgPool3d((9, 20, 11)), ct.Tanh()),
    "a norm": (ct.InstanceNorm(),),
}


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("after", AFTER)
def test_values_between_the_taps_of_a_long_stride(after: str, algorithm: str) -> None:
    """They are the bias, and go through all that follows like the others."""
    conv = ct.ConvTranspose3d(
        stride=(9, 20, 11), padding=(1, 0, 2), output_padding=(3, 0, 1), dilation=(9, 1, 11), bias=True
    )
    case = make(ct.Pipeline(conv, *AFTER[after]), (2, 4, 3, 2, 5), (4, 3, 3, 2, 3))
    case.check()
    got, expected = case.pipeline(case.x, *case.operands, algorithm=algorithm), case.expected()
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


def test_one_of_several_axes_is_long() -> None:
    for stride in [(2, 3, 40), (2, 40, 3), (40, 2, 3)]:
        make(ct.Pipeline(ct.ConvTranspose3d(stride=stride, bias=True)), (1, 2, 3, 4, 5), (2, 3, 3, 3, 3)).check()


def test_packing_is_planned_by_axis() -> None:
    """A kernel as long as its stride has as many phases as taps: 27,000 here, but 90 along the axes."""
    plan = plan_of((1, 1, 2, 2, 2), (1, 1, 30, 30, 30), stride=30)
    layout = WeightLayout.of(1, plan.method, plan.sweeps[0].register_tile, "float32")
    assert sum(map(len, layout.axes)) == 90


@pytest.mark.parametrize("stride", [1, 2, (3, 1, 2)])
def test_taps_that_meet_no_input(stride: Any) -> None:
    """Padding cuts away all that the outer taps of a dilated kernel give: they are read where there are zeros."""
    for dilation, padding in [((30, 7, 90), (30, 6, 89)), ((50, 50, 50), (49, 51, 50)), ((9, 1, 300), (8, 0, 301))]:
        conv = ct.ConvTranspose3d(stride=stride, padding=padding, dilation=dilation, bias=True)
        make(ct.Pipeline(conv), (1, 2, 3, 4, 4), (2, 3, 3, 3, 3)).check()
        walk = plan_of((1, 2, 3, 4, 4), (2, 3, 3, 3, 3), stride=stride, padding=padding, dilation=dilation)
        for axis in walk.method.walks:
            low, high = axis.shift_range
            assert high - low <= axis.axis.size + axis.positions + 1
