"""Tilings of a pass: the spans of a tile along each axis, and the scratch memory that one thread needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from ...plan.passes import Chain, Conv, Pass, PhasePool, Pool, Unphase, channels_apart
from ...spec.pipeline import Pipeline, Trace
from ...spec.stages import Keep, LogSumExp, Max, Mean, Sum
from .geometry import AxisSpans, Walk, axis_steps, reach
from .machine import Machine
from .schemes import Method
from .structure import register_tile

_PARTS = 4  # parts of channels take one of so many parts of that cache

STAGED = "staged"  # buffer of rows on their way to the destination
_STAGED_NUMBERS = 2048  # in it: they stay in the first-level cache

CHECKED_GAP = 64  # numbers behind each buffer that belong to none, where accesses are checked

UNROLL = 2  # vectors of positions that a chain walks together


@dataclass(frozen=True)
class Slab:
    """The convolution's input (copies, Cin, D, H, pitch) with zeros around it, and its output (Cout, phases, D, plane).

    One copy has rows with zeros at their ends, and a tap along the width is an offset in the row. With a copy for each
    shift along the width, rows are as short as the output's and no position between them is computed in vain. Where a
    position is more than one input wide, each copy holds every pace-th input, one copy for each remainder or for each
    shift, and rows are sorted by their number modulo the pace of the height: what neighbouring positions read lies side
    by side.
    """

    copies: int
    copy: int  # elements from one copy to the next
    depth: int
    height: int  # rows of a plane, `height / pace` for each remainder
    pitch: int  # of a row
    channel: int  # elements from one input channel to the next
    plane: int  # output elements from one depth to the next
    phase: int
    out_channel: int
    row: int  # inputs of a whole row
    merged: bool  # planes follow each other without a gap in slab and result: positions run through all of them


@dataclass(frozen=True)
class Blocking:
    """How minimal multiplication walks a tile: `vectors` of positions at once, and `rows` of the output channels.

    Transformed inputs are (points, steps, positions), products (points, rows, positions).
    """

    vectors: int
    positions: int  # in these vectors
    blocks: int  # of output channels that are multiplied before their products are transformed back
    input_point: int  # elements from one point to the next
    product_point: int


class Part(NamedTuple):
    """Output channels that the convolution computes together, some groups or some blocks of one, and how many of them
    go through the steps behind it together. Direct summation: the same ones, from the beginning to the end of a tile.
    Minimal multiplication computes all, since it transforms inputs once for all of them."""

    groups: int
    blocks: int  # of each group
    channels: int


@dataclass(frozen=True)
class Tiling:
    tile: tuple[int, int, int]
    axes: tuple[AxisSpans, AxisSpans, AxisSpans]
    buffers: tuple[tuple[str, int, int], ...]  # name, offset in scratch and channel pitch, in elements
    method: Method
    slab: Slab | None
    blocking: Blocking | None  # of minimal multiplication
    part: Part | None  # where channels can be taken in parts
    scratch: int  # bytes for one thread
    passing: int  # of them, those that a tile goes through once: not what is used again and again inside it
    moved: int  # bytes that go through these: all channels, one part after the other
    near: int  # of them, what stays in a part's share of the cache; none where each part goes through the input again

    @property
    def chunk(self) -> int:
        """Bytes that are used again and again inside a tile."""
        return self.scratch - self.moved

    @property
    def counts(self) -> tuple[int, int, int]:
        d, h, w = (axis.count for axis in self.axes)
        return d, h, w


class Tilings:
    """The tilings of a pass by one method; what they share is worked out once."""

    def __init__(
        self, pipeline: Pipeline, trace: Trace, one: Pass, machine: Machine, item: int, method: Method
    ) -> None:
        self.trace, self.one, self.machine, self.item, self.method = trace, one, machine, item, method
        self.steps = [axis_steps(pipeline, trace, one, axis, method.walks[axis]) for axis in range(3)]
        self._spans: dict[tuple[int, int], AxisSpans] = {}
        self._conv = next((at for at, op in enumerate(one.ops) if isinstance(op, Conv)), None)

    @property
    def periods(self) -> tuple[int, int, int]:
        """Tiles of the destination that are multiples of these begin where a position of the convolution begins, and no
        tile computes phases of which it needs a part. Where few phases are kept, tiles may begin anywhere."""
        found = []
        for steps in self.steps:
            period = 1
            for step in steps:
                if isinstance(step, Walk):
                    period = step.period if step.kept == step.period else 1
                else:
                    period //= gcd(period, step.stride)
            found.append(period)
        d, h, w = found
        return d, h, w

    def _along(self, axis: int, tile: int) -> AxisSpans:
        """Shared: many tilings have the same tiles along an axis."""
        if (axis, tile) not in self._spans:
            self._spans[axis, tile] = AxisSpans(self.steps[axis], self.one.result[2 + axis], tile)
        return self._spans[axis, tile]

    def of(self, tile: tuple[int, int, int], copies: bool = False) -> Tiling:
        """Spans and scratch for a given tile, with one slab or with a copy for each shift along the width."""
        trace, one, machine, item, method = self.trace, self.one, self.machine, self.item, self.method
        lanes = UNROLL * machine.lanes(item)  # chains walk this many positions at once
        d, h, w = (self._along(axis, length) for axis, length in enumerate(tile))
        axes = (d, h, w)
        buffers: list[tuple[str, int, int]] = []
        total = chunk = kept_out = near = 0
        held: list[tuple[int, int]] = []  # channels and their pitch, of what a part of the channels goes through

        def add(name: str, channels: int, pitch: int) -> int:
            nonlocal total
            buffers.append((name, total, pitch))
            held.append((channels, pitch))
            size = round_up(channels * pitch + 4 * lanes, 64)
            total += size + (CHECKED_GAP if machine.check_bounds else 0)
            return size

        def natural(name: str, channels: int, step: int, what: str, slack: int = 0) -> None:
            extent = prod(axis.longest(step, what) for axis in axes)
            add(name, channels, _pitch(extent + slack, lanes, item))

        beyond = machine.lanes(item)  # written by a last vector of what is loaded

        step, slab, blocking, part = 0, None, None, None
        channels = one.shape[1]
        if not (one.ops and isinstance(one.ops[0], Conv)):
            natural("source", channels, 0, "read", beyond)
        for index, op in enumerate(one.ops):
            if isinstance(op, Conv):
                slab = _slab(method.walks, axes, step, lanes, item, channels, copies)
                add("slab", channels * slab.copies, slab.channel)
                if not method.direct:
                    blocking = _blocking(trace, op, method, slab, machine, item)
                    add("row", machine.lanes(item), round_up(slab.row, lanes) + (method.walks[2].pace + 1) * lanes)
                    add("wild", 1, lanes)
                    chunk += add("inputs", method.most_points, blocking.input_point)
                    chunk += add("products", method.most_points, blocking.product_point)
                channels = trace.values[op.stage + 1][1]
                held.clear()
                add("phased", channels, slab.out_channel)
                step += 1
            elif isinstance(op, Unphase):
                if index + 1 < len(one.ops):
                    natural(f"op{index}", channels, step - 1, "write")
                else:  # some rows at a time, or one of all channels, go to the destination
                    width = w.longest(step - 1, "write")
                    rows, pitch = min(h.longest(step - 1, "write"), rows_together(width)), round_up(width, lanes)
                    chunk += add(STAGED, max(channels, rows), pitch)
                    held.pop()
            elif isinstance(op, PhasePool):
                assert slab is not None
                add(f"op{index}", channels, _pitch(prod(walk.pace for walk in method.walks) * slab.phase, lanes, item))
                step += 1
            elif isinstance(op, Pool):
                natural(f"op{index}", channels, step, "write")
                add(f"op{index}.row", 1, round_up(w.longest(step, "read"), lanes) + lanes)
                step += 1
            elif isinstance(op, Chain):
                for at, link in enumerate(op.links):
                    if link.takes_tensor:
                        natural(f"op{index}.{at}", channels, *((step - 1, "write") if step else (0, "read")), beyond)
                    elif isinstance(link.stage, Keep):
                        add(f"op{index}.{at}", channels, lanes)
                channels = _channels_after(op, channels)
        if self._conv is not None and channels_apart(one.ops[self._conv + 1 :]):
            assert slab is not None
            pitch = sum(pitch for count, pitch in held if count == channels)
            part = self._part(pitch * item)
            behind = pitch if method.direct else pitch - slab.out_channel
            kept_out, near = (channels - part.channels) * behind, 0 if method.direct else channels * behind
        moved = (total - chunk) * item
        passing = moved - kept_out * item
        sizes = total * item, passing, moved, near * item
        return Tiling(tile, axes, tuple(buffers), method, slab, blocking, part, *sizes)

    def _part(self, channel: int) -> Part:
        """As many channels as the second-level cache has room for beside the input; `channel` is bytes of one."""
        op = self.one.ops[self._conv or 0]
        assert isinstance(op, Conv)
        per_out, channels = self.trace.operands[op.stage][0][1], self.trace.values[op.stage + 1][1]
        tile = register_tile(per_out, self.machine.vector_registers)
        room = self.machine.l2 // _PARTS // channel
        if not self.method.direct:
            return Part(channels // per_out, len(tile.blocks(per_out)), min(channels, max(1, room)))
        if room >= per_out:
            groups = min(channels // per_out, room // per_out)
            return Part(groups, len(tile.blocks(per_out)), groups * per_out)
        blocks = max(1, room // tile.rows)
        return Part(1, blocks, min(per_out, blocks * tile.rows))


def rows_together(width: int) -> int:
    """Rows that are stored together, where they follow each other in memory."""
    return max(1, _STAGED_NUMBERS // max(1, width))


def _channels_after(op: Chain, channels: int) -> int:
    collapses = any(isinstance(link.stage, (Sum, Mean, Max, LogSumExp)) for link in op.links)
    return 1 if collapses else channels


def _slab(
    walks: tuple[Walk, Walk, Walk],
    axes: tuple[AxisSpans, ...],
    step: int,
    lanes: int,
    item: int,
    channels: int,
    copies: bool,
) -> Slab:
    position = [spans.longest(step, "positions") for spans in axes]
    depth, height, row = (reach(walk, count) for walk, count in zip(walks, position, strict=True))
    height = round_up(height, walks[1].pace)
    width = walks[2]
    pitch = row
    least, most = width.shift_range
    if copies:
        pitch = position[2]
    elif width.pace > 1:
        pitch = -(-row // width.pace)
    elif axes[2].count == 1:  # zeros right of a row serve as zeros left of the next
        low, high = axes[2].spans(0)[step].positions
        pitch -= max(0, min(-(low + least), high + most - width.axis.size))
    # Without neighbours along depth and height the slab has as many rows as the result.
    merged = [depth, height] == position[:2]
    plane = position[1] * pitch if merged else round_up(position[1] * pitch, lanes)
    phase_count = prod(walk.kept for walk in walks)
    phase = round_up(position[0] * plane, lanes)
    channel = _pitch((depth * height + 1) * pitch + lanes, lanes, item)  # a row of zeros after the last
    return Slab(
        copies=most - least + 1 if copies else width.pace,
        copy=channels * channel,
        depth=depth,
        height=height,
        pitch=pitch,
        channel=channel,
        plane=plane,
        phase=phase,
        out_channel=_pitch(phase_count * phase, lanes, item),
        row=row,
        merged=merged,
    )


_CHUNK = 0.7  # of the second-level cache: transformed inputs and products that are worked on together


def _blocking(trace: Trace, op: Conv, method: Method, slab: Slab, machine: Machine, item: int) -> Blocking:
    """As many vectors as the cache takes; then as many blocks of output channels."""
    kernel = trace.operands[op.stage][0]
    per_out, groups = kernel[1], trace.values[op.stage + 1][1] // kernel[1]
    steps = method.most_pieces * kernel[0] // groups
    lanes = machine.lanes(item)
    tile = register_tile(per_out, machine.vector_registers)
    room, points = int(_CHUNK * machine.l2) // item, method.most_points
    count = len(tile.blocks(per_out))
    most = -(-slab.phase // lanes)

    for turns, blocks in product((8, 6, 4, 3, 2, 1), (count, -(-count // 2), 2, 1)):
        vectors = min(turns * tile.columns, most)
        input_point = _odd(steps * vectors) * lanes
        product_point = _odd(min(blocks * tile.rows, per_out) * vectors) * lanes
        if points * (input_point + product_point) <= room:
            break
    return Blocking(vectors, vectors * lanes, blocks, input_point, product_point)  # the smallest where none fits


def _odd(lines: int) -> int:
    """Points an odd number of cache lines apart do not compete for the same sets."""
    return lines | 1


def round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _pitch(extent: int, lanes: int, item: int) -> int:
    """At least `extent`, whole vectors, and no large power of two: channels would compete for the same cache sets."""
    pitch = round_up(extent, lanes)
    while pitch * item % 1024 == 0:
        pitch += lanes
    return pitch
