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
