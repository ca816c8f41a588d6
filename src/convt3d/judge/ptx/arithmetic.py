"""Instructions that each thread carries out by itself, on registers only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from .numbers import PAIRS, WIDTHS, Array, bits_of_type, flushed, from_bits, fused, is_float, rounded_tf32
from .text import Instruction, Unknown

if TYPE_CHECKING:
    from .machine import Machine

Meaning = Callable[["Machine", Instruction], None]


def _rounded(i: Instruction, numbers: Array) -> Array:
    return flushed(numbers) if "ftz" in i.parts else numbers


def _result(i: Instruction, numbers: Array) -> Array:
    """What arithmetic gives has one NaN only, so that threads which compute the same number have the same bits."""
    numbers = _rounded(i, numbers)
    return np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers) if is_float(i.type) else numbers


def _with(function: Callable[..., Array]) -> Meaning:
    """d = function(a, b, ...), all of the instruction's type."""

    def meaning(m: Machine, i: Instruction) -> None:
        given = [_rounded(i, m.value(operand, i.type)) for operand in i.operands[1:]]
        m.put(i.operands[0], _result(i, function(*given)), i.type)

    return meaning


def _float_or(of_floats: Callable[..., Array], of_integers: Callable[..., Array]) -> Meaning:
    both = _with(of_floats), _with(of_integers)
    return lambda m, i: both[0](m, i) if is_float(i.type) else both[1](m, i)


def _mul(m: Machine, i: Instruction) -> None:
    if is_float(i.type):
        return _with(np.multiply)(m, i)
    a, b = (m.value(operand, i.type) for operand in i.operands[1:3])
    kind, product = _integer_product(i, a, b)
    if i.name == "mad":
        product = product + m.value(i.operands[3], kind)
    m.put(i.operands[0], product, kind)


def _integer_product(i: Instruction, a: Array, b: Array) -> tuple[str, Array]:
    letter, bits = i.type[0], bits_of_type(i.type)
    if "wide" in i.parts:
        kind = f"{letter}{2 * bits}"
        wide = np.int64 if letter == "s" else np.uint64
        return kind, a.astype(wide) * b.astype(wide)
    if "hi" in i.parts:
        return i.type, _high(a, b, bits)
    return i.type, a * b


def _high(a: Array, b: Array, bits: int) -> Array:
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return (a.astype(wide) * b.astype(wide)) >> wide(bits)
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    x, y = np.broadcast_arrays(a.view(np.uint64), b.view(np.uint64))
    middle = (x >> half) * (y & low) + ((x & low) * (y & low) >> half)
    other = (x & low) * (y >> half) + (middle & low)
    high = (x >> half) * (y >> half) + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        high = high - np.where(x >> np.uint64(63), y, np.uint64(0)) - np.where(y >> np.uint64(63), x, np.uint64(0))
        return high.view(np.int64)
    return high


def _mad(m: Machine, i: Instruction) -> None:
    (_fma if is_float(i.type) else _mul)(m, i)


def _fma(m: Machine, i: Instruction) -> None:
    a, b, c = (_rounded(i, m.value(operand, i.type)) for operand in i.operands[1:4])
    result = fused(a, b, c)
    result = _result(i, result.astype(np.float32) if i.type == "f32" else result)
    m.put(i.operands[0], np.maximum(result, 0) if "relu" in i.parts else result, i.type)


