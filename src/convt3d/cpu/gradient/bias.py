"""Computes the gradient of a bias on stored arrays: for each channel the sum over samples and positions."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...spec.dtypes import DType
from ..plan.cores import get_num_threads
from ..plan.machine import Machine, machine
from .bound import BoundKernel, source_call
from .words import BiasCall, BiasWords

Array = npt.NDArray[Any]

_ITEMS = 8  # of a core
_SHARED_FROM = 1 << 18  # numbers: fewer are summed before another thread wakes up


def bias_gradient(grad: Array, dtype: DType, out: Array) -> None:
    """grad (B, C, D, H, W), storage values with any strides -> out (C,). Sums are float64, of float64 numbers in two
    parts, and rounded once; the same bits for any number of threads."""
    channels = grad.shape[1]
    if not grad.size:
        out[...] = 0
        return
    grad = _merged(grad)
    kernel, pieces = _kernel(grad.shape, dtype, machine())
    partials = np.zeros((pieces, 2 if dtype.accumulate == "float64" else 1, channels))
    threads = min(get_num_threads(), pieces) if grad.size > _SHARED_FROM else 1
    kernel.launch([source_call(grad), BiasCall(partials)], np.empty(8, np.uint8), threads)
    with np.errstate(all="ignore"):
        rounded_away = np.where(np.isfinite(partials[:, 0]), partials[:, 1:].sum(axis=1), 0.0)
        total = np.ascontiguousarray((partials[:, 0] + rounded_away).T).sum(axis=-1)
    out[...] = dtype.narrow(total)


def _merged(array: Array) -> Array:
    """The same with rows that follow each other as one, since longer rows are summed faster."""
    b, c, d, h, w = array.shape
    if array.strides[3] == w * array.strides[4] and w > 1:
        wide = np.lib.stride_tricks.as_strided(array, (b, c, d, 1, h * w), (*array.strides[:3], 0, array.strides[4]))
        return wide
    return array


@lru_cache(maxsize=256)
def _kernel(shape: tuple[int, ...], dtype: DType, host: Machine) -> tuple[BoundKernel, int]:
    """And the pieces that samples are cut into, whose sums are added in their order."""
    b, channels, depth, height, width = shape
    lanes = host.lanes(8 if dtype.accumulate == "float64" else 4)
    blocks = -(-channels // lanes)
    wanted = -(-_ITEMS * host.cores // (blocks * b))
    planes = max(1, depth // max(1, min(wanted, prod(shape) // _SHARED_FROM)))
    of_sample = -(-depth // planes)
    words = BiasWords(blocks * b * of_sample, b * of_sample, of_sample, planes, depth, height, width, channels)
    name = f"ct3d_{dtype.name}_bias_gradient__{host.isa}"

    def write() -> str:
        from .bias_code import emit_bias  # here: nobody needs LLVM who finds the code on disk

        return str(emit_bias(name, dtype.name, host).module)

    return BoundKernel(name, f"bias gradient {dtype.name} {host.isa}", write, [words], host), b * of_sample
