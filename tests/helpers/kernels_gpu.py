"""Triton kernels of which is known what the compiler must make of them, for tests of the reader of machine code."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, c, pitch, depth, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr, INNER: tl.constexpr):
    """A matrix product: tiles of a and b, contiguous along the inner axis."""
    rows, columns, inner = tl.arange(0, POSITIONS), tl.arange(0, CHANNELS), tl.arange(0, INNER)
    total = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    for at in range(0, depth, INNER):
        left = tl.load(a + rows[:, None] * pitch + (at + inner)[None, :])
        right = tl.load(b + columns[None, :] * pitch + (at + inner)[:, None])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + rows[:, None] * CHANNELS + columns[None, :], total)


@triton.jit
def scaled(x, y, factor, SIZE: tl.constexpr):
    """One tile, times a scalar from memory, which is no tile."""
    at = tl.arange(0, SIZE)
    tl.store(y + at, tl.load(factor) * tl.load(x + at))
