"""The micro-kernel by tiles of AMX: 16 output channels, 16 positions a column, and as many pairs of channels at once as
divide those of a group. Inputs are read from the slab as it is: rows of a tile are channels of one tap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ..ir import amx
from ..ir.builder import Builder
from ..ir.frame import Kernel
from ..ir.values import F32, I64, PTR, vector

ROWS = 16


def tile_kernel(
    k: Kernel, rows: int, columns: int, deep: int, finish: Callable[[Builder, Sequence[ir.Value], int], None]
) -> ir.Function:
    """As `micro_kernel` of pairs, with weights [deep steps][16 rows][step]. The steps of a tap are a multiple of
    `deep`, `apart` numbers from one to the next; `finish` joins and stores the sums of a column, a vector a row."""
    name = f"tiles_{rows}x{columns}"
    if name in k.module.globals:
        return k.module.globals[name]
    names = ("x", "offsets", "steps", "w", "y", "channel", "bias", "before", "biased", "apart")
    pointers = ("x", "offsets", "w", "y", "bias")
    b = k.define(name, [(word, PTR if word in pointers else I64) for word in names], noalias=pointers)
    a, lanes = b.args, k.lanes
    with b.raw.goto_entry_block():
        room = b.raw.bitcast(b.raw.alloca(vector(F32, lanes), ROWS), PTR)
    for n in range(columns):
        amx.clear(b, n)
    with b.loop(0, a["steps"], deep) as s:
        at = b.load(a["offsets"], s, I64)
        amx.load_rows(b, a["w"], b.mul(s, ROWS), deep)
        for n in range(columns):
            amx.multiply_columns(b, n, a["x"], b.add(at, n * lanes), a["apart"])
    for n in range(columns):
        amx.store_sums(b, n, room, lanes)
        finish(b, [b.load(room, m * lanes, F32, lanes) for m in range(rows)], n)
    b.ret()
    return b.function
