"""The tables that a plan hands to its kernel: parts, taps, channels, and the sheets of Winograd's method."""

from __future__ import annotations

from itertools import accumulate, product
from math import prod

import numpy as np
import numpy.typing as npt

from ..plan.rooms import round_up
from ..words import Words, layout
from .pieces import Piece, terms_of
from .plan import GradientPlan
from .words import LargeSheetWords, PartWords, SmallSheetWords, TapWords, TermWords, TripleWords

Table = npt.NDArray[np.int64]


def _table(words: type[Words], rows: list[list[int]]) -> Table:
    return np.array(rows, np.int64).reshape(-1, len(layout(words, False)[0]))


def tap_table(plan: GradientPlan) -> Table:
    """Rows of TapWords, for each part of the taps; the last one is repeated until its group is full."""
    rows, together = [], plan.registers.taps
    steps = [slab.tap_step for slab in plan.slabs]
    apart = np.array([plan.large.plane, plan.large.row, plan.large.pitch]) * steps
    slots = _tap_slots(plan) if plan.method else None
    for corner, counts in plan.tap_parts:
        total = prod(counts)
        for number in range(round_up(total, together)):
            at = [int(k) for k in np.unravel_index(min(number, total - 1), counts)]
            tap = tuple(first + k for first, k in zip(corner, at, strict=True))
            slot, within = (slots[tap], 0) if slots else divmod(number, together)
            size = plan.registers.rows * plan.registers.columns * plan.lanes
            rows.append([int(apart @ at), *tap, slot, within * size])
    return _table(TapWords, rows)


