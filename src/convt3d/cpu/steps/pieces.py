"""What a kernel is told of a convolution in pieces: which inputs each reads, and the steps that it sums."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from ..plan.geometry import Walk, phases
from ..plan.pieces import Pieces
from ..words import Array, Size, Sizes, Words


@dataclass(eq=False)
class PiecesWords(Words):
    pieces: Array  # a PieceWords each
    count: Size
    runs: Array  # a RunWords each
    shifts: Sizes  # of the longest interval along each axis


@dataclass(eq=False)
class PieceWords(Words):
    """A row of the table of pieces."""

    depth: Size  # first shifts
    height: Size
    width: Size
    channel: Size  # the first of the group, as they are multiplied
    channels: Size
    first: Size  # run
    behind: Size  # the last one


@dataclass(eq=False)
class RunWords(Words):
    """A row of the table of runs: steps of a phase that follow each other in its weights."""

    phase: Size  # its place
    steps: Size  # of the whole phase
    weight: Size  # of its first step in the packed weights
    offset: Size  # of its first step in the table of offsets
    before: Size  # steps of the phase before the run
    left: Size  # steps of the run
    shift: Size  # along the depth


def bind_pieces(
    walks: tuple[Walk, Walk, Walk], pieces: Pieces, in_group: int, table: npt.NDArray[np.int64]
) -> PiecesWords:
    """`table` has the rows of PhaseWords, which begin with place, steps, offset and weight of each phase."""
    axes, blocks = [phases(walk) for walk in walks], pieces.blocks(in_group)
    number = {box: at for at, box in enumerate(pieces.boxes(walks))}
    # Taps of each piece: (phase, tap of the phase, shift along the depth)
    taps: list[list[tuple[int, int, int]]] = [[] for _ in number]
    intervals = [{low: (low, high) for low, high in pieces.intervals(walk)} for walk in walks]
    for phase, own in enumerate(product(*axes)):
        for tap, shifts in enumerate(product(*(one.shifts for one in own))):
            lows = (pieces.low(walk, shift) for walk, shift in zip(walks, shifts, strict=True))
            box = tuple(along[low] for along, low in zip(intervals, lows, strict=True))
            taps[number[box]].append((phase, tap, shifts[0]))

    rows: list[list[int]] = []
    runs: list[list[int]] = []
    for (box, own_taps), (channel, channels) in product(zip(number, taps, strict=True), blocks):
        first = len(runs)
        for phase, tap, shift in own_taps:
            place, steps, offset, weight = (int(word) for word in table[phase, :4])
            before = tap * in_group + channel
            run = [place, steps, weight, offset, before, channels, shift]
            if len(runs) > first and _follows(runs[-1], run):
                runs[-1][5] += channels
            else:
                runs.append(run)
        rows.append([*(low for low, _ in box), channel, channels, first, len(runs)])
    shifts = tuple(pieces.longest(walk) for walk in walks)
    return PiecesWords(np.array(rows, np.int64), len(rows), np.array(runs, np.int64), shifts)


def _follows(run: list[int], other: list[int]) -> bool:
    """Whether the other one goes on where the run ends, at the same depth."""
    return run[0] == other[0] and run[6] == other[6] and run[4] + run[5] == other[4]
