"""Executes a GpuPlan on torch tensors: prepares input and weights, launches the kernels in order.

CUDA tensors run on their device. With TRITON_INTERPRET=1, set before triton is imported, CPU tensors run through
Triton's interpreter: the same text, slowly. torch and triton are imported here, when a call needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from itertools import pairwise
from math import gcd
from typing import Any, TypeAlias

import numpy as np

from ..plan.names import INPUT, OUTPUT, ArrayName, OperandName
from ..plan.segments import run_segments, segments
from ..recent import Recent
from ..spec.dtypes import DTYPES
from ..spec.pipeline import Pipeline
from . import tune as gpu_tune
from .again import Again
from .config import GENERATIONS, generation_of, most_registers
from .geometry import INT32_MAX
from .module import load
from .pieces import PACKED, WILD, FilledName, NotOnGpu, PreparedName
from .plan import GpuPlan, gpu_plan
from .steps import GpuKernel
from .text.code import ELEMENTS, Argument
from .text.kernel import PLANES, KernelText
from .text.module import Module, module

Tensor: TypeAlias = Any  # torch may be absent where types are checked
_TYPES = {f"torch.{name}": f"*{element}" for name, element in {**ELEMENTS, "int32": "i32"}.items()}
# Of a plan, by device, strides and alignment of its arrays: what a call does, or why there is none.
_known: Recent[Again | str] = Recent(1024)
WEIGHTS = PACKED, WILD  # what all samples of a call share


def run(
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    out: Tensor | None = None,
    precision: str = "bf16x6",
    wide: bool | None = None,
    choice: int | None = None,
) -> Tensor:
    """The result for x (B, C, D, H, W) and operands of their normal shapes, in `out` if that is given.

    Raises `NotOnGpu` for a pipeline without kernels, or with one that this GPU does not take."""
    return repeatable(pipeline, x, operands, out, precision, wide, choice)[0]


def repeatable(
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    out: Tensor | None,
    precision: str,
    wide: bool | None = None,
    choice: int | None = None,
) -> tuple[Tensor, Again | None]:
    """The same, and what does it once more, for `repeat`; None if nothing does."""
    if len(pipeline.convolutions) > 1:
        return _one_after_the_other(pipeline, x, operands, out, precision, wide, choice), None
    with _at(x):  # measurements, too
        plan, out = _planned(pipeline, x, operands, out, precision, wide, choice)
        return out, execute(plan, x, operands, out)


def repeat(again: Again, given: Sequence[Tensor]) -> None:
    """A call on input, result and operands that lie as those of `again` did."""
    with _at(given[0]):
        again.run(given, _stream())


def _at(x: Tensor) -> AbstractContextManager[object]:
    """On the device of x. The interpreter computes with numpy, which would warn of infinities."""
    import torch

    return torch.cuda.device(x.device) if x.is_cuda else np.errstate(all="ignore")


def _planned(
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    out: Tensor | None,
    precision: str,
    wide: bool | None,
    choice: int | None,
) -> tuple[GpuPlan, Tensor]:
    """The plan of a call, and memory for its result if there is none."""
    import torch

    dtype = DTYPES[str(x.dtype).removeprefix("torch.")]
    generation = generation_of(_capability(x))
    precision = (
        "ieee" if dtype.name != "float32" else "bf16x6" if generation < 80 and precision == "tf32" else precision
    )
    shapes = tuple(tuple(operand.shape) for operand in operands)
    known = pipeline, tuple(x.shape), shapes, dtype, generation, precision
    plan = gpu_plan(*known, wide)
    if out is None:
        out = torch.empty(plan.trace.output, dtype=x.dtype, device=x.device)
    if wide is None and _far(plan, [(each.shape, each.stride()) for each in (x, *operands, out)]) > INT32_MAX:
        wide = True
        plan = gpu_plan(*known, wide)
    if choice is None and x.is_cuda:
        key = *known, wide, x.device, x.stride(), out.stride()
        recorded = torch.cuda.is_current_stream_capturing()
        choice = gpu_tune.choice(
            key,
            plan.choices,
            None if recorded else lambda number: _seconds(gpu_plan(*known, wide, number), x, operands, out),
        )
    return gpu_plan(*known, wide, choice), out


def _one_after_the_other(
    pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor], out: Tensor | None, *options: Any
) -> Tensor:
    """Of several convolutions, whose segments are pipelines of one each."""
    cut = segments(pipeline, pipeline.trace(tuple(x.shape), [tuple(each.shape) for each in operands]))

    def one(number: int, source: Tensor, own: tuple[Tensor, ...]) -> Tensor:
        segment, target = cut[number], out if number == len(cut) - 1 else None
        return run(segment.pipeline, source.expand(segment.shape), own, target, *options)

    return run_segments(cut, x, operands, lambda each: x.new_full(each.sizes, each.number), one)


def execute(plan: GpuPlan, x: Tensor, operands: Sequence[Tensor], out: Tensor) -> Again | None:
    """Writes the result into `out`, whatever its strides; on the current device, which must be that of x. Gives what
    does the same once more, if there is one.

    Where samples are taken in turn (`_turns`), the first of them packs the weights for all."""
    if not x.shape[0]:
        return None
    packed: Sequence[Tensor] = ()
    for own, part in _turns(plan, _second_level(x)):
        if part is None:
            again, _ = _execute(own, x, operands, out, ())
            return again if again.steps is not None else None
        slots = zip(operands, plan.asked.slots, strict=True)
        parts = [
            each[part] if slot.operand.kind == "tensor" and each.shape[0] == x.shape[0] else each
            for each, slot in slots
        ]
        _, packed = _execute(own, x[part], parts, out[part], packed)
    return None


def _execute(
    plan: GpuPlan, x: Tensor, operands: Sequence[Tensor], out: Tensor, packed: Sequence[Tensor]
) -> tuple[Again, Sequence[Tensor]]:
    """With weights that are `packed` already, if any are; gives those that were used.

    Triton remembers no compilation that failed: that is done here, or every call would try again."""
    given = (x, out, *operands)
    place = plan, bool(packed), x.device, *_lie(given)
    known = _known.get(place)
    if isinstance(known, str):
        raise NotOnGpu(known)
    if known is not None and known.steps is not None:
        arrays = known.run((*given, *packed), _stream())
        return known, [arrays[known.numbers[name]] for name in WEIGHTS]
    execution = Execution(plan, x, operands, out, packed)
    try:
        execution.run()
    except NotOnGpu as why:
        _known.put(place, str(why))
        raise
    _known.put(place, execution.again)
    return execution.again, [execution.arrays[name] for name in WEIGHTS]


def _lie(arrays: Sequence[Tensor]) -> tuple[Any, ...]:
    """Of arrays in memory: all that code is compiled for. Triton looks at the alignment of addresses."""
    return *[each.stride() for each in arrays], *[each.data_ptr() % 16 == 0 for each in arrays]


@lru_cache(maxsize=512)
def _turns(plan: GpuPlan, room: int) -> tuple[tuple[GpuPlan, slice | None], ...]:
    """Which samples run one after the other, with their plans; None: all of them. A value that is read again, once its
    statistics are known, comes out of the GPU's cache (of so many bytes) instead of its memory if it fits."""
    batch = plan.trace.values[0][0]
    together = plan.samples_in(room)
    if together >= batch:
        return ((plan, None),)
    count = -(-batch // together)
    bounds = [batch * at // count for at in range(count + 1)]
    return tuple((plan.of_samples(end - start), slice(start, end)) for start, end in pairwise(bounds))


@cache
def _level_of(device: Any) -> int:
    import torch

    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


def _second_level(x: Tensor) -> int:
    """Bytes of the cache that all processors of its device share."""
    return _level_of(x.device) if x.is_cuda else 0


@cache
def _driver() -> Any:
    from triton.runtime import driver

    return driver


def _stream() -> int:
    """On which kernels are launched: PyTorch's current one."""
    active = _driver().active
    return int(active.get_current_stream(active.get_current_device()))


def _refusals() -> tuple[type[Exception], ...]:
    """What Triton raises of a kernel that wants more than the GPU has, or that ptxas does not take. Errors in the text
    of a kernel, of the driver and of the machine are others, and are not to be hidden."""
    from triton.runtime import errors

    return tuple(getattr(errors, name) for name in ("OutOfResources", "PTXASError") if hasattr(errors, name))


# Of Triton's error where a driver is too old for code that was compiled for it. Nothing has been launched then.
_NOT_LOADED = ("kernel image is invalid", "no kernel image", "unsupported toolchain", "unsupported PTX", "invalid PTX")


def _seconds(plan: GpuPlan, x: Tensor, operands: Sequence[Tensor], out: Tensor) -> float | None:
    """None for a configuration that this GPU does not take."""
    from triton.testing import do_bench

    try:
        return float(do_bench(lambda: execute(plan, x, operands, out), return_mode="median"))
    except NotOnGpu:
        return None


def _far(plan: GpuPlan, arrays: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
    """The largest offset into an array, by shapes and strides, that a kernel computes; the first is the input."""
    read = [kernel.furthest(arrays[0][1]) for kernel in plan.kernels if kernel.piece.conv is not None]
    last = [sum((size - 1) * step for size, step in zip(*each, strict=True)) for each in arrays]
    return max(*read, *last)


def _capability(x: Tensor) -> int | str:
    import torch

    if not x.is_cuda:
        return 80
    if torch.version.hip is not None:
        return architecture(x.device)
    major, minor = torch.cuda.get_device_capability(x.device)
    return int(major * 10 + minor)


def architecture(device: Any) -> str:
    """AMD's name of a device, such as gfx942."""
    import torch

    return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]


def launch_options(text: KernelText, values: Sequence[Any], generation: int) -> dict[str, Any]:
    """What Triton is told beside the arguments. The bounds on registers are those of transposed stores; where channels
    lie next to each other there is none but the GPU's, and AMD's compiler takes none."""
    if generation < GENERATIONS[0]:
        return {"num_warps": text.warps, "num_stages": text.stages, "enable_fp_fusion": True}
    runs = [value for argument, value in zip(text.arguments, values, strict=True) if argument.type == "constexpr"]
    most = most_registers(text.warps) if any(runs) else text.registers
    return {"num_warps": text.warps, "num_stages": text.stages, "maxnreg": most, "enable_fp_fusion": True}


class Execution:
    """One execution: where the arrays of the plan are."""

    def __init__(
        self,
        plan: GpuPlan,
        x: Tensor,
        operands: Sequence[Tensor],
        out: Tensor,
        packed: Sequence[Tensor] = (),
    ) -> None:
        """`packed`: weights that are packed already (`WEIGHTS`)."""
        import torch

        self.plan, self.x = plan, x
        self.code: Module = module(plan)
        self.sums = getattr(torch, plan.dtype.accumulate)
        self.factors = torch.bfloat16 if plan.parts > 1 else x.dtype  # of products
        self.arrays: dict[ArrayName, Tensor] = {INPUT: x, OUTPUT: out}
        self.walled: set[ArrayName] = set()  # those with zeros around them, as far as dots read
        copied = False
        for at, operand in enumerate(operands):  # kernels read vectors without a stride
            lies_so = operand.dim() > 1 or operand.is_contiguous()
            self.arrays[OperandName(at)] = operand if lies_so else operand.contiguous()
            copied = copied or not lies_so
        self.arrays.update(zip(WEIGHTS, packed))  # noqa: B905 - both or none
        self.again = Again(tuple(self.arrays))
        if copied:
            self.again.steps = None
        for name, shape in plan.stored:
            self._make(name, shape, self.sums)

    def run(self) -> None:
        loaded = load(self.code.text)
        for step, text in zip(self.plan.steps, self.code.kernels, strict=True):
            if step.prepare(self, text):
                self._launch(getattr(loaded, text.name), text)
            step.release(self)

    def _make(self, name: ArrayName, shape: Sequence[int], kind: Any, zeros: bool = False) -> Tensor:
        """An array of the plan's own."""
        self.arrays[name] = (self.x.new_zeros if zeros else self.x.new_empty)(shape, dtype=kind)
        self.again.allocates(name, shape, kind, INPUT, zeros)
        return self.arrays[name]

    def release(self, name: ArrayName) -> None:
        del self.arrays[name]
        self.again.drops(name)

    def _launch(self, function: Any, text: KernelText) -> None:
        arguments = [self._value(argument) for argument in text.arguments]
        try:
            kernel = function[(text.grid,)](
                *arguments, **dict(text.constexprs), **launch_options(text, arguments, self.plan.generation)
            )
            places = {at: one.array for at, one in enumerate(text.arguments) if one.array and one.type[0] == "*"}
            self.again.launches(kernel, text.grid, arguments, places, dict(text.constexprs).values())
        except Exception as error:
            not_loaded = isinstance(error, RuntimeError) and any(words in str(error) for words in _NOT_LOADED)
            if not not_loaded and not isinstance(error, _refusals()):
                raise
            raise NotOnGpu(f"its kernel {text.name} cannot be had on this GPU: {error}") from error

    def _value(self, argument: Argument) -> Any:
        if argument.array is None:
            return argument.value
        array = self.arrays[argument.array]
        if argument.type == "constexpr":
            return int(argument.array in self.walled) if argument.axis == "halo" else run_of(array)
        if argument.axis is None:
            assert argument.type == _TYPES[str(array.dtype)]  # which ahead-of-time compilation goes by
            return array
        axis = "ncdhw".index(argument.axis)
        return array.stride(axis) if array.shape[axis] > 1 else 0

    def make_weights(self, size: int) -> bool:
        """Memory for packed weights, and for a flag that stays on the device: no call waits for it. False if they are
        packed already."""
        import torch

        if PACKED in self.arrays:
            return False
        self._make(PACKED, (size,), self.factors)
        self._make(WILD, (1,), torch.int32, zeros=any(kernel.guarded for kernel in self.plan.kernels))
        return True

    def make_arrays(self, kernel: GpuKernel) -> bool:
        """Memory for what the kernel writes; False if it need not run."""
        piece = kernel.piece
        if isinstance(piece.dest, PreparedName):
            return self._make_input(kernel, piece.dest)
        if piece.reduce is not None and piece.partials is not None and not kernel.guarded:
            shape = (PLANES[piece.reduce], piece.shape[0], piece.result[1], kernel.parts)
            self._make(piece.partials, shape, self.sums)
        return True

    def make_statistics(self, names: Sequence[ArrayName], shape: tuple[int, ...]) -> bool:
        """Memory for a value (B, C, 1, 1, 1), or for vectors of numbers for each sample and channel."""
        for name in names:
            self._make(name, (*shape[:2], 1, 1, 1), self.sums)
        return True

    def _make_input(self, kernel: GpuKernel, name: PreparedName) -> bool:
        """Of the convolution, in channels-last memory; the source itself if that is as its kernels want it."""
        memory, source = kernel.memory, self.arrays[kernel.piece.source]
        last = source.stride(1) == 1 or source.shape[1] == 1
        as_is = self.plan.precision == "ieee" and source.dtype == self.x.dtype and memory.filled == memory.inputs
        if kernel.copies and last and as_is:
            self.arrays[FilledName(name)] = source
            self.again.shows(FilledName(name), kernel.piece.source, 0)
            return False
        (low_d, low_h, low_w), (batch, _, *space) = memory.low, kernel.piece.result
        rows = self._make(name, (batch, *memory.sizes(space), memory.row), self.factors)
        self.arrays[name] = rows.permute(0, 4, 1, 2, 3)
        inner = self.arrays[FilledName(name)] = self.arrays[name][:, :, low_d:, low_h:, low_w:]
        self.again.shows(FilledName(name), name, inner.storage_offset())
        if kernel.walled:
            self.walled.add(FilledName(name))
        return True


def run_of(array: Any) -> int:
    """Of how many channels next to each other in memory the array surely consists, up to 16; 0 if they are not."""
    if array.stride(1) != 1 or array.shape[1] == 1:
        return 0
    sizes = zip(array.shape, array.stride(), strict=True)
    return gcd(16, *(stride for axis, (size, stride) in enumerate(sizes) if axis != 1 and size > 1))
