"""Which tiling a pass takes: the cheapest by a model of cycles.

The choice depends on shapes and the machine, never on the number of threads: statistics are summed tile by tile, so the
same tiles give the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import inf, prod

from ...plan.passes import Conv, Pass, PhasePool, Pool, RowNorm
from ...spec.pipeline import Pipeline, Trace
from .geometry import Walk
from .machine import Machine
from .schemes import Method, Scheme, terms
from .structure import RegisterTile, register_tile
from .tiles import Tiling, Tilings, round_up

_CACHES = 4  # scratch of a thread may be this many times the second-level cache
_MOST_TILES = 1024  # of a sample, where larger tiles are possible
_MOST_SCRATCH = 64  # bytes of scratch that all tiles go through for each byte of the arrays
_MOST_SHARES = 8  # that a sample's tiles are balanced over: many small tiles cost more than they balance


def choose(pipeline: Pipeline, trace: Trace, one: Pass, machine: Machine, item: int, method: Method) -> Tiling:
    """The cheapest tiling by `cost` among those whose scratch is small; `item` is the size of a number in bytes."""
    sizes = one.result[2:]
    tilings = Tilings(pipeline, trace, one, machine, item, method)
    whole, limit = tilings.periods, _CACHES * machine.l2

    def fits(tiling: Tiling, room: int) -> bool:
        """Also where channels are taken in parts, scratch has room for all of them. Where direct summation takes them,
        nothing else would bound it."""
        return tiling.passing <= room and (not method.direct or tiling.part is None or tiling.scratch <= limit)

    def wasteful(tiling: Tiling) -> bool:
        """Tiles that go through far more memory than the arrays have."""
        elements = prod(one.shape[1:]) + prod(one.result[1:])
        return prod(tiling.counts) * tiling.scratch > _MOST_SCRATCH * item * elements

    w = sizes[2]
    if not any(isinstance(op, RowNorm) for op in one.ops):  # rows are cut only where a few are too much already
        least, room = (1, 1), machine.l2 // 2
        if not method.direct:
            least, room = (min(sizes[0], whole[0]), min(sizes[1], whole[1])), 2 * machine.l2
        parts = _parts(w, whole[2])
        w = next((n for n in parts if fits(tilings.of((*least, n)), room)), parts[-1])
        if -(-sizes[2] // w) > _MOST_TILES:
            w = _largest([tilings.of((*least, n)) for n in parts]).tile[2]
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

    def every() -> list[Tiling]:
        return [tilings.of((d, h, w), copies) for copies, h, d in product(both, heights, depths)]

    if options:
        best = min(options, key=lambda tiling: cost(trace, one, tiling, machine, item))
    else:  # as small as can be, and of those that are equally so, the largest tiles
        best = min(every(), key=lambda tiling: (tiling.scratch, prod(tiling.counts)))
    return _largest(every()) if wasteful(best) else best


def _largest(tilings: list[Tiling]) -> Tiling:
    """The largest tiles that take at most twice the scratch of the smallest. A long dilation needs a long piece of the
    input for one output already: tiles as small as that would go through it again and again."""
    room = 2 * min(tiling.scratch for tiling in tilings)
    return min((one for one in tilings if one.scratch <= room), key=lambda one: (prod(one.counts), one.scratch))


def _parts(size: int, period: int) -> list[int]:
    """size, and the sizes that cut it into 2, 3, 4, 6, 8, 12, ... nearly equal parts of whole periods."""
    parts = {1}
    for power in range(size.bit_length()):
        parts |= {2**power, 3 * 2**power}
    return sorted({min(size, round_up(-(-size // part), period)) for part in parts if part <= size}, reverse=True)


def cost(trace: Trace, one: Pass, tiling: Tiling, machine: Machine, item: int) -> float:
    """Cycles of one sample, roughly: what the register tile needs, and what is moved around it."""
    lanes = machine.lanes(item)
    slow = 1 if tiling.passing <= machine.l2 else 2 if tiling.passing <= 2 * machine.l2 else 4
    moved = 6 * (slow * (tiling.moved - tiling.near) + tiling.near) / item / lanes
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
    transforms = _THROUGH_L2 * vectors * (in_group * _gather_cost(method) + per_out * _scatter_cost(method))
    beyond = max(0, tiling.chunk - machine.l2)  # what the cache cannot hold of a chunk
    transforms += 2 * beyond / _FAR_BYTES * -(-vectors // tiling.blocking.vectors) * len(method.groups)
    transforms += _CALLS * -(-vectors // tiling.blocking.vectors) * len(method.groups)
    products = 0.0
    full, left = divmod(vectors, tile.columns)
    for columns, times in ((tile.columns, full), (left, 1 if left else 0)):
        each = _steps_cost(tile, per_out, columns) * in_group * method.products
        products += times * (each + _ends_cost(tile, per_out, columns, 60) * method.points)
    return groups * products, groups * transforms


_THROUGH_L2 = 2  # what transforms take beside their instructions: a chunk goes through the second-level cache
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
