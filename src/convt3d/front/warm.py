"""Kernels made before anybody needs them: a pipeline is run once on arrays of given shapes, all of them ones.

What a run needs is what it leaves in the cache: kernels of its sweeps, of packing, of arrays with channels last, of
threads and of comparing weights, and the facts of the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ..cpu.plan.machine import ISA_VARIABLE
from ..cpu.runtime.compare import LARGE, same_bits
from ..cpu.runtime.team import SUPPORTED, team_code
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from .apply import allocated, compute
from .arrays import Storage


def warm(pipeline: Pipeline, input: Sequence[int], weights: Sequence[Sequence[int]], dtype: DType) -> None:
    """For input (B, C, D, H, W) and weights of these shapes, one for each convolution; rows or channels last."""
    ones = dtype.narrow(np.ones(1))[0]
    shapes = pipeline.operand_shapes(input, *weights)
    x, *operands = (np.full(shape, ones, dtype.storage) for shape in (tuple(input), *shapes))

    def result(shape: tuple[int, ...], _: Sequence[Storage]) -> Storage:
        return allocated("cache warm", shape, dtype)

    def result_channels_last(shape: tuple[int, ...], _: Sequence[Storage]) -> Storage:
        return _channels_last(allocated("cache warm", shape, dtype))

    compute("cache warm", pipeline, dtype, x, operands, result)
    compute("cache warm", pipeline, dtype, _channels_last(x), operands, result_channels_last)
    same_bits(np.zeros(LARGE, np.uint8), np.zeros(LARGE, np.uint8))
    if SUPPORTED:
        team_code()


def _channels_last(array: Storage) -> Storage:
    """The same values, channels side by side in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) if array.ndim == 5 else array


@contextmanager
def instruction_set(name: str | None) -> Iterator[None]:
    """Inside, the process makes kernels for it, as CONVT3D_ISA does; None leaves all as it is."""
    before = os.environ.get(ISA_VARIABLE)
    if name is not None:
        os.environ[ISA_VARIABLE] = name
    try:
        yield
    finally:
        if name is not None:
            os.environ.pop(ISA_VARIABLE)
            if before is not None:
                os.environ[ISA_VARIABLE] = before
