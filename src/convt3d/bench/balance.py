"""Measures the machine in under a second: multiply-adds that stay in registers, and a copy too large for caches."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..cpu.plan.cores import get_num_threads
from ..cpu.plan.machine import Machine
from ..cpu.plan.plan import Plan
from ..cpu.plan.roofline import Rates
from ..cpu.runtime.build import Code, Function
from ..cpu.runtime.compiled import compiled
from ..cpu.runtime.memory import empty
from ..cpu.runtime.team import launch
from ..units import counted

_CHAINS = 12  # independent multiply-adds: more than two units have in flight, and few enough for 16 registers
_TURNS = 2_000_000
_REPEATS = 10
_COPIED = 64 << 20  # bytes of all threads, at least
_MOST_COPIED = 512 << 20

# void multiply(int64 *[out, turns], int64 worker)  and  void copy(int64 *[to, from, vectors of a worker], int64 worker)
_IR = """
declare {vector} @llvm.fmuladd.{suffix}({vector}, {vector}, {vector})

define void @multiply(ptr %arguments, i64 %worker) {{
entry:
  %turns.at = getelementptr i64, ptr %arguments, i64 1
  %turns = load i64, ptr %turns.at
  %out = load ptr, ptr %arguments
  %factor.at = getelementptr {vector}, ptr %out, i64 0
  %factor = load {vector}, ptr %factor.at
  br label %loop
loop:
  %turn = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %turn, 1
  %more = icmp ult i64 %next, %turns
  br i1 %more, label %loop, label %end
end:
{sums}
  %place = add i64 %worker, 1
  %out.at = getelementptr {vector}, ptr %out, i64 %place
  store {vector} %sum{last}, ptr %out.at
  ret void
}}

define void @copy(ptr %arguments, i64 %worker) {{
entry:
  %from.at = getelementptr i64, ptr %arguments, i64 1
  %count.at = getelementptr i64, ptr %arguments, i64 2
  %to = load ptr, ptr %arguments
  %from = load ptr, ptr %from.at
  %count = load i64, ptr %count.at
  %first = mul i64 %worker, %count
  %end = add i64 %first, %count
  br label %loop
loop:
  %at = phi i64 [ %first, %entry ], [ %next, %loop ]
  %source = getelementptr {vector}, ptr %from, i64 %at
  %target = getelementptr {vector}, ptr %to, i64 %at
  %value = load {vector}, ptr %source
  store {vector} %value, ptr %target
  %next = add i64 %at, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def measured_rates(plan: Plan) -> Rates:
    """Rates of this machine, now, with the threads, vectors and numbers that the plan's kernels use."""
    threads, item = get_num_threads(), plan.dtype.number_bytes
    multiply, copy = multiplier(plan.machine, item, threads), copier(plan.machine, threads)
    flops, moved = (max(rate() for _ in range(_REPEATS)) for rate in (multiply, copy))
    return Rates(flops, moved, f"measured, multiply-adds in registers and a large copy on {counted(threads, 'thread')}")


def multiplier(machine: Machine, item: int, threads: int) -> Callable[[], float]:
    """A function that measures once: FLOP/s of multiply-adds of `item`-byte numbers that stay in registers."""
    numbers = empty((threads + 1) * machine.lanes(item), f"f{item}")
    numbers[:] = 0.5
    flop = 2 * _CHAINS * machine.lanes(item) * _TURNS * threads
    function = _code(machine, item)["multiply"]
    return lambda: flop / _seconds(function, [numbers.ctypes.data, _TURNS], threads)


def copier(machine: Machine, threads: int) -> Callable[[], float]:
    """A function that measures once: bytes/s read and written by a copy of an array too large for the caches."""
    size = min(max(_COPIED, 4 * machine.l3), _MOST_COPIED)
    vectors = size // machine.vector_bytes // threads
    source, target = (empty(size, np.uint8) for _ in range(2))
    source[:], target[:] = 1, 2  # pages exist, and are not all the same one of zeros
    moved = 2 * vectors * machine.vector_bytes * threads
    function = _code(machine, 4)["copy"]
    return lambda: moved / _seconds(function, [target.ctypes.data, source.ctypes.data, vectors], threads)


def _code(machine: Machine, item: int) -> Code:
    return compiled(f"balance {item}", lambda: _ir(machine, item), ("multiply", "copy"), machine)


def _seconds(function: Function, arguments: list[int], threads: int) -> float:
    table = np.array(arguments, np.int64)
    start = time.perf_counter()
    launch(function, table.ctypes.data, threads)
    return time.perf_counter() - start


def _ir(machine: Machine, item: int) -> str:
    lanes, kind = machine.lanes(item), "double" if item == 8 else "float"
    vector, suffix = f"<{lanes} x {kind}>", f"v{lanes}f{8 * item}"
    call = f"call {vector} @llvm.fmuladd.{suffix}({vector} %chain{{0}}, {vector} %factor, {vector} %factor)"
    chains = range(_CHAINS)
    adds = [f"  %sum{n} = fadd {vector} %sum{n - 1}, %step{n}" for n in chains[1:]]
    return _IR.format(
        vector=vector,
        suffix=suffix,
        phis="\n".join(f"  %chain{n} = phi {vector} [ %factor, %entry ], [ %step{n}, %loop ]" for n in chains),
        steps="\n".join(f"  %step{n} = {call.format(n)}" for n in chains),
        sums="\n".join([f"  %sum0 = fadd {vector} %step0, %factor", *adds]),
        last=_CHAINS - 1,
    )
