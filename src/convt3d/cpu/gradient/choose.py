"""Chooses a plan: the algorithm, what registers hold, parts, tiles and chunks, by a model of cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from ...spec.checks import Triple
from ..plan.machine import Machine
from .pieces import Method, axis_pieces, can_pair
from .plan import POSITIONS, WINDOW, GradientPlan, Slab
from .problem import Problem
from .registers import choose_registers, cycles_of_all

_SCRATCH = 0.9  # share of the second-level cache that the arrays of a tile may take, unless one position takes more
_SUMS = 4 << 20  # bytes of a part's sums, unless a block of each array and one tap take more
_PARTIALS = 64 << 20  # bytes of the sums of all chunks, unless one chunk takes more
_ITEMS = 8  # of a core, at most
_IDLE = 0.3  # of an item, that a core waits for others at the end
_MOST_POSITIONS = 8 * POSITIONS  # of a tile

# Cycles, measured: to begin a row of a packed array; a number of a square that is transposed; a position that is packed
# alone; to call the micro-kernel; to add one of its vectors to sums in the second-level cache, and beyond; to begin a
# row of its box; a step of a sheet, and each point of it; to hand a vector of sums on.
_ROW, _SQUARE, _ALONE, _CALL, _ADD, _ADD_FAR, _TURN, _STEP, _POINT = 40.0, 0.6, 25.0, 30.0, 3.0, 5.0, 8.0, 8.0, 3.2
_HAND_ON = 12.0


@lru_cache(maxsize=256)
def make_gradient_plan(problem: Problem, machine: Machine, algorithm: str = "auto") -> GradientPlan:
    """`algorithm`: "exact" lets no zeros take part, and so serves numbers that are not finite; "direct" is direct
    summation; "auto" may be Winograd's method."""
    found = list(_candidates(problem, machine, None, algorithm != "exact"))
    if algorithm == "auto" and (method := _method(problem)) is not None:
        found += _candidates(problem, machine, method, False)
    return min(found, key=lambda pair: pair[0])[1]


