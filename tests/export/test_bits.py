"""A library computes the bits that Python computes, whatever the sizes and threads."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import product

import numpy as np
import pytest
from helpers.c_cases import PIPELINES, drawn, pipeline_of
from helpers.c_library import by_python
from helpers.c_runner import Case, build_program, run_cases

from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.export.forms import choices
from convt3d.judge.languages import compiler_of
from convt3d.spec.dtypes import float32
from convt3d.spec.problems import PROBLEMS, short_name
from convt3d.spec.rewrite import max_pool_over_phases, simplify
from convt3d.spec.shapes import LONG_STRIDE
from convt3d.spec.stages import MaxPool3d

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


def check_shapes(exported, x, shapes, rng: np.random.Generator, wild: float = 0.0) -> None:  # type: ignore[no-untyped-def]
    """Of the input and the operands of a pipeline; `wild`: one of the weights, if it is not finite."""
    loaded, dtype, pipeline = exported.load(), exported.dtype, exported.subject.pipeline
    data, *operands = (dtype.narrow(rng.standard_normal(shape)) for shape in (x, *shapes))
    if not np.isfinite(wild):
        operands[0][0, 0, 0, -1, -1] = wild
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


def test_a_max_pool_over_whole_turns_of_phases(export, rng: np.random.Generator) -> None:
    """Begins with the phases, as in Python."""
    exported = export(
        "ConvTranspose3d(stride=(2, 1, 3), padding=1, bias=True) -> MaxPool3d((4, 2, 3)) -> Sum()", "turns"
    )
    (form,) = exported.subject.forms(exported.subject.parts[0], exported.dtype, machine())
    assert sum(isinstance(stage, MaxPool3d) for stage in form.pipeline.stages) == 2
    check(exported, rng)


def test_each_stride_has_the_form_that_python_plans() -> None:
    """Where strides divide the window of a problem's max-pool, it begins with the phases."""
    problem = PROBLEMS["max-max-sum"]
    forms = list(choices(problem, float32))
    seen = set()
    for strides in product((0, *range(1, LONG_STRIDE + 2)), repeat=3):
        named = dict(zip(("stride_d", "stride_h", "stride_w"), strides, strict=True))
        taken = next(turns for text, _, turns in forms if eval(in_python(text), {}, named))
        if 0 in strides:  # which is refused later
            assert not taken
            continue
        asked = simplify(problem.pipeline({**problem.benchmark, **named}), float32, tame=True)
        assert taken == (max_pool_over_phases(asked) is not asked)
        seen.add(taken)
    assert seen == {True, False}


def in_python(condition: str) -> str:
    return condition.replace("&&", "and").replace("||", "or")


@pytest.mark.exhaustive
def test_a_problem_whose_strides_divide_its_windows(export, rng: np.random.Generator) -> None:
    exported = export("max-max-sum", "solved")
    loaded, problem, chosen = exported.load(), exported.subject.problem, set()
    for strides in ((2, 2, 2), (1, 2, 3), (3, 3, 3), (6, 1, 6), (2, 3, 1), (6, 6, 3), (3, 6, 2), (1, 1, 6), (6, 6, 6)):
        for channels in (2, 21):
            values = {**problem.benchmark, "batch_size": 2, "in_channels": channels, "out_channels": channels + 4}
            for word, three in (("kernel", (2, 5, 5)), ("stride", strides)):
                values |= {f"{word}_{axis}": one for axis, one in zip("dhw", three, strict=True)}
            values |= {"depth": 9, "height": 11, "width": 13, "padding_d": 1, "padding_h": 0, "padding_w": 2}
            pipeline, x = problem.pipeline(values), (2, channels, 9, 11, 13)
            shapes = pipeline.operand_shapes(x, (channels, channels + 4, 2, 5, 5))
            plan = make_plan(pipeline, x, shapes, exported.dtype)
            chosen.add(tuple(axis.outputs for axis in plan.method.axes))
            data, *operands = (rng.standard_normal(shape).astype(np.float32) for shape in (x, *shapes))
            got, expected = (np.full(plan.trace.output, 7, np.float32) for _ in range(2))
            assert loaded.run(data, operands, got, values, threads=3) == 0, loaded.message
            by_python(pipeline, exported.dtype, data, operands, expected)
            assert got.tobytes() == expected.tobytes()
    assert len(chosen) > 2


