"""How many bytes the sweeps of a Plan move, and which binds them at given rates: arithmetic or memory.

An array counts once in every sweep that reads or writes it: what neighbouring tiles both read is in a cache. FLOPs are
those of the convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...plan.names import INPUT, OUTPUT, ArrayName, OperandName
from ...plan.sweeps import Sweep
from .cores import get_num_threads
from .plan import Plan

UNITS = 2  # multiply-add units of a core
TILE_FLOP = 1024  # of a cycle, by tiles of bfloat16 numbers: 16 x 16 x 32 products in 16 cycles
UNIT_BYTES = 32  # what one of them takes at once; wider vectors go through in parts
GHZ = 3.0
GB_PER_SECOND = 10.0  # of one core


@dataclass(frozen=True)
class Rates:
    """What all threads together do in a second, and how that is known."""

    flops: float
    bytes: float
    source: str

    @property
    def balance(self) -> float:
        """FLOP per byte at which arithmetic takes as long as memory."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Load:
    """What one sweep has to do."""

    flop: int  # of the products that are made
    read: int  # bytes
    written: int

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def intensity(self) -> float:
        return self.flop / self.bytes if self.bytes else 0.0

    def seconds(self, rates: Rates) -> tuple[float, float]:
        """Of arithmetic and of memory, each at its full rate."""
        return self.flop / rates.flops, self.bytes / rates.bytes

    def binds(self, rates: Rates) -> str:
        arithmetic, memory = self.seconds(rates)
        return "arithmetic" if arithmetic > memory else "memory"


def assumed_rates(plan: Plan) -> Rates:
    """Rates of a usual core, for the element type, instruction set and number of threads at hand."""
    threads = get_num_threads()
    each = f"each of {threads} threads" if threads > 1 else "one thread"
    lanes = min(plan.machine.vector_bytes, UNIT_BYTES) // plan.dtype.number_bytes
    per_cycle = UNITS * lanes * (1 if plan.machine.isa == "baseline" else 2)  # baseline has no multiply-add
    per_cycle = TILE_FLOP if plan.deep else per_cycle * plan.together
    source = f"assumed, {per_cycle} FLOP per cycle at {GHZ:g} GHz and {GB_PER_SECOND:g} GB/s for {each}"
    return Rates(per_cycle * GHZ * 1e9 * threads, GB_PER_SECOND * 1e9 * threads, source)


def packed_weights(plan: Plan) -> int:
    """Bytes of the weights as the kernel reads them: one for each product of two channels, no row is padded."""
    if plan.convolving is None:
        return 0
    where = plan.convolving.where
    return where.groups * where.in_group * where.kernel[1] * plan.method.products * plan.dtype.number_bytes


def tile_statistics(plan: Plan) -> int:
    """Bytes of the statistics that tiles leave to be combined, in the sweep that leaves most."""
    kept = [0]
    for planned in plan.sweeps:
        words = sum(step.statistics for step in planned.structure.steps)
        kept.append(prod(planned.tiling.counts) * prod(planned.sweep.result[:2]) * words)
    return max(kept) * plan.dtype.number_bytes


def caller_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of the arrays of a call, each once."""
    sizes = {"input": prod(plan.trace.values[0]), "weights": 0, "operands": 0, "output": prod(plan.trace.output)}
    for slot, shape in zip(plan.asked.slots, plan.trace.operand_shapes, strict=True):
        sizes["weights" if slot.operand.kind == "kernel" else "operands"] += prod(shape)
    return {name: size * plan.dtype.itemsize for name, size in sizes.items()}


def loads(plan: Plan) -> tuple[Load, ...]:
    """What each sweep has to do."""
    sizes = _array_bytes(plan)
    found = []
    for planned in plan.sweeps:
        convolves = any(step.convolves for step in planned.structure.steps)
        read = sum(sizes[name.made] for name in _arrays_read(plan, planned.sweep))
        written = sizes[planned.sweep.dest] if planned.sweep.dest else 0
        found.append(Load(round(plan.work.needed / plan.method.saving) if convolves else 0, read, written))
    return tuple(found)


def _arrays_read(plan: Plan, sweep: Sweep) -> set[ArrayName]:
    links = (link for op in sweep.ops for link in op.runs(plan.rewritten.pipeline))
    return {sweep.source, *(name for link in links for name in link.arrays)}


def _array_bytes(plan: Plan) -> dict[ArrayName, int]:
    """Bytes of the caller's arrays, intermediate values and statistics."""
    number, item = plan.dtype.number_bytes, plan.dtype.itemsize
    operands = enumerate(plan.simplified.operand_shapes)
    sizes: dict[ArrayName, int] = {OperandName(at): prod(shape) * item for at, shape in operands}
    for planned in plan.sweeps:
        steps = planned.sweep
        if steps.dest is not None:
            sizes[steps.dest] = prod(steps.result) * number
        if steps.finish is not None:
            sizes[steps.finish.result] = prod(steps.result[:2]) * number
    return sizes | {INPUT: prod(plan.trace.values[0]) * item, OUTPUT: prod(plan.trace.output) * item}
