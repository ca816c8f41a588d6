"""Ranges of tiles: every output is written once, every input it needs is read, and no tile exceeds its buffers."""

from __future__ import annotations

import numpy as np
import pytest

from convt3d.cpu.plan.geometry import AxisSpans, Walk, Windows, phases
from convt3d.cpu.plan.winograd import EXACT_POINTS, axis_methods
from convt3d.spec.shapes import PoolAxis, TransposedAxis


def drawn_conv(rng: np.random.Generator, size: int, large: bool) -> TransposedAxis:
    stride = int(rng.integers(65, 300)) if large else int(rng.integers(1, 9))
    dilation = int(rng.integers(1, 4))
    extra = int(rng.integers(0, max(stride, dilation)))
    return TransposedAxis(size, int(rng.integers(1, 6)), stride, int(rng.integers(0, 4)), extra, dilation)


def drawn_pool(rng: np.random.Generator, size: int) -> PoolAxis:
    kernel = int(rng.integers(1, 6))
    padding = int(rng.integers(0, kernel // 2 + 1))
    return PoolAxis(size, kernel, int(rng.integers(1, 6)), padding, bool(rng.integers(2)))


def drawn_axes(seed: int, count: int, large: bool = False) -> list[AxisSpans]:
    """Up to one pool before and two after a convolution, cut into small or large tiles."""
    rng = np.random.default_rng(seed)
    found: list[AxisSpans] = []
    while len(found) < count:
        size, steps = int(rng.integers(1, 60)), []
        kinds = ["pool"] * int(rng.integers(0, 2)) + ["conv"] + ["pool"] * int(rng.integers(0, 3))
        for kind in kinds:
            conv, pool = drawn_conv(rng, size, large), drawn_pool(rng, size)
            size = conv.out if kind == "conv" else pool.out
            if size < 1:
                break
            methods = axis_methods(conv, EXACT_POINTS)
            steps.append(methods[rng.integers(len(methods))].walk if kind == "conv" else Windows(pool))
        else:
            tile = int(rng.integers(1, size + 1)) if rng.integers(2) else min(size, int(rng.integers(1, 8)))
            found.append(AxisSpans(tuple(steps), size, tile))
    return found


@pytest.mark.parametrize("large", [False, True], ids=["small strides", "strides beyond 64"])
def test_longest_covers_every_tile(large: bool) -> None:
    """Buffers are as long as `longest` says: one tile beyond it overwrites the next channel."""
    for axis in drawn_axes(1, 300, large):
        numbers = range(axis.count) if axis.count <= 400 else {*range(200), *range(axis.count - 200, axis.count)}
        rows = [axis.spans(number) for number in numbers]
        for step in range(len(axis.steps)):
            for what in ("read", "write", "positions"):
                true = max(high - low for low, high in (getattr(row[step], what) for row in rows))
                assert true <= axis.longest(step, what), (axis, step, what, true)


def test_tiles_write_every_output_once_in_order() -> None:
    """A gap would stay uninitialised; an overlap would race between threads."""
    for axis in drawn_axes(2, 200):
        ranges = [axis.spans(number)[-1].write for number in range(axis.count)]
        assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
        assert ranges[-1][1] == axis.size
        assert all(low < high for low, high in ranges)


def _needed(step: Walk | Windows, low: int, high: int) -> list[tuple[int, int]]:
    """Ranges of inputs that outputs low .. high are made of."""
    if isinstance(step, Windows):
        step = step.axis
        return [step.window(o) for o in range(low, high)]
    ranges = [step.axis.tap_range(k, low, high) for k in range(step.axis.kernel)]
    return [(first, end) for first, end in ranges if first < end]


def test_each_step_reads_what_the_next_needs_and_stays_inside() -> None:
    """What a step writes is what the one after it reads; the first reads inside the array; nothing needed is left."""
    for axis in drawn_axes(3, 200):
        for number in range(min(axis.count, 50)):
            row = axis.spans(number)
            for step, span in zip(axis.steps, row, strict=True):
                low, high = span.read
                assert 0 <= low < high <= step.axis.size
                for need in _needed(step, *span.write):
                    assert low <= need[0]
                    assert need[1] <= high
            assert [span.write for span in row[:-1]] == [span.read for span in row[1:]]


def test_phases_hold_each_tap_once_and_lead_to_its_input() -> None:
    """o = period * q + j; tap k meets input pace * q + shift exactly when o = i * stride - padding + k * dilation."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        axis = drawn_conv(rng, int(rng.integers(1, 9)), bool(rng.integers(5) == 0))
        walk = Walk(axis, int(rng.integers(1, 5)))
        parts = phases(walk)
        assert [part.phase for part in parts] == sorted({part.phase for part in parts})
        assert all(part.taps for part in parts), "phases without taps are left out"
        assert sorted(k for part in parts for k in part.taps) == sorted(list(range(axis.kernel)) * walk.together)
        least, most = walk.shift_range
        for part in parts:
            assert part.phase < walk.period
            for k, shift in zip(part.taps, part.shifts, strict=True):
                assert least <= walk.clipped(shift) <= most
                if walk.clipped(shift) != shift:  # both meet no input
                    for met in (walk.pace * q + s for q in range(walk.positions) for s in (shift, walk.clipped(shift))):
                        assert not 0 <= met < axis.size
                assert axis.partner(shift, k) == part.phase  # input i = pace * q + shift at q = 0


def test_a_pass_without_geometric_steps_copies() -> None:
    """Pointwise passes read what they write."""
    axis = AxisSpans((), 10, 4)
    assert [axis.spans(number)[0].read for number in range(axis.count)] == [(0, 4), (4, 8), (8, 10)]
    assert axis.spans(2)[0].write == (8, 10)
    assert axis.longest(0, "read") == 4


def test_a_volume_beyond_32_bits_needs_no_table_to_be_understood() -> None:
    """Ranges are Python integers: the last tile of an axis of 2^33 outputs is as exact as the first."""
    axis = AxisSpans((Walk(TransposedAxis(2**32, 3, 2, 1, 1, 1)),), 2**33, 2**20)
    last = axis.spans(axis.count - 1)[0]
    assert last.write == (2**33 - 2**20, 2**33)
    assert last.positions == (2**32 - 2**19, 2**32)
    assert last.read == (2**32 - 2**19, 2**32)
