"""Convolutions whose taps and input channels come in pieces: the meaning, the bits, and scratch that stays small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.data import sprinkled

import convt3d as ct
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.pieces import Pieces, ways_to_cut
from convt3d.cpu.plan.plan import Plan, make_plan
from convt3d.cpu.runtime.execute import execute_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate
from convt3d.spec.text import read_stages

ANY = 1 << 62

# Why each is there: taps far apart; phases, some without taps; positions several inputs wide, by shuffles and by single
# numbers; groups; channels alone; a tile in scratch memory before it; taps that meet nothing; stages behind.
LAYERS = [
    ("Conv3d(padding=4, dilation=(2, 4, 3), bias=True)", (2, 5, 7, 9, 19), (8, 5, 3, 3, 3)),
    ("ConvTranspose3d(stride=2, padding=1, dilation=(3, 1, 2), bias=True)", (1, 7, 4, 5, 9), (7, 13, 3, 3, 5)),
    ("ConvTranspose3d(stride=(3, 2, 11), output_padding=(2, 0, 1), bias=True)", (1, 6, 3, 2, 5), (6, 4, 2, 1, 3)),
    ("Conv3d(stride=(2, 1, 2), padding=2, dilation=(1, 3, 2), groups=2)", (1, 6, 9, 11, 23), (4, 3, 3, 3, 3)),
    ("Conv3d(stride=(1, 3, 9), padding=2, dilation=(1, 2, 1))", (1, 3, 4, 15, 37), (5, 3, 2, 3, 4)),
    ("Conv3d(padding=2, dilation=2, groups=5)", (1, 5, 3, 4, 33), (5, 1, 3, 3, 3)),
    ("MaxPool3d(2) -> Conv3d(padding=2, dilation=2)", (1, 5, 6, 7, 10), (3, 5, 3, 3, 3)),
    ("Conv3d(padding=9, dilation=9)", (1, 3, 3, 1, 2), (3, 3, 3, 3, 3)),
    ("Conv3d(padding=2, padding_mode='reflect', bias=True) -> InstanceNorm()", (2, 7, 4, 5, 6), (4, 7, 5, 3, 3)),
    ("ConvTranspose3d(stride=2, padding=1) -> MaxPool3d(2) -> Sum('channels')", (1, 9, 4, 5, 6), (9, 9, 3, 3, 3)),
]
PIECES = [Pieces(True, ANY, ANY), Pieces(False, ANY, 2), Pieces(True, 2, 3), Pieces(False, 1, ANY)]


def planned(text: str, x: tuple[int, ...], w: tuple[int, ...], dtype: str, pieces: Pieces, masked: bool) -> Plan:
    pipe = ct.Pipeline(*read_stages(text))
    options = Options("direct", outputs=(1, 1, 1), masked=masked, pieces=pieces)
    return make_plan(pipe, x, pipe.operand_shapes(x, w), DTYPES[dtype], options)


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("text", "x_shape", "w_shape"), LAYERS, ids=[text for text, *_ in LAYERS])
def test_meaning(
    text: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, pieces: Pieces, rng: Any
) -> None:
    """Of finite numbers, and by masked kernels of others; the same bits for any threads, every voxel written."""
    stored = DTYPES[dtype]
    rounding = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for special in ((), (np.nan, np.inf, -np.inf)):
        plan = planned(text, x_shape, w_shape, dtype, pieces, bool(special))
        assert plan.pieces == pieces
        arrays = [rng.standard_normal(shape) for shape in (x_shape, *plan.trace.operand_shapes)]
        if special:
            arrays[1] = sprinkled(rng, arrays[1], special, share=0.02)
        given = [stored.narrow(one) for one in arrays]
        with np.errstate(all="ignore"):
            wide, *rest = (stored.widen(one) for one in given)
            expected = evaluate(plan.asked, wide, rest)
        results = []
        for threads in (1, 3):
            out = stored.narrow(np.full(plan.trace.output, np.nan))
            with ct.num_threads(threads):
                execute_plan(plan, given[0], tuple(given[1:]), out)
            results.append(out)
        assert results[0].tobytes() == results[1].tobytes()
        got, finite = stored.widen(results[0]), np.isfinite(expected)
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(got), test(expected))
        scale = np.abs(expected[finite]).max(initial=1.0)
        assert np.abs(got[finite] - expected[finite]).max(initial=0) <= rounding * scale


CHOSEN = [
    ("Conv3d(padding=16, dilation=16)", (1, 64, 64, 64, 64), (64, 64, 3, 3, 3)),
    ("Conv3d(padding=40, dilation=40)", (1, 32, 128, 128, 128), (32, 32, 3, 3, 3)),
    ("ConvTranspose3d(dilation=40)", (1, 32, 64, 64, 64), (32, 32, 3, 3, 3)),
    ("Conv3d(padding=1)", (1, 16384, 8, 8, 8), (16, 16384, 3, 3, 3)),
    ("Conv3d()", (1, 8192, 16, 16, 16), (64, 8192, 1, 1, 1)),
    ("ConvTranspose3d(stride=2)", (1, 8192, 8, 8, 8), (8192, 16, 4, 4, 4)),
    ("Conv3d(padding=30)", (1, 16, 64, 64, 64), (16, 16, 61, 61, 61)),
]


@pytest.mark.parametrize(("text", "x", "w"), CHOSEN, ids=[f"{text} of {x}" for text, x, _ in CHOSEN])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_scratch_stays_small(text: str, x: tuple[int, ...], w: tuple[int, ...], dtype: str) -> None:
    """It was 125 MB for a wide dilation."""
    pipe = ct.Pipeline(*read_stages(text))
    plan = make_plan(pipe, x, pipe.operand_shapes(x, w), DTYPES[dtype])
    assert plan.scratch <= 6 * machine().l2
    assert plan.masked.scratch <= 6 * machine().l2


@pytest.mark.parametrize("in_channels", [3, 300])
def test_what_is_chosen_is_right(in_channels: int, rng: Any) -> None:
    """A dilation, and many channels, for which a plan takes pieces by itself."""
    x = rng.standard_normal((1, in_channels, 40, 40, 6)).astype("f")
    w = rng.standard_normal((5, in_channels, 2, 3, 2)).astype("f")
    pipe = ct.Pipeline(ct.Conv3d(padding=(9, 18, 2), dilation=(18, 18, 3)))
    plan = make_plan(pipe, x.shape, (w.shape,), DTYPES["float32"], Options("direct"))
    assert in_channels == 3 or plan.pieces is not None
    got, expected = pipe(x, w, algorithm="direct"), evaluate(pipe, x.astype(float), [w.astype(float)])
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


def test_ways_depend_on_taps_and_channels() -> None:
    def ways(text: str, x: tuple[int, ...], w: tuple[int, ...]) -> list[Pieces]:
        pipe = ct.Pipeline(*read_stages(text))
        plan = make_plan(pipe, x, pipe.operand_shapes(x, w), DTYPES["float32"], Options("direct"))
        return ways_to_cut(plan.method.walks, plan.sweeps[0].where.in_group)

    assert ways("Conv3d(padding=1)", (1, 8, 8, 8, 8), (8, 8, 3, 3, 3)) == []
    assert [one.apart for one in ways("Conv3d(dilation=2)", (1, 8, 8, 8, 8), (8, 8, 3, 3, 3))] == [True]
    assert len(ways("Conv3d(dilation=2)", (1, 800, 8, 8, 8), (8, 800, 3, 3, 3))) == 2
