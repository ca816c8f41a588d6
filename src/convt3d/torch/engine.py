"""The CPU engine on plain tensors; what it cannot take goes to stock PyTorch, with one warning for each reason."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ..cpu.plan.choice import AUTO
from ..cpu.runtime.again import Again
from ..cpu.runtime.execute import EVERYONE
from ..cpu.runtime.memory import HUGE_FROM
from ..cpu.runtime.ready import Owner
from ..errors import Error
from ..front.apply import allocated, compute
from ..front.arrays import Storage, address_of, tensor_storage
from ..front.prepared import Weights
from ..spec.dtypes import DTYPES, DType
from ..spec.pipeline import Pipeline
from . import stock
from .layout import result_format
from .stock import Tensor

DTYPES_OF = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}
Room: TypeAlias = Callable[[Sequence[int]], "Tensor | None"]  # memory for a result of a shape, if there is
_told: set[str] = set()


class _Quick(NamedTuple):
    """What a call on tensors of a known layout does."""

    run: Again
    shape: tuple[int, ...]  # of the result
    memory_format: Any
    stride: tuple[int, ...]


def run_prepared(
    operator: str,
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    weights: Weights,
    room: Room | None = None,
) -> Tensor:
    """The same as `run`, for operands whose owner keeps `weights` made from them, and an x of their type."""
    if x.dim() == 4 and not pipeline.dropped:
        return run_prepared(operator, pipeline, x[None], operands, weights)[0]
    tensors = _tensors(pipeline, operands)
    quick: _Quick | None = weights.quick.get(_layout(x, tensors))
    if quick is not None:
        result = None
        if room is not None and quick.memory_format is torch.contiguous_format:
            result = room(quick.shape)
        if result is None:
            result = memory(operator, quick.shape, x.dtype, quick.memory_format)
        if result.stride() == quick.stride:
            addresses = (address_of(x), result.data_ptr(), *map(address_of, tensors))
            if not any(address % x.itemsize for address in addresses) and quick.run(*addresses):
                return result
    return run(operator, pipeline, x, operands, weights, room)


def run(
    operator: str,
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    weights: Weights | None = None,
    room: Room | None = None,
    passing: bool = False,
) -> Tensor:
    """The result on the CPU engine if it can take the tensors, else on stock PyTorch, which may refuse them as well.
    `passing`: the operands change before the next call, and nothing is kept for it but what `weights` have."""
    reason, refusal = _reason(x, operands), None
    if reason is None:
        try:
            return _on_engine(operator, pipeline, x, operands, weights, room, passing)
        except Error as error:
            reason, refusal = f"the CPU engine refuses its {error.argument}", error
    return run_stock(operator, pipeline, x, operands, reason, refusal)


def run_stock(
    operator: str,
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    reason: str,
    refusal: Error | None = None,
) -> Tensor:
    """`refusal` is shown beside the error that PyTorch itself may then raise."""
    try:
        result = stock.run(pipeline, x, operands)
    except Exception as error:
        raise error from refusal
    tell(operator, reason)
    return result


def tell(operator: str, reason: str) -> None:
    """One warning for each reason in the life of the process: a model calls its layers often."""
    if reason not in _told:
        _told.add(reason)
        warnings.warn(f"convt3d.torch: {operator} runs on stock PyTorch: {reason}", stacklevel=_level())


def _level() -> int:
    """Of the first caller outside convt3d and PyTorch, as `warnings` counts from `tell`."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("convt3d", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _reason(x: Tensor, operands: Sequence[Tensor]) -> str | None:
    """Why the engine cannot take these tensors; words that do not change from call to call."""
    if not knows(x.dtype):
        return unknown(x.dtype)
    for tensor in (x, *operands):
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            return foreign(tensor)
        if tensor.dtype is not x.dtype:
            return f"its tensors are of different types, {x.dtype} and {tensor.dtype}"
    return None


def dtype_of(kind: Any) -> DType:
    """Of one of the four element types of PyTorch."""
    return DTYPES_OF[kind]


def knows(dtype: Any) -> bool:
    """Whether it is one of the four element types."""
    return dtype in DTYPES_OF


def one_type(x: Tensor, operands: Sequence[Tensor]) -> bool:
    """Whether all are of one of them."""
    return knows(x.dtype) and all(each.dtype is x.dtype for each in operands)


