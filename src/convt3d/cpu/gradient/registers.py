"""What the registers hold: sums of products of some channels of one array with some vectors of channels of the other.

Channels lie along the lanes, so that a position is a vector and no sum runs across lanes. Of the other array a channel
is a number that is broadcast. Where there are few channels, the sums of several taps are formed together; then every
tap sees all positions, and zeros stand where it leaves the array. Alone, a tap sees its own positions and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..plan.machine import Machine
from .problem import Problem

MOST_COLUMNS = 8
_POINTERS = 9  # that general registers have room for beside the loop's own


@dataclass(frozen=True)
class Registers:
    """`rows` numbers x `columns` vectors, for each of `taps`. Numbers are read from blocks of `block` channels."""

    lanes_along: str  # whose channels: "small" or "large"
    by_group: bool  # lanes are channels of different groups, and what meets them is a vector too
    rows: int
    block: int
    columns: int
    rest: int  # columns of the last block of vectors
    taps: int

    @property
    def name(self) -> str:
        along = "groups" if self.by_group else self.lanes_along
        return f"{along}{self.rows}x{self.columns}" + (f"_taps{self.taps}" if self.taps > 1 else "")


def _spread(count: int, most: int) -> int:
    """The size of equal blocks of at most `most`, as few as can be."""
    return -(-count // -(-count // most))


def _blocks(channels: int, most: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Rows, and channels of a block: equal blocks; or whole vectors cut into equal parts."""
    rows = _spread(channels, min(most, lanes))
    yield rows, rows
    part = lanes
    while part > most:
        part //= 2
    if part and channels > lanes // 2:
        yield part, lanes


def _of_channels(p: Problem, lanes: int, registers: int, together: bool) -> Iterator[Registers]:
    for along, vectors_of, numbers in (
        ("large", p.large_group, p.small_group),
        ("small", p.small_group, p.large_group),
    ):
        vectors = -(-vectors_of // lanes)
        for columns in range(1, min(vectors, MOST_COLUMNS) + 1):
            most = (registers - 1 - columns) // columns
            if most < 1:
                break
            rest = vectors % columns or columns
            for rows, block in _blocks(numbers, most, lanes):
                yield Registers(along, False, rows, block, columns, rest, 1)
                most_taps = most // rows if along == "small" else (registers - 1 - rows) // (rows * columns)
                taps = _spread(p.taps, max(1, min(most_taps, p.taps)))
                if together and taps > 1 and block == rows and columns == vectors:
                    yield Registers(along, False, rows, block, columns, rest, taps)


def _of_groups(p: Problem, lanes: int, registers: int, together: bool) -> Iterator[Registers]:
    for most_rows in range(1, min(p.small_group, lanes) + 1):
        rows = _spread(p.small_group, most_rows)
        most = max(1, (registers - 1 - rows) // rows)
        yield Registers("large", True, rows, rows, 1, 1, _spread(p.taps, min(most, p.taps)) if together else 1)


def cycles_of_position(r: Registers, columns: int) -> float:
    """Two multiply-adds and two loads at a time, each sum waits for the one before."""
    rows, wide = (r.rows * r.taps, columns) if r.lanes_along == "small" else (r.rows, columns * r.taps)
    loads = rows + wide + max(0, r.taps - _POINTERS)
    crowded = 0.03 * max(0, rows * wide - 16)  # with more sums LLVM runs short of registers now and then
    return max(rows * wide / 2, loads / 2, 4.0) * (1 + crowded / 2) + 0.4 + 0.1 * wide


def cycles_of_all(r: Registers, p: Problem, lanes: int, positions: float) -> float:
    """Of so many positions for each tap, all groups and channels."""
    if r.by_group:
        blocks = -(-p.large[1] // lanes) * -(-p.small_group // r.rows)
        return positions * blocks * -(-p.taps // r.taps) * cycles_of_position(r, 1)
    vectors_of, numbers = p.small_group, p.large_group
    if r.lanes_along == "large":
        vectors_of, numbers = numbers, vectors_of
    vectors = -(-vectors_of // lanes)
    widths = [r.columns] * ((vectors - r.rest) // r.columns) + [r.rest]
    blocks = p.groups * -(-numbers // r.block) * (r.block // r.rows)
    return positions * blocks * -(-p.taps // r.taps) * sum(cycles_of_position(r, wide) for wide in widths)


def _usable(machine: Machine) -> int:
    """Vector registers for sums and what meets them: LLVM reads some numbers ahead where there are many, and needs one
    for a product where it cannot be added at once."""
    if machine.vector_registers > 16:
        return machine.vector_registers - 4
    return machine.vector_registers - (0 if machine.has("fma") else 4)


@lru_cache(maxsize=256)
def choose_registers(
    problem: Problem, machine: Machine, together: bool, winograd: bool, share: float, around: float
) -> Registers:
    """The cheapest, where `share` of the products are made and a vector of channels takes `around` cycles at a position
    beside them. `together`: sums of several taps may be formed at once."""
    lanes = _lanes(problem, machine)

    def cost(r: Registers) -> float:
        positions = problem.pairs / problem.taps if r.taps == 1 else problem.positions
        products = share * cycles_of_all(r, problem, lanes, positions)
        return products + around * problem.positions * _vectors(r, problem, lanes)

    return min(register_choices(problem, machine, together, winograd), key=cost)


def register_choices(problem: Problem, machine: Machine, together: bool, winograd: bool) -> list[Registers]:
    lanes, registers = _lanes(problem, machine), _usable(machine)
    found = list(_of_channels(problem, lanes, registers, together))
    return found if winograd or problem.groups == 1 else found + list(_of_groups(problem, lanes, registers, together))


def _lanes(problem: Problem, machine: Machine) -> int:
    return machine.lanes(8 if problem.dtype.accumulate == "float64" else 4)


def _vectors(r: Registers, p: Problem, lanes: int) -> int:
    """Of channels, of both arrays."""
    if r.by_group:
        return -(-p.large[1] // lanes) * (1 + p.small_group)
    vectors, numbers = (p.small_group, p.large_group) if r.lanes_along == "small" else (p.large_group, p.small_group)
    return p.groups * (-(-vectors // lanes) + -(-numbers // r.block))
