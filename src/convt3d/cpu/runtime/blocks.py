"""Native code that reads and writes arrays whose channels lie side by side; kernels get its addresses."""

from __future__ import annotations

from collections.abc import Sequence

from ..plan.machine import Machine
from .build import Code
from .compiled import compiled


def channels_adjacent(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """Of an array (B, C, D, H, W) of elements of `item` bytes."""
    return shape[1] > 1 and strides[1] == item != strides[4]


def transposing_code(dtype: str, host: Machine) -> Code:
    def write_ir() -> str:
        from ..code.tile import STORAGE  # here: nobody needs LLVM who finds the code on disk
        from ..ir.blocks import blocks_ir

        return blocks_ir(STORAGE[dtype], host)

    return compiled(f"squares {dtype} {host.isa}", write_ir, ("read", "write"), host)