def _quotient(a: Array, b: Array) -> Array:
    """Towards zero, as C has it; by zero, anything."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient, rest = np.divmod(a, safe)
    return quotient + ((rest != 0) & ((rest < 0) != (a < 0))).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    return a - _quotient(a, b) * b


def _least(m: Machine, i: Instruction) -> None:
    kinds = {"min": (np.minimum, np.fmin), "max": (np.maximum, np.fmax)}
    _with(kinds[i.name]["NaN" not in i.parts])(m, i)


def _shift(m: Machine, i: Instruction) -> None:
    a, by = m.value(i.operands[1], i.type), m.value(i.operands[2], "u32")
    bits = bits_of_type(i.type)
    held = np.minimum(by, bits - 1).astype(a.dtype)
    shifted = a << held if i.name == "shl" else a >> held
    emptied = by >= bits
    if i.name == "shl" or a.dtype.kind == "u":
        shifted = np.where(emptied, a.dtype.type(0), shifted)
    m.put(i.operands[0], shifted, i.type)


def _logic(m: Machine, i: Instruction) -> None:
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}[i.name]
    m.put(i.operands[0], function(*(m.value(operand, i.type) for operand in i.operands[1:])), i.type)


def _lop3(m: Machine, i: Instruction) -> None:
    a, b, c = (m.value(operand, "b32") for operand in i.operands[1:4])
    table = int(str(i.operands[4]), 0)
    result = np.zeros(m.lanes, np.uint32)
    for at in range(8):
        if table >> at & 1:
            result |= (a if at & 4 else ~a) & (b if at & 2 else ~b) & (c if at & 1 else ~c)
    m.put(i.operands[0], result, "b32")


def _field(m: Machine, i: Instruction) -> None:
    """bfe: a field of bits; with a sign, the uppermost is repeated."""
    a = m.value(i.operands[1], i.type)
    place, length = (m.value(operand, "u32") & np.uint32(255) for operand in i.operands[2:4])
    bits = bits_of_type(i.type)
    raw = a.view(WIDTHS[bits]).astype(np.uint64)
    length, place = length.astype(np.uint64), place.astype(np.uint64)
    mask = np.where(length >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1))
    found = np.where(place < 64, raw >> np.minimum(place, np.uint64(63)), np.uint64(0)) & mask
    if a.dtype.kind == "i":
        last = np.minimum(place + length - np.uint64(1), np.uint64(bits - 1))
        negative = ((raw >> last & np.uint64(1)) == 1) & (length > 0)
        found = np.where(negative, found | ~mask, found)
    m.put(i.operands[0], found.astype(WIDTHS[bits]), f"u{bits}")


def _insert(m: Machine, i: Instruction) -> None:
    """bfi: a field of b's bits replaced by the low ones of a."""
    a, b = (m.value(operand, i.type) for operand in i.operands[1:3])
    place, length = (m.value(operand, "u32").astype(np.uint64) & np.uint64(255) for operand in i.operands[3:5])
    mask = ((np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1)) << np.minimum(place, np.uint64(63))
    result = (b.astype(np.uint64) & ~mask) | (a.astype(np.uint64) << np.minimum(place, np.uint64(63)) & mask)
    m.put(i.operands[0], result.astype(b.dtype), i.type)


def _permute(m: Machine, i: Instruction) -> None:
    """prmt: any four of eight bytes; a selector's fourth bit repeats a byte's sign instead."""
    if i.parts != ("b32",):
        raise Unknown(i.words)
    a, b, how = (np.broadcast_to(m.value(operand, "b32"), m.lanes) for operand in i.operands[1:4])
    source = np.stack([a, b], 1).view(np.uint8)
    result = np.empty((m.lanes, 4), np.uint8)
    for at in range(4):
        nibble = how >> np.uint32(4 * at)
        byte = np.take_along_axis(source, (nibble & np.uint32(7)).astype(np.int64)[:, None], 1)[:, 0]
        result[:, at] = np.where(nibble & np.uint32(8), np.where(byte & 128, 255, 0), byte)
    m.put(i.operands[0], result.view(np.uint32)[:, 0], "b32")


