"""Computes gradients of weights on stored arrays."""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spec.checks import Triple
from ...spec.dtypes import DType
from ..plan.cores import get_num_threads
from ..plan.machine import machine
from ..runtime.blocks import channels_adjacent
from ..runtime.build import Code
from ..runtime.compiled import compiled
from ..runtime.memory import empty, shared_scratch
from ..runtime.regions import faults
from ..runtime.team import launch
from ..words import SourceCall, SweepCall, Words, places
from .plan import GradientPlan, make_gradient_plan
from .problem import Problem
from .words import GradientCall, GradientWords, PackedWords, SlabWords

Array = npt.NDArray[Any]

_SHARED_FROM = 1_000_000  # operations: less is done before another thread wakes up


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
) -> None:
    """Writes the gradient (Ca, Cb / groups, Kd, Kh, Kw) of a weight into `out`. Arrays hold storage values, with any
    strides; small is (B, Ca, D, H, W), large is (B, Cb, D', H', W').

    Of a transposed convolution its input is small and the gradient of its output is large; of a convolution the
    gradient of its output is small and its input is large.
    """
    problem = Problem(small.shape, large.shape, kernel_size, stride, padding, dilation, groups, dtype)  # type: ignore[arg-type]
    if not out.size:
        return
    if not problem.pairs:
        out[...] = 0
        return
    result = out if out.flags.c_contiguous else empty(out.shape, out.dtype)
    host = machine()
    if not _run(make_gradient_plan(problem, host), small, large, result):
        _run(make_gradient_plan(problem, host, together=False), small, large, result)
    if result is not out:
        out[...] = result


def _run(plan: GradientPlan, small: Array, large: Array, result: Array) -> bool:
    """False if some numbers are not finite, and zeros took part: then the result is none."""
    binding, checked = _binding(plan), plan.machine.check_bounds
    threads = min(get_num_threads(), plan.items) if plan.problem.operations > _SHARED_FROM else 1
    arrived, infinite = np.zeros(len(plan.parts), np.int64), np.zeros(1, np.int64)
    with shared_scratch(plan.partials) as (partials, _), shared_scratch(plan.scratch, threads) as (scratch, threads):
        if checked:
            scratch[...] = partials[...] = 0xFF  # NaN: what nobody wrote shows
        with faults(plan.name) if checked else nullcontext(0) as noted:
            sweep, call = SweepCall(scratch, scratch, 0, 0, noted), GradientCall(partials, arrived, result, infinite)
            table, address = binding.table([sweep, call, _source(small), _source(large)])
            launch(binding.code["run"], address, threads)
            del table
    return not infinite[0]


def _source(array: Array) -> SourceCall:
    item = array.itemsize
    steps = [stride // item if size > 1 else 0 for stride, size in zip(array.strides, array.shape, strict=True)]
    return SourceCall(array, *steps, int(channels_adjacent(array.shape, array.strides, item)))


# Words before the table, among which the counter of items has a cache line of its own.
_BEFORE, _COUNTER = 16, 8


class _Binding:
    """A plan with its code, and the words of its table that do not change."""

    def __init__(self, plan: GradientPlan) -> None:
        self.plan = plan
        self.sets = _sets(plan)
        self.checked = plan.machine.check_bounds
        self.known = [number for words in self.sets for number in words.numbers(self.checked)]

    @property
    def code(self) -> Code:
        plan = self.plan

        def write() -> str:
            from .code import emit_gradient  # here: nobody needs LLVM who finds the code on disk

            return str(emit_gradient(plan.name, plan.problem.dtype.name, plan.registers, plan.machine).module)

        return compiled(plan.key, write, ("run",), plan.machine)

    def table(self, call: list[Words]) -> tuple[npt.NDArray[np.int64], int]:
        words = [number for one in call for number in one.numbers(self.checked)]
        table = np.array([0] * _BEFORE + self.known + words, np.int64)
        assert len(table) == _BEFORE + len(self.known) + places([type(one) for one in call], self.checked)[-1]
        at, address = _BEFORE + len(self.known), table.ctypes.data
        table[at] = address + 8 * _COUNTER
        if self.checked:
            table[at + 1 : at + 3] = address + 8 * _COUNTER, address + 8 * (_COUNTER + 1)
        return table, address + 8 * _BEFORE


@lru_cache(maxsize=256)
def _binding(plan: GradientPlan) -> _Binding:
    return _Binding(plan)


def _sets(plan: GradientPlan) -> list[Words]:
    p, slabs = plan.problem, plan.slabs
    gradient = GradientWords(
        items=plan.items,
        scratch_size=plan.scratch // plan.item,
        chunks=plan.chunks,
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
        parts=plan.parts,
        tap_table=plan.tap_table(),
        vector_blocks=plan.all_vector_blocks,
        all_sums=plan.all_sums,
        ranges=tuple(np.array(p.ranges(axis), np.int64) for axis in range(3)),
        sums=plan.rooms[2],
    )
    packed = []
    for small, one, room in ((True, plan.small, plan.rooms[0]), (False, plan.large, plan.rooms[1])):
        d, h, w = one.steps
        packed.append(
            PackedWords(
                room,
                one.pitch,
                (d * one.plane, h * one.row, w * one.pitch),
                one.sample,
                one.row,
                one.plane,
                *(np.ascontiguousarray(table) for table in plan.channel_tables(small)),
            )
        )
    sparse = [slab.sparse for slab in slabs]
    slab = SlabWords(
        runs=tuple(one.taps if few else 1 for one, few in zip(slabs, sparse, strict=True)),
        run_lengths=tuple(one.tile if few else one.places for one, few in zip(slabs, sparse, strict=True)),
        run_steps=tuple(one.dilation if few else 0 for one, few in zip(slabs, sparse, strict=True)),
        place_steps=tuple(one.stride if few else 1 for one, few in zip(slabs, sparse, strict=True)),
        tap_steps=tuple(one.tap_step for one in slabs),
    )
    return [gradient, *packed, slab]
