"""Chooses a plan: the algorithm, what registers hold, parts, tiles and chunks, by a model of cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod

from ..plan.machine import Machine
from .pieces import Method, axis_pieces, can_pair
from .plan import POSITIONS, WINDOW, GradientPlan, Packed
from .problem import Problem
from .registers import choose_registers, cycles_of_all

_SLABS = 0.6  # share of the second-level cache that the arrays of a tile may take
_SUMS = 1 << 20  # bytes of a part's sums
_PARTIALS = 64 << 20  # bytes of the sums of all chunks, unless one chunk alone has more
_ITEMS = 8  # of a core
_MOST_POSITIONS = 8 * POSITIONS  # of a tile
_STEPS = 256  # of a point in a tile, at most

# Cycles, measured: to begin a row of a packed array; a number of a square that is transposed; a position that is packed
# alone; to call the micro-kernel, to add one of its vectors to the sums, to begin a row of its box; a point of a sheet.
_ROW, _SQUARE, _ALONE, _CALL, _ADD, _TURN, _POINT = 40.0, 0.6, 25.0, 30.0, 3.0, 8.0, 3.5


@lru_cache(maxsize=256)
def make_gradient_plan(problem: Problem, machine: Machine, algorithm: str = "auto") -> GradientPlan:
    """`algorithm`: "exact" has no zeros take part, and serves numbers that are not finite; "direct" is direct summation;
    "auto" may be Winograd's method."""
    plans = [_planned(problem, machine, None, algorithm != "exact")]
    if algorithm == "auto" and (method := _method(problem)) is not None:
        plans.append(_planned(problem, machine, method, False))
    return min(plans, key=cycles)


