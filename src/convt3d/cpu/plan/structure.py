"""What the code of a pass depends on: its steps, the kinds of arrays, the register tile, type and instruction set.

Volume, batch, stride, padding and dilation are not among them: they reach the kernel as tables and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from ...plan.passes import Chain, Conv, Pass, PhasePool, Pool, Reduce, RowNorm, Unphase
from ...spec.dtypes import DType
from ...spec.pipeline import Pipeline, Trace
from ...spec.stage import Stage
from ...spec.stages import AvgPool3d, MaxPool3d
from .machine import Machine
from .schemes import Kind, Method

SHUFFLED = 8

# Inputs and weights below these bounds: no sum of a transform overflows where direct summation would not.
WILD = {"float32": 2.0**50, "float64": 2.0**480}


@dataclass(frozen=True)
class RegisterTile:
    """`rows` output channels x `columns` vectors; the last block of a group has `rest` rows (0: it is full too)."""

    rows: int
    rest: int
    columns: int

    def blocks(self, channels: int) -> list[int]:
        full = channels // self.rows
        return [self.rows] * full + ([self.rest] if self.rest else [])


@lru_cache(maxsize=1024)
def register_tile(channels: int, registers: int) -> RegisterTile:
    """The tile that spends least on loads and loop overhead for `channels` outputs in a group."""
    best: tuple[float, RegisterTile] | None = None
    for columns in range(1, 9):
        most = (registers - 1 - columns) // columns  # accumulators, one vector a column, one broadcast
        if most < 1:
            break
        count = -(-channels // most)
        rows = -(-channels // count)
        tile = RegisterTile(rows, channels % rows, columns)
        cost = sum(max(n * columns, n + 3 * columns) + 3 for n in tile.blocks(channels)) / columns
        if best is None or cost < best[0]:
            best = cost, tile
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Structure:
    """All that the code of a pass depends on, and nothing else: passes of equal structure share one kernel."""

    one: Pass  # with shapes left out
    ops: tuple[Any, ...]  # what each step adds, such as the register tile
    dtype: str
    isa: str

    @property
    def key(self) -> str:
        """A text that is equal exactly for equal code."""
        steps = [_describe(op) + str(extra) for op, extra in zip(self.one.ops, self.ops, strict=True)]
        ends = [_kind(self.one.source), _kind(self.one.dest)]
        return " | ".join([self.dtype, self.isa, *ends, *steps])

    @property
    def name(self) -> str:
        """Says the case in a few words: ct3d_f32_conv8x3_layernorm_gelu_multiply__avx512."""
        words = [word for op, extra in zip(self.one.ops, self.ops, strict=True) for word in _words(op, extra)]
        short = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[self.dtype]
        return f"ct3d_{short}_{'_'.join(words) or 'copy'}__{self.isa}"


@dataclass(frozen=True)
class ConvCode:
    """What the code of a convolution depends on."""

    tile: RegisterTile
    blocks: int  # full blocks of output channels in a group
    kinds: tuple[Kind, ...]  # of minimal multiplication; none: direct
    pace: int  # of the width: vectors of every pace-th number are made by shuffles


def structure_of(
    one: Pass, pipeline: Pipeline, trace: Trace, dtype: DType, machine: Machine, method: Method
) -> Structure:
    extras: list[Any] = []
    width, pooled = method.walks[2], False
    for op in one.ops:
        extra: Any = ()
        if isinstance(op, Conv):
            per_group = trace.operands[op.stage][0][1]
            tile = register_tile(per_group, machine.vector_registers)
            kinds = () if method.direct else method.kinds
            extra = ConvCode(tile, per_group // tile.rows, kinds, width.pace)
        elif isinstance(op, Unphase):
            extra = _shuffled(width.pace if pooled else width.period)
        elif isinstance(op, PhasePool):
            extra, pooled = isinstance(pipeline.stages[op.stage], AvgPool3d), True
        elif isinstance(op, Pool):
            pool = pipeline.stages[op.stage]
            assert isinstance(pool, (MaxPool3d, AvgPool3d))
            kernel, stride_w, padding = (triple[2] for triple in pool.triples)
            counted = getattr(pool, "divisor_override", None) is None
            pairs = (kernel, stride_w, padding, pool.ceil_mode, counted) == (2, 2, 0, False, True)
            whole = (kernel, stride_w, padding) == (trace.values[op.stage][4], kernel, 0)
            extra = isinstance(pool, AvgPool3d), pairs, whole and not pairs
        extras.append(extra)
    return Structure(one, tuple(extras), dtype.name, machine.isa)


def _shuffled(step: int) -> int:
    """Rows are taken apart and put together with vectors up to this step, 0 stands for any above."""
    return step if step <= SHUFFLED else 0


def scalars(stage: Stage) -> list[tuple[str, float]]:
    """The numbers of a stage that kernels read from the table of constants, in order."""
    values = [(field.name, getattr(stage, field.name)) for field in fields(stage)]
    return [(name, value) for name, value in values if isinstance(value, float)]


def _kind(array: str | None) -> str:
    """Arrays of the caller and intermediate values differ in type; which one it is does not matter."""
    return "none" if array is None else "value" if array.startswith("value") else "array"


def _describe(op: Any) -> str:
    if isinstance(op, (Chain, RowNorm)):
        links = [(link.stage, link.arrays) for link in op.links] if isinstance(op, Chain) else [(op.stage, op.arrays)]
        return " ".join(_describe_stage(stage) + ",".join(map(_kind, arrays)) for stage, arrays in links)
    return op.kind if isinstance(op, Reduce) else type(op).__name__


def _describe_stage(stage: Any) -> str:
    shown = ["#" if isinstance(v, float) else repr(v) for v in (getattr(stage, f.name) for f in fields(stage))]
    return f"{stage.name}({','.join(shown)})"


def _words(op: Any, extra: Any) -> list[str]:
    if isinstance(op, Conv):
        schemes = sorted({str(scheme) for _, _, *plane in extra.kinds for scheme in plane if not scheme.plain})
        return [f"conv{extra.tile.rows}x{extra.tile.columns}", *schemes]
    if isinstance(op, Chain):
        return [link.stage.name.lower() for link in op.links]
    if isinstance(op, (Pool, PhasePool)):
        average = extra[0] if isinstance(op, Pool) else extra
        return ["avgpool" if average else "maxpool"]
    return {RowNorm: ["rownorm"], Reduce: [getattr(op, "kind", "")]}.get(type(op), [])
