"""Sums whose error does not grow with their length: float32 numbers are added in float64, float64 ones in two parts.

The second part of a float64 sum collects what additions round away, which is itself a number (Knuth's TwoSum). What the
loop carries is a list: [sum], or [sum, rounded away]; vectors hold one sum in each lane. Bounds are in docs/math.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from .values import F64, Values, constant, vector


def nothing(number: ir.Type, lanes: int) -> list[ir.Value]:
    """The empty sum of numbers of this type."""
    zero = constant(vector(F64, lanes), 0.0)
    return [zero] * (2 if number == F64 else 1)


def plus(b: Values, sums: Sequence[ir.Value], x: ir.Value) -> list[ir.Value]:
    x = b.cast(x, F64)
    total = b.add(sums[0], x)
    if len(sums) == 1:
        return [total]
    came = b.sub(total, sums[0])  # of x
    lost = b.add(b.sub(sums[0], b.sub(total, came)), b.sub(x, came))
    return [total, b.add(sums[1], lost)]


def plus_square(b: Values, sums: Sequence[ir.Value], x: ir.Value) -> list[ir.Value]:
    x = b.cast(x, F64)
    return [b.multiply_add(x, x, sums[0])] if len(sums) == 1 else plus(b, sums, b.mul(x, x))


def total(b: Values, sums: Sequence[ir.Value]) -> ir.Value:
    """As float64. Of an infinite sum the second part is NaN and says nothing."""
    if len(sums) == 1:
        return sums[0]
    infinite = b.compare("==", b.intrinsic("llvm.fabs", sums[0]), math.inf)
    return b.select(infinite, sums[0], b.add(*sums))


def total_of_lanes(b: Values, sums: Sequence[ir.Value]) -> ir.Value:
    return total(b, [b.reduce(part, b.add) for part in sums])


def mean(b: Values, total: ir.Value, count: ir.Value, number: ir.Type) -> tuple[ir.Value, ir.Value]:
    """total / count as the nearest number of this type, and what it lacks, in float64."""
    near = b.cast(divided(b, total, count, number), number)
    back = b.fma(b.neg(b.cast(near, F64)), count, total)  # exact, where numbers are float32 even without fma
    return near, divided(b, back, count, number)


def divided(b: Values, total: ir.Value, count: ir.Value, number: ir.Type) -> ir.Value:
    """In float64; where numbers are float32, their reciprocal count is near enough and is formed once."""
    return b.div(total, count) if number == F64 else b.mul(total, b.div(1.0, count))
