"""PyTorch's oneDNN without AMX, on processors that have it.

oneDNN 3.12, which PyTorch 2.13 brings, uses tiles there that it has not configured: bfloat16 transposed convolutions
with a stride end the process with an illegal instruction. It reads its limit once, before its first convolution.
"""

from __future__ import annotations

import os
from functools import cache

import torch

from ...cpu.plan.host import cpu_identity
from ...spec.dtypes import DType

VARIABLE, LIMIT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"


@cache
def hold_below_amx() -> bool:
    """Whether it is held. The variable is taken back: other libraries bring a oneDNN of their own."""
    if "amx_tile" not in (cpu_identity() or "") or VARIABLE in os.environ:
        return os.environ.get(VARIABLE) == LIMIT
    os.environ[VARIABLE] = LIMIT
    try:
        torch.conv_transpose3d(torch.ones(1, 16, 2, 2, 2), torch.ones(16, 16, 3, 3, 3))
    finally:
        del os.environ[VARIABLE]
    return True


def note(dtype: DType) -> str:
    """What a result of PyTorch in this type should say about it."""
    if dtype.itemsize > 2 or not hold_below_amx():
        return ""
    return f"without AMX ({VARIABLE}={LIMIT}): with it, oneDNN crashes in 16-bit transposed convolutions with a stride"