def test_an_average_as_wide_as_the_array(export, rng: np.random.Generator) -> None:
    """Python has code of its own for that."""
    exported = export("Conv3d() -> AvgPool3d((1, 2, 37))", "wide_average")
    for width in (37, 38, 73, 74):
        x = (2, 3, 6, 7, width)
        check_shapes(exported, x, exported.subject.pipeline.operand_shapes(x, (4, 3, 2, 3, 1)), rng)


def test_one_channel_into_one(export, rng: np.random.Generator) -> None:
    """Rows are summed together, as those of channels with taps of their own."""
    exported = export("Conv3d(padding='same') -> Add('x')", "skip")
    for sizes, taps in (((5, 6, 40), (3, 3, 3)), ((3, 20, 70), (1, 5, 4))):
        check_shapes(exported, (2, 1, *sizes), ((1, 1, *taps),), rng)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((1, 16, 20, 60, 80), (8, 16, 3, 3, 3)),
        ((1, 300, 9, 30, 40), (4, 300, 1, 2, 3)),
        ((1, 16, 12, 50, 80), (2, 16, 3, 4, 4)),
    ],
    ids=["dilated", "many channels", "few rows of weights"],
)
def test_pieces(export, x, weight, rng: np.random.Generator) -> None:  # type: ignore[no-untyped-def]
    exported = export("Conv3d(padding=3, dilation=(3, 9, 17), bias=True) -> ReLU()", "apart")
    shapes = exported.subject.pipeline.operand_shapes(x, weight)
    assert make_plan(exported.subject.pipeline, x, shapes, exported.dtype).pieces
    assert make_plan(exported.subject.pipeline, x, shapes, exported.dtype).masked.pieces
    for wild in (0.0, np.inf):
        check_shapes(exported, x, shapes, rng, wild)


def test_long_kernels_in_pieces(export, rng: np.random.Generator) -> None:
    exported = export("ConvTranspose3d(stride=(1, 1, 2)) -> Add('channel')", "long_kernel")
    x = (1, 300, 8, 12, 30)
    shapes = exported.subject.pipeline.operand_shapes(x, (300, 2, 9, 9, 9))
    assert make_plan(exported.subject.pipeline, x, shapes, exported.dtype).pieces
    check_shapes(exported, x, shapes, rng)


AVERAGED = {
    "pooled": (
        "ConvTranspose3d(stride=2, padding=1, bias=True) -> AvgPool3d(2) -> Clamp(-1, 1) -> Softmax()",
        "float32",
    ),
    "uneven": (
        "ConvTranspose3d(stride=(4, 2, 6), dilation=(1, 2, 3), padding=(0, 1, 2)) -> BatchNorm() -> "
        "AvgPool3d((2, 2, 3), divisor_override=5) -> ReLU()",
        "float16",
    ),
    "summed": ("ConvTranspose3d(stride=2, bias=True) -> Sum('spatial') -> ReLU()", "float32"),
    "mean": ("ConvTranspose3d(stride=(1, 2, 3), groups=2) -> Mean('spatial') -> Add('channel')", "float64"),
}


@pytest.mark.parametrize("name", AVERAGED)
def test_averages_in_the_weights(export, name: str, rng: np.random.Generator) -> None:
    """Samples that are too wild for that go as asked, alone, and so does all where a weight is huge."""
    text, dtype = AVERAGED[name]
    exported = export(text, f"average_{name}", dtype)
    loaded, kind, pipeline = exported.load(), exported.dtype, exported.subject.pipeline
    taken = 0
    for number in range(1, CASES + 1):
        case = drawn(exported.subject, kind, rng, number, large=number % 2 == 1)
        x, *operands, out = case.arrays
        if number % 5 == 0:
            x[-1, 0, 0, 0, 0] = kind.narrow(np.array([np.inf]))[0]
        if number % 6 == 0:
            operands[0][0, 0, 0, 0, 0] = kind.narrow(np.array([6e4 if dtype == "float16" else 1e21]))[0]
        shapes = tuple(operand.shape for operand in operands)
        steps = make_plan(pipeline, x.shape, shapes, kind).rewritten.steps
        taken += any(step.tame_input for step in steps)
        expected = out.copy()
        by_python(pipeline, kind, x, operands, expected)
        assert loaded.run(x, operands, out, {}, case.threads, workspace=True) == 0, loaded.message
        assert out.tobytes() == expected.tobytes(), (x.shape, shapes)
    assert taken > CASES // 3


