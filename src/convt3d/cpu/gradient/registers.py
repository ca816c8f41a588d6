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
    def alone(self) -> bool:
        """Whether a tap is summed alone, over the positions it has."""
        return self.taps == 1

    @property
    def name(self) -> str:
        along = "groups" if self.by_group else self.lanes_along
        return f"{along}{self.rows}x{self.columns}" + (f"_taps{self.taps}" if self.taps > 1 else "")


def _cycles(rows: int, columns: int, loads: int) -> float:
    """Of one position: two multiply-adds and two loads at a time, each sum waits for the one before."""
    return max(rows * columns / 2, loads / 2, 4.0) + 0.75


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


def _of_channels(p: Problem, lanes: int, registers: int, together: bool) -> Iterator[tuple[float, Registers]]:
    for along, vectors_of, numbers in (
        ("large", p.large_group, p.small_group),
        ("small", p.small_group, p.large_group),
    ):
        vectors = -(-vectors_of // lanes)
        for columns in range(1, min(vectors, MOST_COLUMNS) + 1):
            most = (registers - 1 - columns) // columns
            if most < 1:
                break
            widths = [columns] * (vectors // columns) + ([vectors % columns] if vectors % columns else [])
            for rows, block in _blocks(numbers, most, lanes):
                count = -(-numbers // block) * (block // rows)
                cost = p.groups * count * p.taps * sum(_cycles(rows, n, rows + n) for n in widths)
                rest = vectors % columns or columns
                yield cost * p.pairs / p.taps, Registers(along, False, rows, block, columns, rest, 1)
                most_taps = most // rows if along == "small" else (registers - 1 - rows) // (rows * columns)
                taps = _spread(p.taps, max(1, min(most_taps, p.taps)))
                if not together or taps == 1 or block > rows or columns != vectors:
                    continue
                if along == "small":
                    high, wide, loads = rows * taps, columns, rows * taps + columns + max(0, taps - _POINTERS)
                else:
                    high, wide, loads = rows, columns * taps, rows + columns * taps + max(0, taps - _POINTERS)
                cost = p.groups * count * -(-p.taps // taps) * _cycles(high, wide, loads)
                yield cost * p.positions, Registers(along, False, rows, block, columns, columns, taps)


def _of_groups(p: Problem, lanes: int, registers: int, together: bool) -> Iterator[tuple[float, Registers]]:
    vectors = -(-p.large[1] // lanes)
    for rows in range(1, min(p.small_group, lanes) + 1):
        most = (registers - 1 - rows) // rows
        taps = _spread(p.taps, max(1, min(most, p.taps))) if together else 1
        rows_of = _spread(p.small_group, rows)
        count = vectors * -(-p.small_group // rows_of) * -(-p.taps // taps)
        cost = count * _cycles(rows_of, taps, rows_of + taps + max(0, taps - _POINTERS))
        positions = p.positions if taps > 1 else p.pairs / p.taps
        yield cost * positions, Registers("large", True, rows_of, rows_of, 1, 1, taps)


def _usable(machine: Machine) -> int:
    """Vector registers for sums and what meets them: LLVM reads some numbers ahead where there are many, and needs one
    for a product where it cannot be added at once."""
    if machine.vector_registers > 16:
        return machine.vector_registers - 6
    return machine.vector_registers - (0 if machine.has("fma") else 4)


@lru_cache(maxsize=256)
def choose_registers(problem: Problem, machine: Machine, together: bool) -> Registers:
    """The cheapest; `together`: sums of several taps may be formed at once, all inputs being finite."""
    item = 8 if problem.dtype.accumulate == "float64" else 4
    lanes, registers = machine.lanes(item), _usable(machine)
    found = list(_of_channels(problem, lanes, registers, together))
    if problem.groups > 1:
        found += _of_groups(problem, lanes, registers, together)
    return min(found, key=lambda pair: pair[0])[1]
