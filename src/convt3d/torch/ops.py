"""Tells PyTorch of the operators `torch.ops.convt3d.*`: kernels for the CPU, for CUDA and for all other devices,
results of unknown contents for tracing, gradients, autocast and vmap. One loop, since all of them are pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import register_decomposition
from torch.utils.flop_counter import register_flop_formula

from ..spec.pipeline import Pipeline
from ..spec.stages import ConvTranspose3d
from . import derivatives, gpu, stock
from .autocast import DEVICES, cast
from .engine import foreign, run, run_stock
from .inductor import call_as_they_are
from .layout import empty, result_format
from .operators import OPERATORS, Operator
from .stock import Tensor

NAMESPACE: Any = torch.ops.convt3d
_library = torch.library.Library("convt3d", "DEF")


def _register(operator: Operator) -> None:
    name, qualified = operator.name, f"convt3d::{operator.name}"
    _library.define(f"{name}({operator.schema}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(NAMESPACE, name).default
    _library.impl(name, lambda *arguments: run(name, *operator.lower(*arguments)), "CPU")
    _library.impl(name, lambda *arguments: gpu.run(name, *operator.lower(*arguments)), "CUDA")
    _library.impl(name, _elsewhere(operator), "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, _fake(operator), lib=_library)
    _library.impl(name, derivatives.kernel(operator, overload), "Autograd", with_keyset=True)
    for device, key in DEVICES.items():
        _library.impl(name, cast(operator, overload, device, key), key)
    # In PyTorch's own operations, for exporters that know no others: ONNX.
    register_decomposition(overload)(lambda *arguments: stock.run(*operator.lower(*arguments)))
    register_flop_formula(getattr(NAMESPACE, name), get_raw=True)(_flops(operator))
    if hasattr(torch.library, "register_vmap"):  # torch 2.5; before, PyTorch's own loop over samples takes its place
        torch.library.register_vmap(qualified, _vmap(operator, overload), lib=_library)


def _elsewhere(operator: Operator) -> Callable[..., Tensor]:
    """MPS and all others: stock PyTorch."""

    def kernel(*arguments: Any) -> Tensor:
        pipeline, x, operands = operator.lower(*arguments)
        return run_stock(operator.name, pipeline, x, operands, foreign(x))

    return kernel


def _fake(operator: Operator) -> Callable[..., Tensor]:
    """Shape and type from stock PyTorch, which also checks the arguments; strides as the kernel gives them."""

    def kernel(*arguments: Any) -> Tensor:
        call_as_they_are([getattr(NAMESPACE, operator.name).default])
        pipeline, x, operands = operator.lower(*arguments)
        x, operands, unbatched = stock.batched(pipeline, x, operands)
        result = stock.values(pipeline, x, operands, {len(pipeline.stages)})[len(pipeline.stages)]
        result = empty(result, result.shape, result_format(pipeline, x, stock.weights_of(pipeline, operands)))
        return stock.as_result(pipeline, result, unbatched)

    return kernel


def _flops(operator: Operator) -> Callable[..., int]:
    """What `torch.utils.flop_counter` counts: of the convolutions alone, as it does for PyTorch's own."""

    def count(*arguments: Any, out_val: Any = None, **named: Any) -> int:
        pipeline, x, operands = operator.lower(*arguments, **named)
        x, operands, _ = stock.batched(pipeline, x, operands)
        shapes, total = stock.value_shapes(pipeline, x, operands), 0
        for index, weight in zip(pipeline.convolutions, stock.weights_of(pipeline, operands), strict=True):
            # every weight meets each input of a transposed convolution, each output of another
            transposed = isinstance(pipeline.stages[index], ConvTranspose3d)
            batch, _, d, h, w = shapes[index if transposed else index + 1]
            total += int(2 * batch * d * h * w * weight.numel())
        return total

    return count


# --- vmap -------------------------------------------------------------------------------------------------------------


def _vmap(operator: Operator, overload: Any) -> Callable[..., tuple[Tensor, int]]:
    """A batched input alone becomes a larger batch, unless operands have a batch too; else samples are looped over."""

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Tensor, int]:
        x, at = arguments[0], in_dims[0]
        alone = at is not None and all(dim is None or dim == [] for dim in map(_without_none, in_dims[1:]))
        if alone and x.dim() == 6 and _same_for_all_samples(*operator.lower(*arguments)):
            moved = x.movedim(at, 0)
            result = overload(moved.flatten(0, 1), *arguments[1:])
            return result.unflatten(0, moved.shape[:2]), 0
        if alone and x.dim() == 5 and _same_for_all_samples(*operator.lower(*arguments)):
            return overload(x.movedim(at, 0), *arguments[1:]), 0
        samples = [
            overload(*(_sample(argument, dim, index) for argument, dim in zip(arguments, in_dims, strict=True)))
            for index in range(info.batch_size)
        ]
        return torch.stack(samples), 0

    return rule


def _same_for_all_samples(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor]) -> bool:
    """Whether all operands meet a larger batch of x: none has the batch, or the missing batch, of one sample."""
    values = [tensor for slot, tensor in zip(pipeline.slots, operands, strict=True) if slot.operand.kind == "tensor"]
    return all(tensor.dim() == 5 and tensor.shape[0] == 1 for tensor in values)


def _without_none(dim: Any) -> Any:
    return [each for each in dim if each is not None] if isinstance(dim, (list, tuple)) else dim


def _sample(argument: Any, dim: Any, index: int) -> Any:
    if isinstance(dim, (list, tuple)):
        return [_sample(each, own, index) for each, own in zip(argument, dim, strict=True)]
    return argument if dim is None else argument.select(dim, index)


for _operator in OPERATORS:
    _register(_operator)
