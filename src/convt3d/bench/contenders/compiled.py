"""torch.compile of the same function, at its best: channels_last_3d, weights frozen as for a network that is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...torch.stock import function_of
from ..cases import Arrays, Case
from .base import Ready
from .eager import from_tensor, to_tensor
from .onednn import hold_below_amx, note


def contender(name: str) -> Compiled:
    return Compiled()


class Compiled:
    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        hold_below_amx()
        torch.set_num_threads(case.threads)
        torch._dynamo.reset()  # no guard of an earlier case is tried first, and shapes stay static
        kinds = [slot.operand.kind for slot in case.pipeline.slots]
        operands = [to_tensor(case, array, channels_last=True) for array in arrays.operands]
        module = _module(function_of(case.pipeline), kinds, operands).eval()
        x = to_tensor(case, arrays.x, channels_last=True)
        tensors = [tensor for kind, tensor in zip(kinds, operands, strict=True) if kind == "tensor"]
        fast = torch.compile(module, dynamic=False, options={"freezing": True})

        def run() -> Any:
            with torch.no_grad():
                return fast(x, tensors)

        return Ready(run, from_tensor, allocates=True, note=note(case.dtype))


def _module(function: Any, kinds: Sequence[str], operands: Sequence[Any]) -> Any:
    """Tensors of the value's shape (a skip) are inputs; all other operands are parameters, which are constants."""

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            held = [tensor for kind, tensor in zip(kinds, operands, strict=True) if kind != "tensor"]
            self.held = torch.nn.ParameterList([torch.nn.Parameter(tensor, requires_grad=False) for tensor in held])

        def forward(self, x: Any, tensors: list[Any]) -> Any:
            held, given = iter(self.held), iter(tensors)
            return function(x, [next(given) if kind == "tensor" else next(held) for kind in kinds])

    return Layer()
