"""Derivatives of the operators, as one kernel of PyTorch's Autograd key: backward, forward mode, and both at once.

torch.func's transforms (jvp, vjp, jacfwd, hessian, ...) call this kernel once for each of their levels, with tensors of
that level; so the kernel knows nothing of them. Forward mode: a convolution is linear in input, weight and bias, so its
tangent is a sum of convolutions; other pipelines are that convolution and PyTorch's own operations around it. Dual
numbers that are recorded for backward as well are left to PyTorch's own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import Function, _SingleLevelFunction

from ..spec import stages
from ..spec.pipeline import Pipeline
from . import stock
from .convolutions import conv, own_convolutions
from .gradients import gradients, needs_result, operands_read
from .operators import Operator
from .stage_gradients import wider
from .stock import Tensor

_C: Any = torch._C
_LEVEL = 0  # PyTorch has no other level of dual numbers


def kernel(operator: Operator, overload: Any) -> Callable[..., Tensor]:
    """The kernel of the Autograd key, to be registered with the set of keys as its first argument."""

    def autograd(keys: Any, *arguments: Any) -> Tensor:
        recording, forward = torch.is_grad_enabled(), _C._is_fwd_grad_enabled()

        def below() -> Tensor:
            # What lies below may be an outer level of torch.func, which records for itself, as the caller allows.
            with torch.set_grad_enabled(recording), _set_fwd_grad_enabled(forward), _C._AutoDispatchBelowAutograd():
                return overload.redispatch(keys & _C._after_autograd_keyset, *arguments)

        pipeline, x, operands = operator.lower(*arguments)
        tensors = (x, *operands)
        if _C._is_fwd_grad_enabled():
            pairs = [_unpacked(tensor) for tensor in tensors]
            if any(tangent is not None for _, tangent in pairs):
                return _forward_mode(pipeline, tensors, pairs)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return record(below, pipeline, tensors)
        return below()

    return autograd


def record(below: Callable[[], Tensor], pipeline: Pipeline, tensors: Sequence[Tensor]) -> Tensor:
    """below(), the result of the pipeline for x and its operands, with what backward needs."""
    with enable_single_level_autograd_function():
        return _Recorded.apply(below, pipeline, *tensors)


def _kept(pipeline: Pipeline, wanted: tuple[bool, ...]) -> tuple[bool, tuple[bool, ...]]:
    """Whether backward needs the result, and which operands it reads."""
    try:
        return _known_kept(pipeline, wanted)
    except Exception:  # sizes that are symbols are no keys
        return needs_result(pipeline, wanted), tuple(operands_read(pipeline, wanted))


@lru_cache(maxsize=1024)
def _known_kept(pipeline: Pipeline, wanted: tuple[bool, ...]) -> tuple[bool, tuple[bool, ...]]:
    return needs_result(pipeline, wanted), tuple(operands_read(pipeline, wanted))


# --- reverse mode -----------------------------------------------------------------------------------------------------


class _Recorded(_SingleLevelFunction):  # type: ignore[misc]
    """forward(below, pipeline, x, *operands): `below` computes what the arguments of the call mean. It is of a single
    level, for the levels of torch.func have called this kernel already."""

    @staticmethod
    def forward(ctx: Any, below: Callable[[], Tensor], pipeline: Pipeline, *tensors: Tensor) -> Tensor:
        result, operands = below(), tensors[1:]
        wanted = ctx.needs_input_grad[2:]
        ctx.pipeline = pipeline
        ctx.result_kept, read = _kept(pipeline, wanted)
        ctx.shapes = [None if reads else tensor.shape for tensor, reads in zip(operands, read, strict=True)]
        kept = [tensor for tensor, reads in zip(operands, read, strict=True) if reads]
        ctx.save_for_backward(tensors[0], *kept, *([result] if ctx.result_kept else []))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *kept = ctx.saved_tensors
        result = kept.pop() if ctx.result_kept else None
        rest = iter(kept)
        unread = x.new_full((), torch.nan)  # would show if it were read
        operands = [next(rest) if shape is None else unread.expand(shape) for shape in ctx.shapes]
        wanted = ctx.needs_input_grad[2:]
        return None, None, *gradients(ctx.pipeline, grad, x, operands, result, wanted)

    _compiled_autograd_key = staticmethod(Function._compiled_autograd_key)


# --- forward mode -----------------------------------------------------------------------------------------------------


def _unpacked(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Its value and its tangent. Within torch.func only tensors of a level have one."""
    functorch = torch._C._functorch
    if functorch.peek_interpreter_stack() is not None and not functorch.is_functorch_wrapped_tensor(tensor):
        return tensor, None
    primal, tangent = torch._VF._unpack_dual(tensor, level=_LEVEL)
    return (tensor, None) if tangent is None else (primal, tangent)


def _forward_mode(
    pipeline: Pipeline, tensors: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor | None]]
) -> Tensor:
    """The result with its tangent."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        # What backward keeps must have tangents too: PyTorch's own convolution does it.
        return stock.run(pipeline, tensors[0], tensors[1:], _NORMS)
    if len(pipeline.stages) > 1:
        return stock.run(pipeline, tensors[0], tensors[1:], {**own_convolutions(pipeline), **_NORMS})
    primals = [primal for primal, _ in pairs]
    x, weight, *_ = primals
    dx, dw, *db = (tangent for _, tangent in pairs)
    value = conv(pipeline.conv, *primals)
    parts = [] if dx is None else [conv(pipeline.conv, dx, weight)]
    parts += [] if dw is None else [conv(pipeline.conv, x, dw)]
    parts += [each.reshape(-1, 1, 1, 1).expand(value.shape) for each in db if each is not None]
    return torch._VF._make_dual(value, sum(parts[1:], parts[0]), level=_LEVEL)


def _standardised(v: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    variance, mean = torch.var_mean(v, tuple(axes), correction=0, keepdim=True)
    return (v - mean) * torch.rsqrt(variance + eps)


def _norm(unit: Callable[..., Tensor], affine_from: int = 0) -> Callable[..., Tensor]:
    """A norm as arithmetic: PyTorch's own have wrong second derivatives in forward mode, and do not compile there."""

    def meaning(stage: Any, v: Tensor, *own: Tensor) -> Tensor:
        width = isinstance(stage, stages.LayerNorm) and stage.over == "width"
        wide = [wider(each) for each in own]
        result = unit(stage, wider(v), *wide[:affine_from])
        if len(own) > affine_from:
            weight, bias = (each if width else stock.column(each) for each in wide[affine_from:])
            result = result * weight + bias
        return result.to(v.dtype)

    return meaning


def _by_groups(v: Tensor, groups: int, eps: float) -> Tensor:
    batch, channels, *space = v.shape
    split = v.reshape(batch, groups, channels // groups, *space)
    return _standardised(split, (2, 3, 4, 5), eps).reshape(v.shape)


_NORMS = {
    stages.LayerNorm: _norm(lambda s, v: _standardised(v, (1 if s.over == "channels" else 4,), s.eps)),
    stages.GroupNorm: _norm(lambda s, v: _by_groups(v, s.num_groups, s.eps)),
    stages.InstanceNorm: _norm(lambda s, v: _by_groups(v, v.shape[1], s.eps)),
    stages.BatchNorm: _norm(
        lambda s, v, mean, var: (v - stock.column(mean)) * torch.rsqrt(stock.column(var) + s.eps), affine_from=2
    ),
}
