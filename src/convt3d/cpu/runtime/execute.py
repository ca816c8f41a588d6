"""Executes a plan on stored arrays: prepares operands, runs the sweeps in order, combines statistics between."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...plan.names import INPUT, OUTPUT, ArrayName, OperandName
from ...plan.sweeps import Finish
from ...spec.dtypes import DType
from ...spec.pipeline import Pipeline
from ..plan.choice import AUTO, Options
from ..plan.cores import get_num_threads
from ..plan.machine import LINE
from ..plan.plan import Plan, make_plan
from ..plan.tail_plan import TailPlan
from ..plan.window import WindowPlan
from ..plan.winograd import HUGE
from ..words import StripsCall, Words
from .again import Again, Finished, Left, SweepAgain
from .bind import Binding
from .call import Call
from .memory import empty, shared_scratch
from .ready import Everyone, Keeper, Ready, bindings
from .statistics import finish
from .strips import InPieces

Array = npt.NDArray[Any]
Done: TypeAlias = "tuple[Call, list[Words], Array]"  # a sweep, the words that it was given, its scratch memory
EVERYONE = Everyone()


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


def execute_plan(
    plan: Plan, x: Array, operands: tuple[Array, ...], out: Array, keeper: Keeper = EVERYONE
) -> Again | None:
    """The same, where a plan for arrays of these shapes is at hand, with weights that `keeper` has. Returns what does
    it again for other arrays of the same layout, where that is possible."""
    if x.shape[0] == 0:
        return None
    ready = keeper.ready(plan, operands)
    plan = ready.plan
    if plan.rewritten.needs_tame_input and (wild := _wild_samples(x, plan.dtype)):
        for sample in range(x.shape[0]):
            alone = plan.one_sample.as_asked if sample in wild else plan.one_sample
            _execute_some(alone, slice(sample, sample + 1), x, operands, out, keeper)
    elif not (ready.weights.finite or plan.options.masked):
        return execute_plan(plan.masked, x, operands, out, keeper)
    elif not (plan.method.direct or ready.weights.transformable):
        return execute_plan(plan.directly, x, operands, out, keeper)
    elif plan.samples_together < x.shape[0]:
        for start in range(0, x.shape[0], plan.samples_together):
            some = slice(start, min(start + plan.samples_together, x.shape[0]))
            _execute_some(plan.some_samples(some.stop - start), some, x, operands, out, keeper)
    else:
        run = Run(ready, x, out)
        run.told = keeper.lasting
        done = run.run()
        for sample in map(int, np.flatnonzero(run.skipped)):
            _execute_some(plan.one_sample.directly, slice(sample, sample + 1), x, operands, out, keeper)
        slots = plan.asked.slots
        tensors = [each for each, slot in zip(operands, slots, strict=True) if slot.operand.kind == "tensor"]
        return run.again(done, tensors) if keeper.lasting else None
    return None


def execute_in_pieces(
    plan: WindowPlan, x: InPieces, operands: tuple[Array, ...], out: Array, keeper: Keeper = EVERYONE
) -> None:
    """The same of an array in pieces: as it lies, where there is a kernel for that."""
    of_strips = plan.of_strips
    ready = None if of_strips is None else keeper.ready(of_strips, operands)
    usual = ready is not None and ready.plan is of_strips and ready.weights.finite and ready.weights.transformable
    usual = usual and not plan.rewritten.needs_tame_input
    if ready is None or not usual or plan.samples_together < x.shape[0]:
        execute_plan(plan, x.whole, operands, out, keeper)
        return
    run = Run(ready, x.pieces[0].array, out, x.words)
    run.run()
    for sample in map(int, np.flatnonzero(run.skipped)):
        _execute_some(plan.one_sample.directly, slice(sample, sample + 1), x.whole, operands, out, keeper)


def _execute_some(
    plan: Plan, samples: slice, x: Array, operands: tuple[Array, ...], out: Array, keeper: Keeper
) -> None:
    """Some samples alone, by a plan of so many."""
    own = tuple(
        _some_of(operand, samples) if slot.operand.kind == "tensor" else operand
        for slot, operand in zip(plan.asked.slots, operands, strict=True)
    )
    execute_plan(plan, _some_of(x, samples), own, _some_of(out, samples), keeper)


def _shapes(operands: tuple[Array, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(operand.shape for operand in operands)


def _wild_samples(x: Array, dtype: DType) -> list[int]:
    """Samples with NaN, infinities, or numbers so large that a sum of some of them might overflow."""
    bound = HUGE[dtype.accumulate]
    if dtype.itemsize == 2:  # as bits: without the sign they are ordered as numbers are, infinity and NaN above
        limit = int(dtype.narrow(np.array(bound)).view(np.uint16)[()])
        return [at for at, sample in enumerate(x.view(np.uint16)) if int((sample & 0x7FFF).max()) >= limit]
    return [at for at, sample in enumerate(x) if not (float(sample.max()) < bound and float(sample.min()) > -bound)]


def _some_of(array: Array, samples: slice) -> Array:
    """(some, C, D, H, W) of a (B, C, D, H, W) array, a view; an array of batch 1 serves every sample."""
    return array if array.shape[0] == 1 else array[samples]


class Run:
    """One execution: where the values of the plan are."""

    told = False  # whether its words are to be told

    def __init__(self, ready: Ready, x: Array, out: Array, strips: StripsCall | None = None) -> None:
        self.plan: Plan | TailPlan
        self.plan, self.operands, self.stored_as, self.weights = ready
        self.arrays: dict[ArrayName, Array] = {INPUT: x, OUTPUT: out}
        self.number = np.dtype(self.plan.dtype.accumulate)
        self.strips = strips  # where x is the largest piece of the input
        self.sweeps = bindings(self.plan)
        self.skipped = np.zeros(x.shape[0], dtype=np.int64)  # samples that Winograd's method leaves to direct

    def run(self) -> list[Done]:
        """Runs all sweeps; what each was given, if that is to be told."""
        return [self._run_sweep(binding) for binding in self.sweeps]

    def _run_sweep(self, binding: Binding) -> Done:
        sweep, call = binding.planned.sweep, Call(self, binding)
        threads = min(get_num_threads(), binding.items) if binding.worth_sharing else 1
        with shared_scratch(binding.tiling.scratch, threads) as (memory, threads):
            words = [] if not self.told and call.repeat(memory, threads) else call.launch(memory, threads)
        if sweep.finish is not None:
            if self.skipped.any():  # tiles that were left out
                call.partials[self.skipped > 0] = 0
            self.arrays |= narrowed(self._finish(sweep.finish, call.partials, binding.voxels), self.number)
        return call, words, memory

    def _finish(self, of: Finish, partials: Array, counts: Array) -> dict[ArrayName, Array]:
        """What is made of the statistics of a sweep's tiles."""
        return finish(of, partials, counts, [self._wide(name) for name in of.arrays], self.number)

    def _finished(self, binding: Binding, of: Finish) -> Finished:
        """The same for other tiles of the same layout."""
        given, voxels, number = [self._wide(name) for name in of.arrays], binding.voxels, self.number
        return lambda partials: narrowed(finish(of, partials, voxels, given, number), number)

    def again(self, done: list[Done], tensors: list[Array]) -> Again | None:
        """What does the same for other arrays; `tensors` are those of the value's shape."""
        if self.plan.machine.check_bounds or self.plan.rewritten.needs_tame_input:
            return None
        streamed = any(binding.planned.streamed for binding in self.sweeps)
        changing = [self.skipped, self.arrays[INPUT], self.arrays[OUTPUT], *tensors]
        sweeps: list[tuple[SweepAgain, Left]] = []
        for binding, (call, words, scratch) in zip(self.sweeps, done, strict=True):
            sweep, value, partials, finished = binding.planned.sweep, None, None, None
            if sweep.dest is not None and self.arrays[sweep.dest] is not self.arrays[OUTPUT]:
                value = sweep.result
                changing.append(self.arrays[sweep.dest])
            if sweep.finish is not None:
                partials, finished = call.partials.shape, self._finished(binding, sweep.finish)
                changing.append(call.partials)
            numbers = {id(array): number for number, array in enumerate((scratch, *changing))}
            if len(numbers) <= len(changing):  # one array in two places
                return None
            again = SweepAgain(binding, words, numbers, len(self.skipped), (self.weights, call._blocks))
            sweeps.append((again, Left(value, partials, finished)))
            if sweep.finish is not None:
                changing += [self.arrays[name] for name in self._finished(binding, sweep.finish)(call.partials)]
        return Again(sweeps, self.number, self.arrays[OUTPUT].ctypes.data % LINE if streamed else None)

    def dest(self, name: ArrayName, shape: tuple[int, ...]) -> Array:
        if name in self.plan.aliases:
            self.arrays[name] = self.arrays[OUTPUT]
        elif name not in self.arrays:
            self.arrays[name] = empty(shape, self.number)
        return self.arrays[name]

    def array(self, name: ArrayName) -> Array:
        return self.operands[name.place] if isinstance(name, OperandName) else self.arrays[name]

    def _wide(self, name: OperandName) -> npt.NDArray[np.float64]:
        return self.stored_as.widen(self.operands[name.place])

    def numbers(self, name: ArrayName) -> Array:
        """A vector as contiguous numbers of the arithmetic type."""
        if not isinstance(name, OperandName):
            return self.arrays[name]
        if self.stored_as.storage == self.plan.dtype.accumulate:
            return np.ascontiguousarray(self.operands[name.place])
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self._wide(name).astype(self.number))


def narrowed(statistics: dict[ArrayName, Array], number: np.dtype[Any]) -> dict[ArrayName, Array]:
    """As numbers of the arithmetic type."""
    with np.errstate(over="ignore"):
        return {name: np.ascontiguousarray(values.astype(number)) for name, values in statistics.items()}
