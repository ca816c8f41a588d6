"""One problem on arrays: prepared, run, timed, its memory watched, and checked against the meaning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import numpy as np

from ..cpu.plan.choice import AUTO, Options
from ..cpu.plan.plan import Plan, make_plan
from ..cpu.runtime.execute import execute_plan
from ..cpu.runtime.memory import free_scratch, physical_memory
from ..cpu.runtime.ready import bindings
from ..errors import AllocationError, described, named
from ..front.memory import PeakMemory
from ..front.verify import Check, Storage, sampled_check
from ..spec.dtypes import DType
from ..spec.problems import Problem


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem with everything a run needs; arrays hold storage values, x is 5-D, vectors are 1-D."""

    problem: Problem
    plan: Plan
    x: Storage
    operands: tuple[Storage, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Time until the kernels were there, times of all repeats, bytes by which the runs raise the memory of the process
    beyond inputs and result (None: unknown), the result and its check."""

    plan: Plan
    kernel_seconds: float
    seconds: tuple[float, ...]
    extra_bytes: int | None
    result: Storage = field(repr=False)
    check: Check

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def needed_rate(self) -> float:
        """GFLOP/s by the multiply-adds the result needs."""
        return self.plan.work.needed / self.best / 1e9

    @property
    def nominal_rate(self) -> float:
        return self.plan.work.nominal / self.best / 1e9

    def document(self) -> dict[str, Any]:
        return {
            "dtype": self.plan.dtype.name,
            "algorithm": self.plan.algorithm,
            "output_shape": self.plan.trace.output,
            "kernel_seconds": self.kernel_seconds,
            "seconds": self.best,
            "all_seconds": self.seconds,
            "needed_flop": self.plan.work.needed,
            "nominal_flop": self.plan.work.nominal,
            "needed_gflops": self.needed_rate,
            "nominal_gflops": self.nominal_rate,
            "extra_bytes": self.extra_bytes,
            "check": asdict(self.check),
        }


def random_arrays(problem: Problem, values: Mapping[str, Any], dtype: DType, seed: int) -> dict[str, Storage]:
    """The problem's signed random tensors in the storage of `dtype`."""
    check_memory(problem, values, dtype)
    wide = problem.make_inputs(values, np.random.default_rng(seed))
    return {name: dtype.narrow(wide.pop(name)) for name in list(wide)}


def check_memory(problem: Problem, values: Mapping[str, Any], dtype: DType) -> None:
    """Refuses what cannot fit, before the system starts to kill processes over it."""
    available = physical_memory()
    if available is not None and wanted_memory(problem, values, dtype) > available:
        wanted = f"about {wanted_memory(problem, values, dtype) / 2**30:.1f} GiB of tensors"
        rule = f"must fit in this machine's {available / 2**30:.1f} GiB"
        raise AllocationError(problem.slug, "sizes", described(wanted), rule, "Choose a smaller batch_size or volume")


def wanted_memory(problem: Problem, values: Mapping[str, Any], dtype: DType) -> int:
    """Bytes of inputs, drawn in float64 and stored, and of the result."""
    shapes = problem.shapes(values)
    return sum(prod(shape) * (dtype.itemsize + (0 if name == "output" else 8)) for name, shape in shapes.items())


def prepare(
    problem: Problem,
    values: Mapping[str, Any],
    dtype: DType,
    arrays: Mapping[str, Storage],
    options: Options = AUTO,
) -> Prepared:
    pipeline = problem.pipeline(values)
    given = [arrays[name] for name in problem.operand_names]
    with named(problem.slug, problem.argument_names):
        plan = make_plan(pipeline, arrays["input"].shape, tuple(array.shape for array in given), dtype, options)
    operands = tuple(array.reshape(shape) for array, shape in zip(given, plan.trace.operand_shapes, strict=True))
    return Prepared(problem, plan, arrays["input"], operands)


def measure(
    prepared: Prepared, repeat: int, seed: int, before: Callable[[int, float | None], None] = lambda turn, last: None
) -> Outcome:
    """`before(turn, last)` hears of every repeat, and of the check as turn `repeat`, with the time of the last run."""
    plan = prepared.plan
    # NaN in every voxel: its pages exist before the clock starts, and one that is not written shows in the check.
    result = np.full(plan.trace.output, plan.dtype.narrow(np.array(np.nan)), plan.dtype.storage)
    seconds: list[float] = []
    begun = time.perf_counter()
    for bound in bindings(plan):
        bound.native  # noqa: B018 - compiled, or found on disk, before the clock starts
    kernel_seconds = time.perf_counter() - begun
    free_scratch()  # what an earlier run left for the next is extra memory of both
    memory = PeakMemory()
    try:
        for turn in range(repeat):
            before(turn, seconds[-1] if seconds else None)
            begun = time.perf_counter()
            execute_plan(plan, prepared.x, prepared.operands, result)
            seconds.append(time.perf_counter() - begun)
    except MemoryError:
        told = described("out of memory")
        rule = "scratch must fit in memory"
        raise AllocationError(prepared.problem.slug, "scratch", told, rule, "Use a smaller volume") from None
    extra = memory.extra()
    before(repeat, seconds[-1])
    rng = np.random.default_rng(seed)
    check = sampled_check(plan.asked, prepared.x, prepared.operands, result, plan.dtype, rng)
    return Outcome(plan, kernel_seconds, tuple(seconds), extra, result, check)
