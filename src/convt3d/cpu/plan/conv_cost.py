"""Cycles of a tile's convolution, roughly: what the register tile needs, and the transforms of Winograd's method."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from .geometry import Walk, phases
from .pieces import Pieces
from .registers import RegisterTile, register_tile, row_lengths
from .winograd import Method, Scheme, terms

if TYPE_CHECKING:
    from ..steps.base import Where
    from .tiles import Tiling


def vectors_of(where: Where, tiling: Tiling) -> tuple[int, int]:
    """Runs of positions in a tile, and the vectors of one."""
    slab, lanes = tiling.slab, where.lanes
    assert slab is not None
    depth, height, width = (axis.longest(tiling.conv_step, "positions") for axis in tiling.axes)
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


def direct_cost(where: Where, tiling: Tiling) -> float:
    """Vectors are taken `columns` at a time; what is left over uses the registers less well."""
    assert tiling.slab is not None
    kernel, groups = where.kernel, where.groups
    per_out = kernel[1]
    tile = where.register_tile
    planes, vectors = vectors_of(where, tiling)
    taps = prod(kernel[2:]) * where.in_group * _within(tiling.method.walks[0])
    phases = tiling.slab.out_channel // tiling.slab.phase

    def columns_cost(columns: int) -> float:
        if where.deep:
            blocks = len(tile.blocks(per_out))
            return blocks * columns * (taps / where.deep * _TILES + phases * _TILE_ENDS)
        return _steps_cost(tile, per_out, columns) * taps + phases * _ends_cost(tile, per_out, columns, 30)

    full, left = divmod(vectors, tile.columns)
    products = groups * planes * (full * columns_cost(tile.columns) + (columns_cost(left) if left else 0))
    if where.pieces:
        products += _pieces_cost(where, tiling, where.pieces, planes * (full + bool(left)))
    return max(products, _fetched(where, groups * per_out * taps))


_TILES, _TILE_ENDS = 32, 100  # a product of tiles, and to store what was summed, in the time of a product of vectors


def _pieces_cost(where: Where, tiling: Tiling, pieces: Pieces, turns: int) -> float:
    """What pieces add: slabs that are filled again, from memory that is found anew, and sums that begin again for each
    of their runs."""
    slab, walks = tiling.slab, where.method.walks
    assert slab is not None
    boxes, blocks = pieces.count(walks), len(pieces.blocks(where.in_group))
    tile = register_tile(where.kernel[1], where.machine.vector_registers)
    runs = prod(where.kernel[2:]) * blocks if blocks > 1 else boxes * prod(len(phases(walk)) for walk in walks)
    filled = where.groups * where.in_group * boxes * slab.copies
    again = 6 * slab.channel / where.lanes + _PLANE * slab.depth
    return where.groups * turns * runs * _ends_cost(tile, where.kernel[1], tile.columns, 30) + filled * again


_PLANE = 100  # cycles until the plane of a channel is found in memory


def sums_rows(where: Where, tiling: Tiling) -> bool:
    """Whether the rows of a tile are long enough to be summed together, or many that are half as long."""
    least, few, high = row_lengths(where.lanes, where.machine.vector_registers)
    _, height, width = (axis.longest(tiling.conv_step, "positions") for axis in tiling.axes)
    return width >= least or (width >= few and height >= high)


def rows_cost(where: Where, tiling: Tiling) -> float:
    """The same where rows are summed together: a vector of the slab serves all taps along the height."""
    depth, height, width = (axis.longest(tiling.conv_step, "positions") for axis in tiling.axes)
    taps = prod(where.kernel[2:]) * _within(tiling.method.walks[0])
    phases = prod(walk.kept for walk in tiling.method.walks)
    return where.groups * depth * height * -(-width // where.lanes) * (_TAP * taps + _VECTOR * phases)


_TAP, _VECTOR = 0.8, 8  # cycles of a tap, and of a vector of the result


def _fetched(where: Where, weights: float) -> float:
    """Cycles to bring packed weights that the second-level cache cannot hold, once for each walk
    over them. Where positions are few, that takes longer than their products."""
    size = weights * where.item
    return size / _WEIGHT_BYTES if size > where.machine.l2 else 0.0


_WEIGHT_BYTES = 2.3  # that are brought in the time of a product of vectors, while all threads ask for weights


@lru_cache(maxsize=1024)
def _within(walk: Walk) -> float:
    """The share of a depth's taps that meet an input; the others are skipped."""
    return walk.axis.multiplications([(0, walk.axis.out)]) / (walk.axis.kernel * walk.positions)


def winograd_cost(where: Where, tiling: Tiling) -> tuple[float, float]:
    """Cycles of a tile: products, and the transforms around them."""
    assert tiling.blocking is not None
    groups, per_out = where.groups, where.kernel[1]
    tile = register_tile(per_out, where.machine.vector_registers)
    vectors = prod(vectors_of(where, tiling))
    in_group, method = where.kernel[0] // groups, tiling.method
    transforms = _THROUGH_L2 * vectors * (in_group * _gather_cost(method) + per_out * _scatter_cost(method))
    beyond = max(0, tiling.chunk - where.machine.l2)  # what the cache cannot hold of a chunk
    transforms += 2 * beyond / _FAR_BYTES * -(-vectors // tiling.blocking.vectors) * len(method.groups)
    transforms += _CALLS * -(-vectors // tiling.blocking.vectors) * len(method.groups)
    products = 0.0
    full, left = divmod(vectors, tile.columns)
    for columns, times in ((tile.columns, full), (left, 1 if left else 0)):
        each = _steps_cost(tile, per_out, columns) * in_group * method.products
        products += times * (each + _ends_cost(tile, per_out, columns, 60) * method.points)
    chunks = -(-vectors // tiling.blocking.vectors)
    weights = _fetched(where, groups * in_group * per_out * method.products)
    return max(groups * products, chunks * weights), groups * transforms


_THROUGH_L2 = 2  # what transforms take beside their instructions: a chunk goes through the second-level cache
_CALLS = 400  # cycles to begin with a group of outputs
_FAR_BYTES = 8  # that a cycle brings from beyond the second-level cache


@lru_cache(maxsize=1024)
def _gather_cost(method: Method) -> float:
    """Cycles to transform a vector of positions of one input channel for all groups of outputs."""
    fifths = sum(
        _transform_cost(d, h, w, "inputs_matrix")
        for group in method.groups
        for d, h, w in product(*(one.schemes for one in group))
    )
    return fifths / 5


@lru_cache(maxsize=1024)
def _scatter_cost(method: Method) -> float:
    """Cycles to transform a vector of products of one output channel back, for all groups."""
    return sum(_transform_cost(d.scheme, h.scheme, w.scheme, "outputs_matrix") for d, h, w in method.groups) / 5


@lru_cache(maxsize=1024)
def _transform_cost(depth: Scheme, height: Scheme, width: Scheme, which: str) -> int:
    """Fifths of cycles to transform one vector: loads and additions overlap, 1.2 cycles each, stores take two. Whole
    numbers: sums are the same in any order, also those of a library for C."""
    d, h, w = (getattr(scheme, which) for scheme in (depth, height, width))
    loads = terms(d) * len(d) * len(h[0]) * len(w[0])
    adds = loads if terms(d) > 1 else 0
    adds += len(d) * len(w[0]) * sum(sum(map(bool, row)) - 1 for row in h)
    adds += len(d) * len(h) * sum(sum(map(bool, row)) - 1 for row in w)
    return 6 * max(loads, adds) + 10 * len(d) * len(h) * len(w)
