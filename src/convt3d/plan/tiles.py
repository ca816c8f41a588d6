"""How large the tiles of a pass are, and what scratch memory one thread needs for a tile.

The choice depends on shapes and the machine, never on the number of threads: statistics are summed tile by tile, so the
same tiles give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from ..spec.pipeline import Pipeline, Trace
from ..spec.shapes import ConvAxis, PoolAxis
from ..spec.stages import Keep, LogSumExp, Max, Mean, Sum
from .geometry import AxisSpans, axis_steps, shift_range
from .machine import Machine
from .passes import Chain, Conv, Pass, PhasePool, Pool, RowNorm, Unphase
from .structure import register_tile

_CACHES = 4  # scratch of a thread may be this many times the second-level cache

UNROLL = 2  # vectors of positions that a chain walks together

# A tile that is spread over this many threads at most still keeps all of them busy.
_BALANCED_OVER = 8


@dataclass(frozen=True)
class Slab:
    """The convolution's input (copies, Cin, D, H, pitch) with zeros around it, and its output (Cout, phases, D, plane).

    One copy has rows with zeros at their ends, and a tap along the width is an offset in the row. With a copy for each
    shift along the width, rows are as short as the output's and no position between them is computed in vain.
    """

    copies: int
    copy: int  # elements from one copy to the next
    depth: int
    height: int
    pitch: int  # of a row
    channel: int  # elements from one input channel to the next
    plane: int  # output elements from one depth to the next
    phase: int
    out_channel: int


@dataclass(frozen=True)
class Tiling:
    tile: tuple[int, int, int]
    axes: tuple[AxisSpans, AxisSpans, AxisSpans]
    buffers: tuple[tuple[str, int, int], ...]  # name, offset in scratch and channel pitch, in elements
    slab: Slab | None
    scratch: int  # bytes for one thread

    @property
    def counts(self) -> tuple[int, int, int]:
        d, h, w = (axis.count for axis in self.axes)
        return d, h, w


def choose(pipeline: Pipeline, trace: Trace, one: Pass, machine: Machine, item: int) -> Tiling:
    """The cheapest tiling by `_cost` among those whose scratch is small; `item` is the size of a number in bytes."""
    depth, height, width = one.result[2:]

    def make(d: int, h: int, w: int, copies: bool = False) -> Tiling:
        return layout(pipeline, trace, one, (d, h, w), machine, item, copies)

    w = width
    if not any(isinstance(op, RowNorm) for op in one.ops):  # rows are cut only where a single one is too much
        w = next((n for n in _halvings(width) if make(1, 1, n).scratch <= machine.l2 // 2), 1)
    both = (False, True) if any(isinstance(op, Conv) for op in one.ops) else (False,)
    options = [make(d, h, w, copies) for d, h, copies in product(_halvings(depth), _halvings(height), both)]
    small = [tiling for tiling in options if tiling.scratch <= _CACHES * machine.l2]
    if not small:
        return min(options, key=lambda tiling: tiling.scratch)
    return min(small, key=lambda tiling: _cost(trace, one, tiling, machine, item))


def _halvings(size: int) -> list[int]:
    """size, and the sizes that cut it into 2, 3, 4, 6, 8, 12, ... nearly equal parts."""
    parts = {1}
    for power in range(size.bit_length()):
        parts |= {2**power, 3 * 2**power}
    return sorted({-(-size // part) for part in parts if part <= size}, reverse=True)


def layout(
    pipeline: Pipeline,
    trace: Trace,
    one: Pass,
    tile: tuple[int, int, int],
    machine: Machine,
    item: int,
    copies: bool = False,
) -> Tiling:
    """Spans and scratch for a given tile, with one slab or with a copy for each shift along the width."""
    lanes = UNROLL * machine.lanes(item)  # chains walk this many positions at once
    steps = [axis_steps(pipeline, trace, one, axis) for axis in range(3)]
    d, h, w = (AxisSpans(steps[axis], one.result[2 + axis], tile[axis]) for axis in range(3))
    axes = (d, h, w)
    buffers: list[tuple[str, int, int]] = []
    total = 0

    def add(name: str, channels: int, pitch: int) -> None:
        nonlocal total
        buffers.append((name, total, pitch))
        total += _round_up(channels * pitch + 4 * lanes, 64)

    def natural(name: str, channels: int, step: int, what: str) -> None:
        extent = prod(axis.longest(step, what) for axis in axes)
        add(name, channels, _pitch(extent, lanes, item))

    step, slab = 0, None
    channels = one.shape[1]
    if not (one.ops and isinstance(one.ops[0], Conv)):
        natural("source", channels, 0, "read")
    for index, op in enumerate(one.ops):
        if isinstance(op, Conv):
            conv_axes = tuple(s[step] for s in steps)
            slab = _slab(conv_axes, axes, step, lanes, item, channels, copies)
            add("slab", channels * slab.copies, slab.channel)
            channels = trace.values[op.stage + 1][1]
            add("phased", channels, slab.out_channel)
            step += 1
        elif isinstance(op, Unphase):
            if index + 1 < len(one.ops):  # the last one goes straight to the destination
                natural(f"op{index}", channels, step - 1, "write")
        elif isinstance(op, (Pool, PhasePool)):
            natural(f"op{index}", channels, step, "write")
            if isinstance(op, Pool):
                add(f"op{index}.row", 1, _round_up(w.longest(step, "read"), lanes) + lanes)
            step += 1
        elif isinstance(op, Chain):
            for at, link in enumerate(op.links):
                if link.takes_tensor:
                    natural(f"op{index}.{at}", channels, *((step - 1, "write") if step else (0, "read")))
                elif isinstance(link.stage, Keep):
                    add(f"op{index}.{at}", channels, lanes)
            channels = _channels_after(op, channels)
    return Tiling(tile, axes, tuple(buffers), slab, total * item)


def _channels_after(op: Chain, channels: int) -> int:
    collapses = any(isinstance(link.stage, (Sum, Mean, Max, LogSumExp)) for link in op.links)
    return 1 if collapses else channels


def _slab(
    conv: tuple[ConvAxis | PoolAxis, ...],
    axes: tuple[AxisSpans, ...],
    step: int,
    lanes: int,
    item: int,
    channels: int,
    copies: bool,
) -> Slab:
    extents, position = [], []
    for axis, spans in zip(conv, axes, strict=True):
        assert isinstance(axis, ConvAxis)
        least, most = shift_range(axis)
        longest = spans.longest(step, "positions")
        position.append(longest)
        extents.append(longest + most - least)
    width = conv[2]
    assert isinstance(width, ConvAxis)
    pitch = extents[2]
    least, most = shift_range(width)
    if copies:
        pitch = position[2]
    elif axes[2].count == 1:  # zeros right of a row serve as zeros left of the next
        low, high = axes[2].spans(0)[step].positions
        pitch -= max(0, min(-(low + least), high + most - width.size))
    plane = _round_up(position[1] * pitch, lanes)
    phase_count = prod(axis.stride for axis in conv)
    phase = position[0] * plane
    channel = _pitch((extents[0] * extents[1] + 1) * pitch + lanes, lanes, item)  # a row of zeros after the last
    return Slab(
        copies=most - least + 1 if copies else 1,
        copy=channels * channel,
        depth=extents[0],
        height=extents[1],
        pitch=pitch,
        channel=channel,
        plane=plane,
        phase=phase,
        out_channel=_pitch(phase_count * phase, lanes, item),
    )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _pitch(extent: int, lanes: int, item: int) -> int:
    """At least `extent`, whole vectors, and no large power of two: channels would compete for the same cache sets."""
    pitch = _round_up(extent, lanes)
    while pitch * item % 1024 == 0:
        pitch += lanes
    return pitch


def _cost(trace: Trace, one: Pass, tiling: Tiling, machine: Machine, item: int) -> float:
    """Cycles of one sample, roughly: what the register tile needs, and what is moved around it."""
    lanes = machine.lanes(item)
    slow = 1 if tiling.scratch <= machine.l2 else 2 if tiling.scratch <= 2 * machine.l2 else 6
    moved = 6 * slow * tiling.scratch / item / lanes
    moved += _RUN * (_runs(tiling, one.shape[1], "read", 0) + _runs(tiling, one.result[1], "write", -1))
    work = 300 + moved
    steps = [op for op in one.ops if isinstance(op, (Conv, Pool, PhasePool))]
    for number, op in enumerate(steps):
        if isinstance(op, Conv):
            work += _convolution_cost(trace, op, number, tiling, machine, lanes)
    tiles = prod(tiling.counts)  # of one sample: a sample's bits must not depend on how many come with it
    balance = -(-tiles // _BALANCED_OVER) * _BALANCED_OVER / tiles
    return work * tiles * (1 + (balance - 1) / 2)


_RUN = 400  # cycles lost where memory is not contiguous: a miss that no prefetcher saw coming


def _runs(tiling: Tiling, channels: int, what: str, step: int) -> int:
    """Contiguous pieces of an array that a tile touches: whole rows and planes join."""
    extents = [axis.longest(step, what) for axis in tiling.axes]
    whole = [axis.count == 1 for axis in tiling.axes]
    if not whole[2]:
        return channels * extents[0] * extents[1]
    return channels * (1 if whole[1] else extents[0])


def _convolution_cost(trace: Trace, op: Conv, step: int, tiling: Tiling, machine: Machine, lanes: int) -> float:
    """Vectors are taken `columns` at a time; what is left over uses the registers less well."""
    assert tiling.slab is not None
    kernel, channels = trace.operands[op.stage][0], trace.values[op.stage][1]
    per_out = kernel[1]
    groups = trace.values[op.stage + 1][1] // per_out
    tile = register_tile(per_out, machine.vector_registers)
    depth, height, width = (axis.longest(step, "positions") for axis in tiling.axes)
    vectors = -(-((height - 1) * tiling.slab.pitch + width) // lanes)
    taps = prod(kernel[2:]) * channels // groups

    def cost(columns: int) -> float:
        blocks = tile.blocks(per_out)
        steps = sum(max(rows * columns, rows + 3 * columns) + 3 for rows in blocks) if columns else 0
        phases = tiling.slab.out_channel // tiling.slab.phase if tiling.slab else 1
        return steps * taps + phases * sum(30 + 2 * rows * columns for rows in blocks)

    full, left = divmod(vectors, tile.columns)
    return groups * depth * (full * cost(tile.columns) + (cost(left) if left else 0))
