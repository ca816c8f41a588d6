"""How large the tiles of a pass are, and what scratch memory one thread needs for a tile.

The choice depends on shapes and the machine, never on the number of threads: statistics are summed tile by tile, so the
same tiles give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod
from typing import NamedTuple

from ..spec.pipeline import Pipeline, Trace
from ..spec.stages import Keep, LogSumExp, Max, Mean, Sum
from .geometry import AxisSpans, Walk, axis_steps, reach
from .machine import Machine
from .passes import Chain, Conv, Pass, PhasePool, Pool, RowNorm, Unphase, channels_apart
from .schemes import Method, Scheme, terms
from .structure import RegisterTile, register_tile

_CACHES = 4  # scratch of a thread may be this many times the second-level cache
_PARTS = 4  # parts of channels take one of so many parts of that cache

STAGED = "staged"  # buffer of rows on their way to the destination
_STAGED_NUMBERS = 2048  # in it: they stay in the first-level cache

UNROLL = 2  # vectors of positions that a chain walks together

_LONG_PERIOD = 24
_MOST_TILES = 1024  # of a sample, where larger tiles are possible

_MOST_SHARES = 8  # that a sample's tiles are balanced over: many small tiles cost more than they balance


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
    """Output channels that go through all steps of a tile before the next ones are computed: some groups, or some
    blocks of one."""

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
    part: Part | None  # of direct summation, where channels can be taken in parts
    scratch: int  # bytes for one thread
    passing: int  # of them, those that a tile goes through once: not what is used again and again inside it
    moved: int  # bytes that go through these: all channels, one part after the other

    @property
    def counts(self) -> tuple[int, int, int]:
        d, h, w = (axis.count for axis in self.axes)
        return d, h, w


def choose(pipeline: Pipeline, trace: Trace, one: Pass, machine: Machine, item: int, method: Method) -> Tiling:
    """The cheapest tiling by `cost` among those whose scratch is small; `item` is the size of a number in bytes."""
    sizes = one.result[2:]
    tilings = Tilings(pipeline, trace, one, machine, item, method)
    whole, limit = tilings.periods, _CACHES * machine.l2

    def fits(tiling: Tiling, room: int) -> bool:
        """Also where channels are taken in parts, scratch has room for all of them."""
        return tiling.passing <= room and (tiling.part is None or tiling.scratch <= limit)

    w = sizes[2]
    if not any(isinstance(op, RowNorm) for op in one.ops):  # rows are cut only where a few are too much already
        least, room = (1, 1), machine.l2 // 2
        if not method.direct:
            least, room = (min(sizes[0], whole[0]), min(sizes[1], whole[1])), 2 * machine.l2
        parts = _parts(w, whole[2])
        w = next((n for n in parts if fits(tilings.of((*least, n)), room)), parts[-1])
    both = (False, True) if any(isinstance(op, Conv) for op in one.ops) else (False,)
    depths, heights = (_parts(size, period)[::-1] for size, period in zip(sizes, whole[:2], strict=False))

    def small(most_tiles: float) -> list[Tiling]:
        """Tilings of small scratch and not too many tiles."""
        found = []
        for copies, h in product(both, heights):
            for d in depths:
                if -(-sizes[0] // d) * -(-sizes[1] // h) * -(-sizes[2] // w) > most_tiles:
                    continue
                tiling = tilings.of((d, h, w), copies)
                if not fits(tiling, limit):
                    break  # deeper ones are larger still
                found.append(tiling)
        return found

    options = small(_MOST_TILES) or small(inf)
    if not options:  # as small as can be, and of those that are equally so, the largest tiles
        every = (tilings.of((d, h, w), copies) for copies, h, d in product(both, heights, depths))
        return min(every, key=lambda tiling: (tiling.scratch, prod(tiling.counts)))
    return min(options, key=lambda tiling: cost(trace, one, tiling, machine, item))


def _parts(size: int, period: int) -> list[int]:
    """size, and the sizes that cut it into 2, 3, 4, 6, 8, 12, ... nearly equal parts; whole periods, if short."""
    parts = {1}
    for power in range(size.bit_length()):
        parts |= {2**power, 3 * 2**power}
    if period > _LONG_PERIOD:
        period = 1
    return sorted({min(size, _round_up(-(-size // part), period)) for part in parts if part <= size}, reverse=True)


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
        """Tiles of the destination that are multiples of these begin where a position of the convolution begins."""
        found = []
        for steps in self.steps:
            period = 1
            for step in steps:
                period = step.period if isinstance(step, Walk) else period // gcd(period, step.stride)
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
        total = chunk = kept_out = 0
        held: list[tuple[int, int]] = []  # channels and their pitch, of what a part of the channels goes through

        def add(name: str, channels: int, pitch: int) -> int:
            nonlocal total
            buffers.append((name, total, pitch))
            held.append((channels, pitch))
            size = _round_up(channels * pitch + 4 * lanes, 64)
            total += size
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
                    add("row", machine.lanes(item), _round_up(slab.row, lanes) + (method.walks[2].pace + 1) * lanes)
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
                    rows, pitch = min(h.longest(step - 1, "write"), rows_together(width)), _round_up(width, lanes)
                    chunk += add(STAGED, max(channels, rows), pitch)
                    held.pop()
            elif isinstance(op, PhasePool):
                assert slab is not None
                add(f"op{index}", channels, _pitch(prod(walk.pace for walk in method.walks) * slab.phase, lanes, item))
                step += 1
            elif isinstance(op, Pool):
                natural(f"op{index}", channels, step, "write")
                add(f"op{index}.row", 1, _round_up(w.longest(step, "read"), lanes) + lanes)
                step += 1
            elif isinstance(op, Chain):
                for at, link in enumerate(op.links):
                    if link.takes_tensor:
                        natural(f"op{index}.{at}", channels, *((step - 1, "write") if step else (0, "read")), beyond)
                    elif isinstance(link.stage, Keep):
                        add(f"op{index}.{at}", channels, lanes)
                channels = _channels_after(op, channels)
        if self._conv is not None and method.direct and channels_apart(one.ops[self._conv + 1 :]):
            pitch = sum(pitch for count, pitch in held if count == channels)
            part = self._part(pitch * item)
            kept_out = (channels - part.channels) * pitch
        moved = (total - chunk) * item
        passing = moved - kept_out * item
        return Tiling(tile, axes, tuple(buffers), method, slab, blocking, part, total * item, passing, moved)

    def _part(self, channel: int) -> Part:
        """As many channels as the second-level cache has room for beside the input; `channel` is bytes of one."""
        op = self.one.ops[self._conv or 0]
        assert isinstance(op, Conv)
        per_out, channels = self.trace.operands[op.stage][0][1], self.trace.values[op.stage + 1][1]
        tile = register_tile(per_out, self.machine.vector_registers)
        room = self.machine.l2 // _PARTS // channel
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
    height = _round_up(height, walks[1].pace)
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
    plane = position[1] * pitch if merged else _round_up(position[1] * pitch, lanes)
    phase_count = prod(walk.period for walk in walks)
    phase = _round_up(position[0] * plane, lanes)
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


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _pitch(extent: int, lanes: int, item: int) -> int:
    """At least `extent`, whole vectors, and no large power of two: channels would compete for the same cache sets."""
    pitch = _round_up(extent, lanes)
    while pitch * item % 1024 == 0:
        pitch += lanes
    return pitch


def cost(trace: Trace, one: Pass, tiling: Tiling, machine: Machine, item: int) -> float:
    """Cycles of one sample, roughly: what the register tile needs, and what is moved around it."""
    lanes = machine.lanes(item)
    slow = 1 if tiling.passing <= machine.l2 else 2 if tiling.passing <= 2 * machine.l2 else 4
    moved = 6 * slow * tiling.moved / item / lanes
    moved += _RUN * (_runs(tiling, one.shape[1], "read", 0) + _runs(tiling, one.result[1], "write", -1))
    work = 300 + moved + convolution_cost(trace, one, tiling, machine, item)
    tiles = prod(tiling.counts)  # of one sample: a sample's bits must not depend on how many come with it
    shares = min(machine.cores, _MOST_SHARES)
    balance = -(-tiles // shares) * shares / tiles
    return work * tiles * (1 + (balance - 1) / 2)


def convolution_cost(trace: Trace, one: Pass, tiling: Tiling, machine: Machine, item: int) -> float:
    """Cycles of a tile's convolution, transforms included."""
    steps = [op for op in one.ops if isinstance(op, (Conv, Pool, PhasePool))]
    by_method = _direct_cost if tiling.method.direct else _minimal_cost
    return sum(
        by_method(trace, op, number, tiling, machine, machine.lanes(item))
        for number, op in enumerate(steps)
        if isinstance(op, Conv)
    )


