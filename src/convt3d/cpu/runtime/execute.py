"""Executes a plan on stored arrays: prepares operands, runs the passes in order, combines statistics between."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...plan.passes import Chain, Conv, RowNorm
from ...spec.dtypes import DType, float64
from ...spec.pipeline import Pipeline
from ...spec.reference import evaluate
from ..plan.choice import AUTO, DIRECT, Options
from ..plan.cores import get_num_threads
from ..plan.plan import Plan, make_plan
from ..plan.structure import WILD
from .bind import BoundPass
from .folded import folded
from .kept import Made
from .memory import empty, shared_scratch
from .regions import faults, region
from .squares import channels_adjacent, squares
from .statistics import finish
from .team import launch
from .weights import Packed, packed

Array = npt.NDArray[Any]


def execute(
    pipeline: Pipeline,
    dtype: DType,
    x: Array,
    operands: tuple[Array, ...],
    out: Array,
    options: Options = AUTO,
) -> None:
    """Writes the pipeline's result into `out`. Arrays hold storage values; x is (B, C, D, H, W), vectors are 1-D."""
    execute_plan(make_plan(pipeline, x.shape, _shapes(operands), dtype, options), x, operands, out)


def execute_plan(plan: Plan, x: Array, operands: tuple[Array, ...], out: Array) -> None:
    """The same, where a plan for arrays of these shapes is at hand."""
    if x.shape[0] == 0:
        return
    pipeline, dtype = plan.asked, plan.dtype
    ready, stored_as = operands, dtype
    if plan.rewritten.needs_tame:
        prepared = folded(plan.rewritten, pipeline, dtype, operands)
        if prepared is None:  # some tensor is not tame: the rewrites that rely on it do not hold
            plan = make_plan(pipeline, x.shape, _shapes(operands), dtype, plan.options, tame=False)
        else:
            ready, stored_as = prepared, float64
    wild = _wild_samples(x, dtype) if plan.rewritten.needs_tame_input else []
    if wild:  # rewrites that rely on the input do not hold for these
        for sample in wild:
            own = _operands_of(pipeline, operands, sample)
            one = make_plan(pipeline, (1, *x.shape[1:]), _shapes(own), dtype, plan.options, tame=False)
            execute_plan(one, _sample_of(x, sample), own, _sample_of(out, sample))
        for sample in set(range(x.shape[0])) - set(wild):
            own = _operands_of(pipeline, operands, sample)
            execute(pipeline, dtype, _sample_of(x, sample), own, _sample_of(out, sample), plan.options)
        return
    run = _Run(plan, x, ready, stored_as, out)
    if not run.weights.finite:
        _by_meaning(plan, x, ready, stored_as, out)
    elif plan.method.direct:
        run.run()
    elif not run.weights.tame:
        execute(pipeline, dtype, x, operands, out, DIRECT)
    else:
        run.run()
        for sample in map(int, np.flatnonzero(run.wild)):
            own = _operands_of(pipeline, operands, sample)
            execute(pipeline, dtype, _sample_of(x, sample), own, _sample_of(out, sample), DIRECT)


