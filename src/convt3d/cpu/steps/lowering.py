"""The steps of a sweep as the CPU computes them: one table, from what is asked to the step that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...plan import sweeps
from ...plan.sweeps import Op, Sweep
from ...plan.tail_links import ArgmaxPool, SpreadPool
from .argmax import Argmax
from .arrays import Load, Store
from .base import Step, Where
from .chain import Chain, RowNorm
from .direct import (
    DirectConvolution,
    MaskedConvolution,
    PairedConvolution,
    TiledConvolution,
    meets_one_input,
    rows_together,
)
from .elementwise import Elementwise
from .interleave import Interleave, by_shuffles
from .padding import PaddedLoad
from .pool import PhasePool, Pool
from .reduce import Reduce
from .spread import SpreadShares, SpreadToPlaces
from .winograd import WinogradConvolution


class _Lowering:
    """Makes the steps of one sweep, in their order."""

    def __init__(self, sweep: Sweep, where: Where) -> None:
        self.sweep, self.where = sweep, where
        self.steps: list[Step] = []
        self.pooled = False  # phases were pooled: as many are left as a position has inputs
        self.stored = sweep.dest is None

    def run(self) -> tuple[Step, ...]:
        sweep = self.sweep
        if not (sweep.ops and isinstance(sweep.ops[0], (sweeps.Conv, sweeps.Pad))):  # these read the array themselves
            in_parts = not any(op.couples_channels or isinstance(op, sweeps.Conv) for op in sweep.ops)
            self.steps.append(Load(sweep.source.kind, in_parts, sweep.source))
        for at, op in enumerate(sweep.ops):
            if type(op) not in STEPS:
                raise NotImplementedError(f"the CPU has no step for {type(op).__name__}: add it to STEPS in {__name__}")
            self.steps.append(STEPS[type(op)](self, op, sweep.ops[at + 1 :]))
        if not self.stored and sweep.dest is not None:
            self.steps.append(Store(sweep.dest.kind, sweep.dest))
        match self.steps:
            case [Load() as load, Chain(elementwise=True) as chain, Store() as store]:
                return (Elementwise(replace(load, in_parts=False), chain, store),)
        return tuple(self.steps)

    def convolution(self, op: sweeps.Conv, behind: tuple[Op, ...]) -> Step:
        where, first = self.where, not self.steps
        tile = where.register_tile
        reads = self.sweep.source.kind if first else ""
        in_parts = not any(later.couples_channels for later in behind)
        shared = tile, where.kernel[1] // tile.rows, reads, in_parts, self.sweep.source, where.beside > 1
        if where.method.direct:
            wide = any(walk.pace > 1 for walk in where.method.walks)
            pace = by_shuffles(where.method.walks[2].pace) if wide else None
            heights, dest = rows_together(where), self.sweep.dest
            alone = len(behind) == 1 and isinstance(behind[0], sweeps.Interleave) and not (where.plain or where.pieces)
            alone = alone and all(walk.period == 1 for walk in where.method.walks) and where.beside == 1
            direct = MaskedConvolution if where.masked else PairedConvolution if where.pairs else DirectConvolution
            pointwise = first and not heights and meets_one_input(where)
            high = where.method.walks[1].pace if heights else 1
            writes = dest.kind if alone and dest is not None else ""
            own = *shared, pace, writes, heights, high, pointwise, where.pieces is not None
            return TiledConvolution(*own, where.deep) if where.deep else direct(*own)
        method = where.method
        return WinogradConvolution(*shared, method.gathers, method.scatters, method.walks[2].pace)

    def interleave(self, op: sweeps.Interleave, behind: tuple[Op, ...]) -> Step:
        width, dest = self.where.method.walks[2], self.sweep.dest
        writes = dest.kind if dest is not None and not behind else ""
        self.stored = self.stored or bool(writes)
        return Interleave(by_shuffles(width.together if self.pooled else width.period), writes)

    def spread(self, op: SpreadPool, behind: tuple[Op, ...]) -> Step:
        if op.places is None:
            return SpreadShares.of_stage(self.where, op.stage)
        return SpreadToPlaces(op.stage, op.places)

    def phase_pool(self, op: sweeps.PhasePool, behind: tuple[Op, ...]) -> Step:
        self.pooled = True
        return PhasePool.of_stage(self.where, op.stage)


STEPS: dict[type[Op], Callable[[_Lowering, Op, tuple[Op, ...]], Step]] = {
    sweeps.Conv: _Lowering.convolution,  # type: ignore[dict-item]
    sweeps.Pad: lambda self, op, behind: PaddedLoad(self.sweep.source.kind, self.sweep.source, op.stage),  # type: ignore[attr-defined]
    sweeps.Interleave: _Lowering.interleave,  # type: ignore[dict-item]
    sweeps.PhasePool: _Lowering.phase_pool,  # type: ignore[dict-item]
    sweeps.Pool: lambda self, op, behind: Pool.of_stage(self.where, op.stage),  # type: ignore[attr-defined]
    ArgmaxPool: lambda self, op, behind: Argmax(op.stage),  # type: ignore[attr-defined]
    SpreadPool: _Lowering.spread,  # type: ignore[dict-item]
    sweeps.Chain: lambda self, op, behind: Chain(op.links),
    sweeps.RowNorm: lambda self, op, behind: RowNorm(op.runs(self.where.pipeline)[0]),
    sweeps.Reduce: lambda self, op, behind: Reduce(op.kind),  # type: ignore[attr-defined]
}


def steps_of(sweep: Sweep, where: Where) -> tuple[Step, ...]:
    return _Lowering(sweep, where).run()
