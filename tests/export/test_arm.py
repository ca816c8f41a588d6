"""NEON and SVE code runs: exported for ARM, emulated, judged as kernels are, and bit by bit what x86-64 gives."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers.c_cases import PIPELINES, drawn, pipeline_of
from helpers.c_library import by_python
from helpers.c_runner import build_program, run_cases

from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.export.objects import levels
from convt3d.judge.tolerance import expectation

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
pytestmark = pytest.mark.skipif(
    not (COMPILER and EMULATOR), reason="needs qemu-user and gcc-aarch64-linux-gnu (Debian packages)"
)
CONV = "ConvTranspose3d(stride=(1, 2, 3), padding=1, bias=True) -> LayerNorm() -> SiLU()"


CPUS = {"neon": "cortex-a72", "sve256": "max,sve256=on"}  # what is emulated


def check(exported, rng: np.random.Generator, same_bits: bool, isa: str = "neon") -> None:  # type: ignore[no-untyped-def]
    assert COMPILER
    assert EMULATOR
    subject, dtype = exported.subject, exported.dtype
    program = build_program(COMPILER, subject, str(exported.folder), static=True)
    cases = [drawn(subject, dtype, rng, number, large=number % 4 == 1) for number in range(1, 12)]
    results, used = run_cases([EMULATOR, "-cpu", CPUS[isa], str(program)], subject, dtype, cases)
    assert used == isa
    compared = 0
    for case, got in zip(cases, results, strict=True):
        x, *operands, out = case.arrays
        pipeline = pipeline_of(subject, case)
        wide = [dtype.widen(operand) for operand in operands]
        assert expectation(pipeline, dtype, dtype.widen(x), wide, rng).accepts(dtype.widen(got))
        shapes = tuple(operand.shape for operand in operands)
        if same_bits and methods(pipeline, x.shape, shapes, dtype, isa) == methods(pipeline, x.shape, shapes, dtype):
            compared += 1
            by_python(pipeline, dtype, x, operands, out, pairs=False)
            given = ~(np.isnan(dtype.widen(got)) & np.isnan(dtype.widen(out)))  # a NaN's sign says nothing
            assert got[given].tobytes() == out[given].tobytes()
    assert not same_bits or compared > 5


def methods(pipeline, x, operands, dtype, isa: str | None = None):  # type: ignore[no-untyped-def]
    """Outputs made together along each axis, here or with the vectors of another instruction set."""
    host, plain = machine(), Options(plain=True, pairs=False)
    if isa is not None:
        (level,) = [one for one in levels("aarch64") if one.isa.name == isa]
        host = replace(level.machine, l1d=host.l1d, l2=host.l2, l3=host.l3, cores=host.cores)
    return [axis.outputs for axis in make_plan(pipeline, x, operands, dtype, plain, host=host).method.axes]


@pytest.mark.parametrize("isa", CPUS)
@pytest.mark.parametrize(
    "dtype",
    ["float32", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("float64", "float16", "bfloat16"))],
)
def test_every_type(export, dtype: str, isa: str, rng: np.random.Generator) -> None:
    """Sums are taken in the same order, with a fused multiply-add on both."""
    fused = machine().isa in ("avx512", "avx2", "neon")
    check(export(CONV, "arm", dtype, target="aarch64", static=True), rng, same_bits=fused, isa=isa)


@pytest.mark.parametrize("isa", CPUS)
def test_statistics(export, isa: str, rng: np.random.Generator) -> None:
    """Of lanes that are fewer: other bits, the same meaning."""
    text, dtype = PIPELINES["strided"]
    check(export(text, "arm_strided", dtype, target="aarch64", static=True), rng, same_bits=False, isa=isa)


@pytest.mark.exhaustive
def test_a_problem(export, rng: np.random.Generator) -> None:
    check(export("asym-input-sq-kernel", "arm_problem", target="aarch64", static=True), rng, same_bits=False)
