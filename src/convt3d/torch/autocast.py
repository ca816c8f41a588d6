"""Autocast: the types that eager PyTorch would compute in, and give back, for the same chain of operations.

conv_transpose3d is on autocast's list of low precision. Pools are on its list of float32, and a float32 tensor that is
multiplied promotes the result; where the chain so ends in float32, all of it runs in float32. Operands beside the
convolution's own (a norm's statistics) are never rounded: such chains run in float32, and the result is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..spec.pipeline import Pipeline
from ..spec.stages import AvgPool3d, Binary, MaxPool3d
from .operators import Operator
from .stock import Tensor

DEVICES = {
    device: key
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"), ("mps", "AutocastMPS"))
    if hasattr(torch._C.DispatchKey, key)
}


def cast(operator: Operator, overload: Any, device: str, key: str) -> Callable[..., Tensor]:
    """The kernel of an autocast key: casts, then calls the operator again without autocast."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*arguments: Any) -> Tensor:
        pipeline, _, operands = operator.lower(*arguments)
        promoting = [arguments[operator.names.index(name)] for name in operator.promotes]
        if operator.operands == ("operands",):
            promoting = _second_values(pipeline, operands)
        wide = _ends_wide(pipeline) or any(tensor.dtype is torch.float32 for tensor in promoting)
        low = torch.get_autocast_dtype(device)
        exact = wide or any(slot.stage not in pipeline.convolutions for slot in pipeline.slots)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            result = overload(*(_cast(argument, device, torch.float32 if exact else low) for argument in arguments))
            return result if wide else _cast(result, device, low)

    return kernel


def _ends_wide(pipeline: Pipeline) -> bool:
    return any(isinstance(stage, (MaxPool3d, AvgPool3d)) for stage in pipeline.stages[pipeline.convolutions[-1] + 1 :])


def _second_values(pipeline: Pipeline, operands: Sequence[Tensor]) -> list[Tensor]:
    """Tensors that stages after the last convolution add, subtract, multiply or divide by."""
    return [
        tensor
        for slot, tensor in zip(pipeline.slots, operands, strict=True)
        if slot.stage > pipeline.convolutions[-1] and isinstance(pipeline.stages[slot.stage], Binary)
    ]


def _cast(argument: Any, device: str, dtype: Any) -> Any:
    """As autocast casts: floating-point tensors of the device, float64 left alone."""
    if isinstance(argument, (list, tuple)):
        return [_cast(each, device, dtype) for each in argument]
    if not isinstance(argument, torch.Tensor) or argument.device.type != device:
        return argument
    eligible = argument.is_floating_point() and argument.dtype is not torch.float64
    return argument.to(dtype) if eligible else argument
