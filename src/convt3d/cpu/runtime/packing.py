"""The convolution's weights in the order the kernel reads them: for each group and phase, blocks of [step][row]; for
Winograd's method transformed, and so for each group, outputs made together and point.

Native code does it (cpu/ir/pack.py); here are the tables that tell it what to add up. Sums are taken axis by axis,
since many points share what the axes before gave.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...recent import Recent
from ...spec.lazy import lazy
from ...spec.stages import Conv3d
from ..plan.cores import get_num_threads
from ..plan.geometry import phases
from ..plan.machine import Machine, machine
from ..plan.registers import RegisterTile
from ..plan.winograd import Method, Together
from ..words import PackWords, call_numbers
from .build import Code
from .compiled import compiled
from .memory import empty, shared_scratch
from .regions import faults
from .team import launch

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

_LANES = 8  # rows that are taken together
_SLOTS = 256 << 10  # bytes of slots, unless a channel takes more
_CHANNELS = 16  # that one thread packs after each other: in each plane they are neighbours
_SHARED_FROM = 1 << 16  # packed numbers, below which no other thread is woken up
_LINE = 8  # words of a cache line


class TapsOfPhase(NamedTuple):
    """What the weights of a phase along one axis depend on."""

    pieces: tuple[tuple[int, ...], ...]  # taps of each
    outputs: int  # that are made together

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(tap for piece in self.pieces for tap in piece)

    @property
    def transformed(self) -> bool:
        return self.outputs > 1

    def products(self) -> tuple[Integers, npt.NDArray[np.float64]]:
        """(products, 3): the point of each product, the number of its piece among those of the point, and how many
        these are; (products, taps): what it is of the taps."""
        made = Together(self.pieces, (0,) * len(self.pieces), 1, tuple(range(self.outputs)))
        starts = list(accumulate(map(len, self.pieces), initial=0))
        rows, places = [], []
        for point, pieces in enumerate(made.pieces_at):
            for number, piece in enumerate(pieces):
                scheme = made.schemes[piece]
                own = next(at for at in range(scheme.points) if made.point(piece, at) == point)
                row = np.zeros(starts[-1])
                row[starts[piece] : starts[piece + 1]] = [float(factor) for factor in scheme.weights_matrix[own]]
                rows.append(row)
                places.append((point, number, len(pieces)))
        return np.array(places, np.int64), np.array(rows)


@dataclass(frozen=True)
class WeightLayout:
    groups: int
    axes: tuple[tuple[TapsOfPhase, ...], tuple[TapsOfPhase, ...], tuple[TapsOfPhase, ...]]
    tile: RegisterTile
    number: str  # "float32" or "float64"
    by_output: bool = False  # weights come as (Cout, Cin/groups, ...), those of a Conv3d
    pairs: bool = (
        False  # a number of 32 bits holds the bfloat16 weights of two input channels, the first in its lower half
    )

    deep: int = 0  # steps that a product of tiles takes; blocks are then [such steps][16 rows][step]

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def _hash(self) -> int:
        """Once: every call looks up its weights."""
        return hash((self.groups, self.axes, self.tile, self.number, self.by_output, self.pairs, self.deep))

    @lazy
    def transformed(self) -> bool:
        """Whether some outputs are made together."""
        return any(one.transformed for axis in self.axes for one in axis)

    @staticmethod
    def of(
        groups: int,
        method: Method,
        tile: RegisterTile,
        number: str,
        by_output: bool = False,
        pairs: bool = False,
        deep: int = 0,
    ) -> WeightLayout:
        if method.direct:
            d, h, w = (
                tuple(TapsOfPhase(tuple((tap,) for tap in phase.taps), 1) for phase in phases(walk))
                for walk in method.walks
            )
        else:
            d, h, w = (tuple(TapsOfPhase(group.taps, axis.outputs) for group in axis.groups()) for axis in method.axes)
        return WeightLayout(groups, (d, h, w), tile, number, by_output, pairs, deep)


def pack(weights: Array, layout: WeightLayout) -> tuple[Array, float]:
    """weights (Cin, Cout/groups, Kd, Kh, Kw), or those of a Conv3d, contiguous -> (groups, all): for each phase and
    point the blocks of rows of the register tile, a block as [step][row]; a step is a piece, then a channel. And the
    largest magnitude of a weight, NaN if there is one."""
    if weights.dtype == np.float16:
        weights = weights.astype(np.float32)
    if layout.pairs:
        if layout.by_output:
            weights = np.ascontiguousarray(Conv3d(groups=layout.groups).as_kernel(weights))
        made, largest = _pack_pairs(weights, replace(layout, by_output=False, pairs=False, deep=0))
        return (_as_tiles(made, layout, weights.shape[1]) if layout.deep else made), largest
    taps = prod(weights.shape[2:])
    if layout.by_output:
        channels, rows = weights.shape[1], weights.shape[0] // layout.groups
        channel_step, row_step = taps, channels * taps
    else:
        channels, rows = weights.shape[0] // layout.groups, weights.shape[1]
        channel_step, row_step = rows * taps, taps
    recipe = _recipe(layout, channels, rows, weights.shape[2:])
    packed = empty((layout.groups, recipe.numbers), layout.number)
    high = max(layout.tile.blocks(rows))
    together = min(_CHANNELS, max(1, _SLOTS // (8 * max(1, recipe.slots) * high)))
    pitch = -(-together * high // _LANES) * _LANES
    of_group = -(-channels // _CHANNELS)
    threads = min(get_num_threads(), layout.groups * of_group) if packed.size >= _SHARED_FROM else 1
    with shared_scratch(8 * recipe.slots * pitch, threads) as (slots, threads):
        state = np.zeros(2 * _LINE + threads, np.int64)  # the counter in a cache line of its own, then magnitudes
        host = machine()
        with faults("pack") if host.check_bounds else nullcontext(0) as noted:
            words = PackWords(
                counter=state[:1],
                items=layout.groups * of_group,
                group_items=of_group,
                item_channels=_CHANNELS,
                weights=weights,
                packed=packed,
                slots=slots,
                thread_slots=recipe.slots * pitch,
                together=together,
                pitch=pitch,
                channels=channels,
                taps=taps,
                group_step=channels * rows * taps,
                channel_step=channel_step,
                row_step=row_step,
                group_numbers=recipe.numbers,
                blocks=recipe.blocks,
                block_count=len(recipe.blocks),
                shared=recipe.shared,
                shared_count=len(recipe.shared),
                results=recipe.results,
                result_count=len(recipe.results),
                terms=recipe.terms,
                largest=state[_LINE:],
                faults=noted,
            )
            table = np.array(call_numbers([words], host.check_bounds), np.int64)
            code = _code(weights.dtype.name, layout.number, not layout.transformed, host)
            launch(code["pack"], table.ctypes.data, threads)
    return packed, float(state[_LINE:].max().astype(f"i{weights.itemsize}").view(weights.dtype))


def _pack_pairs(weights: Array, layout: WeightLayout) -> tuple[Array, float]:
    """The first and the second channels of all pairs are packed on their own and put together; a channel without a
    partner gets zeros. Weights that bfloat16 holds leave the lower halves of float32 empty."""
    grouped = weights.reshape(layout.groups, -1, *weights.shape[1:])
    first = np.ascontiguousarray(grouped[:, 0::2])
    second = np.zeros_like(first)
    second[:, : grouped.shape[1] // 2] = grouped[:, 1::2]
    (lower, one), (upper, other) = (pack(each.reshape(-1, *weights.shape[1:]), layout) for each in (first, second))
    bits = lower.view(np.uint32)
    bits >>= np.uint32(16)
    bits |= upper.view(np.uint32)
    return lower, float(np.maximum(one, other))


def _as_tiles(made: Array, layout: WeightLayout, rows: int) -> Array:
    """Blocks [step][row] of pairs as [deep steps][16 rows][step], rows that are not there being zero."""
    tile, deep = layout.tile, layout.deep
    taps = [prod(len(one.taps) for one in phase) for phase in product(*layout.axes)]
    channels = made.shape[1] // (rows * sum(taps))
    found, at = [], 0
    for steps in (channels * count for count in taps):
        for own in tile.blocks(rows):
            block = np.zeros((layout.groups, steps, tile.rows), made.dtype)
            block[..., :own] = made[:, at : at + steps * own].reshape(layout.groups, steps, own)
            found.append(block.reshape(layout.groups, -1, deep, tile.rows).swapaxes(2, 3).reshape(layout.groups, -1))
            at += steps * own
    return np.ascontiguousarray(np.concatenate(found, axis=1))


def _code(stored: str, number: str, moved: bool, host: Machine) -> Code:
    def write_ir() -> str:
        from ..ir.pack import emit_pack  # here: nobody needs LLVM who finds the code on disk

        return str(emit_pack(_LANES, stored, number, moved, host.check_bounds).b.module)

    return compiled(f"pack {stored} {number}{' moved' * moved}", write_ir, ("pack",), host)


class _Recipe(NamedTuple):
    """What the taps of a channel become. Sums are of terms, from one to the one behind the last."""

    blocks: Integers
    shared: Integers
    results: Integers
    terms: Integers
    slots: int
    numbers: int  # of a group


# Training packs all weights of a network anew at each step: all their recipes are kept.
_recipes: Recent[_Recipe] = Recent(64 << 20)


def _recipe(layout: WeightLayout, channels: int, rows: int, kernel: tuple[int, ...]) -> _Recipe:
    key = layout, channels, rows, kernel
    known = _recipes.get(key)
    if known is None:
        blocks = layout.tile.blocks(rows)
        of_block = np.array([list(accumulate(blocks, initial=0))[:-1], blocks], np.int64).T.copy()
        make = _transformed if layout.transformed else _moved
        known = _Recipe(of_block, *make(layout.axes, channels, rows, kernel))
        _recipes.put(key, known, sum(each.nbytes for each in known[:4]))
    return known


Tables: TypeAlias = tuple[Integers, Integers, Integers, int, int]  # of the recipe, blocks left out


def _moved(axes: tuple[tuple[TapsOfPhase, ...], ...], channels: int, rows: int, kernel: tuple[int, ...]) -> Tables:
    """Of direct summation: each tap is a result of its own, and in its place. All phases at once, since there may be
    thousands."""
    counts = [np.array([len(phase.taps) for phase in axis]) for axis in axes]
    pieces = counts[0][:, None, None] * counts[1][:, None] * counts[2]  # of each phase
    starts = (np.cumsum(pieces) - pieces.reshape(-1)).reshape(pieces.shape) * (channels * rows)
    taps = np.ix_(*(np.concatenate([phase.taps for phase in axis]) for axis in axes))
    phase = np.ix_(*(np.repeat(np.arange(len(count)), count) for count in counts))
    number = np.ix_(*(np.concatenate([np.arange(n) for n in count]) for count in counts))
    piece = (number[0] * counts[1][phase[1]] + number[1]) * counts[2][phase[2]] + number[2]
    results = np.empty((prod(kernel), 5), np.int64)
    results[:, 0] = starts[phase].reshape(-1)
    results[:, 1] = pieces[phase].reshape(-1) * channels
    results[:, 2] = piece.reshape(-1) * channels
    results[:, 3] = np.arange(prod(kernel)).reshape(kernel)[taps].reshape(-1)
    results[:, 4] = results[:, 3] + 1
    terms = np.empty((prod(kernel), 2), np.int64)
    terms[:, 0] = np.arange(prod(kernel))
    terms[:, 1] = np.ones(1).view(np.int64)
    results = results[np.argsort(results[:, 3])]
    return np.empty((0, 3), np.int64), results, terms, 0, prod(kernel) * channels * rows


def _transformed(
    axes: tuple[tuple[TapsOfPhase, ...], ...], channels: int, rows: int, kernel: tuple[int, ...]
) -> Tables:
    """Of Winograd's method, axis by axis."""
    sums = _Sums(prod(kernel))
    by_tap = np.arange(prod(kernel)).reshape(kernel)
    shared: list[Integers] = [np.empty((0, 3), np.int64)]
    results: list[Integers] = []
    start = 0
    for phase in product(*axes):
        slots = by_tap[np.ix_(*(one.taps for one in phase))]
        made = [one.products() for one in phase]
        *others, last = [axis for axis in range(3) if phase[axis].transformed] or [2]
        for axis in others:
            terms = sums.add(slots, axis, made[axis][1])
            slots = sums.place(terms)
            shared.append(np.concatenate([slots[..., None], terms], axis=-1).reshape(-1, 3))
        terms = sums.add(slots, last, made[last][1])
        # Points follow each other, each with the steps of its pieces.
        each = [np.bincount(places[:, 0]) for places, _ in made]
        steps = each[0][:, None, None] * each[1][:, None] * each[2] * channels
        starts = start + (np.cumsum(steps) - steps.reshape(-1)).reshape(steps.shape) * rows
        point, number, count = (np.ix_(*(places[:, column] for places, _ in made)) for column in range(3))
        place = np.empty((*terms.shape[:-1], 3), np.int64)
        place[..., 0] = starts[point]
        place[..., 1] = steps[point]
        place[..., 2] = ((number[0] * count[1] + number[1]) * count[2] + number[2]) * channels
        results.append(np.concatenate([place, terms], axis=-1).reshape(-1, 5))
        start += int(steps.sum()) * rows
    return np.concatenate(shared), np.concatenate(results), sums.terms(), sums.slots, start


