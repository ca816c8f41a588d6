"""Computes the gradient of a weight on stored arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spec import gradient as spec
from ...spec.checks import Triple
from ...spec.dtypes import DType
from ..plan.cores import get_num_threads
from ..plan.machine import Machine, machine
from ..runtime.memory import empty, shared_scratch
from ..words import Words
from .bound import BoundKernel, source_call
from .choose import make_gradient_plan
from .plan import GradientPlan
from .problem import Problem
from .tables import channel_tables, part_table, sheet_tables, tap_table, triple_table
from .words import DirectWords, GradientCall, GradientWords, PackedWords, SlabWords, WinogradWords

Array = npt.NDArray[Any]

_SHARED_FROM = 1_000_000  # operations: less is done before another thread wakes up
_ABSURD = 1 << 60  # sums of strides, paddings and dilations from which on 64 bits might not do


def weight_gradient(
    small: Array,
    large: Array,
    kernel_size: Triple,
    stride: Triple,
    padding: Triple,
    dilation: Triple,
    groups: int,
    dtype: DType,
    out: Array,
    algorithm: str = "auto",
    transposed: bool = True,
) -> None:
    """Writes the gradient (Ca, Cb / groups, Kd, Kh, Kw) of a weight into `out`. Arrays hold storage values, with any
    strides; small is (B, Ca, D, H, W), large is (B, Cb, D', H', W').

    Of a transposed convolution its input is small and the gradient of its output is large; of a convolution the
    gradient of its output is small and its input is large, and `transposed` is False. `algorithm` is "auto" or
    "direct". The same bits come out for any number of threads.
    """
    geometry = kernel_size, stride, padding, dilation, groups
    problem = Problem(small.shape, large.shape, *geometry, dtype, transposed)
    way = _way(problem)
    if way == "zero":
        out[...] = 0
    elif way == "meaning":
        out[...] = dtype.narrow(spec.weight_gradient(dtype.widen(small), dtype.widen(large), *geometry))
    else:
        result = out if out.flags.c_contiguous else empty(out.shape, out.dtype)
        if not _run(*_planned(problem, machine(), algorithm), small, large, result):
            _run(*_planned(problem, machine(), "exact"), small, large, result)
        if result is not out:
            out[...] = result


@lru_cache(maxsize=256)
def _way(problem: Problem) -> str:
    """How it is answered: by a plan, unless there is nothing to sum or offsets might not fit 64 bits."""
    if not problem.operations:
        return "zero"
    absurd = any(one.size * one.stride + one.padding + one.kernel * one.dilation > _ABSURD for one in problem.axes)
    return "meaning" if absurd else "plan"


@lru_cache(maxsize=256)
def _planned(problem: Problem, host: Machine, algorithm: str) -> tuple[GradientPlan, BoundKernel]:
    plan = make_gradient_plan(problem, host, algorithm)
    return plan, _bound(plan)


def run_plan(plan: GradientPlan, small: Array, large: Array, result: Array) -> bool:
    """False if zeros, or transforms, took part and some numbers do not bear that: then the result is none."""
    return _run(plan, _bound(plan), small, large, result)


def _run(plan: GradientPlan, bound: BoundKernel, small: Array, large: Array, result: Array) -> bool:
    structure, host = plan.structure, plan.machine
    arrived, unfit = np.zeros(plan.part_count, np.int64), np.zeros(1, np.int64)
    sources = source_call(small), source_call(large)
    if structure.registers.by_group and plan.problem.small_group * plan.problem.large_group > 1:
        sources[0].adjacent = 0  # lanes are channels of different groups
    threads = min(get_num_threads(), plan.items) if plan.problem.operations > _SHARED_FROM else 1
    with shared_scratch(plan.partials) as (partials, _), shared_scratch(plan.scratch, threads) as (scratch, threads):
        if host.check_bounds:
            partials[...] = 0xFF
        bound.launch([GradientCall(partials, arrived, result, unfit), *sources], scratch, threads)
    return not unfit[0]


@lru_cache(maxsize=256)
def _bound(plan: GradientPlan) -> BoundKernel:
    structure, host = plan.structure, plan.machine

    def write() -> str:
        from .code import emit_gradient  # here: nobody needs LLVM who finds the code on disk

        return str(emit_gradient(structure, host).module)

    return BoundKernel(structure.name, structure.key, write, plan_words(plan), host)


def plan_words(plan: GradientPlan) -> list[Words]:
    """As cpu/gradient/code.py wants them."""
    p, slabs = plan.problem, plan.slabs
    gradient = GradientWords(
        items=plan.items,
        scratch_size=plan.scratch // plan.item,
        chunks=plan.chunks,
        handed_on=int(plan.handed_on),
        window=plan.window,
        tiles=plan.tiles,
        tile_counts=plan.tile_counts[1:],
        tile_sizes=plan.tile[1:],
        tile_samples=plan.tile[0],
        samples=p.small[0],
        sizes=p.small[2:],
        large_sizes=p.large[2:],
        strides=p.stride,
        paddings=p.padding,
        dilations=p.dilation,
        parts=part_table(plan),
        tap_table=tap_table(plan),
        vector_blocks=plan.all_vector_blocks,
        all_sums=plan.all_sums,
        sums=plan.rooms[2],
    )
    slab = SlabWords(
        runs=tuple(one.taps if one.sparse else 1 for one in slabs),
        run_lengths=tuple(one.tile if one.sparse else one.places for one in slabs),
        run_steps=tuple(one.dilation if one.sparse else 0 for one in slabs),
        place_steps=tuple(one.stride if one.sparse else 1 for one in slabs),
    )
    return [gradient, _packed(plan, True), _packed(plan, False), slab, _method(plan)]


def _packed(plan: GradientPlan, small: bool) -> PackedWords:
    one, room = (plan.small, plan.rooms[0]) if small else (plan.large, plan.rooms[1])
    tables = (np.ascontiguousarray(table) for table in channel_tables(plan, small))
    return PackedWords(room, one.pitch, one.steps, one.sample, one.row, one.plane, *tables)


def _method(plan: GradientPlan) -> DirectWords | WinogradWords:
    if plan.method is None:
        ranges = tuple(np.array(plan.problem.ranges(axis), np.int64) for axis in range(3))
        return DirectWords(plan.box, ranges)
    small, large, terms = sheet_tables(plan)
    triples = triple_table(plan)
    return WinogradWords(small, len(small), large, terms, triples, len(triples), *plan.rooms[3:], *plan.points)
