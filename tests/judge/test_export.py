"""Exported files: the judge passes each of them through Triton's interpreter, and each stands alone."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu_proof.limits import GENERATIONS
from gpu_proof.report import TENSOR_CORES
from helpers.triton import compiling_environment, need_triton
from hypothesis import given
from hypothesis import strategies as st

from convt3d.gpu.geometry import GpuAxis
from convt3d.judge.cases import known_cases
from convt3d.judge.export import export
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"conv-transpose3d-max-max-sum": "longest-tails"}  # its windows have 216 members, few of which meet a tap here
# 216 members of a window times 300 taps: minutes in the interpreter, and so in one type only.
SLOW = {"conv-transpose3d-max-max-sum": ("one-voxel", "kernel-larger-than-input")}
ALONE = {"contextlib", "dataclasses", "math", "torch", "triton"}


WITH_GUARDS = ("conv-transpose-3d-asym-input-sq-kernel", "conv-transpose3d-avgpool-clamp-softmax-multiply")


def exported(slug: str, finite: bool = False) -> str:
    need_triton()
    return export(PROBLEMS[slug], "triton", finite)


@pytest.mark.parametrize(
    ("slug", "finite"),
    [
        *((slug, slug not in WITH_GUARDS) for slug in PROBLEMS),
        *(pytest.param(slug, slug in WITH_GUARDS, marks=pytest.mark.exhaustive) for slug in PROBLEMS),
    ],
)
def test_the_judge_passes_it(judge, slug: str, finite: bool) -> None:
    """With kernels that wait for what is not finite, or without; each problem in one of the two ways."""
    judgement = judge(exported(slug, finite), slug, cases=(QUICK.get(slug, "sample"),), limit=300, start=240)
    assert judgement.verdict.word == "passed", judgement


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slug", PROBLEMS)
def test_the_judge_passes_it_on_all_cases(judge, slug: str, dtype: str) -> None:
    """Also on those that it leaves out by itself, an interpreter being slow; not on what proves nothing."""
    names = [name for name in known_cases(PROBLEMS[slug], np.random.default_rng(0)) if name not in SLOW.get(slug, ())]
    judgement = judge(exported(slug), slug, dtype=dtype, cases=tuple(names), limit=2000, start=600)
    assert judgement.verdict.word == "passed", judgement
    assert len({result.name for result in judgement.results}) + len(judgement.left_out) == len(names)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("slug", "case"), [(slug, case) for slug, cases in SLOW.items() for case in cases])
def test_the_judge_passes_it_on_the_slowest_cases(judge, slug: str, case: str) -> None:
    judgement = judge(exported(slug), slug, cases=(case,), limit=3000, start=600)
    assert judgement.verdict.word == "passed", judgement


@pytest.mark.parametrize("slug", PROBLEMS)
def test_declared_finite_it_has_no_second_kernel(slug: str) -> None:
    text, short = (export(PROBLEMS[slug], "triton", finite) for finite in (False, True))
    assert "if GUARD:" in text
    assert "exported with --finite" not in text
    assert "def guarding" not in short
    assert "if GUARD" not in short
    assert "wild" not in short
    assert "exported with --finite" in short
    assert short.count("\n") + 30 < text.count("\n")
    for one in (text, short):
        assert "X_HALO" not in one  # the zeros are always there
        assert "with torch.cuda.device(device)" in one


@pytest.mark.parametrize("slug", PROBLEMS)
def test_it_reads_as_one_kernel(slug: str) -> None:
    """A convolution is written once, with its guard as a branch; softmax in 16-bit types computes it again. Nothing is
    asked for that no kernel of the problem needs, and no line is longer than ours."""
    for finite, most in ((False, 460), (True, 420)):
        text = export(PROBLEMS[slug], "triton", finite)
        softmax = "softmax" in slug
        assert text.count("acc = tl.zeros(") == (2 if softmax else 1)
        assert text.count("\n") < most + (200 if softmax else 0)
        assert max(len(line) for line in text.splitlines() if not line.startswith("#")) <= 120
        kernels = re.findall(r"^def \w+\(((?:\n    .*)+)\n\):  # fmt: skip\n((?:    .*\n)*)", text, re.MULTILINE)
        assert len(kernels) == text.count("# fmt: skip")
        for arguments, body in kernels:
            asked, words = set(re.findall(r"(\w+)(?:: [\w.]+)?,", arguments)), set(re.findall(r"\w+", body))
            assert asked - words <= {"ACC", "INDEX"}


@given(st.data())
def test_an_axis_has_the_numbers_that_plans_have(data: st.DataObject) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from convt3d.judge.export_host import axis_of

    def draw(least: int, most: int) -> int:
        return int(data.draw(st.integers(least, most)))

    size, ends, outs, kernel, stride, dilation = (draw(1, 9) for _ in range(6))
    padding, (window, jump), low, high = draw(0, 20), (draw(1, 7), draw(1, 7)), draw(0, 3), draw(0, 3)
    ours = axis_of(size, ends, outs, kernel, stride, padding, dilation, window, jump, low, high)
    theirs = GpuAxis(ends, outs, size, kernel, stride, padding, dilation, window, jump, 0, low, high)
    reach = {"before": theirs.beside[0], "after": theirs.beside[1], "largest": max(ours["largest"], theirs.largest)}
    assert ours == {name: reach[name] if name in reach else theirs.number(name) for name in ours}
    assert theirs.number("shift") == ours["padding"]


@pytest.mark.parametrize("slug", PROBLEMS)
def test_it_stands_alone(slug: str) -> None:
    """It imports torch, triton and little of the standard library, and its first line names the problem."""
    text = export(PROBLEMS[slug], "triton")
    assert text.startswith(f"# convt3d problem: {slug}\n")
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    assert {"torch", "triton"} <= found <= ALONE


WILD = """
import sys, torch
import numpy as np
from convt3d import problems
from convt3d.spec.problems import PROBLEMS
import exported
problem = PROBLEMS[sys.argv[1]]
values = problem.sample
made = problem.make_inputs(values, np.random.default_rng(3))
arrays = {name: array.astype(np.float32) for name, array in made.items()}
arrays["kernel"][0, 0, 0, 0, 0], arrays["kernel"][-1, -1, -1, -1, -1] = np.nan, np.inf
output = np.full(problem.shapes(values)["output"], 7, np.float32)
result = torch.full(output.shape, 7.0)
names = ("input", *problem.operand_names)
problems[problem.slug].solution(*(arrays[name] for name in names), output, *values.values())
exported.solution(*(torch.from_numpy(arrays[name]) for name in names), result, *values.values())
assert np.isnan(output).any() and np.isfinite(output).any()
np.testing.assert_allclose(result.numpy(), output, rtol=1e-4, atol=1e-5)
"""


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    """Taps beside the input are zeros for a dot, and zero times NaN would show at the border."""
    slug = "conv-transpose-3d-asym-input-sq-kernel"
    (tmp_path / "exported.py").write_text(exported(slug), encoding="utf-8")
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", tmp_path)))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WILD, slug], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


class Noted:
    """A kernel that notes how it is launched."""

    def __init__(self, *names: str) -> None:
        self.arg_names, self.found = names, list[dict]()

    def __getitem__(self, grid):
        return lambda **given: self.found.append(given)


@pytest.mark.parametrize(("numbers", "index"), [(2**31 - 1, "int32"), (2**31, "int64")])
def test_offsets_are_64_bit_where_an_address_needs_it(numbers: int, index: str) -> None:
    """By what lies in memory behind an array's first number, be the array a view of it: of the convolution's input all
    addresses are inside."""
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("triton")
    from convt3d.judge.export_host import axis_of, launch

    kernel = Noted("INDEX")
    x = torch.empty((numbers,), dtype=torch.float16, device="meta").as_strided((2, 16, 1, 2, 2), (64, 1, 64, 32, 16))
    y = torch.empty((2, 3, 1, 3, 2), dtype=torch.float16, device="meta")
    launch(kernel, [axis_of(n, n, n) for n in (1, 2, 2)], (16, 16, 16, 4), 2, 3, {"x": x, "y": y})
    assert [given["INDEX"].name for given in kernel.found] == [index]


@pytest.mark.parametrize("statistics", [False, True], ids=["plain", "statistics"])
@pytest.mark.parametrize("guard", [False, True], ids=["dot", "guard"])
@pytest.mark.parametrize("channels", [16, 64, 512, 1024, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_threads_of_a_block_fit_the_registers(dtype: str, channels: int, guard: bool, statistics: bool) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("triton")
    from convt3d.judge.export_host import axis_of, guarding, launch, tile_of

    kernel, kind = Noted("BLOCK_C"), getattr(torch, dtype)
    tile = tile_of(kind, 16, channels, whole=True, crowded=statistics)
    axes = [axis_of(2, 4, 4, 2, 2)] * 3
    arrays = {name: torch.empty((1, channels, 4, 4, 4), dtype=kind, device="meta") for name in "wy"}
    known = {"PARTS": 3 if dtype == "float32" else 1, "GUARD": guard, **arrays}
    launch(kernel, axes, guarding(tile, statistics) if guard else tile, 1, channels, known)
    (given,) = kernel.found
    assert given["BLOCK_C"] >= channels
    assert given["num_warps"] * 32 * given["maxnreg"] <= 65536
    assert given["maxnreg"] <= 255


COMPILE = """
import sys, torch
from triton.runtime.jit import JITFunction
from gpu_proof.compile import compile_call
from convt3d.spec.problems import PROBLEMS
import exported