def _method(problem: Problem) -> Method | None:
    """Pairs along the axes where that saves products."""
    axes, paired = [], False
    for number, axis in enumerate(problem.axes):
        pieces = axis_pieces(axis, True)
        pairs = sum(behind - first for first, behind in problem.ranges(number))
        products = sum(piece.points * -(-axis.size // piece.pace) for piece in pieces)
        use = can_pair(axis) and products < pairs
        paired |= use
        axes.append(pieces if use else axis_pieces(axis, False))
    d, h, w = axes
    point = -1 if problem.transposed else 1  # so that differences are taken of the input, which may have one sign
    return Method((d, h, w), point) if paired else None


def _candidates(
    problem: Problem, machine: Machine, method: Method | None, together: bool
) -> Iterator[tuple[float, GradientPlan]]:
    """Plans of a method, with the time they take."""
    share, around = 1.0, _SQUARE * 16
    if method is not None:  # of the products, and what a vector of channels takes at a position
        points = sum(prod(piece.points / piece.pace for piece in triple) for triple in method.triples)
        share, around = points / problem.taps, around + _POINT * points
    registers = choose_registers(problem, machine, together, method is not None, share, around)
    whole = GradientPlan(problem, machine, registers, method, (1, 1, 1, 1), problem.kernel, 1, 1, 1)
    for plan in _parts(whole):
        cost = _Cost(plan)
        cycles, tile = min((cost.of(tile), tile) for tile in cost.tiles())
        yield _shared(replace(plan, tile=tile), cycles)


def _shared(plan: GradientPlan, cycles: float) -> tuple[float, GradientPlan]:
    """The plan with the best number of chunks, and the time it takes if all cores of the machine work. More chunks are
    shared out more evenly, and have more sums to hand on; chains of additions want a few of them in any case."""
    cores, parts = plan.machine.cores, plan.part_count
    most = min(plan.tiles, max(1, _PARTIALS // (plan.all_sums * plan.item)))
    least = min(most, -(-plan.tiles // (WINDOW * plan.window)))

    def time(chunks: int) -> float:
        items = parts * chunks
        hand_on = _HAND_ON * plan.all_sums / plan.lanes * chunks / min(cores, parts)
        return cycles * (-(-items // cores) + _IDLE) / items + hand_on

    chunks = min(range(least, max(least, min(most, -(-_ITEMS * cores // parts))) + 1), key=time)
    return time(chunks), replace(plan, chunks=chunks)


def _parts(plan: GradientPlan) -> Iterator[GradientPlan]:
    """From as many channels and taps as the sums may take memory for, to a sixteenth of that."""
    r, taps = plan.registers, list(plan.problem.kernel)
    numbers, vectors = plan.all_number_blocks, plan.all_vector_blocks

    def size() -> int:
        slots = plan.method.points if plan.method else -(-prod(taps) // r.taps)
        return slots * numbers * vectors * plan.pair * plan.item

    def can_halve() -> bool:
        return vectors > 1 or (numbers > 1 and not r.by_group)

    def halve() -> None:
        nonlocal numbers, vectors
        wide, high = vectors * r.columns * plan.lanes, numbers * r.block
        if vectors > 1 and (r.by_group or numbers == 1 or wide >= high):
            vectors = -(-vectors // 2)
        else:
            numbers = -(-numbers // 2)

    while size() > _SUMS and can_halve():
        halve()
    for axis in range(3):
        while size() > _SUMS and taps[axis] > 1 and plan.method is None:
            taps[axis] = -(-taps[axis] // 2)
    d, h, w = taps
    for _ in range(5):
        yield replace(plan, number_blocks=numbers, vector_blocks=vectors, taps=(d, h, w))
        if not can_halve():
            break
        halve()


@dataclass
class _Cost:
    """Cycles of one worker that does it all, for tiles of a plan."""

    plan: GradientPlan

    def __post_init__(self) -> None:
        plan, p = self.plan, self.plan.problem
        r, lanes = plan.registers, plan.lanes
        self.along_small = r.lanes_along == "small"
        number_parts = -(-plan.all_number_blocks // plan.number_blocks)
        vector_parts = -(-plan.all_vector_blocks // plan.vector_blocks)
        # Vectors that are packed, or transformed, at one place: of the one array for each part of the other's channels.
        vectors = plan.outer_groups * plan.all_vector_blocks * r.columns * number_parts
        numbers = plan.outer_groups * plan.all_number_blocks * vector_parts
        if r.by_group:
            numbers = plan.all_vector_blocks * plan.all_number_blocks * r.rows
        self.small, self.large = (vectors, numbers) if self.along_small else (numbers, vectors)
        # The same of one part, in numbers of memory.
        own = plan.vector_blocks * r.columns * lanes, plan.number_blocks * r.block
        if r.by_group:
            own = own[0], plan.vector_blocks * plan.number_blocks * r.rows * lanes
        self.small_size, self.large_size = own if self.along_small else own[::-1]
        self.room = _SCRATCH * plan.machine.l2 / plan.item
        sums = plan.slots * plan.number_blocks * plan.vector_blocks * plan.pair * plan.item
        add = _ADD if sums <= plan.machine.l2 // 2 else _ADD_FAR
        self.pairs = plan.outer_groups * plan.all_vector_blocks * plan.all_number_blocks * (r.block // r.rows)
        self.slots = plan.slots * len(plan.tap_parts)
        self.call = self.slots * self.pairs * (_CALL + add * r.rows * r.columns * r.taps)
        if plan.method is None:
            positions = p.positions if plan.structure.zeros else p.pairs / p.taps
            self.products, self.of_position, self.points = cycles_of_all(r, p, lanes, positions), 0.0, 0
        else:
            self.products, self.of_position = 0.0, self._of_position(plan.method)
            self.points = max(h.points * w.points for h, w in product(*plan.method.axes[1:]))

    def _of_position(self, method: Method) -> float:
        """Of Winograd's method: products and sheets."""
        total, seen = 0.0, set()
        of_point = cycles_of_all(self.plan.registers, self.plan.problem, self.plan.lanes, 1.0) / self.plan.problem.taps
        for triple in method.triples:
            kind = tuple(len(piece.taps) for piece in triple)
            vectors = self.large + (0 if kind in seen else self.small)  # of the small array once for all alike
            seen.add(kind)
            sheets, points = triple[0].points, triple[1].points * triple[2].points
            cycles = sheets * (points * of_point + (_STEP + _POINT * points) * vectors)
            total += cycles / prod(piece.pace for piece in triple)
        return total

    def tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """Those that fit; the smallest where none does."""
        plan = self.plan
        even = plan.method is not None
        samples, *sizes = plan.problem.small[0], *plan.problem.small[2:]
        cuts = [list(_cuts(size, even)) for size in sizes]
        yield (1, cuts[0][-1], cuts[1][-1], cuts[2][-1])
        for d, h, w in product(*cuts):
            short = d * h * w <= _MOST_POSITIONS and self._steps(d, h, w) <= POSITIONS
            if short and self._memory(d, h, w) <= self.room:
                yield (1, d, h, w)
                if d >= sizes[0] and h >= sizes[1] and w >= sizes[2]:
                    most = min(samples, POSITIONS // (d * h * w))
                    fitting = range(2, most + 1)
                    yield from ((n, d, h, w) for n in fitting if n * self._memory(d, h, w) <= self.room)

    def _places(self, tile: Triple) -> Triple:
        plan, p = self.plan, self.plan.problem
        d, h, w = (Slab(*one).places for one in zip(tile, plan.taps, p.stride, p.dilation, strict=True))
        return d, h, w

    def _memory(self, *tile: int) -> int:
        """Numbers of a sample's packed arrays and sheets."""
        d, h, w = tile
        places = self._places((d, h, w))
        packed = prod(tile) * self.small_size + prod(places) * self.large_size
        return packed + self.points * self._steps(d, h, w) * (self.small_size + self.large_size)

    def _steps(self, d: int, h: int, w: int) -> int:
        if self.plan.method is None:
            return 0
        paces = (min(piece.pace for piece in axis) for axis in self.plan.method.axes)
        return prod(-(-size // pace) for size, pace in zip((d, h, w), paces, strict=True))

    def of(self, tile: tuple[int, int, int, int]) -> float:
        plan = self.plan
        samples, d, h, w = tile
        sizes = (plan.problem.small[0], *plan.problem.small[2:])
        tiles = prod(-(-size // one) for size, one in zip(sizes, tile, strict=True))
        places = self._places((d, h, w))
        rows = d * h * self._row(w) * self.small + places[0] * places[1] * self._row(places[2]) * self.large
        total = self.products + tiles * samples * len(plan.tap_parts) * rows
        if plan.method is not None:
            return total + tiles * (prod(tile) * self.of_position + self.call)
        boxes = max(1, -(-(d * h) // max(1, POSITIONS // (samples * w))))
        return total + tiles * (boxes * self.call + _TURN * samples * d * h * self.slots * self.pairs)

    def _row(self, width: int) -> float:
        """Of packing a row of one vector of channels."""
        lanes = self.plan.lanes
        whole, left = divmod(width, lanes)
        alone = left if left <= lanes // 4 else 0
        return _ROW + _SQUARE * lanes * lanes * (whole + (left > alone)) + _ALONE * alone


def _cuts(size: int, even: bool) -> Iterator[int]:
    """Lengths of equal tiles, longest first."""
    seen = set()
    for count in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, size):
        length = -(-size // min(count, size))
        length += length % 2 if even else 0
        if length not in seen and length <= _MOST_POSITIONS:
            seen.add(length)
            yield length