PAIRED = {
    "strided": "Conv3d(stride=(1, 2, 1), padding=1, groups=2, bias=True) -> BatchNorm(affine=True) -> ReLU()",
    "apart": "Conv3d(padding=3, dilation=(3, 9, 17)) -> GroupNorm(2)",
}


@pytest.mark.parametrize("name", PAIRED)
def test_pairs_of_bfloat16(export, name: str, rng: np.random.Generator) -> None:
    """Where the processor multiplies them; elsewhere numbers one by one, as Python."""
    exported = export(PAIRED[name], f"pairs_{name}", "bfloat16")
    check(exported, rng)
    if name == "apart":
        x = (1, 18, 12, 50, 80)
        check_shapes(exported, x, exported.subject.pipeline.operand_shapes(x, (2, 18, 3, 4, 4)), rng)


def test_elementwise_sweeps(export, rng: np.random.Generator) -> None:
    """In the order of memory, channels shared out; and channels last."""
    exported = export("Conv3d(padding=1) -> InstanceNorm(affine=True) -> SiLU()", "in_order")
    check(exported, rng)
    x = (2, 5, 24, 40, 50)
    check_shapes(exported, x, exported.subject.pipeline.operand_shapes(x, (7, 5, 3, 3, 3)), rng)


def test_statistics_in_float64(export, rng: np.random.Generator) -> None:
    """exp and log between tiles are our own: neither NumPy's nor the C library's."""
    check(export("Conv3d(padding=1) -> Softmax('spatial') -> LogSumExp('spatial')", "exponents", "float64"), rng)


def test_methods(export, rng: np.random.Generator) -> None:
    """Outputs are made together along the axes whose kernel has more than one tap, where that pays; pieces of taps
    differ in length. A sample with an infinite voxel is summed directly, and so are weights that are huge."""
    exported = export("ConvTranspose3d(bias=True, padding=1) -> BatchNorm(affine=True) -> ReLU()", "methods")
    loaded, dtype, pipeline = exported.load(), exported.dtype, exported.subject.pipeline
    chosen, x = set(), (3, 24, 12, 13, 14)
    for taps in product((1, 3), (1, 7), (1, 4)):
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
    monkeypatch.setenv("CONVT3D_ISA", "avx1024")
    with pytest.raises(AssertionError, match="CONVT3D_ISA: is no instruction set that processor and library have"):
        run_cases([str(runner)], subject, dtype, cases)


def test_only_its_own_names_are_visible(export) -> None:
    exported = export("layernorm-gelu-scaling", "solved")
    listed = subprocess.run(["nm", "-D", "--defined-only", exported.path], capture_output=True, text=True, check=True)
    found = {line.split()[-1] for line in listed.stdout.splitlines()}
    own = {f"solved_{word}" for word in ("run", "workspace", "output_shape", "message", "isa")}
    assert found == {*own, "solution"}


def test_what_the_loader_may_not_write_or_execute(export) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    exported = export("layernorm-gelu-scaling", "solved")
    told = subprocess.run(["readelf", "-lWd", exported.path], capture_output=True, text=True, check=True).stdout
    assert "GNU_RELRO" in told
    assert re.search(r"FLAGS.*NOW", told)
    assert re.search(r"GNU_STACK.*RW ", told)
    assert not re.search(r"RWE|TEXTREL", told)


def test_a_case_is_written_whole() -> None:
    """Or the programs above would read something else."""
    from convt3d.export.library import subject_of

    subject = subject_of("ConvTranspose3d()", "plain")
    x, w, out = (np.zeros(shape, np.float32) for shape in ((1, 2, 3, 4, 5), (2, 1, 1, 1, 1), (1, 1, 3, 4, 5)))
    assert len(Case(x, [w], out, {}, 1).written(subject)) == 8 + 3 * 40 + x.nbytes + w.nbytes + out.nbytes