_RUN = 400  # cycles lost where memory is not contiguous: a miss that no prefetcher saw coming


def _runs(tiling: Tiling, channels: int, what: str, step: int) -> int:
    """Contiguous pieces of an array that a tile touches: whole rows and planes join."""
    extents = [axis.longest(step, what) for axis in tiling.axes]
    whole = [axis.count == 1 for axis in tiling.axes]
    if not whole[2]:
        return channels * extents[0] * extents[1]
    return channels * (1 if whole[1] else extents[0])


def vectors_of(tiling: Tiling, step: int, lanes: int) -> tuple[int, int]:
    """Runs of positions in a tile, and the vectors of one."""
    slab = tiling.slab
    assert slab is not None
    depth, height, width = (axis.longest(step, "positions") for axis in tiling.axes)
    length = (height - 1) * slab.pitch + width
    if slab.merged:
        return 1, -(-((depth - 1) * slab.plane + length) // lanes)
    return depth, -(-length // lanes)


@lru_cache(maxsize=1024)
def _steps_cost(tile: RegisterTile, channels: int, columns: int) -> int:
    """Cycles of one step, over all blocks of output channels."""
    return sum(max(rows * columns, rows + 3 * columns) + 3 for rows in tile.blocks(channels)) if columns else 0


@lru_cache(maxsize=1024)
def _ends_cost(tile: RegisterTile, channels: int, columns: int, call: int) -> int:
    """Cycles to begin and to store, once for each block of output channels."""
    return sum(call + 2 * rows * columns for rows in tile.blocks(channels))


def _direct_cost(trace: Trace, op: Conv, step: int, tiling: Tiling, machine: Machine, lanes: int) -> float:
    """Vectors are taken `columns` at a time; what is left over uses the registers less well."""
    assert tiling.slab is not None
    kernel, channels = trace.operands[op.stage][0], trace.values[op.stage][1]
    per_out = kernel[1]
    groups = trace.values[op.stage + 1][1] // per_out
    tile = register_tile(per_out, machine.vector_registers)
    planes, vectors = vectors_of(tiling, step, lanes)
    taps = prod(kernel[2:]) * channels // groups * _within(tiling.method.walks[0])
    phases = tiling.slab.out_channel // tiling.slab.phase

    def columns_cost(columns: int) -> float:
        return _steps_cost(tile, per_out, columns) * taps + phases * _ends_cost(tile, per_out, columns, 30)

    full, left = divmod(vectors, tile.columns)
    return groups * planes * (full * columns_cost(tile.columns) + (columns_cost(left) if left else 0))


@lru_cache(maxsize=1024)
def _within(walk: Walk) -> float:
    """The share of a depth's taps that meet an input; the others are skipped."""
    return walk.axis.multiplications([(0, walk.axis.out)]) / (walk.axis.kernel * walk.positions)


def _minimal_cost(trace: Trace, op: Conv, step: int, tiling: Tiling, machine: Machine, lanes: int) -> float:
    """Products, and the transforms around them, for the positions of a tile."""
    products, transforms = _minimal_costs(trace, op, step, tiling, machine, lanes)
    return products + transforms


def transform_share(trace: Trace, one: Pass, tiling: Tiling, machine: Machine, item: int) -> float:
    """Of the convolution's cycles, by the cost model."""
    steps = [op for op in one.ops if isinstance(op, (Conv, Pool, PhasePool))]
    number, conv = next((number, op) for number, op in enumerate(steps) if isinstance(op, Conv))
    products, transforms = _minimal_costs(trace, conv, number, tiling, machine, machine.lanes(item))
    return transforms / (products + transforms)


def _minimal_costs(
    trace: Trace, op: Conv, step: int, tiling: Tiling, machine: Machine, lanes: int
) -> tuple[float, float]:
    """Cycles of a tile: products, transforms."""
    assert tiling.slab is not None
    assert tiling.blocking is not None
    kernel, channels = trace.operands[op.stage][0], trace.values[op.stage][1]
    per_out = kernel[1]
    groups = trace.values[op.stage + 1][1] // per_out
    tile = register_tile(per_out, machine.vector_registers)
    vectors = prod(vectors_of(tiling, step, lanes))
    in_group, method = channels // groups, tiling.method
    transforms = vectors * (in_group * _gather_cost(method) + per_out * _scatter_cost(method))
    beyond = max(0, tiling.scratch - tiling.passing - machine.l2)  # what the cache cannot hold of a chunk
    transforms += 2 * beyond / _FAR_BYTES * -(-vectors // tiling.blocking.vectors) * len(method.groups)
    transforms += _CALLS * -(-vectors // tiling.blocking.vectors) * len(method.groups)
    products = 0.0
    full, left = divmod(vectors, tile.columns)
    for columns, times in ((tile.columns, full), (left, 1 if left else 0)):
        each = _steps_cost(tile, per_out, columns) * in_group * method.products
        products += times * (each + _ends_cost(tile, per_out, columns, 60) * method.points)
    return groups * products, groups * transforms


_CALLS = 400  # cycles to begin with a group of outputs
_FAR_BYTES = 8  # that a cycle brings from beyond the second-level cache


@lru_cache(maxsize=1024)
def _gather_cost(method: Method) -> float:
    """Cycles to transform a vector of positions of one input channel for all groups of outputs."""
    return sum(
        d.pieces * h.pieces * w.pieces * _transform_cost(d.scheme, h.scheme, w.scheme, "inputs_matrix")
        for d, h, w in method.groups
    )


@lru_cache(maxsize=1024)
def _scatter_cost(method: Method) -> float:
    """Cycles to transform a vector of products of one output channel back, for all groups."""
    return sum(_transform_cost(d.scheme, h.scheme, w.scheme, "outputs_matrix") for d, h, w in method.groups)


@lru_cache(maxsize=1024)
def _transform_cost(depth: Scheme, height: Scheme, width: Scheme, which: str) -> float:
    """Cycles to transform one vector: loads and additions overlap, stores take two."""
    d, h, w = (getattr(scheme, which) for scheme in (depth, height, width))
    loads = terms(d) * len(d) * len(h[0]) * len(w[0])
    adds = loads if terms(d) > 1 else 0
    adds += len(d) * len(w[0]) * sum(sum(map(bool, row)) - 1 for row in h)
    adds += len(d) * len(h) * sum(sum(map(bool, row)) - 1 for row in w)
    return 1.2 * max(loads, adds) + 2 * len(d) * len(h) * len(w)
