"""A GpuPlan as one readable Python module: the Triton kernels of its steps and the functions they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..plan import GpuPlan
from .code import Constants
from .kernel import KernelText
from .parts import parts_of

_HEAD = '''"""{title}"""

import triton
import triton.language as tl
'''


@dataclass(frozen=True)
class Module:
    """Text, the kernels in the order of the plan's steps, and the numbers that they call `constant_i`."""

    text: str
    kernels: tuple[KernelText, ...]
    constants: tuple[float, ...]


@lru_cache(maxsize=512)
def module(plan: GpuPlan) -> Module:
    constants = Constants()
    short = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[plan.dtype.name]
    kernels = []
    for number, step in enumerate(plan.steps):
        kernels.append(step.text(plan, "_".join(["ct3d", short, str(number), *step.names]), constants))
    texts = "\n\n\n".join(kernel.text for kernel in kernels)
    parts = parts_of(texts)
    chain = " -> ".join(stage.name for stage in plan.pipeline.stages)
    head = _HEAD.format(title=f"{chain} in {plan.dtype.name}, as Triton kernels.")
    return Module(f"{head}\n{parts}\n\n{texts}\n", tuple(kernels), tuple(constants.values))