class _Sums:
    """Collects the terms of all sums."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._count = 0
        self._terms: list[Integers] = []

    def add(self, slots: Integers, axis: int, matrix: npt.NDArray[np.float64]) -> Integers:
        """The sums matrix @ slots along an axis: (..., 2), the first term of each and the one behind its last."""
        front = np.moveaxis(slots, axis, 0)
        places = np.empty((len(matrix), front[0].size, 2), np.int64)
        for row, place in zip(matrix, places, strict=True):
            factors = np.flatnonzero(row)
            terms = np.empty((len(place), len(factors), 2), np.int64)
            terms[..., 0] = front[factors].reshape(len(factors), len(place)).T
            terms[..., 1] = row[factors].view(np.int64)
            place[:, 0] = self._count + np.arange(len(place)) * len(factors)
            place[:, 1] = place[:, 0] + len(factors)
            self._count += len(place) * len(factors)
            self._terms.append(terms.reshape(-1, 2))
        return np.moveaxis(places.reshape(len(matrix), *front.shape[1:], 2), 0, axis)

    def place(self, terms: Integers) -> Integers:
        """New slots for such sums."""
        first, self.slots = self.slots, self.slots + terms[..., 0].size
        return np.arange(first, self.slots).reshape(terms.shape[:-1])

    def terms(self) -> Integers:
        return np.concatenate(self._terms)
