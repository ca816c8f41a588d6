"""Whether two large arrays have the same bits: all threads look, each at its part."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from ..plan.cores import get_num_threads
from ..plan.machine import Machine, machine
from .build import Code
from .compiled import compiled
from .regions import faults
from .team import launch

LARGE = 1 << 19  # bytes: below, numpy is as fast
_LANES = 8
_FIELDS = 6  # two addresses, words of 8 bytes in all, and of one thread, threads, faults; then each thread's answer


def same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """For contiguous arrays of one size and type."""
    words, threads = a.nbytes // 8, get_num_threads()
    share = -(-words // (threads * _LANES)) * _LANES
    table = np.zeros(_FIELDS + threads, np.int64)
    host = machine()
    with faults("compare") if host.check_bounds else nullcontext(0) as noted:
        table[:_FIELDS] = a.ctypes.data, b.ctypes.data, words, share, threads, noted
        launch(_code(host)["differ"], table.ctypes.data, threads)
    rest = [array.reshape(-1).view(np.uint8)[8 * words :].tobytes() for array in (a, b)]
    return rest[0] == rest[1] and not table[_FIELDS:].any()


def _code(host: Machine) -> Code:
    return compiled("compare", lambda: compare_ir(host.check_bounds), ("differ",), host)


def compare_ir(check_bounds: bool = False) -> str:
    """void differ(ptr table, i64 thread)"""
    from llvmlite import ir  # here: nobody needs it who finds the code on disk

    from ..ir.bounds import CheckedBuilder
    from ..ir.builder import define
    from ..ir.values import I64, PTR, constant, vector

    module = ir.Module("compare")
    checked = CheckedBuilder if check_bounds else None
    b = define(module, "differ", [("table", PTR), ("thread", I64)], builder=checked)
    table, thread = b.args["table"], b.args["thread"]
    if isinstance(b, CheckedBuilder):
        b.trust(table)
    one, other, words, share = (b.load(table, field, I64) for field in range(_FIELDS - 2))
    pointers = [b.raw.inttoptr(address, PTR) for address in (one, other)]
    if isinstance(b, CheckedBuilder):
        threads, noted = (b.load(table, field, I64) for field in (_FIELDS - 2, _FIELDS - 1))
        b.faults, begin = b.raw.inttoptr(noted, PTR), b.raw.ptrtoint(table, I64)
        b.confine(table, begin, b.i64(b.add(begin, b.mul(b.add(threads, _FIELDS), 8))), "table")
        for pointer, address, name in zip(pointers, (one, other), ("one", "other"), strict=True):
            b.confine(pointer, address, b.i64(b.add(address, b.mul(words, 8))), name)
    start = b.mul(thread, share)
    end = b.min(b.add(start, share), words)
    whole = b.add(start, b.bits("and_", b.max(b.sub(end, start), 0), -_LANES))
    nothing = constant(vector(I64, _LANES), 0)
    with b.loop_carrying(start, whole, _LANES, [nothing]) as (at, seen):
        pair = [b.load(pointer, at, I64, _LANES) for pointer in pointers]
        seen.next = [b.bits("or_", seen.values[0], b.bits("xor", *pair))]
    different = b.reduce(seen.result[0], lambda x, y: b.bits("or_", x, y))
    with b.loop_carrying(whole, end, 1, [different]) as (at, last):
        x, y = (b.load(pointer, at, I64) for pointer in pointers)
        last.next = [b.bits("or_", last.values[0], b.bits("xor", x, y))]
    b.store(last.result[0], table, b.add(thread, _FIELDS))
    b.ret()
    return str(module)