problem, generation, calls = PROBLEMS[sys.argv[1]], int(sys.argv[2]), []


class Noted:
    def __init__(self, kernel):
        self.kernel, self.arg_names = kernel, kernel.arg_names

    def __getitem__(self, grid):
        return lambda **given: calls.append((self.kernel, given))


kernels = {name: value for name, value in vars(exported).items() if isinstance(value, JITFunction)}
shapes = problem.shapes(problem.benchmark)
for dtype in sys.argv[3:]:
    vars(exported).update({name: Noted(kernel) for name, kernel in kernels.items()})
    names, kind = ("input", *problem.operand_names, "output"), getattr(torch, dtype)
    exported.solution(*(torch.empty(shapes[n], dtype=kind, device="meta") for n in names), *problem.benchmark.values())
    vars(exported).update(kernels)
    for kernel, given in calls:
        facts = compile_call(kernel, generation, **given)
        print(dtype, kernel.__name__, facts.spills, int(given.get("GUARD", 0)), *facts.tensor_kinds)
    calls.clear()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("slug", PROBLEMS)
def test_it_compiles_for_a_gpu(tmp_path: Path, slug: str, generation: int) -> None:
    """At the benchmark's shapes: no spills, and tensor cores for all types."""
    (tmp_path / "exported.py").write_text(exported(slug), encoding="utf-8")
    environment = compiling_environment()
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, slug, str(generation), *DTYPES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row for row in rows if row[2] != "0"] == []
    half = [TENSOR_CORES[generation]]
    wanted = {"float16": half, "bfloat16": half, "float32": half, "float64": ["mma"]}
    products = [row for row in rows if row[1].startswith("conv") and row[3] == "0"]
    assert {row[0] for row in products} == set(DTYPES)
    assert [row for row in products if row[4:] != wanted[row[0]]] == []