def _shapes(operands: tuple[Array, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(operand.shape for operand in operands)


def _by_meaning(plan: Plan, x: Array, operands: tuple[Array, ...], stored_as: DType, out: Array) -> None:
    """Kernels multiply the zeros around the input with weights, which an infinite or NaN weight would turn into NaN.
    Such weights go the slow way, sample by sample."""
    pipeline, dtype = plan.rewritten.pipeline, plan.dtype
    for sample in range(x.shape[0]):
        own = [
            dtype.widen(_sample_of(array, sample)) if slot.operand.kind == "tensor" else stored_as.widen(array)
            for slot, array in zip(pipeline.slots, operands, strict=True)
        ]
        out[sample] = dtype.narrow(evaluate(pipeline, dtype.widen(_sample_of(x, sample)), own))[0]


def _operands_of(pipeline: Pipeline, operands: tuple[Array, ...], sample: int) -> tuple[Array, ...]:
    return tuple(
        _sample_of(operand, sample) if slot.operand.kind == "tensor" else operand
        for slot, operand in zip(pipeline.slots, operands, strict=True)
    )


def _wild_samples(x: Array, dtype: DType) -> list[int]:
    """Samples with NaN, infinities, or numbers so large that a sum of some of them might overflow."""
    bound = WILD[dtype.accumulate]
    if dtype.itemsize == 2:  # as bits: without the sign they are ordered as numbers are, infinity and NaN above
        limit = int(dtype.narrow(np.array(bound)).view(np.uint16)[()])
        return [at for at, sample in enumerate(x.view(np.uint16)) if int((sample & 0x7FFF).max()) >= limit]
    return [at for at, sample in enumerate(x) if not (float(sample.max()) < bound and float(sample.min()) > -bound)]


def _sample_of(array: Array, sample: int) -> Array:
    """(1, C, D, H, W) of a (B, C, D, H, W) array, a view; an array of batch 1 serves every sample."""
    return array if array.shape[0] == 1 else array[sample : sample + 1]


class _Run:
    """One execution: where the values of the plan are."""

    def __init__(self, plan: Plan, x: Array, operands: tuple[Array, ...], stored_as: DType, out: Array) -> None:
        self.plan, self.operands, self.stored_as = plan, operands, stored_as
        self.arrays: dict[str, Array] = {"x": x, "out": out}
        self.stats: dict[str, Array] = {}
        self.number = np.dtype(plan.dtype.accumulate)
        self.passes = bound_passes(plan)
        self.weights = self._pack_weights()
        self.wild = np.zeros(x.shape[0], dtype=np.int64)  # samples that minimal multiplication leaves to direct

    def run(self) -> None:
        for bound in self.passes:
            self._run_pass(bound)

    def _run_pass(self, bound: BoundPass) -> None:
        steps = bound.one.steps
        words = bound.usual.copy()  # parameters of this call, by name
        alive: list[Any] = []  # what they point to
        self._put_array("source", self.arrays[steps.source], words)
        if steps.dest is not None:
            dest = self._dest(steps.dest, steps.result)
            self._put_array("dest", dest, words)
            bound.put_way_out(dest, words)
        for index, op in enumerate(steps.ops):
            if isinstance(op, Conv):
                self._put_weights(words, alive)
            elif isinstance(op, Chain):
                for at, link in enumerate(op.links):
                    if link.takes_tensor:
                        self._put_array(f"tensor op{index}.{at}", self._array(link.arrays[0]), words)
                    else:
                        self._put_vectors(f"vector op{index}.{at}", link.arrays, words, alive)
            elif isinstance(op, RowNorm):
                self._put_vectors(f"vector op{index}.0", op.arrays, words, alive)
        if bound.partial_words:
            shape = steps.shape[0], len(bound.voxels), steps.result[1], bound.partial_words
            partials = np.empty(shape)
            self._point("partials", partials, words)
        if not self.plan.method.direct:
            self._point("wild samples", self.wild, words)
        threads = min(get_num_threads(), bound.items) if bound.worth_sharing else 1
        with shared_scratch(bound.one.tiling.scratch, threads) as (memory, threads):
            self._point("scratch", memory, words)
            self._launch(bound, words, threads, memory)
        if steps.finish is not None:
            given = [self._wide(name) for name in steps.finish.arrays]
            if self.wild.any():  # tiles that were left out
                partials[self.wild > 0] = 0
            results = finish(steps.finish.stage, partials, bound.voxels, given, self.number)
            self._take_statistics(steps.finish.result, results)

    def _launch(self, bound: BoundPass, words: dict[str, int], threads: int, memory: Array) -> None:
        if not self.plan.machine.check_bounds:
            table, address = bound.table(words)
            launch(bound.native["run"], address, threads)
            return
        memory[...] = 0xFF  # NaN: what nobody wrote shows
        with faults(bound.one.structure.name) as noted:
            table, address = bound.table(words | {"faults": noted})
            launch(bound.native["run"], address, threads)
            del table

    def _point(self, name: str, array: Array, words: dict[str, int]) -> None:
        words[name] = array.ctypes.data
        if self.plan.machine.check_bounds:
            words |= region(name, array)

    def _put_array(self, name: str, array: Array, words: dict[str, int]) -> None:
        """Address and strides. Axes of size 1 are repeated where the value is larger."""
        self._point(name, array, words)
        item, shape, strides = array.itemsize, array.shape, array.strides
        for axis, stride, size in zip("bcdhw", strides, shape, strict=True):
            words[f"{name} {axis}"] = stride // item if size > 1 else 0
        # A value that is not of the caller's type is contiguous, or, with one voxel, as good as that.
        adjacent = item == self.plan.dtype.itemsize and channels_adjacent(shape, strides, item)
        words[f"{name} adjacent"] = int(adjacent)
        if adjacent:
            self.squares = squares(self.plan.dtype.name, self.plan.machine)  # held until the run is over
            words["read square"], words["write square"] = (self.squares.addresses[way] for way in ("read", "write"))

    def _dest(self, name: str, shape: tuple[int, ...]) -> Array:
        if name in self.plan.aliases:
            self.arrays[name] = self.arrays["out"]
        elif name not in self.arrays:
            self.arrays[name] = empty(shape, self.number)
        return self.arrays[name]

    def _array(self, name: str) -> Array:
        return self.operands[int(name.split(":")[1])] if name.startswith("operand") else self.arrays[name]

    def _wide(self, name: str) -> npt.NDArray[np.float64]:
        return self.stored_as.widen(self.operands[int(name.split(":")[1])])

    def _numbers(self, name: str) -> Array:
        """An operand as contiguous numbers of the arithmetic type."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self._wide(name).astype(self.number))

    def _put_vectors(self, name: str, arrays: tuple[str, ...], words: dict[str, int], alive: list[Any]) -> None:
        """Numbers for each channel: operands are the same for all samples, statistics are not."""
        for number, array in enumerate(arrays):
            vector = self.stats[array] if array.startswith("stat") else self._numbers(array)
            if vector.shape == (1,):  # a slope that serves all channels
                vector = np.repeat(vector, max(shape[1] for shape in self.plan.simplified.values))
            alive.append(vector)
            self._point(f"{name}.{number}", vector, words)
            words[f"{name}.{number} b"] = vector.shape[1] if vector.ndim == 2 else 0

    def _pack_weights(self) -> Packed:
        layout = next(bound.weights for bound in self.passes if bound.weights is not None)
        kernel = self.operands[self.plan.conv_operands[0]]
        if self.stored_as.name == "bfloat16":
            kernel = self.stored_as.widen(kernel)
        return packed(kernel if isinstance(kernel, Made) else np.ascontiguousarray(kernel), layout)

    def _put_weights(self, words: dict[str, int], alive: list[Any]) -> None:
        words["weights"] = self.weights.address
        if self.plan.machine.check_bounds:
            words |= region("weights", self.weights.weights)
        for at in self.plan.conv_operands[1:]:
            bias = self._numbers(f"operand:{at}")
            alive.append(bias)
            self._point("bias", bias, words)

    def _take_statistics(self, name: str, results: dict[str, npt.NDArray[np.float64]]) -> None:
        with np.errstate(over="ignore"):
            for word, values in results.items():
                if word == "value":
                    self.arrays[name] = np.ascontiguousarray(values.astype(self.number)).reshape(*values.shape, 1, 1, 1)
                else:
                    self.stats[f"{name}.{word}"] = np.ascontiguousarray(values.astype(self.number))


@lru_cache(maxsize=256)
def bound_passes(plan: Plan) -> tuple[BoundPass, ...]:
    return tuple(BoundPass(plan, one) for one in plan.passes)
