"""A minute of the soak with a fixed seed; and that it would find something, and make it small."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect and /proc")

from soak import check as checking  # noqa: E402
from soak import faults  # noqa: E402
from soak.check import Failed, check  # noqa: E402
from soak.draw import LAYOUTS, ONLY_READ, VALUES, Draw, drawn, read  # noqa: E402
from soak.reduce import environment, program, reduced  # noqa: E402

from convt3d.cpu.runtime import bind, execute, memory  # noqa: E402
from convt3d.errors import Error  # noqa: E402
from convt3d.plan.names import INPUT, OUTPUT  # noqa: E402

TOOL = Path(__file__).resolve().parents[2] / "tools" / "soak.py"
SMALL = Draw(
    "ConvTranspose3d(stride=2, bias=True) -> GELU() -> MaxPool3d(kernel_size=2)", (2, 3, 3, 4, 5), (3, 4, 2, 2, 2)
)


def tool(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, *arguments], env={**os.environ, **more}, capture_output=True, text=True, check=False
    )


def test_drawn_cases_on_every_instruction_set() -> None:
    """Three of them, and a batch with checked accesses; direct summation, Winograd's method, and either."""
    done = tool("--seed", "5", "--batches", "4", "--pipelines", "1", "--calls", "0", "--faults", "0", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: seed 5, " in done.stdout
    assert "checked" in done.stdout
    assert done.stdout.endswith("nothing found\n")


def test_so_many_cases(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches of 10 begin until 25 cases were run, however little time was given."""
    soaking = load(TOOL)

    def batch(self: Any, number: int) -> None:
        self.counts["avx512"] += 10

    monkeypatch.setattr(soaking.Soak, "batch", batch)
    options = ["--cases", "25", "--seed", "3", "--calls", "0", "--faults", "0", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", [str(TOOL), *options, "--isa", "avx512"])
    assert soaking.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        "soak: seed 3, avx512, 25 cases",
        "30 avx512",
        "30 cases, 0 scenarios: nothing found",
    ]


def load(tool: Path) -> Any:
    """A program as a module."""
    specification = importlib.util.spec_from_file_location("soak_tool", tool)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    path = [*sys.path]
    try:
        sys.modules["soak_tool"] = module  # where its dataclasses look for their module
        specification.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module


@pytest.mark.parametrize("scenario", faults.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_trouble(scenario: faults.Scenario, rng: np.random.Generator, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    scenario(rng, tmp_path)


def test_calls_take_nothing(rng: np.random.Generator, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    faults.no_growth(rng, tmp_path, 3000)


# --- that it would find something -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ONLY_READ])
def test_a_small_case_passes(layout: str) -> None:
    """With every layout of the result, and all layouts and values of the inputs by turns."""
    at = list(LAYOUTS).index(layout)
    names, values = [*LAYOUTS, *LAYOUTS], [*VALUES, *VALUES]
    check(replace(SMALL, layouts=(*names[at : at + 3], layout), values=tuple(values[2 * at : 2 * at + 3]), threads=3))


def test_a_case_leaves_the_memory_of_later_calls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it passes or not."""
    usual = memory._aligned, memory._mapped
    check(SMALL)
    assert (memory._aligned, memory._mapped) == usual
    monkeypatch.setattr(execute.Run, "run", _tampered(TAMPERS["one voxel missing"][0]))
    with pytest.raises(Failed):
        check(SMALL)
    assert (memory._aligned, memory._mapped) == usual


def test_products_beyond_float64_are_no_failure() -> None:
    """Infinity - infinity in the meaning, infinity where a fused multiply-add takes the product of 1e400 as it is."""
    values = ("huge", "huge")
    check(Draw("ConvTranspose3d()", (1, 6, 3, 3, 3), (6, 2, 2, 2, 2), "float64", values, seed=0))


def test_infinity_times_what_cancels_is_no_failure() -> None:
    """Equal numbers along the width, less their mean: nothing, or a rounding error."""
    chain = "ConvTranspose3d() -> LayerNorm(over='width') -> Multiply('channel')"
    values = ("constant", "normal", "inf")
    check(Draw(chain, (1, 3, 3, 2, 7), (3, 2, 2, 1, 1), "float64", values, seed=13))


def test_errors_beyond_both_ends_of_a_type_are_no_failure() -> None:
    """A norm's numbers cancel in their sum, in one type to nothing and in another to a large number; its square is none
    that float32 holds."""
    chain = "ConvTranspose3d() -> InstanceNorm(affine=True) -> Sum(over='spatial') -> Keep('a') -> Multiply('a')"
    check(Draw(chain, (1, 2, 3, 3, 3), (2, 1, 2, 2, 2), values=("normal", "normal", "huge"), seed=5))


# Honest results that were once called wrong, as the soak drew and reduced them.
HONEST = {
    "roundings of what is stored between two convolutions, summed by the second": Draw(
        "ConvTranspose3d(stride=(3, 2, 3), padding=(2, 2, 0), output_padding=(2, 0, 2), groups=2, dilation=(1, 1, 2), "
        "bias=True) -> ConvTranspose3d(stride=(2, 1, 1), padding=(1, 1, 0), bias=True)",
        (1, 6, 7, 6, 4),
        (6, 3, 3, 1, 2),
        "float16",
        ("many sizes", "normal", "normal", "normal", "normal"),
        algorithm="direct",
        seed=1765,
        more=((6, 5, 3, 1, 2),),
    ),
    "products of 1e-169, of which no square is a number": Draw(
        "ConvTranspose3d(stride=(1, 3, 1), output_padding=(0, 2, 0))",
        (1, 63, 2, 1, 2),
        (63, 1, 4, 2, 2),
        "float64",
        ("tiny", "normal"),
    ),
    "a batch norm of zeros: its bias and its mean times its factor cancel": Draw(
        "ConvTranspose3d(output_padding=(1, 0, 0), dilation=(2, 2, 1)) -> Multiply(0.5) -> BatchNorm(affine=True)",
        (1, 1, 1, 1, 1),
        (1, 4, 1, 2, 2),
        seed=13045,
    ),
    "a norm's factor near zero is rounded, and multiplied by 39": Draw(
        "ConvTranspose3d(stride=(1, 2, 1), padding=(0, 3, 2), output_padding=(2, 1, 1), groups=3, dilation=(3, 2, 3))"
        " -> MaxPool3d(kernel_size=2) -> GELU() -> InstanceNorm(affine=True)",
        (2, 15, 1, 5, 3),
        (15, 43, 1, 1, 5),
        values=("normal", "large mean", "denormal", "zero"),
        seed=571845,
    ),
    "a bias of 1e15 makes equal numbers, and a norm zeros, of all that is added to it": Draw(
        "MaxPool3d(kernel_size=(2, 3, 3), stride=(1, 2, 3), padding=(1, 1, 0), ceil_mode=True)"
        " -> ConvTranspose3d(stride=(1, 2, 1), padding=(2, 0, 0), output_padding=1, dilation=(2, 1, 3), bias=True)"
        " -> LayerNorm(over='width') -> MaxPool3d(kernel_size=2)",
        (1, 3, 3, 3, 2),
        (3, 4, 5, 4, 1),
        values=("normal", "constant", "huge"),
        seed=16059,
    ),
    "the same in float64, in which PyTorch and the meaning are not sure either": Draw(
        "ConvTranspose3d(stride=(2, 2, 1), padding=(2, 0, 0), output_padding=1, dilation=(2, 1, 3), bias=True)"
        " -> LayerNorm(over='width') -> MaxPool3d(kernel_size=2)",
        (1, 3, 4, 2, 1),
        (3, 4, 5, 4, 1),
        values=("normal", "constant", "huge"),
        seed=16059,
    ),
    "a norm's factor of 1e39, of numbers that are all equal": Draw(
        "ConvTranspose3d(stride=(1, 3, 1), padding=(0, 2, 0), output_padding=(0, 1, 0)) -> InstanceNorm(affine=True)",
        (1, 24, 1, 2, 1),
        (24, 4, 5, 1, 4),
        values=("normal", "normal", "huge", "normal"),
        seed=311867,
    ),
    "infinity times what a bias leaves of a sum a ten-millionth of its size": Draw(
        "ConvTranspose3d(groups=3, dilation=(1, 1, 2), bias=True) -> InstanceNorm() -> InstanceNorm(affine=True)"
        " -> AvgPool3d(kernel_size=3, stride=2, padding=1, ceil_mode=True)",
        (1, 9, 2, 3, 1),
        (9, 1, 2, 1, 2),
        "float16",
        ("tiny", "tiny", "normal", "mixed", "normal"),
    ),
}


@pytest.mark.parametrize("why", HONEST)
def test_an_honest_result_is_no_failure(why: str) -> None:
    check(HONEST[why])


@pytest.mark.parametrize("over", ["depth", "channels"])
def test_a_result_without_some_axis(over: str) -> None:
    check(Draw(f"ConvTranspose3d() -> Sum({over!r}, keepdim=False) -> Tanh()", (2, 3, 3, 4, 5), (3, 4, 2, 2, 2)))


def _tampered(change: Any) -> Any:
    honest = execute.Run.run

    def run(self: Any) -> None:
        honest(self)
        change(self.arrays)

    return run


TAMPERS: dict[str, tuple[Any, str]] = {
    "one voxel a little off": (lambda arrays: _scale(arrays[OUTPUT], 1.0 + 1e-4), "meaning: 1 of "),
    "one voxel missing": (lambda arrays: _scale(arrays[OUTPUT], np.nan), "meaning: 1 of "),
    "an input changed": (lambda arrays: _scale(arrays[INPUT], 2.0), "memory: an input was written"),
}


def _scale(array: Any, by: float) -> None:
    at = np.unravel_index(int(np.abs(array).argmax()), array.shape)
    array[at] *= by


@pytest.mark.parametrize("name", TAMPERS)
def test_a_wrong_result_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, said = TAMPERS[name]
    monkeypatch.setattr(execute.Run, "run", _tampered(change))
    with pytest.raises(Failed, match=said):
        check(SMALL)


def test_a_written_gap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = checking.untouched_gaps

    def tampered(out: Any, fence: Any) -> bool:
        gaps = fence.bytes.size - out.size * out.itemsize
        assert gaps > 0
        fence.bytes[out.itemsize :] ^= 1  # elements and gaps, all but the first element
        return honest(out, fence)

    monkeypatch.setattr(checking, "untouched_gaps", tampered)
    with pytest.raises(Failed, match="memory: bytes between"):
        check(replace(SMALL, layouts=("plain", "plain", "plain", "gaps")))


def test_an_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind.Binding, "table", lambda self, words: 1 // 0)
    with pytest.raises(Failed, match="ZeroDivisionError: "):
        check(SMALL)


def test_reducing_keeps_the_kind_and_drops_the_rest() -> None:
    """A defect of pools with 3 or more channels, among cases of another defect that must not be mistaken for it."""
    conv, pool = "ConvTranspose3d(stride=(2, 3, 1), dilation=2, bias=True)", "MaxPool3d(kernel_size=2)"
    draw = Draw(
        f"ReLU() -> {conv} -> GELU() -> {pool} -> Sigmoid()",
        (2, 6, 5, 4, 7),
        (6, 8, 2, 3, 2),
        "float16",
        ("huge", "nan", "zero"),
        ("gaps", "thin", "plain", "backwards"),
        threads=4,
        tiles=17,
        seed=99,
    )

    def verdict(one: Draw) -> str:
        if "MaxPool3d" not in one.pipeline:
            return "other: without a pool"
        try:
            return "meaning: wrong" if one.kernel[1] >= 3 and one.work() else ""
        except Error:  # makes no sense
            return ""

    found, said = reduced(draw, "meaning: wrong, and more", verdict)
    assert said == "meaning: wrong"
    assert found.kernel[1] == 3
    assert (found.dtype, found.values, found.layouts, found.threads, found.tiles) == ("float32", (), (), 1, None)
    assert found.pipeline.count("->") == 1
    assert found.x[0] == found.x[1] == 1


def test_the_text_of_a_case_is_the_case() -> None:
    cases = [draw for seed in range(20) for draw in drawn(np.random.default_rng(seed))]
    assert all(read(repr(draw)) == draw for draw in cases)
    assert len({draw.pipeline for draw in cases}) > 100
    assert {word for draw in cases for word in draw.values} == set(VALUES)
    assert {word for draw in cases for word in draw.layouts} == set(LAYOUTS)


def test_the_printed_program_runs() -> None:
    text = program(replace(SMALL, threads=2), "baseline").replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-c", text], env=environment(), cwd=TOOL.parents[1], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
