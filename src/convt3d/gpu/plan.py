"""A GpuPlan: the kernels one pipeline needs on a GPU, from the same sweeps as on the CPU. Frozen; touches no array.

A value that only statistics need is not stored: the next sweep computes it again, or finds it in the output array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod

from ..plan.base import BasePlan
from ..plan.names import INPUT, OUTPUT, ArrayName
from ..plan.prepare import rewrite
from ..plan.sweeps import Finish, Op, cut, operands_of, output_values
from ..spec.dtypes import DTYPES, DType
from ..spec.pipeline import Pipeline, Trace
from ..spec.shapes import ConvAxis, PoolAxis, Shape
from ..spec.stages import AvgPool3d, GroupNorm, Keep, MaxPool3d
from .config import LEAST_INPUTS, PARTS, PROCESSORS, Demand, choose, configurations
from .geometry import INT32_MAX, gpu_axis
from .pieces import Arrays, PartialsName, Piece, PreparedName, mixes, split
from .steps import GpuFinish, GpuKernel, GpuPack, GpuStep, Memory, kernels_of

BUSY = 4  # programs of each multiprocessor, of kernels that make a value, where samples are taken in turn
MOST_HALO, MOST_SMALL = 3, 1 << 22  # times the input, or numbers of a small one, with zeros around it


@dataclass(frozen=True, eq=False, kw_only=True)
class GpuPlan(BasePlan):
    """`steps` run in order."""

    generation: int
    precision: str
    wide: bool  # 64-bit offsets
    choice: int | None  # number of a configuration, the heuristic's if None
    steps: tuple[GpuStep, ...]
    stored: tuple[tuple[ArrayName, Shape], ...]  # values in memory of their own, in the type of sums
    finite: bool = False  # inputs and weights are declared to be: no kernel waits for others

    @property
    def parts(self) -> int:
        """bfloat16 numbers whose sum a factor of a product is; 1 where it is stored as it is."""
        return PARTS[self.precision]

    @property
    def kernels(self) -> tuple[GpuKernel, ...]:
        return kernels_of(self.steps)

    @property
    def choices(self) -> int:
        """Configurations that differ in at least one kernel."""
        return max(len(configurations(self.generation, kernel.need)) for kernel in self.kernels if not kernel.guarded)

    def samples_in(self, cache: int) -> int:
        """How many to run at once where a cache has so many bytes: all of them, unless a value is written and read
        again, fewer fit the cache (three quarters of it: other things pass through), and those keep the GPU busy."""
        batch = self.trace.values[0][0]
        ours = [kernel for kernel in self.kernels if not kernel.guarded]
        read = {kernel.piece.source: kernel.piece.shape for kernel in ours if kernel.kind == "load"}
        values = [prod(shape[1:]) for source, shape in read.items() if source != INPUT]
        if not values:
            return batch
        size = 2 if self.parts > 1 else self.dtype.itemsize
        inputs = [
            size * kernel.memory.row * prod(kernel.memory.sizes(kernel.piece.shape[2:]))
            for kernel in ours
            if kernel.piece.conv is not None
        ]
        fitting = cache * 3 // 4 // (max(inputs) + DTYPES[self.dtype.accumulate].itemsize * sum(values))
        programs = min(kernel.programs for kernel in ours if not isinstance(kernel.piece.dest, PreparedName)) // batch
        return fitting if fitting * programs >= BUSY * PROCESSORS[self.generation] else batch

    def of_samples(self, number: int) -> GpuPlan:
        """The plan of so many samples."""
        (batch, *shape), operands = self.trace.values[0], []
        for slot, sizes in zip(self.asked.slots, self.trace.operand_shapes, strict=True):
            own = slot.operand.kind == "tensor" and sizes[0] == batch
            operands.append((number, *sizes[1:]) if own else sizes)
        options = self.generation, self.precision, self.wide, self.choice
        return gpu_plan(self.asked, (number, *shape), tuple(operands), self.dtype, *options)


@lru_cache(maxsize=512)
def gpu_plan(
    pipeline: Pipeline,
    x: tuple[int, ...],
    operands: tuple[tuple[int, ...], ...],
    dtype: DType,
    generation: int = 80,
    precision: str = "bf16x6",
    wide: bool | None = None,
    choice: int | None = None,
    finite: bool = False,
) -> GpuPlan:
    """The plan for input shape `x` (5-D) and operand shapes in slot order.

    64-bit offsets (`wide`) are decided by the sizes if None; `choice` is the number of a configuration in the list of
    each kernel, the heuristic's if None. `finite`: nobody gives NaN or infinity, so nothing looks for them.
    """
    assert precision in PARTS
    from .text.chain import GPU  # here: it takes from this module

    for stage in pipeline.stages:
        GPU[type(stage)]  # raises where there is none
    trace = pipeline.trace(x, operands)
    # Operands stay on the GPU as they are: rewrites that need to look at them are left out.
    rewritten, simplified = rewrite(pipeline, trace, dtype, tame=False)
    make = partial(_Maker, rewritten.pipeline, simplified, dtype, generation, precision, choice, finite)
    maker = make(bool(wide))
    if wide is None and _needs_wide(maker, simplified):
        maker = make(True)
    return GpuPlan(
        asked=pipeline,
        dtype=dtype,
        trace=trace,
        rewritten=rewritten,
        simplified=simplified,
        generation=generation,
        precision=maker.precision,
        wide=maker.wide,
        choice=choice,
        steps=tuple(maker.steps),
        stored=tuple(maker.arrays.stored.items()),
        finite=finite,
    )


class _Maker:
    """Turns sweeps into kernels."""

    def __init__(
        self,
        pipeline: Pipeline,
        trace: Trace,
        dtype: DType,
        generation: int,
        precision: str,
        choice: int | None,
        finite: bool,
        wide: bool,
    ) -> None:
        self.pipeline, self.trace, self.dtype = pipeline, trace, dtype
        self.generation, self.precision, self.choice, self.wide = generation, precision, choice, wide
        self.finite = finite
        kernel, groups = pipeline.conv.kernel(trace.operands[pipeline.conv_index][0]), pipeline.conv.groups
        self.kind = self._kind(kernel[0] // groups, groups)
        if self.kind != "dot" or dtype.name != "float32":
            self.precision = "ieee"
        self.steps: list[GpuStep] = []
        self.arrays = Arrays()
        self.recipes: dict[ArrayName, tuple[ArrayName, Shape, tuple[Op, ...]]] = {}  # values that are computed again
        self.in_output: tuple[ArrayName, ...] = ()
        self._run()

    def _run(self) -> None:
        sweeps = cut(self.pipeline, self.trace)
        self.in_output = output_values(sweeps, self.trace.output, self.dtype)
        tensors = {array for sweep in sweeps for op in sweep.ops for link in op.links for array in link.arrays}
        for sweep in sweeps:
            own = OUTPUT if sweep.source in self.in_output else sweep.source
            source, shape, before = self.recipes.get(own, (own, sweep.shape, ()))
            ops, dest = (*before, *sweep.ops), sweep.dest
            if sweep.finish is not None and dest is not None and dest not in (*self.in_output, *tensors):
                value = ops[:-1]  # the last one takes the statistics
                if self._in_one_kernel(source, shape, value):
                    self.recipes[dest] = source, shape, value
                    dest = None
            last = self._make(source, shape, ops, dest)
            if sweep.finish is not None:
                self._finish(sweep.finish, last)
        self._lay_out()

    def _lay_out(self) -> None:
        """The convolution's input and weights are in memory once: filled up to whole blocks of each kernel of it, and
        with all zeros beside the input that a dot reads, unless those would be too many."""
        kernels = [kernel for kernel in kernels_of(self.steps) if kernel.piece.conv is not None]
        first, dots = kernels[0], [kernel for kernel in kernels if kernel.kind == "dot"]
        block = max(kernel.config.inputs for kernel in kernels)  # a power of two, as the smaller ones
        filled = -(-first.inputs // block) * block
        width = max(kernel.columns * kernel.config.channels for kernel in kernels)
        if first.kind == "depthwise":  # its groups are channels of one
            memory = Memory(first.piece.shape[1], first.piece.shape[1])
        else:
            memory = Memory(first.inputs, filled, first.groups, PARTS[self.precision])
        space = first.piece.shape[2:]
        reach = [[kernel.axes[axis].beside for kernel in dots] for axis in range(3)] if dots else []
        low, high = (tuple(max(ends[end] for ends in axis) for axis in reach) for end in (0, 1))
        wide = replace(memory, low=low, high=high) if dots else memory
        numbers, least = (prod(each.sizes(space)) * memory.row for each in (wide, memory))
        walled = bool(dots) and (numbers <= MOST_HALO * least or numbers <= MOST_SMALL)
        memory = wide if walled else memory
        operand, *_ = operands_of(self.pipeline, self.pipeline.conv_index)
        laid = memory, width, walled, self.generation, self.choice
        pack = GpuPack(operand, first.laid_out(*laid))
        self.steps = [pack, *(step.laid_out(*laid) for step in self.steps)]

    def _finish(self, finish: Finish, last: GpuKernel) -> None:
        piece, stage = last.piece, finish.stage
        assert piece.reduce is not None
        assert piece.partials is not None
        groups = stage.num_groups if isinstance(stage, GroupNorm) else piece.result[1]
        self.steps.append(GpuFinish(finish, piece.reduce, piece.partials, piece.result, groups, last.parts))

    def _in_one_kernel(self, source: ArrayName, shape: Shape, ops: Sequence[Op]) -> bool:
        """Whether these steps, from the convolution on, need no array between them."""
        trial = Arrays()
        split(self.pipeline, self.trace, source, shape, ops, trial)
        return not trial.stored

    def _make(self, source: ArrayName, shape: Shape, ops: Sequence[Op], dest: ArrayName | None) -> GpuKernel:
        """The kernels of a sweep; gives the last one."""
        *first, last = split(self.pipeline, self.trace, source, shape, ops, self.arrays)
        for piece in first:
            self._add(piece)
        if dest is not None and dest != OUTPUT and dest not in self.in_output:
            self.arrays.stored[dest] = last.result
        partials = None if last.reduce is None else PartialsName(len(self.steps))
        return self._add(replace(last, partials=partials, dest=OUTPUT if dest in self.in_output else dest))

    def _add(self, piece: Piece) -> GpuKernel:
        kernel = self._kernel(piece)
        guarded = kernel.kind == "dot" and not self.finite
        self.steps += [kernel, kernel.guard(self.generation)] if guarded else [kernel]
        return kernel

    def _kernel(self, piece: Piece) -> GpuKernel:
        stage, pool = piece.conv, None if piece.pool is None else self.pipeline.stages[piece.pool]
        assert pool is None or isinstance(pool, (MaxPool3d, AvgPool3d))
        conv_axes: Sequence[ConvAxis | None] = (None,) * 3
        groups, channels, inputs, multiplier, kind = 1, piece.shape[1], 1, 1, "load"
        if stage is not None:
            conv, weight = self.pipeline.conv, self.trace.operands[stage][0]
            conv_axes, kernel = conv.axes(piece.shape, weight), conv.kernel(weight)
            groups, channels, inputs = conv.groups, kernel[1], kernel[0] // conv.groups
            kind = self.kind
            if kind == "depthwise":
                groups, channels, multiplier = 1, channels * groups, channels
        pool_axes: Sequence[PoolAxis | None] = (None,) * 3
        if pool is not None and piece.pool is not None:
            pool_axes = pool.axes(self.trace.values[piece.pool])
        d, h, w = (
            gpu_axis(conv_axis, pool_axis, size, ends)
            for conv_axis, pool_axis, size, ends in zip(
                conv_axes, pool_axes, piece.shape[2:], piece.result[2:], strict=True
            )
        )
        whole = any(mixes(link) for link in piece.links)
        axes = (d, h, w)
        need = Demand(
            kind,
            self.dtype,
            self.precision,
            channels,
            inputs,
            whole,
            pool is not None or self._keeps_tile(piece),
            piece.reduce is not None,
            groups > 1 or sum(len(link.arrays) for link in piece.links) > 2,
            self.wide,
            prod(axis.count for axis in axes),
            prod(axis.pace for axis in axes) * piece.shape[0] * groups,
        )
        config = choose(self.generation, need, self.choice)
        return GpuKernel(piece, kind, axes, groups, channels, inputs, multiplier, pool, config, need)

    def _keeps_tile(self, piece: Piece) -> bool:
        stages = [link.stage for link in piece.links]
        return any(isinstance(stage, Keep) or getattr(stage, "other", None) == "tensor" for stage in stages)

    def _kind(self, inputs: int, groups: int) -> str:
        if inputs == 1 and groups > 1:
            return "depthwise"
        # Blocks of inputs are filled up with zeros, which tensor cores multiply at little cost, and nothing else does.
        least = 1 if self.dtype.itemsize == 2 else 8 if self.dtype.itemsize == 8 else LEAST_INPUTS[self.precision]
        return "dot" if inputs >= least else "plain"


def _needs_wide(maker: _Maker, trace: Trace) -> bool:
    """Whether an offset into any array, or a product on the way to one, exceeds 32 bits."""
    arrays = trace.values[0], trace.output, *trace.operand_shapes, *maker.arrays.stored.values()
    sizes = list(map(prod, arrays))
    for kernel in kernels_of(maker.steps):
        sizes += [kernel.programs, 3 * kernel.parts * prod(kernel.piece.result[:2]) if kernel.piece.reduce else 0]
        sizes += [kernel.tiles * kernel.config.positions, *(axis.largest for axis in kernel.axes)]
        if kernel.piece.conv is not None:
            _, channels, *space = kernel.piece.shape
            row, (d, h, w) = max(channels, kernel.memory.row), kernel.memory.sizes(space)
            sizes.append(kernel.furthest((row * d * h * w, 1, row * h * w, row * w, row)))
            sizes += [kernel.piece.shape[0] * row * d * h * w, kernel.taps * kernel.groups * kernel.weight_tap]
    return max(sizes) > INT32_MAX
