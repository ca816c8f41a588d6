"""Instructions that the threads of a warp carry out together: shuffles, matrices of 8 x 8, products on tensor cores.

Which thread holds which element of a matrix is PTX's own definition. Products are summed in float64 and rounded once to
the accumulator's type; how a tensor core rounds in between is documented nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .memory import Fault, aligned
from .moves import names_of
from .numbers import WIDTHS, Array, bits_of_type, from_bits, to_bits
from .text import Instruction, Unknown

if TYPE_CHECKING:
    from .arithmetic import Meaning
    from .machine import Machine

WARP = 32
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_GROUP, _PLACE = np.arange(WARP) // 4, np.arange(WARP) % 4  # of a thread in its warp: row of 8, one of 4 in it


def _whole(m: Machine, i: Instruction) -> Array:
    """Warps that run it, all threads of each."""
    warps = m.active.reshape(-1, WARP)
    running = warps.any(1)
    if not warps[running].all():
        raise Fault("barrier", "not all threads of a warp take part")
    return np.flatnonzero(running)


def _of_warps(m: Machine, name: str, kind: str, warps: Array) -> Array:
    """(warps, 32) numbers of a register; (warps, 32, 2) of halves."""
    numbers = m.value(name, kind)
    if numbers.ndim < 2 and numbers.shape != (m.lanes,):
        numbers = np.broadcast_to(numbers, m.lanes)
    return numbers.reshape(-1, WARP, *numbers.shape[1:])[warps]


def _put(m: Machine, name: str, numbers: Array, kind: str, warps: Array) -> None:
    """(warps, 32) numbers into a register."""
    width = WIDTHS[bits_of_type(kind)]
    bits = np.zeros((m.lanes // WARP, WARP), width)
    bits[warps] = to_bits(numbers, kind)
    m.put(name, bits.reshape(-1), f"b{bits_of_type(kind)}")


def _shfl(m: Machine, i: Instruction) -> None:
    how = i.parts[1]
    source, by, clamp, mask = i.operands[1:5]
    b, c, named = (np.broadcast_to(m.value(one, "u32"), m.lanes).astype(np.int64) for one in (by, clamp, mask))
    lane = np.arange(m.lanes) % WARP
    segment, bound = c >> 8 & 31, c & 31
    low = lane & segment
    high = low | (bound & ~segment & 31)
    target = {"bfly": lane ^ b, "idx": low | (b & ~segment & 31), "up": lane - b, "down": lane + b}[how]
    inside = target >= high if how == "up" else target <= high
    target = np.where(inside, target, lane)
    present = m.active.reshape(-1, WARP) @ (1 << np.arange(WARP))
    if ((named & ~np.repeat(present, WARP))[m.active] & 0xFFFFFFFF).any():
        raise Fault("barrier", "a shuffle names threads of the warp that are not there")
    values = np.broadcast_to(m.value(source, "b32"), m.lanes)
    names = str(i.operands[0]).split("|")
    m.put(names[0], values[np.arange(m.lanes) - lane + target], "b32")
    if len(names) > 1:
        m.put(names[1], inside, "pred")


def _redux(m: Machine, i: Instruction) -> None:
    warps = _whole(m, i)
    values = _of_warps(m, str(i.operands[1]), i.type, warps)
    functions: dict[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}
    functions |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    function = functions.get(i.parts[1])
    if function is None or i.type not in ("s32", "u32", "b32"):
        raise Unknown(i.words)
    total = function.reduce(values, 1, dtype=values.dtype)
    _put(m, str(i.operands[0]), np.repeat(total[:, None], WARP, 1), i.type, warps)


def _vote(m: Machine, i: Instruction) -> None:
    warps = m.active.reshape(-1, WARP)
    said = np.broadcast_to(m.value(i.operands[1], "pred"), m.lanes).reshape(-1, WARP) & warps
    if "ballot" in i.parts:
        return m.put(i.operands[0], np.repeat(said @ (1 << np.arange(WARP)), WARP), "b32")
    answer = {"any": said.any(1), "all": (said | ~warps).all(1)}.get(i.parts[1])
    if answer is None:
        raise Unknown(i.words)
    m.put(i.operands[0], np.repeat(answer, WARP), "pred")


def _elect(m: Machine, i: Instruction) -> None:
    """One thread of each warp: the first that is there."""
    warps = m.active.reshape(-1, WARP)
    first = np.argmax(warps, 1)
    register, predicate = str(i.operands[0]).split("|")
    m.put(predicate, (np.arange(WARP) == first[:, None]).reshape(-1), "pred")
    if register != "_":
        m.put(register, np.repeat(first, WARP), "b32")


def _rows(m: Machine, i: Instruction, address: object, count: int, warps: Array) -> Array:
    """(warps, matrices * 8) addresses of rows of 16 bytes, those of the first threads."""
    every = m.address(address)  # type: ignore[arg-type]
    return aligned(every.reshape(-1, WARP)[warps, : 8 * count], 16)


def _ldmatrix(m: Machine, i: Instruction) -> None:
    """8 x 8 matrices of 16 bits; a thread gets two neighbours of a row, transposed of a column."""
    if i.type != "b16" or "m8n8" not in i.parts:
        raise Unknown(i.words)
    names, warps = names_of(i.operands[0]), _whole(m, i)
    rows = _rows(m, i, i.operands[1], len(names), warps)
    block, warp = m.own[::WARP][warps], m.warp[::WARP][warps]
    each = rows.shape[1]
    halves = m.shared.load(rows.reshape(-1), np.repeat(block, each), np.repeat(warp, each), 16, 8)
    matrices = halves.reshape(len(warps), len(names), 8, 8)
    if "trans" in i.parts:
        matrices = matrices.swapaxes(2, 3)
    for at, name in enumerate(names):
        pairs = np.ascontiguousarray(matrices[:, at].reshape(len(warps), WARP, 2)).view(np.uint32)[..., 0]
        _put(m, name, pairs, "b32", warps)


def _stmatrix(m: Machine, i: Instruction) -> None:
    if i.type != "b16" or "m8n8" not in i.parts:
        raise Unknown(i.words)
    names, warps = names_of(i.operands[1]), _whole(m, i)
    rows = _rows(m, i, i.operands[0], len(names), warps)
    matrices = np.stack(
        [np.ascontiguousarray(_of_warps(m, n, "b32", warps)).view(np.uint16).reshape(-1, 8, 8) for n in names], 1
    )
    if "trans" in i.parts:
        matrices = matrices.swapaxes(2, 3)
    block, warp = m.own[::WARP][warps], m.warp[::WARP][warps]
    each = rows.shape[1]
    halves = np.ascontiguousarray(matrices).reshape(-1, 8)
    m.shared.store(rows.reshape(-1), np.repeat(block, each), np.repeat(warp, each), halves, 16)


def _factors(bits: Array, kind: str) -> Array:
    """(..., elements of a register) in float64; TensorFloat32 is float32 whose last 13 bits nobody looks at."""
    if kind == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[..., None]
    if bits_of_type(kind) == 16:
        halves = np.ascontiguousarray(bits).view(np.uint16).reshape(*bits.shape, 2)
        return from_bits(halves, kind).astype(np.float64)
    return from_bits(bits, kind).astype(np.float64)[..., None]


def left_matrix(m: Machine, names: tuple[str, ...], kind: str, rows: int, depth: int, warps: Array) -> Array:
    """(warps, rows, depth), from the registers that hold it."""
    result = np.empty((len(warps), rows, depth))
    size = "b64" if kind == "f64" else "b32"
    tall = rows // 8
    for at, name in enumerate(names):
        held = _factors(_of_warps(m, name, size, warps), kind)
        for part in range(held.shape[-1]):
            column = at // tall * 4 * held.shape[-1] + _PLACE * held.shape[-1] + part
            result[:, _GROUP + 8 * (at % tall), column] = held[..., part]
    return result


def _right_matrix(m: Machine, names: tuple[str, ...], kind: str, depth: int, warps: Array) -> Array:
    """(warps, depth, 8)."""
    result = np.empty((len(warps), depth, 8))
    size = "b64" if kind == "f64" else "b32"
    for at, name in enumerate(names):
        held = _factors(_of_warps(m, name, size, warps), kind)
        for part in range(held.shape[-1]):
            result[:, at * 4 * held.shape[-1] + _PLACE * held.shape[-1] + part, _GROUP] = held[..., part]
    return result


def _mma(m: Machine, i: Instruction) -> None:
    found = next((one for part in i.parts if (one := _SHAPE.fullmatch(part))), None)
    *_, result, left, right, sums = i.parts
    if found is None or i.parts[0] != "sync" or "row" not in i.parts or result not in ("f32", "f64") or sums != result:
        raise Unknown(i.words)
    rows, columns, depth = map(int, found.groups())
    if columns != 8 or left not in ("f16", "bf16", "tf32", "f64") or right != left:
        raise Unknown(i.words)
    warps = _whole(m, i)
    d, a, b, c = map(names_of, i.operands)
    x = left_matrix(m, a, left, rows, depth, warps)
    y = _right_matrix(m, b, right, depth, warps)
    add_product(m, d, c, x @ y, result, warps)


def add_product(
    m: Machine, to: tuple[str, ...], sums: tuple[str, ...], product: Array, kind: str, warps: Array
) -> None:
    """(warps, rows, columns), columns in eights and rows in sixteens (or eight), added to sums in registers."""
    tall = product.shape[1] // 8
    for at, (name, old) in enumerate(zip(to, sums, strict=True)):
        row, column = _GROUP + 8 * (at // 2 % tall), at // (2 * tall) * 8 + _PLACE * 2 + at % 2
        total = product[:, row, column] + _of_warps(m, old, kind, warps)
        _put(m, name, total, kind, warps)


MEANINGS: Mapping[str, Meaning] = {
    "shfl": _shfl,
    "redux": _redux,
    "vote": _vote,
    "elect": _elect,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "mma": _mma,
}
