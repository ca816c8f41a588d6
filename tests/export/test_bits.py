"""A library computes the bits that Python computes, whatever the sizes and threads."""

from __future__ import annotations

import subprocess
from itertools import product

import numpy as np
import pytest
from helpers.c_cases import PIPELINES, drawn, pipeline_of
from helpers.c_library import by_python
from helpers.c_runner import Case, build_program, run_cases

from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.judge.languages import compiler_of
from convt3d.spec.problems import PROBLEMS, short_name

QUICK = ("asym-input-sq-kernel", "layernorm-gelu-scaling")
CASES = 16

SLOW = ("pools", "spatial")  # whose kernels take ten seconds and more to compile, and whose steps others have, too


def names() -> list[object]:
    slow = pytest.mark.exhaustive
    short = [short_name(slug) for slug in PROBLEMS]
    return [name if name in QUICK else pytest.param(name, marks=slow) for name in short]


def check(exported, rng: np.random.Generator, count: int = CASES) -> None:  # type: ignore[no-untyped-def]
    loaded, subject, dtype = exported.load(), exported.subject, exported.dtype
    for number in range(1, count + 1):
        case = drawn(subject, dtype, rng, number, large=number % 2 == 1)
        x, *operands, out = case.arrays
        expected = out.copy()
        by_python(pipeline_of(subject, case), dtype, x, operands, expected)
        assert loaded.output_shape(x, operands, case.values) == out.shape
        code = loaded.run(x, operands, out, case.values, case.threads, workspace=number % 2 == 0)
        assert code == 0, loaded.message
        assert out.tobytes() == expected.tobytes(), (case.values, x.shape, operands[0].shape)


def check_shapes(exported, x, shapes, rng: np.random.Generator) -> None:  # type: ignore[no-untyped-def]
    """Of the input and the operands of a pipeline."""
    loaded, dtype, pipeline = exported.load(), exported.dtype, exported.subject.pipeline
    data, *operands = (dtype.narrow(rng.standard_normal(shape)) for shape in (x, *shapes))
    got, expected = (np.full(pipeline.trace(x, shapes).output, 7, dtype.storage) for _ in range(2))
    assert loaded.run(data, operands, got, {}, threads=3) == 0, loaded.message
    by_python(pipeline, dtype, data, operands, expected)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", names())
def test_problems(export, name: str, rng: np.random.Generator) -> None:
    check(export(name, "solved"), rng)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name in SLOW else ()) for name in PIPELINES]
)
def test_pipelines(export, name: str, rng: np.random.Generator) -> None:
    text, dtype = PIPELINES[name]
    check(export(text, name, dtype), rng)


def test_statistics_of_many_tiles(export, rng: np.random.Generator) -> None:
    """Bits of statistics depend on tiles: the library must choose the same ones."""
    text, name = PIPELINES["spatial"]
    exported = export(text, "spatial", name)
    for sizes, channels in (((9, 33, 40), (16, 24)), ((3, 4, 130), (5, 33)), ((24, 20, 21), (3, 2))):
        x = (2, channels[0], *sizes)
        check_shapes(exported, x, exported.subject.pipeline.operand_shapes(x, (*channels, 3, 3, 3)), rng)


@pytest.mark.parametrize(
    ("sizes", "channels"),
    [((6, 7, 40), (4, 1)), ((9, 10, 11), (8, 6)), ((3, 4, 5), (256, 96)), ((1, 2, 3), (512, 128))],
    ids=["depthwise", "straight", "shared", "many weights"],
)
def test_what_python_has_other_code_for(export, sizes, channels, rng: np.random.Generator) -> None:  # type: ignore[no-untyped-def]
    exported = export("Conv3d(padding=1, groups=4, bias=True)", "only_python")
    pipeline, (cin, per_out) = exported.subject.pipeline, channels
    x = (2, cin, *sizes)
    check_shapes(exported, x, pipeline.operand_shapes(x, (4 * per_out, cin // 4, 3, 3, 3)), rng)


def test_methods(export, rng: np.random.Generator) -> None:
    """Outputs are made together along the axes whose kernel has more than one tap, where that pays; pieces of taps
    differ in length. A sample with an infinite voxel is summed directly, and so are weights that are huge."""
    exported = export("ConvTranspose3d(bias=True, padding=1) -> BatchNorm(affine=True) -> ReLU()", "methods")
    loaded, dtype, pipeline = exported.load(), exported.dtype, exported.subject.pipeline
    chosen, x = set(), (3, 24, 12, 13, 14)
    for taps in product((1, 3), (1, 5), (1, 4)):
        shapes = pipeline.operand_shapes(x, (24, 32, *taps))
        plan = make_plan(pipeline, x, shapes, dtype)
        chosen.add(tuple(axis.outputs for axis in plan.method.axes))
        for factor in (1.0, 1e17):
            data, *operands = (dtype.narrow(abs(rng.standard_normal(shape))) for shape in (x, *shapes))
            operands[0] *= np.float32(factor)
            data[1, 3, 4, 5, 6] = np.inf
            got, expected = (np.full(plan.trace.output, 7, dtype.storage) for _ in range(2))
            assert loaded.run(data, operands, got, {}, threads=3, workspace=True) == 0, loaded.message
            by_python(pipeline, dtype, data, operands, expected)
            assert got.tobytes() == expected.tobytes()
    assert {(2, 2, 2), (1, 1, 1)} < chosen
    assert len(chosen) > 4


@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_other_instruction_sets(export, isa: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are chosen when the library is first called: in a process of its own."""
    if machine().isa not in ("avx512", "avx2") or (isa == machine().isa):
        pytest.skip(f"{machine().isa} is all that this processor has")
    text, name = PIPELINES["strided"]
    exported = export(text, "strided", name, every=True)
    subject, dtype = exported.subject, exported.dtype
    compiler = compiler_of("c")
    assert compiler is not None
    runner = build_program(compiler, subject, str(exported.folder), static=False)
    monkeypatch.setenv("CONVT3D_ISA", isa)
    cases = [drawn(subject, dtype, rng, number) for number in range(1, CASES)]
    results, chosen = run_cases([str(runner)], subject, dtype, cases)
    assert chosen == isa
    for case, got in zip(cases, results, strict=True):
        x, *operands, out = case.arrays
        by_python(subject.pipeline, dtype, x, operands, out)
        assert got.tobytes() == out.tobytes()


def test_only_its_own_names_are_visible(export) -> None:
    exported = export("layernorm-gelu-scaling", "solved")
    listed = subprocess.run(["nm", "-D", "--defined-only", exported.path], capture_output=True, text=True, check=True)
    found = {line.split()[-1] for line in listed.stdout.splitlines()}
    own = {f"solved_{word}" for word in ("run", "workspace", "output_shape", "message", "isa")}
    assert found == {*own, "solution"}


def test_a_case_is_written_whole() -> None:
    """Or the programs above would read something else."""
    from convt3d.export.library import subject_of

    subject = subject_of("ConvTranspose3d()", "plain")
    x, w, out = (np.zeros(shape, np.float32) for shape in ((1, 2, 3, 4, 5), (2, 1, 1, 1, 1), (1, 1, 3, 4, 5)))
    assert len(Case(x, [w], out, {}, 1).written(subject)) == 8 + 3 * 40 + x.nbytes + w.nbytes + out.nbytes
