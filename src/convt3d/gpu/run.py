"""Executes a GpuPlan on torch tensors: prepares input and weights, launches the kernels in order.

CUDA tensors run on their device. With TRITON_INTERPRET=1, set before triton is imported, CPU tensors run through
Triton's interpreter: the same text, slowly. torch and triton are imported here, when a call needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from ..plan.names import INPUT, OUTPUT, ArrayName, OperandName
from ..plan.segments import run_segments, segments
from ..spec.dtypes import DTYPES
from ..spec.pipeline import Pipeline
from . import tune as gpu_tune
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
_refused: WeakKeyDictionary[GpuPlan, dict[Any, str]] = WeakKeyDictionary()  # by device and strides: why


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
    import torch

    if len(pipeline.convolutions) > 1:
        return _one_after_the_other(pipeline, x, operands, out, precision, wide, choice)
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
    if x.shape[0] == 0:
        return out
    if wide is None and _far(plan, x, [*operands, out]) > INT32_MAX:
        wide = True
        plan = gpu_plan(*known, wide)
    # Measurements, too, are of the current device. The interpreter computes with numpy, which would warn of infinities.
    with torch.cuda.device(x.device) if x.is_cuda else np.errstate(all="ignore"):
        if choice is None and x.is_cuda and not torch.cuda.is_current_stream_capturing():
            key = *known, wide, x.device, x.stride(), out.stride()
            choice = gpu_tune.choice(
                key, plan.choices, lambda number: _seconds(gpu_plan(*known, wide, number), x, operands, out)
            )
        execute(gpu_plan(*known, wide, choice), x, operands, out)
    return out


def _one_after_the_other(
    pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor], out: Tensor | None, *options: Any
) -> Tensor:
    """Of several convolutions, whose segments are pipelines of one each."""
    cut = segments(pipeline, pipeline.trace(tuple(x.shape), [tuple(each.shape) for each in operands]))

    def one(number: int, source: Tensor, own: tuple[Tensor, ...]) -> Tensor:
        segment, target = cut[number], out if number == len(cut) - 1 else None
        return run(segment.pipeline, source.expand(segment.shape), own, target, *options)

    return run_segments(cut, x, operands, lambda each: x.new_full(each.sizes, each.number), one)


def execute(plan: GpuPlan, x: Tensor, operands: Sequence[Tensor], out: Tensor) -> None:
    """Writes the result into `out`, whatever its strides; on the current device, which must be that of x.

    Triton remembers no compilation that failed: that is done here, or every call would try again."""
    place = (x.device, *(array.stride() for array in (x, *operands, out)))
    known = _refused.get(plan, {}).get(place)
    if known is not None:
        raise NotOnGpu(known)
    try:
        Execution(plan, x, operands, out).run()
    except NotOnGpu as why:
        _refused.setdefault(plan, {})[place] = str(why)
        raise


def _refusals() -> tuple[type[Exception], ...]:
    """What Triton raises of a kernel that wants more than the GPU has, or that ptxas does not take. Errors in the text
    of a kernel, of the driver and of the machine are others, and are not to be hidden."""
    from triton.runtime import errors

    return tuple(getattr(errors, name) for name in ("OutOfResources", "PTXASError") if hasattr(errors, name))


def _seconds(plan: GpuPlan, x: Tensor, operands: Sequence[Tensor], out: Tensor) -> float | None:
    """None for a configuration that this GPU does not take."""
    from triton.testing import do_bench

    try:
        return float(do_bench(lambda: execute(plan, x, operands, out), return_mode="median"))
    except NotOnGpu:
        return None


def _far(plan: GpuPlan, x: Tensor, others: Sequence[Tensor]) -> int:
    """The largest offset into a tensor that a kernel computes."""
    read = [kernel.furthest(x.stride()) for kernel in plan.kernels if kernel.piece.conv is not None]
    return max(*read, *map(_last, [x, *others]))


def _last(array: Tensor) -> int:
    """Offset of the last element."""
    return sum((size - 1) * stride for size, stride in zip(array.shape, array.stride(), strict=True))


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

    def __init__(self, plan: GpuPlan, x: Tensor, operands: Sequence[Tensor], out: Tensor) -> None:
        import torch

        self.plan, self.x = plan, x
        self.code: Module = module(plan)
        self.sums = getattr(torch, plan.dtype.accumulate)
        self.factors = torch.bfloat16 if plan.parts > 1 else x.dtype  # of products
        self.arrays: dict[ArrayName, Tensor] = {INPUT: x, OUTPUT: out}
        self.walled: set[ArrayName] = set()  # those with zeros around them, as far as dots read
        for at, operand in enumerate(operands):  # kernels read vectors without a stride
            self.arrays[OperandName(at)] = operand.contiguous() if operand.dim() == 1 else operand
        for name, shape in plan.stored:
            self.arrays[name] = x.new_empty(shape, dtype=self.sums)

    def run(self) -> None:
        loaded = load(self.code.text)
        for step, text in zip(self.plan.steps, self.code.kernels, strict=True):
            if step.prepare(self, text):
                self._launch(getattr(loaded, text.name), text)
            step.release(self)

    def _launch(self, function: Any, text: KernelText) -> None:
        arguments = [self._value(argument) for argument in text.arguments]
        try:
            function[(text.grid,)](
                *arguments, **dict(text.constexprs), **launch_options(text, arguments, self.plan.generation)
            )
        except _refusals() as error:
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
        """Memory for packed weights, and for a flag that stays on the device: no call waits for it."""
        import torch

        self.arrays[PACKED] = self.x.new_empty(size, dtype=self.factors)
        self.arrays[WILD] = self.x.new_zeros(1, dtype=torch.int32)
        return True

    def make_arrays(self, kernel: GpuKernel) -> bool:
        """Memory for what the kernel writes; False if it need not run."""
        piece = kernel.piece
        if isinstance(piece.dest, PreparedName):
            return self._make_input(kernel, piece.dest)
        if piece.reduce is not None and piece.partials is not None and not kernel.guarded:
            shape = (PLANES[piece.reduce], piece.shape[0], piece.result[1], kernel.parts)
            self.arrays[piece.partials] = self.x.new_empty(shape, dtype=self.sums)
        return True

    def make_statistics(self, names: Sequence[ArrayName], shape: tuple[int, ...]) -> bool:
        """Memory for a value (B, C, 1, 1, 1), or for vectors of numbers for each sample and channel."""
        for name in names:
            self.arrays[name] = self.x.new_empty((*shape[:2], 1, 1, 1), dtype=self.sums)
        return True

    def _make_input(self, kernel: GpuKernel, name: PreparedName) -> bool:
        """Of the convolution, in channels-last memory; the source itself if that is as its kernels want it."""
        memory, source = kernel.memory, self.arrays[kernel.piece.source]
        last = source.stride(1) == 1 or source.shape[1] == 1
        as_is = self.plan.precision == "ieee" and source.dtype == self.x.dtype and memory.filled == memory.inputs
        if kernel.copies and last and as_is:
            self.arrays[FilledName(name)] = source
            return False
        (low_d, low_h, low_w), (batch, _, *space) = memory.low, kernel.piece.result
        rows = self.x.new_empty((batch, *memory.sizes(space), memory.row), dtype=self.factors)
        self.arrays[name] = rows.permute(0, 4, 1, 2, 3)
        self.arrays[FilledName(name)] = self.arrays[name][:, :, low_d:, low_h:, low_w:]
        if kernel.walled:
            self.walled.add(FilledName(name))
        return True


def run_of(array: Any) -> int:
    """Of how many channels next to each other in memory the array surely consists, up to 16; 0 if they are not."""
    if array.stride(1) != 1 or array.shape[1] == 1:
        return 0
    sizes = zip(array.shape, array.stride(), strict=True)
    return gcd(16, *(stride for axis, (size, stride) in enumerate(sizes) if axis != 1 and size > 1))
