"""NEON code runs: exported for ARM, under emulation, judged as kernels are, and bit by bit what x86-64 computes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers.c_cases import PIPELINES, drawn, pipeline_of
from helpers.c_library import by_python
from helpers.c_runner import build_program, run_cases

from convt3d.cpu.plan.machine import machine
from convt3d.judge.tolerance import expectation

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
pytestmark = pytest.mark.skipif(
    not (COMPILER and EMULATOR), reason="needs qemu-user and gcc-aarch64-linux-gnu (Debian packages)"
)
CONV = "ConvTranspose3d(stride=(1, 2, 3), padding=1, bias=True) -> LayerNorm() -> SiLU()"


def check(exported, rng: np.random.Generator, same_bits: bool) -> None:  # type: ignore[no-untyped-def]
    assert COMPILER
    assert EMULATOR
    subject, dtype = exported.subject, exported.dtype
    program = build_program(COMPILER, subject, str(exported.folder), static=True)
    cases = [drawn(subject, dtype, rng, number) for number in range(1, 12)]
    results, isa = run_cases([EMULATOR, str(program)], subject, dtype, cases)
    assert isa == "neon"
    for case, got in zip(cases, results, strict=True):
        x, *operands, out = case.arrays
        pipeline = pipeline_of(subject, case)
        wide = [dtype.widen(operand) for operand in operands]
        assert expectation(pipeline, dtype, dtype.widen(x), wide, rng).accepts(dtype.widen(got))
        if same_bits:
            by_python(pipeline, dtype, x, operands, out)
            given = ~(np.isnan(dtype.widen(got)) & np.isnan(dtype.widen(out)))  # a NaN's sign says nothing
            assert got[given].tobytes() == out[given].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_type(export, dtype: str, rng: np.random.Generator) -> None:
    """Sums are taken in the same order, with a fused multiply-add on both."""
    fused = machine().isa in ("avx512", "avx2", "neon")
    check(export(CONV, "arm", dtype, target="aarch64", static=True), rng, same_bits=fused)


def test_statistics(export, rng: np.random.Generator) -> None:
    """Of lanes that are fewer: other bits, the same meaning."""
    text, dtype = PIPELINES["strided"]
    check(export(text, "arm_strided", dtype, target="aarch64", static=True), rng, same_bits=False)


def test_a_problem(export, rng: np.random.Generator) -> None:
    check(export("asym-input-sq-kernel", "arm_problem", target="aarch64", static=True), rng, same_bits=False)
