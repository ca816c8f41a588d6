"""The GPU engine on CUDA tensors; what it cannot take goes to stock PyTorch, with one warning for each reason."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

from ..errors import Error
from ..gpu import run as gpu
from ..gpu import tune
from ..gpu.again import Again
from ..gpu.config import AMD
from ..gpu.pieces import NotOnGpu
from ..recent import Recent
from ..spec.pipeline import Pipeline
from . import stock
from .engine import knows, run_stock
from .layout import empty, result_format
from .stock import Tensor

LEAST_CAPABILITY = (8, 0)
# By all that a call depends on: what it does, and the shape and strides of its result.
_calls: Recent[tuple[Again, Sequence[int], Sequence[int]]] = Recent(1024)
_NEWER_SETTINGS = hasattr(torch.backends.cuda.matmul, "fp32_precision")  # torch 2.9
LEAST_TRITON = (3, 4)  # as the extra `gpu` asks for: before it, float64 numbers reach a kernel as float32


def run(operator: str, pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """The result by Triton kernels if they can take the tensors, else by stock PyTorch, which may refuse them too."""
    place = _place(pipeline, x, operands, float32_precision())
    if (known := _repeated(pipeline, x, operands, place)) is not None:
        return known
    reason, refusal = why_not(x, operands), None
    if reason is None:
        try:
            return on_gpu(pipeline, x, operands)
        except NotOnGpu as why:
            reason = str(why)
        except Error as error:
            reason, refusal = f"the GPU engine refuses its {error.argument}", error
    return run_stock(operator, pipeline, x, operands, reason, refusal)


def on_gpu(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor], precision: str | None = None) -> Tensor:
    """CUDA tensors, or CPU tensors where Triton's interpreter is on (gpu/run.py)."""
    precision = float32_precision() if precision is None else precision
    place = _place(pipeline, x, operands, precision)
    batch, given, unbatched = stock.batched(pipeline, x, operands)
    output, shapes = _shapes(pipeline, batch.shape, tuple([tensor.shape for tensor in given]))
    given = [each if each.shape == shape else each.reshape(shape) for each, shape in zip(given, shapes, strict=True)]
    out = empty(batch, output, result_format(pipeline, batch, stock.weights_of(pipeline, given)))
    _, again = gpu.repeatable(pipeline, batch, given, out, precision)
    as_they_are = all(own.data_ptr() == each.data_ptr() for own, each in zip(given, operands, strict=True))
    if again is not None and as_they_are and place is not None:
        _calls.put(place, (again, out.shape, out.stride()))
    return stock.as_result(pipeline, out, unbatched)


def _place(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor], precision: str) -> Hashable | None:
    """All that a call depends on but the numbers in memory; None where it is not repeated."""
    learned = tune.state()
    lie: list[Hashable] = []
    for each in (x, *operands):
        if each.layout is not torch.strided:
            return None
        lie += each.shape, each.stride(), each.data_ptr() % 16 == 0, each.dtype, each.device
    return None if learned is None else (pipeline, precision, learned, *lie)


def _repeated(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor], place: Hashable | None) -> Tensor | None:
    """The result of a call that is known; None if it is not."""
    if place is None or (call := _calls.get(place)) is None:
        return None
    again, shape, strides = call
    out = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
    gpu.repeat(again, (x, out, *operands))
    return stock.as_result(pipeline, out, x.dim() == 4)


@lru_cache(maxsize=512)
def _shapes(
    pipeline: Pipeline, x: Sequence[int], operands: tuple[Sequence[int], ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Of the result, and of operands as kernels take them."""
    trace = pipeline.trace(tuple(x), tuple(map(tuple, operands)))
    return trace.output, trace.operand_shapes


def float32_precision() -> str:
    """How float32 is multiplied, by PyTorch's own settings: as three bfloat16 numbers of each factor, which gives all
    of its bits; product by product ("ieee") where TensorFloat32 is forbidden in convolutions, which PyTorch allows by
    default; in TensorFloat32 where it is allowed there and in matrix products as well, where it is not by default."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn
    if _NEWER_SETTINGS:
        exact, allowed = conv.conv.fp32_precision != "tf32", matmul.fp32_precision == "tf32"
    else:
        exact, allowed = not conv.allow_tf32, matmul.allow_tf32
    return "ieee" if exact else "tf32" if allowed else "bf16x6"


def why_not(x: Tensor, operands: Sequence[Tensor]) -> str | None:
    """Why the kernels cannot take these tensors; words that do not change from call to call."""
    if not knows(x.dtype):
        return f"the GPU engine knows no {x.dtype}"
    for tensor in (x, *operands):
        if tensor.device != x.device or tensor.layout is not torch.strided:
            return "the GPU engine takes strided tensors on one device"
        if tensor.dtype is not x.dtype:
            return f"its tensors are of different types, {x.dtype} and {tensor.dtype}"
    return _why_no_triton() or (_why_not_device(x.device) if x.is_cuda else None)


@lru_cache(maxsize=1)
def _why_no_triton() -> str | None:
    if not find_spec("triton"):
        return "the GPU engine needs triton, which is not installed"
    try:
        found = version("triton")
    except PackageNotFoundError:  # nightly builds of PyTorch bring it under another name, and a recent one
        return None
    if tuple(map(int, found.split(".")[:2])) < LEAST_TRITON:
        return f"the GPU engine needs triton {LEAST_TRITON[0]}.{LEAST_TRITON[1]}, and {found} is installed"
    return None


@lru_cache(maxsize=64)
def _why_not_device(device: Any) -> str | None:
    if torch.version.hip is not None:  # ROCm, whose devices PyTorch calls "cuda" as well
        if gpu.architecture(device) not in AMD:
            return f"the GPU engine knows of AMD's devices {', '.join(AMD)} only"
        return _why_no_driver()
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return "the GPU engine needs compute capability 8.0"
    return _why_no_driver()


@lru_cache(maxsize=1)
def _why_no_driver() -> str | None:
    """Triton builds its part of the driver when it is first asked: without a C compiler, with a driver that is too old
    or another kind of device than it knows, it raises whatever comes up."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # of imports, compilers, loaders and drivers
        return f"Triton cannot use this machine's GPU ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    return None
