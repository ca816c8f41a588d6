"""Executes a plan on stored arrays: prepares operands, runs the sweeps in order, combines statistics between."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...plan.names import INPUT, OUTPUT, ArrayName, OperandName
from ...plan.sweeps import Finish
from ...spec.dtypes import DType
from ...spec.lazy import lazy
from ...spec.pipeline import Pipeline
from ..plan.choice import AUTO, Options
from ..plan.cores import get_num_threads
from ..plan.machine import LINE
from ..plan.plan import Plan, make_plan
from ..plan.rooms import rows_together
from ..plan.tail_plan import TailPlan
from ..plan.window import WindowPlan
from ..plan.winograd import HUGE
from ..words import DestinationCall, SourceCall, StripsCall, SweepCall, VectorCall, Words
from .again import Again, Finished, Left, SweepAgain
from .bind import Binding
from .blocks import channels_adjacent, transposing_code
from .build import Code
from .memory import empty, shared_scratch
from .ready import Everyone, Keeper, Ready, bindings
from .regions import faults
from .statistics import finish
from .strips import InPieces
from .team import launch

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

    def __init__(self, ready: Ready, x: Array, out: Array, strips: StripsCall | None = None) -> None:
        self.plan: Plan | TailPlan
        self.plan, self.operands, self.stored_as, self.weights = ready
        self.arrays: dict[ArrayName, Array] = {INPUT: x, OUTPUT: out}
        self.number = np.dtype(self.plan.dtype.accumulate)
        self.strips = strips  # where x is the largest piece of the input
        self.sweeps = bindings(self.plan)
        self.skipped = np.zeros(x.shape[0], dtype=np.int64)  # samples that Winograd's method leaves to direct

    def run(self) -> list[Done]:
        """Runs all sweeps; what each was given."""
        return [self._run_sweep(binding) for binding in self.sweeps]

    def _run_sweep(self, binding: Binding) -> Done:
        sweep, call = binding.planned.sweep, Call(self, binding)
        threads = min(get_num_threads(), binding.items) if binding.worth_sharing else 1
        with shared_scratch(binding.tiling.scratch, threads) as (memory, threads):
            words = call.launch(memory, threads)
        if sweep.finish is not None:
            if self.skipped.any():  # tiles that were left out
                call.partials[self.skipped > 0] = 0
            self.arrays |= _narrowed(self._finish(sweep.finish, call.partials, binding.voxels), self.number)
        return call, words, memory

    def _finish(self, of: Finish, partials: Array, counts: Array) -> dict[ArrayName, Array]:
        """What is made of the statistics of a sweep's tiles."""
        return finish(of, partials, counts, [self._wide(name) for name in of.arrays], self.number)

    def _finished(self, binding: Binding, of: Finish) -> Finished:
        """The same for other tiles of the same layout."""
        given, voxels, number = [self._wide(name) for name in of.arrays], binding.voxels, self.number
        return lambda partials: _narrowed(finish(of, partials, voxels, given, number), number)

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
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self._wide(name).astype(self.number))


def _narrowed(statistics: dict[ArrayName, Array], number: np.dtype[Any]) -> dict[ArrayName, Array]:
    """As numbers of the arithmetic type."""
    with np.errstate(over="ignore"):
        return {name: np.ascontiguousarray(values.astype(number)) for name, values in statistics.items()}


_ALL = 1 << 31  # more groups, and more blocks, than there are


