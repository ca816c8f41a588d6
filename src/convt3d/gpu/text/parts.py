"""Small functions that generated Triton modules share; a module holds those it calls."""

from __future__ import annotations

import re

PARTS = {
    "INTERPRETED": '''
@triton.jit
def made():
    """Of which Triton makes another object where it interprets."""


INTERPRETED = tl.constexpr(not isinstance(made, triton.JITFunction))
''',
    "stored": '''
@triton.jit
def stored(v, kind: tl.constexpr):
    """Rounded to the nearest number of this type: Triton's interpreter would cut bfloat16 off."""
    if INTERPRETED and kind == tl.bfloat16:
        bits = v.to(tl.int32, bitcast=True)
        v = tl.where(v == v, bits + 0x7FFF + (bits >> 16 & 1), bits).to(tl.float32, bitcast=True)
    return v.to(kind)
''',
    "rounded_off": '''
@triton.jit
def rounded_off(v, BITS: tl.constexpr):
    """float32 to the nearest number whose last BITS bits are zero; where that would be infinite, they are cut off."""
    bits = v.to(tl.int32, bitcast=True)
    near = (bits + ((1 << BITS - 1) - 1) + (bits >> BITS & 1)) & -(1 << BITS)
    near = tl.where((near & 0x7FFFFFFF) == 0x7F800000, bits & -(1 << BITS), near)
    return tl.where(v == v, near.to(tl.float32, bitcast=True), v)
''',
    "factor_part": '''
@triton.jit
def factor_part(v, part: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """What is stored of a factor of products: itself, rounded if tensor cores would cut it; or one of the bfloat16
    numbers of which it is the sum, each the nearest to what the others leave. Infinity is all in the first."""
    if PARTS == 1 and PRECISION == "tf32":
        v = rounded_off(v, 13)
    if PARTS == 3:
        near = rounded_off(v, 16)
        for _ in tl.static_range(part):
            v = tl.where(tl.abs(near) == float("inf"), 0.0, v - near)
            near = rounded_off(v, 16)
        v = near
    return v
''',
    "factor_tile": '''
@triton.jit
def factor_tile(at, hit, HALO: tl.constexpr, CACHE: tl.constexpr):
    """A tile of a factor; beside the input are zeros, in memory (HALO) or not. The input stays in L1 (.ca) for the next
    tap along the width, weights do not (.cg): the next block of them is another."""
    if HALO:
        tile = tl.load(at, cache_modifier=CACHE)
    else:
        tile = tl.load(at, mask=hit, other=0.0, cache_modifier=CACHE)
    if INTERPRETED:  # which holds bfloat16 as integers, and would multiply those
        tile = tile.to(tl.float64 if at.dtype.element_ty == tl.float64 else tl.float32)
    return tile
''',
    "add_product": '''
@triton.jit
def add_product(acc, x_at, x_part, hit, w_at, w_part, PARTS: tl.constexpr, HALO: tl.constexpr, PRECISION: tl.constexpr):
    """acc + x tile @ w tile. Of three parts each, the six products that reach the last bits of float32, the smallest
    first. Tensor cores cut what they add to a sum, so these have one of their own, which is added and so rounded."""
    x0, w0 = factor_tile(x_at, hit, HALO, ".ca"), factor_tile(w_at, hit, True, ".cg")
    if PARTS == 1:
        acc = tl.dot(x0, w0, acc, input_precision=PRECISION)
    else:
        x1, w1 = factor_tile(x_at + x_part, hit, HALO, ".ca"), factor_tile(w_at + w_part, hit, True, ".cg")
        x2, w2 = factor_tile(x_at + 2 * x_part, hit, HALO, ".ca"), factor_tile(w_at + 2 * w_part, hit, True, ".cg")
        total = tl.dot(x1, w0, tl.dot(x1, w1, tl.dot(x0, w2, tl.dot(x2, w0))))
        acc += tl.dot(x0, w0, tl.dot(x0, w1, total))
    return acc
''',
    "whole_factor": '''
@triton.jit
def whole_factor(at, part, hit, PARTS: tl.constexpr, kind: tl.constexpr):
    """A factor in the type of sums, from its parts if it has been split."""
    v = tl.load(at, mask=hit, other=0.0).to(kind)
    if PARTS == 3:
        v += tl.load(at + part, mask=hit, other=0.0).to(kind) + tl.load(at + 2 * part, mask=hit, other=0.0).to(kind)
    return v
''',
    "taps_of": '''
@triton.jit
def taps_of(at, kernel, stride, dilation, common, inverse):
    """Taps k with k * dilation = at (mod stride): the first, how many there are, and the input that the first meets."""
    rest = at % stride
    rest = tl.where(rest < 0, rest + stride, rest)
    hop = stride // common
    first = rest // common * inverse % hop
    met = (rest % common == 0) & (first < kernel)
    count = tl.where(met, (kernel - first + hop - 1) // hop, 0)
    return first, count, (at - first * dilation) // stride
''',
    "copied": '''
@triton.jit
def copied(p, size, mode: tl.constexpr):
    """The voxel of an axis that one before or after it is a copy of."""
    if mode == "replicate":
        at = tl.minimum(tl.maximum(p, 0), size - 1)
    elif mode == "reflect":
        at = tl.where(p < 0, -p, tl.where(p < size, p, 2 * (size - 1) - p))
    else:
        at = tl.where(p < 0, p + size, tl.where(p < size, p, p - size))
    return at
''',
    "load_tile": '''
@triton.jit
def load_tile(source, rows, channel, stride, in_row, in_channel, RUN: tl.constexpr):
    """Positions x channels. Neighbouring threads take neighbours in memory: channels if they lie in runs (RUN is not 0;
    the caller has told the compiler that rows are multiples of it), else positions."""
    if RUN:
        at = source + rows[:, None] + channel[None, :]
        tile = tl.load(at, mask=in_row[:, None] & in_channel[None, :], other=0.0)
    else:
        at = source + (channel * stride)[:, None] + rows[None, :]
        tile = tl.trans(tl.load(at, mask=in_channel[:, None] & in_row[None, :], other=0.0))
    return tile
''',
    "store_tile": '''
@triton.jit
def store_tile(target, rows, channel, stride, tile, in_row, in_channel, RUN: tl.constexpr):
    """The way back."""
    tile = stored(tile, target.dtype.element_ty)
    if RUN:
        at = target + rows[:, None] + channel[None, :]
        tl.store(at, tile, mask=in_row[:, None] & in_channel[None, :])
    else:
        at = target + (channel * stride)[:, None] + rows[None, :]
        tl.store(at, tl.trans(tile), mask=in_channel[:, None] & in_row[None, :])
''',
    "largest": '''
@triton.jit
def largest(v, axis: tl.constexpr):
    """Maximum along an axis, which is kept; NaN travels."""
    odd = tl.max((v != v).to(tl.int32), axis, keep_dims=True)
    return tl.where(odd > 0, float("nan"), tl.max(tl.where(v != v, float("-inf"), v), axis, keep_dims=True))
''',
    "finite_or_zero": '''
@triton.jit
def finite_or_zero(v):
    """An infinite maximum counts as zero in an exponent."""
    return tl.where(tl.abs(v) == float("inf"), 0.0, v)
''',
    "tanh": '''
@triton.jit
def tanh(v):
    """A series near zero, where the quotient would cancel."""
    s = v * v
    near = v * (1.0 - s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * (62 / 2835 - s * (1382 / 155925))))))
    e = tl.exp(-2.0 * tl.abs(v))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(v) < 0.1, near, tl.where(v < 0.0, -far, far))
''',
    "softplus": '''
@triton.jit
def softplus(v):
    """max(v, 0) + log(1 + e), e = exp(-|v|); the quotient gives back what 1 + e rounds away."""
    e = tl.exp(-tl.abs(v))
    u = 1.0 + e
    return tl.where(v < 0.0, 0.0, v) + tl.where(u == 1.0, e, tl.log(u) * (e / (u - 1.0)))
''',
    "clipped": """
@triton.jit
def clipped(v, low, high):
    v = tl.where(v < low, low, v)
    return tl.where(v > high, high, v)
""",
}


def parts_of(text: str) -> str:
    """The functions that the text calls, and what those need, which stands before them."""
    found: list[str] = []
    for name, part in reversed(PARTS.items()):
        if any(re.search(rf"(?<![\w.]){name}\b", where) for where in (text, *found)):
            found.insert(0, part)
    return "\n".join(found)