def unknown(dtype: Any) -> str:
    return f"the CPU engine knows no {dtype}"


def foreign(tensor: Tensor) -> str:
    return f"the CPU engine takes no {tensor.layout} tensors on {tensor.device.type}".replace("torch.", "")


def _on_engine(
    operator: str,
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    weights: Weights | None,
    room: Room | None,
    passing: bool,
) -> Tensor:
    dtype = DTYPES_OF[x.dtype]
    source = tensor_storage(x, dtype, torch)
    arrays = [
        _full(array) if slot.operand.kind == "tensor" else array
        for slot, array in zip(
            pipeline.slots, [tensor_storage(tensor, dtype, torch) for tensor in operands], strict=True
        )
    ]
    result: Any = None
    chosen = torch.contiguous_format

    def allocate(shape: tuple[int, ...], inputs: Sequence[Storage]) -> Storage:
        nonlocal result, chosen
        unbatched = x.dim() == 4
        if pipeline.dropped:  # reductions give contiguous results
            result = torch.empty(shape, dtype=x.dtype)
            return tensor_storage(result, dtype, torch)
        if not (_plain(inputs[0]) and all(map(_plain, stock.weights_of(pipeline, arrays)))):
            chosen = result_format(pipeline, x[None] if unbatched else x, stock.weights_of(pipeline, operands))
        if room is not None and chosen is torch.contiguous_format and not unbatched:
            result = room(shape)
        if result is None:
            result = memory(operator, (1, *shape) if unbatched else shape, x.dtype, chosen)
            result = result[0] if unbatched else result
        return tensor_storage(result, dtype, torch, writable=True)

    if weights is None or passing:
        keeper = weights.owner.passing() if weights else Owner(lasting=False) if passing else EVERYONE
        compute(operator, pipeline, dtype, source, arrays, allocate, AUTO, keeper)
        return result
    _, again = compute(operator, pipeline, dtype, source, arrays, allocate, AUTO, weights.owner)
    if again is not None and x.dim() == 5:
        layout = _layout(x, _tensors(pipeline, operands))
        weights.remember(layout, _Quick(again, tuple(result.shape), chosen, result.stride()))
    return result


def _tensors(pipeline: Pipeline, operands: Sequence[Tensor]) -> list[Tensor]:
    """The operands of the value's shape, which are others at each call."""
    return [tensor for slot, tensor in zip(pipeline.slots, operands, strict=True) if slot.operand.kind == "tensor"]


def _layout(x: Tensor, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """All that a call depends on but addresses; PyTorch's strides of a result may depend on its settings."""
    settings = torch.get_num_threads(), torch._C._get_mkldnn_enabled()
    return settings, x.shape, x.stride(), *((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)


def memory(operator: str, shape: tuple[int, ...], kind: Any, memory_format: Any = torch.contiguous_format) -> Tensor:
    """An empty tensor. A large one has memory of ours, on huge pages and used again."""
    dtype = DTYPES_OF[kind]
    if prod(shape) * dtype.itemsize < HUGE_FROM:
        return torch.empty(shape, dtype=kind, memory_format=memory_format)
    last = memory_format is torch.channels_last_3d
    stored = allocated(operator, (shape[0], *shape[2:], shape[1]) if last else shape, dtype)
    stored = stored.transpose(0, 4, 1, 2, 3) if last else stored
    if dtype.name == "bfloat16":
        return torch.from_numpy(stored.view(np.int16)).view(kind)
    return torch.from_numpy(stored)


def result_like(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor of this shape and of the other's type and memory format."""
    plain = tensor.is_contiguous() or not tensor.is_contiguous(memory_format=torch.channels_last_3d)
    chosen = torch.contiguous_format if plain else torch.channels_last_3d
    return memory("gradients", shape, tensor.dtype, chosen)


def _full(array: Storage) -> Storage:
    """With five axes, as broadcasting adds them."""
    return array.reshape((1,) * (5 - array.ndim) + array.shape)


def _plain(array: Storage) -> bool:
    """`layout.plainly_contiguous`, asked of numpy, which answers sooner."""
    item = array.itemsize
    return array.flags.c_contiguous and array.strides[4] == item and array.strides[1] != item
