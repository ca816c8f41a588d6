"""How exact float32 is on tensor cores, simulated: their products are exact, what they add to a sum is cut off.

python tests/gpu_proof/tensor_cores.py        # the table of docs/gpu.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float32]
# Of three parts each, the products that reach the last bits, the smallest first, as in the kernels.
PRODUCTS = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))
BLOCK, STEP = 16, 16  # inputs of a tile, and of an instruction


def nearest(v: Array, bits: int) -> Array:
    """The nearest numbers whose last bits are zero."""
    raw = v.view(np.uint32).astype(np.uint64)
    raw = raw + ((1 << bits - 1) - 1) + (raw >> bits & 1)
    return (raw & (0xFFFFFFFF << bits)).astype(np.uint32).view(np.float32)


def cut(v: Array, bits: int) -> Array:
    kept: Array = (v.view(np.uint32) & np.uint32((0xFFFFFFFF << bits) & 0xFFFFFFFF)).view(np.float32)
    return kept


def parts(v: Array) -> tuple[Array, Array, Array]:
    """Three bfloat16 numbers whose sum it is."""
    first = nearest(v, 16)
    second = nearest(v - first, 16)
    return first, second, nearest(v - first - second, 16)


def summed(x: Array, w: Array, way: str) -> Array:
    """x @ w: "ieee" product by product, "blocks" and "chain" of parts with a sum for each block of inputs or one for
    all, "tf32" and "tf32 cut" in one product."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    if way == "ieee":
        for k in range(x.shape[1]):
            total = (total + np.outer(x[:, k].astype(np.float64), w[k])).astype(np.float32)
        return total
    xs, ws = (x, x, x), (w, w, w)
    products: tuple[tuple[int, int], ...] = PRODUCTS
    if way in ("blocks", "chain"):
        xs, ws = parts(x), parts(w)
    else:
        round_off = nearest if way == "tf32" else cut
        xs, ws, products = (round_off(x, 13),) * 3, (round_off(w, 13),) * 3, PRODUCTS[-1:]
    for start in range(0, x.shape[1], BLOCK):
        block = slice(start, start + BLOCK)
        own = np.zeros_like(total) if way == "blocks" else total
        for a, b in products:
            own = _added(own, xs[a][:, block], ws[b][block])
        total = total + own if way == "blocks" else own
    return total


def _added(total: Array, x: Array, w: Array) -> Array:
    """By tensor cores."""
    for start in range(0, x.shape[1], STEP):
        step = slice(start, start + STEP)
        exact = total + x[:, step].astype(np.float64) @ w[step].astype(np.float64)
        near = exact.astype(np.float32)
        total = np.where(np.abs(near.astype(np.float64)) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    return total


WAYS = ("ieee", "blocks", "chain", "tf32", "tf32 cut")


def table() -> Iterator[str]:
    """Largest errors as shares of the largest result: 64 x 64 results of normal and of positive numbers."""
    yield "| terms of a sum | " + " | ".join(WAYS) + " |"
    yield "|---" * (len(WAYS) + 1) + "|"
    for terms in (256, 864, 1296, 4000):
        for name in ("normal", "positive"):
            rng = np.random.default_rng(terms)
            draw = rng.standard_normal if name == "normal" else rng.random
            x, w = draw((64, terms)).astype(np.float32), draw((terms, 64)).astype(np.float32)
            truth = x.astype(np.float64) @ w.astype(np.float64)
            errors = [np.abs(summed(x, w, way) - truth).max() / np.abs(truth).max() for way in WAYS]
            yield f"| {terms}, {name} | " + " | ".join(f"{error:.1e}" for error in errors) + " |"


if __name__ == "__main__":
    print("\n".join(table()))
