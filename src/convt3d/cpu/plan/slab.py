"""The memory in which a tile is convolved: the slab of its inputs, and the chunks that Winograd's method works on."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .geometry import AxisSpans, Walk, reach
from .machine import Machine
from .pieces import Pieces
from .registers import register_tile
from .rooms import pitch_of, round_up
from .winograd import Method


@dataclass(frozen=True)
class Slab:
    """The convolution's input (copies, Cin, D, H, pitch) with zeros around it, and its output (Cout, phases, D, plane).

    One copy has rows with zeros at their ends, and a tap along the width is an offset in the row. With a copy for each
    shift along the width, rows are as short as the output's and no position between them is computed in vain. Where a
    position is more than one input wide, each copy holds every pace-th input, one copy for each remainder or for each
    shift, and rows are sorted by their number modulo the pace of the height: what neighbouring positions read lies side
    by side. Remainders that no tap meets, of depth and height, have no rows.
    """

    copies: int
    copy: int  # elements from one copy to the next
    depth: int
    height: int  # rows of a plane, `height / turns` for each remainder
    turns: int  # remainders of the height that taps meet
    planes: int  # and of the depth
    pitch: int  # of a row
    channel: int  # elements from one input channel to the next
    plane: int  # output elements from one depth to the next
    phase: int
    out_channel: int
    row: int  # inputs of a whole row
    merged: bool  # planes follow each other without a gap in slab and result: positions run through all of them
    beside: int = 1  # samples whose numbers stand next to each other, at each place


@dataclass(frozen=True)
class Blocking:
    """How Winograd's method walks a tile: `vectors` of positions at once, and `rows` of the output channels.

    Transformed inputs are (points, steps of the point, positions), products (points, rows, positions).
    """

    vectors: int
    positions: int  # in these vectors
    blocks: int  # of output channels that are multiplied before their products are transformed back
    inputs: int  # elements of all transformed inputs
    product_point: int  # elements from one point to the next

    def input_length(self, steps: int) -> int:
        """Elements of a point's inputs. An odd number of cache lines: points do not compete for the same sets."""
        return _odd(steps * self.vectors) * (self.positions // self.vectors)


def slab_of(
    walks: tuple[Walk, Walk, Walk],
    axes: tuple[AxisSpans, ...],
    step: int,
    lanes: int,
    item: int,
    channels: int,
    copies: bool,
    pieces: Pieces | None = None,
    beside: int = 1,
) -> Slab:
    """`channels` of the input, or of the largest of its `pieces`; of several samples `beside` each other."""
    position = [spans.longest(step, "positions") for spans in axes]
    shifts = [pieces.longest(walk) if pieces else reach(walk, 1) for walk in walks]
    depth, height, row = (walk.pace * (n - 1) + own for walk, n, own in zip(walks, position, shifts, strict=True))
    planes, turns = (min(walk.pace, own) for walk, own in zip(walks[:2], shifts[:2], strict=True))
    height = -(-height // walks[1].pace) * turns
    width = walks[2]
    pitch = row
    least, most = width.shift_range
    if copies:
        pitch = position[2]
    elif width.pace > 1:
        pitch = -(-row // width.pace)
    elif (
        axes[2].count == 1 and planes == walks[0].pace and not pieces
    ):  # zeros right of a row serve as zeros left of the next
        low, high = axes[2].spans(0)[step].positions
        shared = max(0, min(-(low + least), high + most - width.axis.size))
        pitch = max(pitch - shared, position[2])  # also where whole windows are zeros: rows of the result stay apart
    pitch *= beside
    # Without neighbours along depth and height the slab has as many rows as the result. Before the first plane, taps
    # are skipped for one depth at a time.
    merged = [depth, height] == position[:2] and walks[0].shift_range[0] >= 0 and not pieces
    plane = position[1] * pitch if merged else round_up(position[1] * pitch, lanes)
    phase_count = prod(walk.kept for walk in walks)
    phase = round_up(position[0] * plane, lanes)
    channel = pitch_of((depth * height + 1) * pitch + lanes, lanes, item)  # a row of zeros after the last
    return Slab(
        copies=shifts[2] if copies else width.pace,
        copy=channels * channel,
        depth=depth,
        height=height,
        turns=turns,
        planes=planes,
        pitch=pitch,
        channel=channel,
        plane=plane,
        phase=phase,
        out_channel=pitch_of(phase_count * phase, lanes, item),
        row=row,
        merged=merged,
        beside=beside,
    )


_CHUNK = 0.7  # of the second-level cache: transformed inputs and products that are worked on together


def blocking_of(
    kernel: tuple[int, ...], groups: int, method: Method, slab: Slab, machine: Machine, item: int
) -> Blocking:
    """As many vectors as the cache takes; then as many blocks of output channels."""
    per_out = kernel[1]
    in_group = kernel[0] // groups
    lanes = machine.lanes(item)
    tile = register_tile(per_out, machine.vector_registers)
    room = int(_CHUNK * machine.l2) // item
    count = len(tile.blocks(per_out))
    most = -(-slab.phase // lanes)

    for turns in (8, 6, 4, 3, 2, 1):
        vectors = min(turns * tile.columns, most)
        inputs = lanes * max(
            sum(points * _odd(pieces * in_group * vectors) for pieces, points in group) for group in method.point_pieces
        )
        for blocks in (count, -(-count // 2), 2, 1):
            product_point = _odd(min(blocks * tile.rows, per_out) * vectors) * lanes
            if inputs + method.most_points * product_point <= room:
                return Blocking(vectors, vectors * lanes, blocks, inputs, product_point)
    return Blocking(vectors, vectors * lanes, blocks, inputs, product_point)  # the smallest where none fits


def _odd(lines: int) -> int:
    """Points an odd number of cache lines apart do not compete for the same sets."""
    return lines | 1


class SlabPlaces:
    """Offsets in the slab of inputs given by their shifts."""

    def __init__(self, method: Method, slab: Slab, pieces: Pieces | None = None) -> None:
        self.slab, self.pieces = slab, pieces
        self.walks = method.walks
        self.pace_h = method.walks[1].pace

    def _from_low(self, axis: int, shift: int) -> int:
        """From the first shift in the slab."""
        walk, pieces = self.walks[axis], self.pieces
        return walk.clipped(shift) - (pieces.low(walk, shift) if pieces else walk.shift_range[0])

    def depth(self, shift: int) -> int:
        return self._from_low(0, shift) * self.slab.height * self.slab.pitch

    def height(self, shift: int) -> int:
        turn, remainder = divmod(self._from_low(1, shift), self.pace_h)
        return (remainder * (self.slab.height // self.slab.turns) + turn) * self.slab.pitch

    def width(self, shift: int) -> int:
        """A copy for each shift, or one for each remainder."""
        turn, copy = divmod(self._from_low(2, shift), self.slab.copies)
        return copy * self.slab.copy + turn * self.slab.beside
