"""PyTorch as one writes it, with tensors contiguous or channels_last_3d."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...torch.stock import function_of
from ..cases import Arrays, Case, Storage
from .base import Ready
from .onednn import hold_below_amx, note


def contender(name: str) -> Eager:
    return Eager(channels_last=name.endswith("channels-last"))


@dataclass(frozen=True)
class Eager:
    channels_last: bool

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        hold_below_amx()
        torch.set_num_threads(case.threads)
        if case.training:
            from ..training import eager, prepare_step

            return prepare_step(case, arrays, eager(case), self.channels_last, note(case.dtype))
        function = function_of(case.pipeline)
        x, *operands = (to_tensor(case, array, self.channels_last) for array in (arrays.x, *arrays.operands))

        def run() -> Any:
            with torch.inference_mode():
                return function(x, operands)

        return Ready(run, from_tensor, allocates=True, note=note(case.dtype))


def to_tensor(case: Case, array: Storage, channels_last: bool) -> Any:
    """The array as a tensor; bfloat16 is stored as its bits."""
    bits = array.view(np.int16) if case.dtype.name == "bfloat16" else array
    tensor = torch.from_numpy(bits)
    tensor = tensor.view(torch.bfloat16) if case.dtype.name == "bfloat16" else tensor
    return tensor.contiguous(memory_format=torch.channels_last_3d) if channels_last and tensor.ndim == 5 else tensor


def from_tensor(tensor: Any) -> Storage:
    bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    array: Storage = bits.numpy()
    return array.view(np.uint16) if tensor.dtype == torch.bfloat16 else array
