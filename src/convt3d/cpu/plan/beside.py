"""How many samples a tile convolves together: where positions are few, several fill the vectors that one would leave
empty, and meet every weight while it is there.

Method and tiles are those of one sample, and each output is the same sum: its bits do not depend on its batch mates.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...plan.sweeps import Sweep
from ..steps.conv import Convolution
from ..steps.direct import DirectConvolution
from ..steps.lowering import steps_of
from .choice import Choice
from .tiles import Tilings

_FEW = 32  # vectors of positions: samples with more are large enough
_TURNS = 4  # of the register tile through a plane: beyond, a sample is enough
_PRODUCTS = 256  # that each number takes part in at least: below, putting samples beside each other costs too much
_SCRATCH = 4  # times the second-level cache, or twice what a sample takes
_MOST_SHARES = 8


def with_samples_beside(sweep: Sweep, alone: Choice, batch: int) -> Choice:
    """The same for a tile of several samples, where they are convolved together."""
    tiled, cores = alone.tiling, alone.where.machine.cores
    samples, shares = min(batch, _wanted(alone)), tiled.share.number
    while samples > 1:
        groups = -(-batch // samples)
        if groups * tiled.items < cores and shares == 1 and alone.steps[0].shares_channels:
            shares = min(cores, _MOST_SHARES)
        elif groups * tiled.items * shares < 4 * cores:  # so many that no thread waits for another
            groups = next((n for n in range(groups, batch) if n * tiled.items % cores == 0), batch)
        where = replace(alone.where, beside=-(-batch // groups))
        steps = steps_of(sweep, where)
        tiling = Tilings(sweep, steps, where).of(tiled.tile, tiled.copies, shares)
        if where.beside > 1 and tiling.scratch <= max(_SCRATCH * where.machine.l2, 2 * tiled.scratch):
            return Choice(where, steps, tiling)
        samples = where.beside // 2
    return alone


def _wanted(alone: Choice) -> int:
    """Samples whose positions fill the registers some times."""
    where, tiling, first = alone.where, alone.tiling, alone.steps[0]
    if not isinstance(first, Convolution) or not first.reads or tiling.slab is None:
        return 1
    if where.plain or where.masked or where.pieces or where.deep or where.in_group == 1:
        return 1
    if prod(where.kernel[2:]) * min(where.kernel[1], where.in_group) < _PRODUCTS:
        return 1
    columns = where.register_tile.columns
    # What is read in place, without a slab, stays so where it fills the registers.
    few = columns if isinstance(first, DirectConvolution) and first.pointwise else _FEW
    if prod(walk.positions for walk in tiling.method.walks) > few * where.lanes:
        return 1
    depth, height, width = (axis.longest(tiling.conv_step, "positions") for axis in tiling.axes)
    length = (height * depth if tiling.slab.merged else height) * tiling.slab.pitch - tiling.slab.pitch + width
    return _TURNS * columns * where.lanes // length
