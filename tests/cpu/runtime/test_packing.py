"""Packed weights are, number by number, what the layout says: sums of taps in float64, rounded once."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import guard
from helpers.data import signed
from helpers.tilings import drawn_method
from hypothesis import given, settings
from hypothesis import strategies as st

import convt3d
from convt3d.cpu.plan.geometry import conv_axes
from convt3d.cpu.plan.registers import register_tile
from convt3d.cpu.plan.winograd import EXACT_POINTS, MOST_POINTS, AxisMethod, Method
from convt3d.cpu.runtime import packing
from convt3d.cpu.runtime.packing import WeightLayout, pack
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.stages import ConvTranspose3d


def by_definition(weights: Any, layout: WeightLayout) -> Any:
    """(groups, all), one number after the other: group, phase, point, block of rows, piece, channel, row."""
    channels, rows = len(weights) // layout.groups, weights.shape[1]
    wide = weights.astype(np.float64)
    numbers: list[list[float]] = [[] for _ in range(layout.groups)]
    for group, phase in product(range(layout.groups), product(*layout.axes)):
        own = wide[group * channels : (group + 1) * channels][
            (slice(None), slice(None), *np.ix_(*(p.taps for p in phase)))
        ]
        made = [one.products() for one in phase]
        sums = np.einsum("ax,by,cz,noxyz->abcno", *(matrix for _, matrix in made), own)
        points = [places[:, 0] for places, _ in made]
        for point in product(*(range(int(axis.max()) + 1) for axis in points)):
            pieces = sums[np.ix_(*(np.flatnonzero(axis == at) for axis, at in zip(points, point, strict=True)))]
            first = 0
            for count in layout.tile.blocks(rows):
                numbers[group].extend(pieces[..., first : first + count].reshape(-1))
                first += count
    return np.array(numbers).astype(layout.number)


def layout_for(
    shape: tuple[int, ...], number: str, rng: np.random.Generator, groups: int = 1, direct: bool = False, **conv: Any
) -> WeightLayout:
    pipeline = Pipeline(ConvTranspose3d(groups=groups, **conv))
    axes = conv_axes(pipeline, pipeline.trace((1, shape[0], 3, 4, 5), (shape,)))
    method = Method(tuple(AxisMethod(axis, 1, EXACT_POINTS) for axis in axes))
    while method.direct != direct:
        method = drawn_method(rng, axes, int(rng.choice([EXACT_POINTS, MOST_POINTS])))
    return WeightLayout.of(groups, method, register_tile(shape[1], int(rng.choice([16, 32]))), number)


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 2**32), st.sampled_from(["float32", "float64", "float16"]), st.booleans())
def test_as_defined(seed: int, stored: str, direct: bool) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 2, 3]))
    kernel = tuple(int(k) for k in rng.integers(1 if direct else 2, 5, 3))
    if not direct and rng.integers(3) == 0:  # more taps than a scheme takes: pieces, the last of them not full
        kernel = (1, int(rng.choice([5, 7, 10])), 7)
    shape = (groups * int(rng.choice([1, 2, 5, 17, 40])), int(rng.choice([1, 3, 7, 8, 14, 29, 31])), *kernel)
    stride = tuple(int(s) for s in rng.integers(1, 4, 3)) if direct else 1
    number = str(rng.choice(["float32", "float64"])) if stored == "float64" else "float32"
    layout = layout_for(shape, number, rng, groups, direct, stride=stride)
    weights = signed(rng, shape).astype(stored)
    expected = by_definition(weights, layout)
    if rng.integers(2):  # as a Conv3d has them
        weights = np.ascontiguousarray(
            np.concatenate([own.swapaxes(0, 1) for own in np.split(weights, groups)])  # (Cout, Cin / groups, taps)
        )
        layout = replace(layout, by_output=True)
    packed, largest = pack(weights, layout)
    assert packed.shape == expected.shape
    assert packed.dtype == expected.dtype
    assert largest == np.abs(weights.astype(np.float64)).max()
    if direct:
        np.testing.assert_array_equal(packed, expected)
    else:  # float64 sums in another order, which may be rounded to the next float32
        scale, step = np.abs(expected).max(), 2.0**-23 if number == "float32" else 0.0
        np.testing.assert_allclose(packed, expected, rtol=step, atol=scale * 1e-14)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads(threads: int) -> None:
    """More of them than items, too."""
    rng = np.random.default_rng(threads)
    shape = (37, 41, 4, 4, 4)
    layout = layout_for(shape, "float32", rng, stride=2, padding=1)
    weights = signed(rng, shape).astype(np.float32)
    with convt3d.num_threads(1):
        alone, _ = pack(weights, layout)
    with convt3d.num_threads(threads):
        packed, largest = pack(weights, layout)
    assert packed.tobytes() == alone.tobytes()
    assert largest == np.abs(weights).max()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_the_largest_magnitude_wherever_it_is(value: float, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of three items, whoever takes it."""
    monkeypatch.setattr(packing, "_SHARED_FROM", 1)
    rng = np.random.default_rng(0)
    shape = (33, 15, 3, 3, 3)
    for channel in (0, 15, 16, 31, 32):
        weights = signed(rng, shape).astype(np.float32)
        weights[channel, 7, 1, 2, 0] = value
        with convt3d.num_threads(threads):
            _, largest = pack(weights, layout_for(shape, "float32", rng, direct=True))
        np.testing.assert_equal(largest, abs(float(np.float32(value))))


