"""Numbers of PTX's types in registers of bits: conversions and roundings.

A register is an array of unsigned numbers, one for each thread; a type says how its bits are read. bfloat16 is read as
float32, which holds it; types ending in x2 give two columns.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # np.ndarray of any element

WIDTHS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
PLAIN = {
    **{f"{letter}{bits}": kind for letter in "bu" for bits, kind in WIDTHS.items()},
    "s8": np.int8,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "tf32": np.float32,
}
PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def bits_of_type(kind: str) -> int:
    """Of a register that holds the type; a predicate has one."""
    if kind == "pred":
        return 1
    if kind in PAIRS:
        return 2 * bits_of_type(PAIRS[kind])
    return 32 if kind == "tf32" else int("".join(letter for letter in kind if letter.isdigit()))


def is_float(kind: str) -> bool:
    return kind in PAIRS or kind in ("f16", "bf16", "f32", "f64", "tf32")


def from_bits(bits: Array, kind: str) -> Array:
    """A register's bits as numbers; of a wider register, the low ones."""
    if kind == "pred":
        return bits
    if kind in PAIRS:
        half = PAIRS[kind]
        return from_bits(bits.view(WIDTHS[bits_of_type(half)]).reshape(-1, 2), half)
    width = WIDTHS[bits_of_type(kind)]
    bits = bits if bits.dtype == width else bits.astype(width)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(PLAIN[kind])


def to_bits(numbers: Array, kind: str) -> Array:
    """Numbers rounded to the type, to the nearest and even, as bits."""
    if kind == "pred":
        return numbers
    if kind in PAIRS:
        return np.ascontiguousarray(to_bits(numbers, PAIRS[kind])).view(WIDTHS[bits_of_type(kind)]).reshape(-1)
    if kind == "bf16":
        return bfloat16_bits(numbers)
    return np.asarray(numbers).astype(PLAIN[kind]).view(WIDTHS[bits_of_type(kind)])


def bfloat16_bits(numbers: Array) -> Array:
    if numbers.dtype == np.float64:
        numbers = to_odd(numbers)
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(numbers), 0x7FFF, rounded).astype(np.uint16)


def to_odd(numbers: Array) -> Array:
    """float64 -> float32, where what is cut off leaves an odd last bit: a further rounding then errs no more."""
    near = numbers.astype(np.float32)
    low = np.where(np.abs(near) > np.abs(numbers), np.nextafter(near, np.float32(0)), near)  # towards zero
    odd = (low.view(np.uint32) | np.uint32(1)).view(np.float32)
    exact = (low == numbers) | ~np.isfinite(numbers) | np.isinf(near)
    return np.where(exact, near, odd)


def rounded_tf32(bits: Array) -> Array:
    """Ten bits of mantissa, ties away from zero."""
    special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    return np.where(special, bits, (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).astype(np.uint32)


def immediate(text: str, kind: str) -> Array:
    """A number that stands in the text, of the type, as an array without axes."""
    if kind == "pred":
        return np.bool_(int(text, 0) != 0)
    if text[:2] in ("0f", "0F"):
        bits = np.array(int(text[2:], 16), np.uint32)
    elif text[:2] in ("0d", "0D"):
        bits = np.array(int(text[2:], 16), np.uint64)
    else:
        size = 64 if bits_of_type(kind) > 32 else 32
        bits = np.array(int(text.rstrip("U"), 0) % 2**size, WIDTHS[size])
    if kind in PAIRS:
        return from_bits(bits.reshape(1), kind)
    if is_float(kind) and bits_of_type(kind) < 32:  # half a register's worth
        return from_bits(bits.astype(np.uint16), kind)
    return from_bits(bits, kind)


def flushed(numbers: Array) -> Array:
    """What .ftz makes of numbers that are too small to be normal."""
    tiny = np.finfo(numbers.dtype).tiny if numbers.dtype.kind == "f" else 0
    return np.where(np.abs(numbers) < tiny, np.copysign(numbers.dtype.type(0), numbers), numbers)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of which one rounding is still to come; in float64 rounded, with an error below one unit in the last
    place."""
    if a.dtype != np.float64:
        product = a.astype(np.float64) * b.astype(np.float64)  # exact
        return _sum_to_odd(product, c.astype(np.float64))
    high, low = _product(a, b)
    total, rest = _two_sum(high, c)
    exact = total + (rest + low)
    return np.where(np.isfinite(high) & np.isfinite(total) & np.isfinite(exact), exact, a * b + c)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """Sum in float64 whose last bit tells that something was cut off."""
    total, rest = _two_sum(a, b)
    bits = total.view(np.int64)
    even = (bits & 1) == 0
    away = (rest > 0) == (total > 0)  # the true sum is further from zero
    moved = np.where(away, bits + 1, bits - 1)
    return np.where(even & (rest != 0) & np.isfinite(total) & np.isfinite(rest), moved, bits).view(np.float64)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b as a sum of two (Dekker)."""
    product = a * b
    (a1, a2), (b1, b2) = _split(a), _split(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _split(a: Array) -> tuple[Array, Array]:
    high = a * 134217729.0
    high = high - (high - a)
    return high, a - high
