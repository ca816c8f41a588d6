"""Whether two large arrays have the same bits: all threads look, each at its part."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..plan.cores import get_num_threads
from ..plan.machine import Machine, machine
from ..words import CompareWords
from .build import Code
from .compiled import compiled
from .regions import faults
from .team import launch

if TYPE_CHECKING:
    from ..ir.frame import Table

LARGE = 1 << 19  # bytes: below, numpy is as fast
_LANES = 8


def same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """For contiguous arrays of one size and type."""
    length, threads, host = a.nbytes // 8, get_num_threads(), machine()
    share = -(-length // (threads * _LANES)) * _LANES
    answers = np.zeros(threads, np.int64)
    with faults("compare") if host.check_bounds else nullcontext(0) as noted:
        words = CompareWords(a, b, length, share, answers, noted)
        table = np.array(words.numbers(host.check_bounds), np.int64)
        launch(_code(host)["differ"], table.ctypes.data, threads)
    rest = [array.reshape(-1).view(np.uint8)[8 * length :].tobytes() for array in (a, b)]
    return rest[0] == rest[1] and not answers.any()


def _code(host: Machine) -> Code:
    return compiled("compare", lambda: str(emit_compare(host.check_bounds).b.module), ("differ",), host)


def emit_compare(check_bounds: bool = False) -> Table:
    """void differ(ptr table, i64 thread), with the table of CompareWords."""
    from llvmlite import ir  # here: nobody needs it who finds the code on disk

    from ..ir.bounds import CheckedBuilder
    from ..ir.builder import define
    from ..ir.frame import Table
    from ..ir.values import I64, PTR, constant, vector

    entry, builder = [("table", PTR), ("thread", I64)], CheckedBuilder if check_bounds else None
    table = Table(define(ir.Module("compare"), "differ", entry, builder=builder), [CompareWords])
    b, words = table.b, table.sets[0]
    start = b.mul(b.args["thread"], words.share)
    end = b.min(b.add(start, words.share), words.length)
    whole = b.add(start, b.bits("and_", b.max(b.sub(end, start), 0), -_LANES))
    nothing = constant(vector(I64, _LANES), 0)
    with b.loop_carrying(start, whole, _LANES, [nothing]) as (at, seen):
        pair = [b.load(array, at, I64, _LANES) for array in (words.one, words.other)]
        seen.next = [b.bits("or_", seen.values[0], b.bits("xor", *pair))]
    different = b.reduce(seen.result[0], lambda x, y: b.bits("or_", x, y))
    with b.loop_carrying(whole, end, 1, [different]) as (at, last):
        x, y = (b.load(array, at, I64) for array in (words.one, words.other))
        last.next = [b.bits("or_", last.values[0], b.bits("xor", x, y))]
    b.store(last.result[0], words.answers, b.args["thread"])
    b.ret()
    return table
