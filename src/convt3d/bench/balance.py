"""Measures the machine in under a second: multiply-adds that stay in registers, and a copy too large for caches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ..cpu.plan.cores import get_num_threads
from ..cpu.plan.machine import Machine
from ..cpu.plan.plan import Plan
from ..cpu.plan.roofline import Rates
from ..cpu.runtime.build import Code, Function
from ..cpu.runtime.compiled import compiled
from ..cpu.runtime.memory import empty
from ..cpu.runtime.team import launch
from ..cpu.words import Array, Size, Words
from ..units import counted

_CHAINS = 12  # independent multiply-adds: more than two units have in flight, and few enough for 16 registers
_TURNS = 2_000_000
_REPEATS = 10
_COPIED = 64 << 20  # bytes of all threads, at least
_MOST_COPIED = 512 << 20


@dataclass(eq=False)
class MultiplyWords(Words):
    """Of `multiply`."""

    memory: Array  # a vector of factors, then one for the result of each worker
    turns: Size


@dataclass(eq=False)
class CopyWords(Words):
    """Of `copy`."""

    target: Array
    source: Array
    vectors: Size  # of a worker


def measured_rates(plan: Plan) -> Rates:
    """Rates of this machine, now, with the threads, vectors and numbers that the plan's kernels use."""
    threads, item = get_num_threads(), plan.dtype.number_bytes
    multiply, copy = multiplier(plan.machine, item, threads), copier(plan.machine, threads)
    flops, moved = (max(rate() for _ in range(_REPEATS)) for rate in (multiply, copy))
    twice = ", twice as many of pairs" if plan.together > 1 else ""
    source = f"measured, multiply-adds in registers{twice} and a large copy on {counted(threads, 'thread')}"
    return Rates(plan.together * flops, moved, source)


def multiplier(machine: Machine, item: int, threads: int) -> Callable[[], float]:
    """A function that measures once: FLOP/s of multiply-adds of `item`-byte numbers that stay in registers."""
    numbers = empty((threads + 1) * machine.lanes(item), f"f{item}")
    numbers[:] = 0.5
    flop = 2 * _CHAINS * machine.lanes(item) * _TURNS * threads
    function = _code(machine, item)["multiply"]
    return lambda: flop / _seconds(function, MultiplyWords(numbers, _TURNS), threads)


def copier(machine: Machine, threads: int) -> Callable[[], float]:
    """A function that measures once: bytes/s read and written by a copy of an array too large for the caches."""
    size = min(max(_COPIED, 4 * machine.l3), _MOST_COPIED)
    vectors = size // machine.vector_bytes // threads
    source, target = (empty(size, np.uint8) for _ in range(2))
    source[:], target[:] = 1, 2  # pages exist, and are not all the same one of zeros
    moved = 2 * vectors * machine.vector_bytes * threads
    function = _code(machine, 4)["copy"]
    return lambda: moved / _seconds(function, CopyWords(target, source, vectors), threads)


def _code(machine: Machine, item: int) -> Code:
    return compiled(f"balance {item}", lambda: _ir(machine, item), ("multiply", "copy"), machine)


def _seconds(function: Function, words: Words, threads: int) -> float:
    table = np.array(words.numbers(checked=False), np.int64)
    start = time.perf_counter()
    launch(function, table.ctypes.data, threads)
    return time.perf_counter() - start


def _ir(machine: Machine, item: int) -> str:
    """void multiply(ptr table, i64 worker) and void copy(ptr table, i64 worker)"""
    from llvmlite import ir  # here: nobody needs it who finds the code on disk

    from ..cpu.ir.builder import define
    from ..cpu.ir.frame import Table
    from ..cpu.ir.values import F32, F64, I64, PTR

    module, entry = ir.Module("balance"), [("table", PTR), ("worker", I64)]
    number, lanes = F64 if item == 8 else F32, machine.lanes(item)
    b = define(module, "multiply", entry)
    multiply: MultiplyWords = Table(b, [MultiplyWords]).sets[0]
    factor = b.load(multiply.memory, 0, number, lanes)
    with b.loop_carrying(0, multiply.turns, 1, [factor] * _CHAINS) as (_, chains):
        chains.next = [b.multiply_add(chain, factor, factor) for chain in chains.values]
    b.store(reduce(b.add, chains.result), multiply.memory, b.mul(b.add(b.args["worker"], 1), lanes))
    b.ret()
    b = define(module, "copy", entry)
    copy: CopyWords = Table(b, [CopyWords]).sets[0]
    first = b.mul(b.args["worker"], copy.vectors)
    with b.loop(first, b.add(first, copy.vectors)) as vector:
        at = b.mul(vector, lanes)
        b.store(b.load(copy.source, at, number, lanes), copy.target, at)
    b.ret()
    return str(module)