def _method(problem: Problem) -> Method | None:
    """Pairs along the axes where that saves products."""
    axes, paired = [], False
    for number, axis in enumerate(problem.axes):
        plain, pieces = axis_pieces(axis, False), axis_pieces(axis, True)
        pairs = sum(behind - first for first, behind in problem.ranges(number))
        products = sum(piece.points * -(-axis.size // piece.pace) for piece in pieces)
        use = can_pair(axis) and products < pairs
        paired |= use
        axes.append(pieces if use else plain)
    d, h, w = axes
    return Method((d, h, w)) if paired else None


def _planned(problem: Problem, machine: Machine, method: Method | None, together: bool) -> GradientPlan:
    registers = choose_registers(problem, machine, together, method is not None)
    plan = GradientPlan(problem, machine, registers, method, (1, 1, 1, 1), problem.kernel, 1, 1, 1)
    return _with_chunks(_with_tile(_with_parts(plan)))


def _with_parts(plan: GradientPlan) -> GradientPlan:
    """As many channels and taps as the sums may take memory for."""
    r, lanes = plan.registers, plan.lanes
    numbers, vectors, taps = plan.all_number_blocks, plan.all_vector_blocks, list(plan.problem.kernel)

    def size() -> int:
        slots = plan.method.points if plan.method else -(-prod(taps) // r.taps)
        return slots * numbers * vectors * plan.pair * plan.item

    while size() > _SUMS and (vectors > 1 or (numbers > 1 and not r.by_group)):
        if vectors > 1 and (r.by_group or numbers == 1 or vectors * r.columns * lanes >= numbers * r.block):
            vectors = -(-vectors // 2)
        else:
            numbers = -(-numbers // 2)
    for axis in range(3):
        while size() > 4 * _SUMS and taps[axis] > 1 and plan.method is None:
            taps[axis] = -(-taps[axis] // 2)
    d, h, w = taps
    return replace(plan, number_blocks=numbers, vector_blocks=vectors, taps=(d, h, w))


def _with_tile(plan: GradientPlan) -> GradientPlan:
    """The cheapest of those that fit; the smallest where none does."""
    even = plan.method is not None
    cuts = [list(_cuts(size, even)) for size in plan.problem.small[2:]]
    found = [replace(plan, tile=(1, *(axis[-1] for axis in cuts)))]
    for tile in product(*cuts):
        one = replace(plan, tile=(1, *tile))
        if _fits(one):
            found.append(one)
            if prod(tile) >= prod(plan.problem.small[2:]):  # whole samples
                most = max(1, POSITIONS // prod(tile))
                found += [more for n in range(2, min(most, plan.problem.small[0]) + 1) if _fits(more := _samples(one, n))]
    return min(found, key=cycles)


def _samples(plan: GradientPlan, count: int) -> GradientPlan:
    return replace(plan, tile=(count, *plan.tile[1:]))


def _cuts(size: int, even: bool) -> Iterator[int]:
    """Lengths of equal tiles, longest first."""
    seen = set()
    for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, size):
        length = -(-size // min(count, size))
        length += length % 2 if even else 0
        if length not in seen:
            seen.add(length)
            yield length


def _fits(plan: GradientPlan) -> bool:
    if prod(plan.tile) > _MOST_POSITIONS or plan.steps > _STEPS:
        return False
    sums = plan.rooms[2].length
    return (plan.scratch // plan.item - sums) * plan.item <= _SLABS * plan.machine.l2


def _with_chunks(plan: GradientPlan) -> GradientPlan:
    """Enough items for the cores of the machine, and chunks short enough for a short chain of additions."""
    wanted = -(-_ITEMS * plan.machine.cores // plan.part_count)
    wanted = max(wanted, -(-plan.tiles // (WINDOW * plan.window)))
    most = max(1, _PARTIALS // (plan.all_sums * plan.item))
    return replace(plan, chunks=max(1, min(wanted, most, plan.tiles)))


def cycles(plan: GradientPlan) -> float:
    """Of one worker that does it all."""
    r, lanes = plan.registers, plan.lanes
    number_parts = -(-plan.all_number_blocks // plan.number_blocks)
    vector_parts = -(-plan.all_vector_blocks // plan.vector_blocks)
    vectors, numbers = (plan.small, plan.large) if r.lanes_along == "small" else (plan.large, plan.small)
    # Vectors that are packed, or transformed, at one place: of the one array for each part of the other's channels.
    vector_count = plan.outer_groups * plan.all_vector_blocks * vectors.vectors * number_parts
    number_count = plan.outer_groups * plan.all_number_blocks * numbers.vectors * vector_parts
    if r.by_group:
        number_count = plan.all_vector_blocks * plan.all_number_blocks * numbers.vectors
    rows = _rows(vectors, lanes) * vector_count + _rows(numbers, lanes) * number_count
    pack = plan.tiles * plan.tile[0] * len(plan.tap_parts) * rows
    small, large = (vector_count, number_count) if r.lanes_along == "small" else (number_count, vector_count)
    return pack + (_direct(plan) if plan.method is None else _winograd(plan, plan.method, small, large))


def _rows(packed: Packed, lanes: int) -> float:
    """Of packing one vector of channels of a sample."""
    d, h, w = packed.places
    whole, left = divmod(w, lanes)
    alone = left if left <= lanes // 4 else 0
    return d * h * (_ROW + _SQUARE * lanes * lanes * (whole + (left > alone)) + _ALONE * alone)


def _calls(plan: GradientPlan) -> float:
    """Cycles to begin and end the micro-kernel for all pairs of blocks, for one slot."""
    r = plan.registers
    pairs = plan.outer_groups * plan.all_vector_blocks * plan.all_number_blocks * (r.block // r.rows)
    return pairs * (_CALL + _ADD * r.rows * r.columns * r.taps)


def _direct(plan: GradientPlan) -> float:
    r, p = plan.registers, plan.problem
    boxes = plan.tiles * prod(-(-size // box) for size, box in zip(plan.tile[1:], plan.box, strict=True))
    positions = p.positions if plan.structure.zeros else p.pairs / p.taps
    slots = plan.slots * len(plan.tap_parts)
    pairs = plan.outer_groups * plan.all_vector_blocks * plan.all_number_blocks * (r.block // r.rows)
    rows = plan.tiles * prod(plan.tile[:3]) * slots * pairs
    return cycles_of_all(r, p, plan.lanes, positions) + boxes * slots * _calls(plan) + _TURN * rows


def _winograd(plan: GradientPlan, method: Method, small: int, large: int) -> float:
    """`small`, `large`: vectors of these arrays that are transformed at one place."""
    padded, total, seen = plan.tiles * prod(plan.tile), 0.0, set()
    of_point = cycles_of_all(plan.registers, plan.problem, plan.lanes, 1.0) / plan.problem.taps
    for triple in method.triples:
        points = prod(piece.points for piece in triple)
        steps = padded / prod(piece.pace for piece in triple)
        kind = tuple(len(piece.taps) for piece in triple)
        sheets = large + (0 if kind in seen else small)  # those of the small array serve all triples that are alike
        seen.add(kind)
        total += points * (steps * (of_point + _POINT * sheets) + plan.tiles * _calls(plan))
    return total