class Call:
    """One sweep of an execution: what its steps ask for to fill their words."""

    def __init__(self, run: Run, binding: Binding) -> None:
        self.run, self.binding, self.machine = run, binding, run.plan.machine
        sweep = binding.planned.sweep
        self._dest = None if sweep.dest is None else run.dest(sweep.dest, sweep.result)
        self._blocks: Code | None = None  # code for arrays whose channels lie side by side, held until the call is over

    def launch(self, scratch: Array, threads: int) -> list[Words]:
        """Runs it; the words that it filled."""
        binding, checked = self.binding, self.machine.check_bounds
        steps = [words for step in binding.planned.structure.steps for words in step.bind_call(self)]
        read, write = (self._blocks.addresses[way] for way in ("read", "write")) if self._blocks else (0, 0)
        if checked:
            scratch[...] = 0xFF  # NaN: what nobody wrote shows
        with faults(binding.planned.structure.name) if checked else nullcontext(0) as noted:
            call: list[Words] = [SweepCall(scratch if checked else 0, scratch, read, write, noted), *steps]
            table, address = binding.table(call)
            launch(binding.native["run"], address, threads)
            del table
        return call

    def array(self, name: ArrayName) -> SourceCall:
        """Address and strides. Axes of size 1 are repeated where the value is larger."""
        array = self.run.array(name)
        return SourceCall(array, *self._strides(array))

    def _strides(self, array: Array) -> tuple[int, ...]:
        """In elements; and whether channels lie side by side."""
        item, shape, strides = array.itemsize, array.shape, array.strides
        steps = [stride // item if size > 1 else 0 for stride, size in zip(strides, shape, strict=True)]
        # A value that is not of the caller's type is contiguous, or, with one voxel, as good as that.
        adjacent = item == self.run.plan.dtype.itemsize and channels_adjacent(shape, strides, item)
        if adjacent:
            self._blocks = transposing_code(self.run.plan.dtype.name, self.machine)
        return *steps, int(adjacent)

    def destination(self) -> DestinationCall:
        """Also how the result goes there: rows that one store may run through, whether stores go past the caches,
        whether vectors may go there directly, as they come, and channels that are stored together."""
        dest, planned, tiling = self._dest, self.binding.planned, self.binding.tiling
        assert dest is not None
        b, c, d, h, step, adjacent = self._strides(dest)
        item, width, whole_rows = dest.itemsize, dest.shape[4], tiling.axes[2].count == 1
        dense = not adjacent and (width == 1 or dest.strides[4] == item)
        streamed, direct = False, dense
        if planned.streamed and (dense or adjacent):
            vector, address = self.machine.lanes(self.run.number.itemsize) * item, dest.ctypes.data
            begins = 0 if whole_rows else tiling.tile[2] * item
            if dense:  # no line is written in two parts
                vector = max(vector, LINE)
            if adjacent:  # shares of channels begin inside a voxel
                begins = tiling.share.channels * item if tiling.share.number > 1 else 0
            gaps = [gap for gap, size in zip(dest.strides, dest.shape, strict=True) if size > 1 and gap != item]
            aligned = all(place % vector == 0 for place in (address, *gaps, begins))
            streamed = address % item == 0 and (dense or aligned)
            direct = dense and aligned
        follow = dense and whole_rows and dest.strides[3] == width * item
        return DestinationCall(
            dest,
            b,
            c,
            d,
            h,
            w=1 if dense else step,  # also where rows have one element: stores run through them
            rows=rows_together(width) if follow else 1,
            streamed=int(streamed),
            direct=int(direct),
            channels=dest.shape[1] if adjacent else 1,
        )

    def vector(self, name: ArrayName) -> VectorCall:
        """Numbers for each channel: operands are the same for all samples, statistics are not."""
        run = self.run
        vector = run.numbers(name)
        if vector.shape == (1,):  # a slope that serves all channels
            vector = np.repeat(vector, max(shape[1] for shape in run.plan.simplified.values))
        return VectorCall(vector, vector.shape[1] if vector.ndim == 2 else 0)

    @property
    def weights(self) -> Array | int:
        weights = self.run.weights  # it holds them
        return weights.weights if self.machine.check_bounds else weights.address

    @property
    def bias(self) -> Array:
        plan = self.run.plan
        assert isinstance(plan, Plan)
        places = plan.conv_operands[1:]
        return self.run.numbers(OperandName(places[0])) if places else self.binding.no_bias

    @property
    def part(self) -> tuple[int, int, int]:
        """Groups, blocks and channels that go together; all, where channels lie side by side in the destination."""
        dest = self._dest
        if dest is not None and self._strides(dest)[-1]:
            return _ALL, _ALL, _ALL
        return self.binding.tiling.part or (_ALL, _ALL, _ALL)

    def part_of_box(self, source: SourceCall) -> int:
        """Channels of the first step's box that the first-level cache has room for beside what is made of them; all,
        where channels lie side by side."""
        if source.adjacent or (self._dest is not None and self._strides(self._dest)[-1]):
            return _ALL
        (box, *_), *_ = self.binding.tiling.rooms
        return max(1, self.machine.l1d // 2 // (box.pitch * self.run.number.itemsize))

    @property
    def skipped(self) -> Array:
        return self.run.skipped

    @property
    def strips(self) -> StripsCall:
        assert self.run.strips is not None
        return self.run.strips

    @lazy
    def partials(self) -> Array:
        """(B, tiles, C, numbers) of statistics."""
        sweep, binding = self.binding.planned.sweep, self.binding
        return np.empty((sweep.shape[0], len(binding.voxels), sweep.result[1], binding.statistics))
