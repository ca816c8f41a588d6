"""Plans cut into drawn tiles, with drawn methods, instead of the cheapest ones: all must give the right answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from convt3d.cpu.plan import plan as planning
from convt3d.cpu.plan.choice import Choice
from convt3d.cpu.plan.geometry import conv_axes
from convt3d.cpu.plan.tile_cost import choose
from convt3d.cpu.plan.tiles import Part, Tilings
from convt3d.cpu.plan.winograd import EXACT_POINTS, AxisMethod, Method, axis_methods
from convt3d.cpu.runtime import execute as execution
from convt3d.cpu.runtime.memory import shared_scratch
from convt3d.cpu.steps.lowering import steps_of


@contextmanager
def forced_outputs(outputs: tuple[int, int, int], one_tile: bool = False) -> Iterator[None]:
    """Plans made inside make so many outputs of a phase together along each axis, unless direct is asked for.

    `one_tile`: in a tile of all voxels, with one slab for all shifts. Scratch memory is poisoned.
    """

    def choose_method(one: Any, where: Any, options: Any) -> Choice:
        wanted = (1, 1, 1) if options.algorithm == "direct" else outputs
        axes = zip(conv_axes(where.pipeline, where.trace), wanted, strict=True)
        where = replace(where, method=Method(tuple(AxisMethod(axis, m, EXACT_POINTS) for axis, m in axes)))
        steps = steps_of(one, where)
        if one_tile:
            return Choice(where, steps, Tilings(one, steps, where).of(one.result[2:]))
        return Choice(where, steps, choose(one, steps, where))

    with planned_by(choose_method):
        yield


@contextmanager
def drawn_tiles(seed: int) -> Iterator[None]:
    """Plans made inside have tiles of any size, most of them small, and any method that saves products; rows stay whole
    where a norm needs them. Channels are taken in shares and parts of any size. Scratch memory is poisoned."""
    rng, shares = np.random.default_rng(seed), np.random.default_rng((seed, 1))

    def choose_method(one: Any, where: Any, options: Any) -> Choice:
        tile = [_part(rng, size) for size in one.result[2:]]
        if any(op.needs_whole_rows for op in one.ops):
            tile[2] = one.result[4]
        axes = conv_axes(where.pipeline, where.trace)
        method = drawn_method(rng, axes)
        if options.algorithm == "direct":
            method = Method(tuple(AxisMethod(axis, 1, EXACT_POINTS) for axis in axes))
        where = replace(where, method=method)
        steps = steps_of(one, where)
        tiling = Tilings(one, steps, where).of(tuple(tile), bool(rng.integers(2)), int(shares.integers(1, 4)))
        return Choice(where, steps, replace(tiling, part=_drawn_part(rng, tiling.part)) if tiling.part else tiling)

    with planned_by(choose_method):
        yield


@contextmanager
def streamed(everything: bool) -> Iterator[None]:
    """Plans made inside store all results past the caches, except those in place; or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "cached_bytes", lambda host: 0 if everything else 1 << 60)
        planning._make_plan.cache_clear()
        try:
            yield
        finally:
            planning._make_plan.cache_clear()


@contextmanager
def poisoned(size: int, threads: int = 1) -> Iterator[Any]:
    """Scratch memory full of NaN: a result that shows one has read what nobody wrote."""
    with shared_scratch(size, threads) as (memory, threads):
        memory[...] = 0xFF
        yield memory, threads


@contextmanager
def planned_by(choose_method: Callable[..., Any]) -> Iterator[None]:
    """Plans made inside have the tiling that this chooses. Scratch memory is poisoned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "choose_method", choose_method)
        patch.setattr(execution, "shared_scratch", poisoned)
        planning._make_plan.cache_clear()
        try:
            yield
        finally:
            planning._make_plan.cache_clear()


def drawn_method(rng: np.random.Generator, axes: Any, points: int = EXACT_POINTS) -> Method:
    options = [axis_methods(axis, points) for axis in axes]
    return Method(tuple(own[rng.integers(len(own))] for own in options))


def _drawn_part(rng: np.random.Generator, most: Part) -> Part:
    """Some blocks of one group, or some groups; behind Winograd's method, some channels."""
    most = most._replace(channels=int(rng.integers(1, most.channels + 1)))
    if rng.integers(2):
        return most._replace(groups=1, blocks=int(rng.integers(1, most.blocks + 1)))
    return most._replace(groups=int(rng.integers(1, most.groups + 1)))


def _part(rng: np.random.Generator, size: int) -> int:
    return int(rng.integers(1, size + 1)) if rng.integers(2) else min(size, int(rng.integers(1, 5)))
