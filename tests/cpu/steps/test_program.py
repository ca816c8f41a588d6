"""Kernels of whole passes as text: for every stage, the five operators, every type and instruction set, and for ARM."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
from helpers.problems import PROBLEMS
from spec.stage_rows import ROWS

import convt3d as ct
from convt3d.cpu.code.tile import emit
from convt3d.cpu.plan.choice import AUTO, Options
from convt3d.cpu.plan.machine import LEVELS, Machine, machine
from convt3d.cpu.plan.plan import Plan, _make_plan
from convt3d.cpu.runtime.build import Target, compile_ir
from convt3d.cpu.runtime.elf import undefined_symbols
from convt3d.spec.dtypes import DTYPES

X, W = (2, 4, 4, 5, 6), (4, 4, 3, 3, 3)
ARM = Target.cross("aarch64-unknown-linux-gnu", features="+neon")


def arm() -> Machine:
    """A machine as an ARM server would describe itself."""
    (neon,) = LEVELS["aarch64"]
    vectors = {"vector_bytes": neon.vector_bytes, "vector_registers": neon.vector_registers}
    return replace(machine(), isa=neon.name, cpu=neon.generic_cpu, features="+neon", **vectors)


def plan_on(
    pipeline: ct.Pipeline,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    dtype: str,
    host: Machine,
    options: Options = AUTO,
) -> Plan:
    return _make_plan(pipeline, x, pipeline.operand_shapes(x, kernel), DTYPES[dtype], options, True, host)


@pytest.mark.parametrize(("dtype", "algorithm"), [*product(DTYPES, ["direct"]), ("float32", "winograd")])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_the_five_operators_become_an_object_for_arm(problem: object, dtype: str, algorithm: str) -> None:
    """Nothing runs here: the code must be complete (no library calls) and be ARM code with its own fma."""
    host = arm()
    for one in plan_on(problem.pipeline, problem.x, problem.kernel, dtype, host, Options(algorithm)).sweeps:
        dumps: dict[str, str] = {}
        build = compile_ir(emit(one.structure, host), ARM, dumps=dumps)
        assert build.object_code[18:20] == b"\xb7\x00"  # ELF machine number of AArch64
        assert not undefined_symbols(build.object_code)
        if "conv" in one.structure.name:
            assert re.search(r"\bfml[as]\b", dumps["emit"])


@pytest.mark.parametrize("isa", ["", "avx2", "baseline"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_kernel_calls_a_library(isa: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of fmaf, expf or __truncsfhf2 is slow, and may not even be there when the object is loaded."""
    if machine().isa != "avx512":
        pytest.skip("the lower instruction sets of an AVX-512 host")
    monkeypatch.setenv("CONVT3D_ISA", isa)
    host = machine()
    pipeline = ct.Pipeline(
        ct.AvgPool3d(2), ct.ConvTranspose3d(stride=2, bias=True), ct.GELU(), ct.LayerNorm(), ct.Mish()
    )
    for one in plan_on(pipeline, X, W, dtype, host).sweeps:
        assert not undefined_symbols(compile_ir(emit(one.structure, host), Target.of(host)).object_code)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_stage_is_emitted_without_fast_math(row: object) -> None:
    """NaN, infinities and signed zeros must behave as IEEE 754 says: no flag may allow LLVM to assume otherwise."""
    conv = () if isinstance(row.stage, (ct.Conv3d, ct.ConvTranspose3d)) else (ct.ConvTranspose3d(),)
    kernel = row.weight(X[1]) or W
    kept = [label] if (label := getattr(row.stage, "label", None)) and not isinstance(row.stage, ct.Keep) else []
    stages = (*conv, *(ct.Keep(name) for name in kept if name != "x"), row.stage)
    if kept == ["x"]:
        stages = (ct.ConvTranspose3d(stride=1, padding=1), row.stage)
    try:
        pipeline = ct.Pipeline(*stages)
        if getattr(row.stage, "groups", 1) > 1:
            kernel = (row.stage.groups * 2, *kernel[1:])
        if isinstance(row.stage, ct.GroupNorm):
            kernel = (kernel[0], 2 * row.stage.num_groups, *kernel[2:])
        channels = pipeline.conv.kernel(kernel)[0]
        plan = plan_on(pipeline, (X[0], channels, *X[2:]), kernel, "float32", machine())
    except ct.Error:
        pytest.skip("does not fit the sizes of this test")
    for one in plan.sweeps:
        text = emit(one.structure, machine())
        assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b", text)


def test_the_text_depends_on_the_structure_alone() -> None:
    """Equal keys share one kernel, so equal keys must mean equal text, whatever the sizes and numbers."""
    texts: dict[str, str] = {}
    for size in (3, 8, 21):
        for stride, padding, dilation, slope in (((2, 1, 2), 0, 1, 0.1), ((1, 3, 2), 1, 2, 0.3)):
            conv = ct.ConvTranspose3d(stride=stride, padding=padding, output_padding=0, groups=1, dilation=dilation)
            pipeline = ct.Pipeline(conv, ct.LeakyReLU(slope), ct.MaxPool3d(3, 2), ct.InstanceNorm())
            for one in plan_on(pipeline, (1, 4, size, size, size), W, "float32", machine()).sweeps:
                text = emit(one.structure, machine())
                assert texts.setdefault(one.structure.key, text) == text
    assert len(texts) == 2
