"""The kernels of all pipelines of a captured graph, compiled together by several threads before its first call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

from ..cpu.plan.plan import Plan, make_plan
from ..cpu.runtime.kernels import compile_kernels
from ..spec.pipeline import Pipeline
from .engine import dtype_of
from .graphs import example
from .meanings import Fused
from .patterns import Given

_log = logging.getLogger(__name__)


def compile_ahead(found: Sequence[Fused]) -> None:
    """Where sizes are symbols, and where something is wrong, the first call compiles what it needs."""
    try:
        compile_kernels(_plan(each) for each in found if example(each.input).is_cpu and _sizes_known(each))
    except Exception as error:  # whoever asks for the kernel is told
        _log.info("convt3d: nothing is compiled ahead: %r", error)


def _sizes_known(fused: Fused) -> bool:
    tensors = [example(each) for each in (fused.input, *(given.node for given in fused.operands))]
    return all(type(size) is int for tensor in tensors for size in tensor.shape)


def _plan(fused: Fused) -> Plan:
    pipeline, x = Pipeline(*fused.stages), example(fused.input)
    shapes = tuple(
        _five(_shape(given)) if slot.operand.kind == "tensor" else _shape(given)
        for slot, given in zip(pipeline.slots, fused.operands, strict=True)
    )
    return make_plan(pipeline, tuple(x.shape), shapes, dtype_of(x.dtype))


def _shape(given: Given) -> tuple[int, ...]:
    """Of the operand that is made of a tensor."""
    shape: Any = tuple(example(given.node).shape)
    if given.vector:
        return (prod(shape),)
    shape = (1,) * given.ones + shape
    return tuple(shape[axis] for axis in given.order) if given.order else shape


def _five(shape: tuple[int, ...]) -> tuple[int, ...]:
    """With as many axes as a value, as broadcasting adds them."""
    return (1,) * (5 - len(shape)) + shape
