"""Derivatives of the activations, times a gradient, on vectors: with PyTorch's formulas, so that NaN, infinities and
the points where a function has a corner give what its own backward operations give, and where these differ between
whole vectors and the rest of an array (hardtanh and hardswish of NaN), what whole vectors give.

Each takes a builder, the gradient g, and what its activation takes (x) or gives (r), with the constants by their names.
"""

from __future__ import annotations

import math

from llvmlite import ir

from . import vecmath
from .values import Values


def relu(b: Values, g: ir.Value, r: ir.Value) -> ir.Value:
    return b.select(b.compare("<=", r, 0.0), 0.0, g)


def leaky_relu(b: Values, g: ir.Value, x: ir.Value, negative_slope: ir.Value) -> ir.Value:
    return b.select(b.compare(">", x, 0.0), g, b.mul(g, negative_slope))


def clamp(
    b: Values, g: ir.Value, x: ir.Value, min: ir.Value | None = None, max: ir.Value | None = None
) -> ir.Value:  # the names of its constants
    """Zero for NaN."""
    if min is None and max is None:
        return b.select(b.is_nan(x), 0.0, g)
    kept = g if min is None else b.select(b.compare(">=", x, min), g, 0.0)
    return kept if max is None else b.select(b.compare("<=", x, max), kept, 0.0)


def hardtanh(b: Values, g: ir.Value, x: ir.Value, min_val: ir.Value, max_val: ir.Value) -> ir.Value:
    """Zero at both bounds, and for NaN."""
    above = b.select(b.compare(">", x, min_val), g, 0.0)
    return b.select(b.compare("<", x, max_val), above, 0.0)


def hardswish(b: Values, g: ir.Value, x: ir.Value) -> ir.Value:
    sloped = b.mul(g, b.add(b.div(x, 3.0), 0.5))
    kept = b.select(b.compare(">=", x, 3.0), g, sloped)
    return b.select(b.compare("<=", x, -3.0), 0.0, kept)


def sigmoid(b: Values, g: ir.Value, r: ir.Value) -> ir.Value:
    return b.mul(b.mul(g, b.sub(1.0, r)), r)


def tanh(b: Values, g: ir.Value, r: ir.Value) -> ir.Value:
    return b.mul(g, b.sub(1.0, b.mul(r, r)))


def silu(b: Values, g: ir.Value, x: ir.Value) -> ir.Value:
    s = vecmath.sigmoid(b, x)
    return b.mul(b.mul(g, s), b.add(b.mul(x, b.sub(1.0, s)), 1.0))


def mish(b: Values, g: ir.Value, x: ir.Value) -> ir.Value:
    t = vecmath.tanh(b, vecmath.softplus(b, x, threshold=math.inf))
    slope = b.mul(b.mul(x, vecmath.sigmoid(b, x)), b.sub(1.0, b.mul(t, t)))
    return b.mul(g, b.add(t, slope))


def softplus(b: Values, g: ir.Value, x: ir.Value, beta: ir.Value, threshold: ir.Value) -> ir.Value:
    z = b.mul(x, beta)
    return b.select(b.compare(">", z, threshold), g, b.mul(g, vecmath.sigmoid(b, z)))


def exp(b: Values, g: ir.Value, r: ir.Value) -> ir.Value:
    return b.mul(g, r)


def log(b: Values, g: ir.Value, x: ir.Value) -> ir.Value:
    return b.div(g, x)


def gelu(b: Values, g: ir.Value, x: ir.Value) -> ir.Value:
    """Of the erf form: Phi(x) + x phi(x)."""
    share = b.fma(vecmath.erf(b, b.mul(x, math.sqrt(0.5))), 0.5, 0.5)
    density = b.mul(vecmath.exp(b, b.mul(b.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return b.mul(g, b.fma(x, density, share))


def gelu_tanh(b: Values, g: ir.Value, x: ir.Value) -> ir.Value:
    """Of the tanh form: (1 + t) / 2 + x (1 - t^2) u' / 2 with t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    scale = math.sqrt(2 / math.pi)
    square = b.mul(x, x)
    t = vecmath.tanh(b, b.mul(x, b.fma(square, 0.044715 * scale, scale)))
    share = b.fma(t, 0.5, 0.5)
    slope = b.fma(square, 3 * 0.044715 * scale, scale)
    rest = b.mul(b.mul(b.mul(x, 0.5), b.sub(1.0, b.mul(t, t))), slope)
    return b.mul(g, b.add(share, rest))
