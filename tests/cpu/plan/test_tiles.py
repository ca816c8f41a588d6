"""Tiles depend on shapes and machine alone, cover the volume, and their buffers never overlap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from helpers.draws import drawn
from helpers.problems import PROBLEMS

import convt3d as ct
from convt3d.cpu.plan.choice import AUTO
from convt3d.cpu.plan.cores import num_threads
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import Plan, _make_plan, make_plan
from convt3d.cpu.plan.tile_cost import CACHES, cost
from convt3d.cpu.plan.tiles import Tiling, Tilings
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline


def plan_of(problem: object, dtype: str = "float32", batch: int | None = None) -> Plan:
    x = problem.x if batch is None else (batch, *problem.x[1:])
    return make_plan(problem.pipeline, x, problem.pipeline.operand_shapes(x, problem.kernel), DTYPES[dtype])


def buffer_ends(tiling: Tiling, item: int) -> list[tuple[int, int]]:
    offsets = [room.offset for rooms in tiling.rooms for room in rooms] + [tiling.scratch // item]
    return list(pairwise(offsets))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_five_operators_fit_the_cache(problem: object, dtype: str) -> None:
    """A tile is worked on while it is in cache: that is what the passes are for. Beside what it goes through once, it
    has the chunk that Winograd's method uses again and again."""
    plan = plan_of(problem, dtype)
    for one in plan.sweeps:
        assert one.tiling.passing <= CACHES * plan.machine.l2
        assert one.tiling.scratch <= (CACHES + 1) * plan.machine.l2
        assert prod(one.tiling.counts) >= 1
        assert all(1 <= tile <= size for tile, size in zip(one.tiling.tile, one.sweep.result[2:], strict=True))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_cut_only_where_that_costs_less(problem: object, dtype: str) -> None:
    """Positions of narrow tiles fill vectors badly: max-max-sum took 1.3 times as long in halves of rows."""
    plan = plan_of(problem, dtype)
    one = plan.convolving
    assert one is not None
    depth, height, _ = one.tiling.tile
    steps = one.structure.steps
    whole = Tilings(one.sweep, steps, one.where).of((depth, height, one.sweep.result[4]))
    if whole.passing <= CACHES * plan.machine.l2:
        assert cost(one.sweep, steps, one.where, one.tiling) <= cost(one.sweep, steps, one.where, whole)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_tiles_do_not_depend_on_threads_or_batch(problem: object) -> None:
    """Statistics are summed tile by tile: other tiles would be other bits for the same sample."""
    first = [one.tiling.tile for one in plan_of(problem).sweeps]
    assert [one.tiling.tile for one in plan_of(problem, batch=1).sweeps] == first
    with num_threads(7):
        _make_plan.cache_clear()
        assert [one.tiling.tile for one in plan_of(problem).sweeps] == first


def test_buffers_lie_one_after_the_other_and_hold_their_channels() -> None:
    """Every buffer has room for all channels at its pitch, and pitches are whole vectors."""
    for seed in range(60):
        case = drawn(np.random.default_rng(seed), ("float32", "float64")[seed % 2])
        plan = make_plan(case.pipeline, case.x.shape, tuple(a.shape for a in case.operands), case.dtype)
        item = 8 if case.dtype.accumulate == "float64" else 4
        lanes = plan.machine.lanes(item)
        for one in plan.sweeps:
            rooms = [room for rooms in one.tiling.rooms for room in rooms]
            for (start, end), room in zip(buffer_ends(one.tiling, item), rooms, strict=True):
                assert start < end
                assert room.pitch % lanes == 0
                assert room.pitch <= room.length <= end - start


def test_a_norm_along_the_width_gets_whole_rows() -> None:
    """Half a row has another mean."""
    found = 0
    for seed in range(300):
        case = drawn(np.random.default_rng(seed), "float32")
        if "LayerNorm(over='width'" not in repr(case.pipeline):
            continue
        plan = make_plan(case.pipeline, case.x.shape, tuple(a.shape for a in case.operands), case.dtype)
        for one in plan.sweeps:
            if any(op.needs_whole_rows for op in one.sweep.ops):
                assert one.tiling.counts[2] == 1
                found += 1
    assert found > 10


@pytest.mark.parametrize(
    ("x", "kernel"),
    [
        pytest.param((1, 48, 256, 256, 256), (48, 24, 3, 3, 3), id="a volume far larger than the cache"),
        pytest.param((1, 512, 64, 64, 64), (512, 512, 3, 3, 3), id="many channels: a row alone fills the cache"),
        pytest.param((1, 4, 4, 4, 400_000), (4, 4, 3, 3, 3), id="one very long row"),
    ],
)
def test_a_large_volume_stays_in_cache(x: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    """Each thread has its own scratch: hundreds of megabytes of it would be slow, and fatal on a small machine."""
    plan = make_plan(PROBLEMS[0].pipeline, x, (kernel,), DTYPES["float32"])
    assert plan.scratch <= 16 * plan.machine.l2


def test_a_smaller_cache_gives_smaller_tiles() -> None:
    """The plan adapts to the machine it is made for, not to the one it is made on."""
    problem = PROBLEMS[4]
    shapes = problem.pipeline.operand_shapes(problem.x, problem.kernel)
    small = replace(machine(), l1d=16 << 10, l2=64 << 10)
    plan = _make_plan(problem.pipeline, problem.x, shapes, DTYPES["float32"], AUTO, True, small)
    assert plan.scratch < plan_of(problem).scratch


def test_a_volume_beyond_32_bits_can_be_planned() -> None:
    """More than 2^31 outputs: the tables hold 64-bit numbers, and a plan needs no array."""
    problem = PROBLEMS[0]
    x = (2, 48, 1024, 1024, 1024)
    plan = make_plan(problem.pipeline, x, (problem.kernel,), DTYPES["float16"])
    assert prod(plan.trace.output) > 2**35
    assert plan.scratch <= 16 * plan.machine.l2


LAYERS = [(64, 64, (12, 16, 32)), (128, 64, (6, 8, 16)), (128, 128, (12, 16, 32)), (64, 32, (24, 32, 64))]
LAYERS += [(32, 32, (6, 8, 16)), (32, 16, (16, 16, 16)), (256, 128, (8, 8, 8)), (16, 16, (12, 16, 32))]


@pytest.mark.parametrize("l2", [512 << 10, 1 << 20, 2 << 20])
def test_a_tensor_that_is_added_does_not_change_the_algorithm(l2: int) -> None:
    """Its rows and those it is added to were held for all channels at once: they left the cache, and direct summation,
    which takes channels in parts, looked faster."""
    host, minimal = replace(machine(), l2=l2), 0
    for cin, cout, volume in LAYERS:
        x, kernel, direct = (1, cin, *volume), (cin, cout, 3, 3, 3), []
        for added in ((), (ct.Add("tensor"),)):
            pipeline = Pipeline(
                ct.ConvTranspose3d(stride=2, padding=1, output_padding=1), ct.BatchNorm(), *added, ct.ReLU()
            )
            shapes = tuple(pipeline.operand_shapes(x, kernel))
            direct.append(_make_plan(pipeline, x, shapes, DTYPES["float32"], AUTO, True, host).method.direct)
        assert direct[0] or not direct[1], f"{cin} -> {cout} at {volume}"
        minimal += not direct[0]
    assert minimal > len(LAYERS) // 2
