"""Padding modes of Conv3d: the engine gives the meaning, wherever the convolution stands and however the input lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.data import SPECIALS, sprinkled
from helpers.draws import Case, make, relaid

import convt3d as ct
from convt3d.front.verify import sampled_check
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.stages.padding import Pad

MODES = ("reflect", "replicate", "circular")
# why -> shape of x, of the weight, parameters
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "as usual": ((2, 3, 4, 5, 6), (4, 3, 3, 3, 3), {"padding": 1}),
    "as much as a mode allows": ((1, 2, 4, 3, 5), (2, 2, 3, 3, 3), {"padding": (3, 2, 4)}),
    "rows longer than a vector, nothing equal": (
        (1, 4, 3, 6, 37),
        (6, 2, 3, 2, 5),
        {"padding": (2, 3, 4), "stride": (1, 2, 3), "groups": 2, "bias": True},
    ),
    "Winograd's method": ((1, 16, 9, 9, 9), (16, 16, 3, 3, 3), {"padding": "same"}),
    "ends that differ": ((1, 2, 4, 4, 4), (2, 2, 2, 2, 4), {"padding": "same", "dilation": (1, 3, 1)}),
    "one axis only": ((1, 2, 1, 1, 3), (2, 2, 1, 1, 3), {"padding": (0, 0, 2)}),
    "nothing to add": ((1, 2, 3, 3, 3), (2, 2, 3, 3, 3), {"padding": "valid"}),
}
BEFORE: dict[str, tuple[Any, ...]] = {
    "first": (),
    "after a pointwise stage": (ct.ReLU(),),
    "after statistics": (ct.InstanceNorm(),),
    "after a pool, kept": (ct.MaxPool3d(2, 1, 1), ct.Keep("y"), ct.Tanh(), ct.Multiply("y")),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("why", GEOMETRIES)
@pytest.mark.parametrize("mode", MODES)
def test_meaning(mode: str, why: str, before: str) -> None:
    x, kernel, parameters = GEOMETRIES[why]
    pipeline = ct.Pipeline(*BEFORE[before], ct.Conv3d(padding_mode=mode, **parameters), ct.LeakyReLU(0.2))
    make(pipeline, x, kernel).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_layouts_and_unusual_numbers(mode: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    pipeline = ct.Pipeline(ct.Conv3d(padding=(1, 2, 3), padding_mode=mode), ct.Keep("y"), ct.Sigmoid(), ct.Add("y"))
    for seed in range(8):
        case = make(pipeline, (2, 5, 3, 4, 18), (3, 5, 2, 2, 3), dtype, seed)
        x = case.dtype.narrow(sprinkled(rng, case.dtype.widen(case.x), SPECIALS["mixed"])) if seed % 2 else case.x
        Case(pipeline, case.dtype, relaid(rng, x), case.operands).check()


@pytest.mark.parametrize("mode", MODES)
def test_it_reads_what_it_says(mode: str) -> None:
    """Boxes of outputs, and the inputs they depend on: changing any other changes nothing."""
    rng, pad = np.random.default_rng(0), Pad(((1, 2), (0, 3), (2, 0)), mode)
    shape = (1, 1, 4, 5, 3)
    sources = [pad.sources(axis, shape[2 + axis]) for axis in range(3)]
    for _ in range(50):
        ranges = []
        for places in sources:
            low = int(rng.integers(len(places)))
            ranges.append((low, int(rng.integers(low + 1, len(places) + 1))))
        _, *read = pad.reads(((0, 1), *ranges), shape, ())
        for places, (low, high), (first, last) in zip(sources, ranges, read, strict=True):
            assert first <= places[low:high].min()
            assert places[low:high].max() < last


def test_a_result_is_verified_on_samples() -> None:
    rng = np.random.default_rng(1)
    for mode in MODES:
        case = make(
            ct.Pipeline(ct.Conv3d(padding=2, padding_mode=mode), ct.ReLU()), (2, 3, 12, 11, 13), (4, 3, 3, 3, 3)
        )
        y = case.run()
        assert sampled_check(case.pipeline, case.x, case.operands, y, case.dtype, rng).passed
        assert not sampled_check(case.pipeline, case.x, case.operands, y + 1.0, case.dtype, rng).passed