def _count_bits(m: Machine, i: Instruction) -> None:
    bits = bits_of_type(i.type)
    value = m.value(i.operands[1], f"u{bits}").astype(np.uint64)
    each = (value[..., None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    zeros = np.where(value == 0, bits, np.argmax(each[..., ::-1], -1))
    found = each.sum(-1) if i.name == "popc" else zeros
    m.put(i.operands[0], found, "u32")


_ORDERED: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def _compared(how: str, a: Array, b: Array, kind: str) -> Array:
    if not is_float(kind):
        return _ORDERED[how](a, b)
    odd = np.isnan(a) | np.isnan(b)
    if how in ("num", "nan"):
        return odd == (how == "nan")
    if how.endswith("u"):
        return _ORDERED[how[:-1]](a, b) | odd
    return _ORDERED[how](a, b) & ~odd


def _setp(m: Machine, i: Instruction) -> None:
    a, b = (_rounded(i, m.value(operand, i.type)) for operand in i.operands[1:3])
    found = _compared(i.parts[0], a, b, i.type)
    names = str(i.operands[0]).split("|")
    for name, value in zip(names, (found, ~found), strict=False):
        if len(i.operands) > 3:
            other = m.value(i.operands[3], "pred")
            value = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[i.parts[1]](value, other)
        m.put(name, value, "pred")


def _selp(m: Machine, i: Instruction) -> None:
    a, b = (m.value(operand, i.type) for operand in i.operands[1:3])
    m.put(i.operands[0], np.where(m.value(i.operands[3], "pred"), a, b), i.type)


def _mov(m: Machine, i: Instruction) -> None:
    to, source = i.operands
    if isinstance(to, tuple):
        bits = np.ascontiguousarray(np.broadcast_to(m.value(source, i.type), m.lanes))
        each = bits_of_type(i.type) // len(to)
        parts = bits.view(WIDTHS[each]).reshape(-1, len(to))
        for at, name in enumerate(to):
            if name != "_":
                m.put(name, parts[:, at].copy(), f"b{each}")
    elif isinstance(source, tuple):
        each = bits_of_type(i.type) // len(source)
        parts = np.stack([np.broadcast_to(m.value(name, f"b{each}"), m.lanes) for name in source], 1)
        m.put(to, np.ascontiguousarray(parts).view(WIDTHS[bits_of_type(i.type)])[:, 0], f"b{bits_of_type(i.type)}")
    else:
        m.put(to, m.value(source, i.type), i.type)


def _cvt(m: Machine, i: Instruction) -> None:
    to, kind = i.parts[-2], i.parts[-1]
    if to in PAIRS:  # two numbers into the halves of a register, the first into the upper one
        high, low = (np.broadcast_to(m.value(operand, kind), m.lanes) for operand in i.operands[1:3])
        numbers = np.stack([low, high], 1)
    else:
        numbers = _rounded(i, m.value(i.operands[1], kind))
    if to == "tf32":
        if "rna" not in i.parts and "rn" not in i.parts:
            raise Unknown(i.words)
        return m.put(i.operands[0], rounded_tf32(numbers.view(np.uint32)), "b32")
    if "rz" in i.parts and is_float(to):
        raise Unknown(i.words)
    if is_float(kind) and ({"rzi", "rni", "rmi", "rpi"} & set(i.parts)):
        way = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
        numbers = next(way[part] for part in i.parts if part in way)(numbers.astype(np.float64))
        if not is_float(to):
            limits = np.iinfo(from_bits(np.zeros(1, WIDTHS[bits_of_type(to)]), to).dtype)
            largest = np.nextafter(float(limits.max), 0) if limits.max > 2**53 else float(limits.max)
            numbers = np.clip(np.where(np.isnan(numbers), 0, numbers), float(limits.min), largest)
    if "sat" in i.parts and is_float(to):
        numbers = np.clip(np.where(np.isnan(numbers), 0, numbers), 0, 1)
    if "relu" in i.parts:
        numbers = np.maximum(numbers, 0)
    m.put(i.operands[0], numbers, to)


def _reciprocal_root(a: Array) -> Array:
    return (1.0 / np.sqrt(a.astype(np.float64))).astype(a.dtype)


def _copy(m: Machine, i: Instruction) -> None:
    m.put(i.operands[0], m.value(i.operands[1], i.type), i.type)


# Functions that a GPU approximates are rounded correctly here: its own are off by a unit or two in the last place.
MEANINGS: Mapping[str, Meaning] = {
    "add": _with(np.add),
    "sub": _with(np.subtract),
    "mul": _mul,
    "mad": _mad,
    "fma": _fma,
    "div": _float_or(np.divide, _quotient),
    "rem": _with(_remainder),
    "min": _least,
    "max": _least,
    "abs": _with(np.abs),
    "neg": _with(np.negative),
    "sqrt": _with(np.sqrt),
    "rsqrt": _with(_reciprocal_root),
    "rcp": _with(lambda a: a.dtype.type(1) / a),
    "ex2": _with(np.exp2),
    "lg2": _with(np.log2),
    "tanh": _with(np.tanh),
    "sin": _with(np.sin),
    "cos": _with(np.cos),
    "copysign": _with(lambda a, b: np.copysign(b, a)),
    "shl": _shift,
    "shr": _shift,
    **dict.fromkeys(("and", "or", "xor", "not"), _logic),
    "lop3": _lop3,
    "bfe": _field,
    "bfi": _insert,
    "prmt": _permute,
    "popc": _count_bits,
    "clz": _count_bits,
    "setp": _setp,
    "selp": _selp,
    "mov": _mov,
    "cvt": _cvt,
    "cvta": _copy,
}