def part_table(plan: GradientPlan) -> Table:
    """Rows of PartWords."""
    r, kernel, begin, rows = plan.registers, plan.problem.kernel, 0, []
    first_rows = list(accumulate((round_up(prod(counts), r.taps) for _, counts in plan.tap_parts), initial=0))
    channels = product(
        range(plan.outer_groups),
        range(0, plan.all_vector_blocks, plan.vector_blocks),
        range(0, plan.all_number_blocks, plan.number_blocks),
    )
    for group, v, n in channels:
        vectors = min(plan.vector_blocks, plan.all_vector_blocks - v)
        numbers = min(plan.number_blocks, plan.all_number_blocks - n)
        first = v * plan.all_number_blocks if r.by_group else group * plan.all_number_blocks + n
        pairs = vectors * numbers
        own = [first, pairs if r.by_group else numbers, group * plan.all_vector_blocks + v, vectors]
        for (corner, counts), row in zip(plan.tap_parts, first_rows, strict=False):
            groups = -(-prod(counts) // r.taps)
            tap = int(np.ravel_multi_index(corner, kernel))
            length = (plan.method.points if plan.method else groups) * pairs * plan.pair
            rows.append([*own, row, groups, prod(counts), tap, *corner, begin, length])
            begin += length
    return _table(PartWords, rows)


def channel_tables(plan: GradientPlan, small: bool) -> tuple[Table, Table, Table]:
    """Of the vectors of an array: the channel of each lane, how many of them there are, and where they are in the
    result. Absent lanes repeat a channel that is there."""
    p, r, lanes = plan.problem, plan.registers, plan.lanes
    if r.by_group:
        return _tables_by_group(plan, small)
    of_group = p.small_group if small else p.large_group
    vectors, wide = (r.columns, lanes) if (r.lanes_along == "small") == small else (1, r.block)
    blocks = -(-of_group // (vectors * wide))
    within = np.arange(blocks * vectors)[:, None] * wide + np.minimum(np.arange(lanes), wide - 1)
    count = np.clip(of_group - within[:, 0], 0, wide)
    within = np.minimum(within, of_group - 1)
    channel = np.arange(p.groups)[:, None, None] * of_group + within
    place = channel * (p.large_group * p.taps) if small else np.broadcast_to(within * p.taps, channel.shape)
    return channel.reshape(-1, lanes), np.tile(count, p.groups), place.reshape(-1, lanes)


def _tables_by_group(plan: GradientPlan, small: bool) -> tuple[Table, Table, Table]:
    """Lanes are channels of the large array; of the small one they are the channels of the same groups, row by row."""
    p, r, lanes = plan.problem, plan.registers, plan.lanes
    along = np.arange(round_up(p.large[1], lanes)).reshape(-1, lanes)
    count = np.minimum(p.large[1] - along[:, 0], lanes)
    along = np.minimum(along, p.large[1] - 1)
    group, within = np.divmod(along, p.large_group)
    if not small:
        return along, count, (group * p.small_group * p.large_group + within) * p.taps
    row = np.arange(plan.all_number_blocks * r.rows)
    channel = group[:, None] * p.small_group + np.minimum(row, p.small_group - 1)[:, None]  # (vectors, rows, lanes)
    there = np.where(row < p.small_group, count[:, None], 0)
    place = np.broadcast_to((row * p.large_group * p.taps)[:, None], channel.shape)
    return channel.reshape(-1, lanes), there.reshape(-1), place.reshape(-1, lanes)


# --- Winograd's method ------------------------------------------------------------------------------------------------


def _triples(plan: GradientPlan) -> list[tuple[int, tuple[Piece, Piece, Piece]]]:
    """With the slot of their first point."""
    assert plan.method is not None
    slots = accumulate((prod(piece.points for piece in one) for one in plan.method.triples), initial=0)
    return list(zip(slots, plan.method.triples, strict=False))


def _tap_slots(plan: GradientPlan) -> dict[tuple[int, ...], int]:
    """Taps of a triple take the places of its first points."""
    return {
        tap: slot + number
        for slot, triple in _triples(plan)
        for number, tap in enumerate(product(*(piece.taps for piece in triple)))
    }


def triple_table(plan: GradientPlan) -> Table:
    assert plan.method is not None
    kinds = plan.method.schemes.triples
    rows = []
    for slot, (d, h, w) in _triples(plan):
        rows.append([kinds.index((len(d.taps), len(h.taps), len(w.taps))), slot])
    return _table(TripleWords, rows)


def sheet_tables(plan: GradientPlan) -> tuple[Table, Table, Table]:
    """Rows of SmallSheetWords, LargeSheetWords and TermWords. A sheet of the small array serves all triples that are
    alike, whose pieces have as many taps."""
    assert plan.method is not None
    schemes = plan.method.schemes
    small_kinds, large_kinds = schemes.sheets(True), schemes.sheets(False)
    small: list[list[int]] = []
    large: list[list[int]] = []
    terms: list[list[int]] = []
    for kind in schemes.triples:
        alike = [(slot, one) for slot, one in _triples(plan) if tuple(len(piece.taps) for piece in one) == kind]
        if not alike:
            continue
        pieces = alike[0][1]
        size = pieces[1].points * pieces[2].points
        paces = [piece.pace for piece in pieces]
        for at in range(pieces[0].points):
            own = [[place * plan.small.plane, factor] for place, factor in terms_of(schemes.matrix(kind[0], True)[at])]
            number = small_kinds.index((len(own), *kind[1:]))
            small.append([number, len(terms), *paces, size, len(large), len(alike)])
            terms += own
            terms += [[place * plan.small.row, 1] for place in range(paces[1])]
            terms += [[place * plan.small.pitch, 1] for place in range(paces[2])]
            for slot, one in alike:
                met = [
                    [_place(plan, 0, one[0], place) * plan.large.plane, factor]
                    for place, factor in terms_of(schemes.matrix(kind[0], False)[at])
                ]
                large.append([large_kinds.index((len(met), *kind[1:])), len(terms), slot + at * size])
                terms += met
                for axis, step in ((1, plan.large.row), (2, plan.large.pitch)):
                    places = (_place(plan, axis, one[axis], number) for number in range(one[axis].points))
                    terms += [[place * step, 1] for place in places]
    return _table(SmallSheetWords, small), _table(LargeSheetWords, large), _table(TermWords, terms)


def _place(plan: GradientPlan, axis: int, piece: Piece, number: int) -> int:
    """In the slab, of the input of a piece that is `number` strides from what its first tap meets at position 0."""
    tap = min(number, len(piece.taps) - 1)
    slab = plan.slabs[axis]
    return piece.taps[tap] * slab.tap_step + (number - tap) * slab.position_step