@pytest.mark.parametrize("kernel", [(1, 7, 7), (1, 1, 10), (3, 7, 2)])
def test_taps_that_fill_no_whole_piece(kernel: tuple[int, int, int]) -> None:
    """Some points of the last piece are no tap's: packing them raised a ValueError."""
    rng = np.random.default_rng(0)
    x, w = signed(rng, (1, 16, 5, 6, 7)).astype(np.float32), signed(rng, (16, 16, *kernel), 0.1).astype(np.float32)
    direct = convt3d.conv_transpose3d(x, w, algorithm="direct")
    fast = convt3d.conv_transpose3d(x, w, precision="fast")
    assert np.abs(fast - direct).max() <= 1e-3 * np.abs(direct).max()


def test_thousands_of_phases() -> None:
    """A kernel as long as the stride, of which every phase has one tap: tables are made for all at once."""
    rng = np.random.default_rng(0)
    shape = (2, 3, 12, 11, 13)
    layout = layout_for(shape, "float32", rng, direct=True, stride=(12, 11, 13))
    weights = signed(rng, shape).astype(np.float32)
    np.testing.assert_array_equal(pack(weights, layout)[0], by_definition(weights, layout))


def test_signs_of_zeros_and_smallest_numbers_stay() -> None:
    shape = (3, 5, 3, 1, 2)
    weights = np.full(shape, -0.0, np.float32)
    weights[1] = np.float32(1e-45)
    layout = layout_for(shape, "float32", np.random.default_rng(0), direct=True)
    packed, largest = pack(weights, layout)
    assert sorted(packed.view(np.uint32).flat) == sorted(weights.view(np.uint32).flat)
    assert largest == np.float32(1e-45)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 2), (5, 7, 3, 2, 3), (18, 33, 2, 4, 3)])
def test_no_access_outside(shape: tuple[int, ...], at_end: bool) -> None:
    rng = np.random.default_rng(1)
    layout = layout_for(shape, "float32", rng)
    weights = signed(rng, shape).astype(np.float32)
    expected, _ = pack(weights, layout)
    fences: list[guard.Fence] = []
    with guard.fenced_scratch(at_end, fences):  # the result and the slots
        packed, _ = pack(guard.fenced_like(weights, at_end, fences), layout)
        assert packed.tobytes() == expected.tobytes()
    del packed
    for fence in fences:
        fence.free()
