"""Instructions that move numbers between registers and memory: loads, stores, asynchronous copies, atomics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .memory import aligned
from .numbers import WIDTHS, Array, bits_of_type, from_bits, to_bits
from .text import Address, Instruction, Unknown

if TYPE_CHECKING:
    from .arithmetic import Meaning
    from .machine import Machine


@dataclass
class Flight:
    """Something asynchronous: threads that began it, the group of each, and what is done for those that wait for it."""

    threads: Array
    groups: Array
    end: Callable[[Array], None]  # of the places in `threads`


class Flights:
    """What each thread has begun and not waited for, in groups that it commits."""

    def __init__(self, lanes: int) -> None:
        self.committed = np.zeros(lanes, np.int64)
        self.flights: list[Flight] = []

    def begin(self, threads: Array, end: Callable[[Array], None]) -> None:
        self.flights.append(Flight(threads, self.committed[threads], end))

    def commit(self, active: Array) -> None:
        self.committed[active] += 1

    def wait(self, active: Array, left: int) -> None:
        """Until at most `left` groups are on their way."""
        kept = []
        for flight in self.flights:
            done = active[flight.threads] & (flight.groups < self.committed[flight.threads] - left)
            if done.any():
                places = np.flatnonzero(done)
                flight.end(places)
            if not done.all():
                rest = np.flatnonzero(~done)
                kept.append(Flight(flight.threads[rest], flight.groups[rest], _of_some(flight.end, rest)))
        self.flights = kept


def _of_some(end: Callable[[Array], None], places: Array) -> Callable[[Array], None]:
    return lambda at: end(places[at])


def names_of(operand: object) -> tuple[str, ...]:
    return operand if isinstance(operand, tuple) else (str(operand),)


def _ld(m: Machine, i: Instruction) -> None:
    names, source, kind = names_of(i.operands[0]), i.operands[1], i.type
    if not isinstance(source, Address):
        raise Unknown(i.words)
    if "param" in i.parts:
        bits = to_bits(m.arguments[source.base], f"b{bits_of_type(kind)}")
        return m.put(names[0], from_bits(bits, kind), kind)
    width, threads = bits_of_type(kind), np.flatnonzero(m.active)
    address = aligned(m.address(source)[threads], len(names) * width // 8)
    if _shared(i):
        words = m.shared.load(address, m.own[threads], m.warp[threads], width, len(names))
    elif "global" in i.parts:
        words = m.memory.load(address, m.block[threads], width, len(names))
    else:
        raise Unknown(i.words)
    for at, name in enumerate(names):
        all_words = np.zeros(m.lanes, WIDTHS[width])
        all_words[threads] = words[:, at]
        m.put(name, from_bits(all_words, kind), kind)


def _st(m: Machine, i: Instruction) -> None:
    target, names, kind = i.operands[0], names_of(i.operands[1]), i.type
    width, threads = bits_of_type(kind), np.flatnonzero(m.active)
    bits = [np.broadcast_to(to_bits(m.value(name, kind), kind), m.lanes)[threads] for name in names]
    address = aligned(m.address(target)[threads], len(names) * width // 8)
    if _shared(i):
        m.shared.store(address, m.own[threads], m.warp[threads], np.stack(bits, 1), width)
    elif "global" in i.parts:
        m.memory.store(address, m.block[threads], np.stack(bits, 1), width)
    else:
        raise Unknown(i.words)


def _shared(i: Instruction) -> bool:
    return "shared" in i.parts or "shared::cta" in i.parts


def _cp(m: Machine, i: Instruction) -> None:
    """cp.async: bytes from global to shared memory, which are there after a wait; beyond a given size, zeros."""
    if i.parts[0] != "async" or "bulk" in i.parts:
        raise Unknown(i.words)
    if "commit_group" in i.parts:
        return m.copies.commit(m.active)
    if "wait_group" in i.parts or "wait_all" in i.parts:
        return m.copies.wait(m.active, int(str(i.operands[0]), 0) if i.operands else 0)
    size = int(str(i.operands[2]), 0)
    threads = np.flatnonzero(m.active)
    kept = np.broadcast_to(m.value(i.operands[3], "u32") if len(i.operands) > 3 else np.uint32(size), m.lanes)[threads]
    if not np.isin(kept, (0, size)).all():
        raise Unknown(f"{i.words} of a part of {size} bytes")
    target = aligned(m.address(i.operands[0])[threads], size)
    source = m.address(i.operands[1])[threads]
    width, count = min(64, size * 8), max(1, size // 8)
    words = np.zeros((len(threads), count), WIDTHS[width])
    read = kept > 0
    words[read] = m.memory.load(aligned(source[read], size), m.block[threads[read]], width, count)
    blocks, warps = m.own[threads], m.warp[threads]
    places = m.shared.begin_copy(target, blocks, warps, width, count)
    shared = m.shared

    def end(at: Array) -> None:
        shared.end_copy(places[at], blocks[at], warps[at], words[at], width)

    m.copies.begin(threads, end)


_ATOMIC: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
}


def _atomic(m: Machine, i: Instruction) -> None:
    """One thread after the other."""
    kind, width = i.type, bits_of_type(i.type)
    result = i.operands[0] if i.name == "atom" else None
    target, *given = i.operands[1:] if i.name == "atom" else i.operands
    if "global" not in i.parts or len(names_of(given[0])) > 1:
        raise Unknown(i.words)
    names = [name for operand in given for name in names_of(operand)]
    values = [np.broadcast_to(m.value(name, kind), m.lanes) for name in names]
    address, old = m.address(target), np.zeros(m.lanes, WIDTHS[width])
    function = next((_ATOMIC[part] for part in i.parts if part in _ATOMIC), None)
    for thread in np.flatnonzero(m.active):
        found, wrong = m.memory.places(aligned(address[thread : thread + 1], width // 8), width, 1)
        if wrong is not None:
            m.memory.load(address[thread : thread + 1], m.block[thread : thread + 1], width, 1)  # says where
        region, _, places = found[0]
        memory, at = region.words(width), places.reshape(-1) * 8 // width
        before = memory[at].copy()
        old[thread] = before[0]
        numbers = from_bits(before, kind)
        if "cas" in i.parts:
            new = np.where(numbers == values[0][thread], values[1][thread], numbers)
        elif function is not None:
            new = function(numbers, values[0][thread : thread + 1])
        else:
            raise Unknown(i.words)
        memory[at] = to_bits(new, kind)
    if isinstance(result, tuple):
        result = result[0]
    if result is not None and result != "_":
        m.put(result, from_bits(old, kind), kind)


def _nothing(m: Machine, i: Instruction) -> None:
    """Orders memory, gathers a warp, or hints: here everything happens in order."""


MEANINGS: Mapping[str, Meaning] = {
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "cp": _cp,
    "atom": _atomic,
    "red": _atomic,
    **dict.fromkeys(
        ("bar", "fence", "membar", "prefetch", "prefetchu", "griddepcontrol", "nanosleep", "setmaxnreg"), _nothing
    ),
}
