"""Products of four warps at once whose factors lie in shared memory (wgmma), in the layouts that descriptors name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .memory import Fault
from .moves import names_of
from .numbers import Array, from_bits
from .text import Instruction, Operand, Unknown
from .warps import WARP, add_product, left_matrix

if TYPE_CHECKING:
    from .arithmetic import Meaning
    from .machine import Machine

GROUP = 4  # warps
_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_PATTERNS = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes of a row of the pattern


def factor_places(descriptor: Array, across: int, depth: int, size: int, across_runs: bool) -> Array:
    """Addresses (descriptors, across, depth) of elements of `size` bytes: `across` are rows of the left factor or
    columns of the right one, and lie next to each other if `across_runs`, else the summed index does.

    A pattern has 8 rows of 16, 32, 64 or 128 bytes; the descriptor says where patterns repeat along both axes. Within
    eight rows, pieces of 16 bytes change places: bits 4 to 6 of an address are combined with bits 7 to 9."""
    start, leading, stride = (
        ((descriptor >> np.uint64(at)).astype(np.int64) & 0x3FFF)[:, None, None] << 4 for at in (0, 16, 32)
    )
    layouts = np.unique(descriptor >> np.uint64(62))
    if len(layouts) != 1 or (descriptor >> np.uint64(49) & np.uint64(7)).any():
        raise Unknown("descriptors of different layouts")
    width = _PATTERNS[int(layouts[0])]
    a, k = np.arange(across)[:, None], np.arange(depth)[None, :]
    run, row = (a * size, k) if across_runs else (k * size, a)  # bytes along the rows of a pattern, and which row
    if width == 16 and across_runs:
        leading, stride = stride, leading
    places = start + run // width * leading + run % width + row % 8 * width + row // 8 * stride
    return places ^ ((places >> 7) % (width // 16) << 4)


def _factor(m: Machine, operand: Operand, groups: Array, kind: str, sizes: tuple[int, int], runs: bool) -> Array:
    """(groups, across, depth) in float64, by a descriptor. The product may read it until it is waited for, so that it
    must be the same then."""
    bits = 16 if kind in ("f16", "bf16") else 32
    descriptor = m.value(operand, "b64").reshape(-1, GROUP * WARP)[groups, 0]
    address = factor_places(descriptor, *sizes, bits // 8, runs).reshape(-1).astype(np.uint64)
    first = groups * GROUP * WARP  # its threads
    blocks, warps = (np.repeat(one[first], sizes[0] * sizes[1]) for one in (m.own, m.warp))
    words = m.shared.load(address, blocks, warps, bits, 1)
    places = m.shared.places(address, blocks, bits, 1) * 8 // bits
    shared, each = m.shared, sizes[0] * sizes[1]

    def end(at: Array) -> None:
        if (shared.bytes.view(words.dtype)[places] != words).reshape(-1, each)[at].any():
            raise Fault("race", "a factor in shared memory was changed before its product was waited for")

    m.products.begin(first, end)
    matrix = words.reshape(len(groups), *sizes)
    if kind == "tf32":
        return (matrix & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return from_bits(matrix, kind).astype(np.float64)


def _wgmma(m: Machine, i: Instruction) -> None:
    word = i.parts[0]
    if word == "fence":
        return
    if word == "commit_group":
        return m.products.commit(m.active)
    if word == "wait_group":
        return m.products.wait(m.active, int(str(i.operands[0]), 0))
    found = next((one for part in i.parts if (one := _SHAPE.fullmatch(part))), None)
    *_, result, left, right = i.parts
    if word != "mma_async" or found is None or result != "f32" or left not in ("f16", "bf16", "tf32") or right != left:
        raise Unknown(i.words)
    columns, depth = int(found[1]), int(found[2])
    sums, a, b, scale, *signs = i.operands
    if [int(str(one), 0) for one in signs[:2]] != [1, 1]:
        raise Unknown(f"{i.words} of a factor with its sign changed")
    whole = m.active.reshape(-1, GROUP * WARP)
    groups = np.flatnonzero(whole.any(1))
    if not whole[groups].all():
        raise Fault("barrier", "not all threads of four warps take part")
    warps = (groups[:, None] * GROUP + np.arange(GROUP)).reshape(-1)
    runs = [bool(int(str(one), 0)) for one in signs[2:]]  # whether rows of a, columns of b lie next to each other
    if isinstance(a, tuple):
        x = left_matrix(m, a, left, 16, depth, warps)
    else:
        x = _factor(m, a, groups, left, (64, depth), bool(runs and runs[0])).reshape(-1, 16, depth)
    y = _factor(m, b, groups, right, (columns, depth), bool(runs and runs[-1]))
    kept = np.broadcast_to(m.value(scale, "pred"), m.lanes)
    for name in names_of(sums):  # those that begin anew
        m.put(name, np.where(kept, m.value(name, "f32"), np.float32(0)), "f32")
    product = x @ np.repeat(y.swapaxes(1, 2), GROUP, 0)
    add_product(m, names_of(sums), names_of(sums), product, "f32", warps)


MEANINGS: Mapping[str, Meaning] = {"wgmma": _wgmma}
