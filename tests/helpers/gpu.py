"""Cases that run through the Triton kernels: by Triton's interpreter on CPU tensors, on a GPU with TRITON_INTERPRET=0
(`make test-gpu`), or as PTX for the capability CONVT3D_TEST_PTX, run on the CPU, with TRITON_INTERPRET=0."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from helpers.draws import Case, make

from convt3d.gpu.run import run
from convt3d.spec.pipeline import Pipeline

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CAPABILITY = int(os.environ.get("CONVT3D_TEST_PTX", "0"))  # whose PTX is run on the CPU; 0: none
DEVICE = "cpu" if INTERPRETED or CAPABILITY else "cuda"
if CAPABILITY:
    from convt3d.gpu import run as gpu_run
    from convt3d.judge.ptx import memory
    from convt3d.judge.ptx.driver import use

    use(CAPABILITY)
    # Threads that compute one sum must have the same bits: ours do, whatever the machine lets pass of others.
    memory._copies_of_a_sum = lambda a, b: False
    gpu_run._capability = lambda x: CAPABILITY
elif not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("TRITON_INTERPRET is off, and there is no GPU", allow_module_level=True)

LARGEST = 0  # the largest tile: few programs, which the interpreter likes


def tensor(array: Any, dtype: str) -> Any:
    """The same memory, or a copy on the GPU; numpy has no bfloat16, and torch no negative strides."""
    array = array if min(array.strides, default=0) >= 0 else array.copy()
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(DEVICE)
    return torch.from_numpy(array).to(DEVICE)


def stored(result: Any) -> Any:
    result = result.cpu()
    return result.view(torch.int16).numpy().view(np.uint16) if result.dtype == torch.bfloat16 else result.numpy()


class GpuCase(Case):
    """As `Case`, but the kernels are those of a GPU; `options` are of every run."""

    options: Mapping[str, Any] = MappingProxyType({})

    def tensors(self) -> tuple[Any, list[Any]]:
        return tensor(self.x, self.dtype.name), [tensor(operand, self.dtype.name) for operand in self.operands]

    def run(self, out: Any = None, choice: int | None = LARGEST, **options: Any) -> Any:
        x, operands = self.tensors()
        if out is None:
            out = torch.empty(self.output, dtype=x.dtype, device=DEVICE)
        out.fill_(torch.nan)
        return stored(run(self.pipeline, x, operands, out, choice=choice, **self.options, **options))


def gpu_case(
    pipeline: Pipeline, x: tuple[int, ...], kernel: tuple[int, ...], dtype: str = "float32", seed: int = 0
) -> GpuCase:
    return on_gpu(make(pipeline, x, kernel, dtype, seed))


def on_gpu(case: Case) -> GpuCase:
    return GpuCase(case.pipeline, case.dtype, case.x, case.operands)
