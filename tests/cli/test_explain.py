"""`convt3d explain`: the text, the JSON document, the code of the kernels, and rates measured on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import pytest

from convt3d import cache
from convt3d.bench import balance
from convt3d.cli import main as cli
from convt3d.cli.dump import dump_kernels
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import make_plan
from convt3d.cpu.runtime.build import context
from convt3d.front.pipeline import Pipeline
from convt3d.front.solutions import problems
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.stages import ConvTranspose3d, Keep, ReLU, Softmax

SOFTMAX = "conv-transpose3d-avgpool-clamp-softmax-multiply"
KERNELS = ["avgpool", "multiply"]
STEPS = ["write", "parse", "verify", "optimise", "emit", "load"]

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """stdout of `convt3d explain` on the softmax problem, which must end well."""

    def call(*argv: str) -> str:
        assert cli.main(["explain", SOFTMAX, *argv]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return call


@pytest.mark.parametrize("slug", problems)
def test_document_agrees_with_the_text(slug: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", slug, "--size", "benchmark"]) == 0
    text = capsys.readouterr().out.rstrip("\n")
    assert cli.main(["explain", slug, "--size", "benchmark", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == text
    made = sum(one["flop"] for one in document["sweeps"])
    assert made * document["method"]["saving"] == pytest.approx(document["needed_flop"], rel=1e-9)
    assert (document["algorithm"] == "direct") == (document["method"]["saving"] == 1)
    assert sum(one["read_bytes"] + one["written_bytes"] for one in document["sweeps"]) == document["moved_bytes"]
    assert document["moved_bytes"] >= document["bytes"]["input"] + document["bytes"]["output"]
    assert document["scratch_bytes"] == max(one["scratch_bytes"] for one in document["sweeps"])
    for one in document["sweeps"]:
        assert one["kernel"] in text
        assert one["ends"] in text
        assert one["key"] not in text
        assert one["binds"] in ("arithmetic", "memory")
    assert "dump" not in document


def test_passes_of_the_softmax_problem(run: Run) -> None:
    *pool, first, second = json.loads(run("--size", "benchmark", "--json"))["sweeps"]
    found = [
        *(sweep["stages"] for sweep in pool),
        first["stages"],
    ]  # the machine's caches tell whether the pool is apart
    stages = ["AvgPool3d", "ConvTranspose3d", "Clamp", "Softmax (statistics)"]
    assert found in ([stages], [stages[:1], stages[1:]])
    assert second["stages"] == ["Softmax (applied)"]
    assert {"rows", "columns", "rest"} == set(first["register_tile"])
    assert first["slab"]["pitch"] > 0
    assert second["register_tile"] is second["slab"] is None
    assert first["tiles"] == 32 * first["tile_counts"][0] * first["tile_counts"][1] * first["tile_counts"][2]
    assert first["written_bytes"] == second["written_bytes"] == 4 * 32 * 64 * 32 * 64 * 64
    assert (first["binds"], second["binds"]) == ("arithmetic", "memory")


def test_direct_can_be_asked_for(run: Run) -> None:
    document = json.loads(run("--size", "benchmark", "--json", "--algorithm", "direct"))
    assert document["algorithm"] == "direct"
    assert [axis["outputs"] for axis in document["method"]["axes"]] == [1, 1, 1]


def test_same_text_from_the_command_and_from_python(run: Run) -> None:
    problem = problems[SOFTMAX]
    shapes = problem.shapes(problem.benchmark)
    pipe = Pipeline(*problem.pipeline(problem.benchmark).stages)
    for dtype in ("float32", "bfloat16"):
        assert (
            run("--size", "benchmark", "--dtype", dtype)
            == pipe.explain(shapes["input"], shapes["kernel"], dtype) + "\n"
        )


def test_dump_ir_is_what_llvm_reads(run: Run) -> None:
    modules = run("--dump", "ir").split("; sweep ")[1:]
    assert len(modules) == len(KERNELS)
    for number, (text, word) in enumerate(zip(modules, KERNELS, strict=True)):
        title, _, module = text.partition("\n")
        assert title.startswith(f"{number + 1}: ct3d_f32_{word}")
        llvm.parse_assembly(module, context()).verify()


def test_dump_asm(run: Run) -> None:
    text = run("--dump", "asm")
    assert text.count("\nrun:") == len(KERNELS)
    assert text.startswith("# sweep 1: ct3d_f32_avgpool_conv")
    assert "# sweep 2: ct3d_f32_multiply" in text


def test_dump_steps(run: Run) -> None:
    lines = [line.rsplit(None, 4) for line in run("--dump", "steps").splitlines()]
    (head,) = (at for at, words in enumerate(lines) if words == ["step, ms", "sweep", "1", "sweep", "2"])
    cells = [" ".join(words).rsplit(None, 2) for words in lines[head + 1 :]]
    assert [name for name, *_ in cells] == [*STEPS, "all", "object bytes"]
    for column in (1, 2):
        times = [float(row[column]) for row in cells]
        assert times[-2] == pytest.approx(sum(times[:-2]), abs=0.1)
        assert times[-1] > 0


@pytest.mark.parametrize("what", ["ir", "asm", "steps"])
def test_dump_in_the_document(what: str, run: Run) -> None:
    document = json.loads(run("--json", "--dump", what))
    assert [kernel["kernel"] for kernel in document["dump"]] == [one["kernel"] for one in document["sweeps"]]
    for kernel in document["dump"]:
        assert set(kernel) == {"kernel", "sweeps", what, "object_bytes"}
        assert list(kernel[what]) == STEPS if what == "steps" else "run" in kernel[what]


def test_passes_of_equal_structure_are_dumped_once() -> None:
    pipe = Pipeline(ConvTranspose3d(), Softmax("spatial"), Keep("y"), Softmax("spatial"), Keep("z"), ReLU())
    x, w = (1, 2, 3, 4, 5), (2, 2, 1, 1, 1)
    plan = make_plan(pipe, x, pipe.operand_shapes(x, w), DTYPES["float32"])
    keys = [one.structure.key for one in plan.sweeps]
    dumps = dump_kernels(plan)
    assert len(dumps) == len(set(keys))
    assert sorted(number for dump in dumps for number in dump.sweeps) == list(range(1, len(keys) + 1))


def test_dump_leaves_the_cache_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> None:
        raise AssertionError("the cache was asked")

    machine()  # its facts may come from there
    monkeypatch.setattr(cache.ObjectCache, "fetch", touched)
    assert run("--dump", "steps")


def test_measured_rates(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, less in {"_TURNS": 20_000, "_REPEATS": 2, "_COPIED": 1 << 20, "_MOST_COPIED": 1 << 20}.items():
        monkeypatch.setattr(balance, name, less)
    document = json.loads(run("--measure", "--json"))
    rates = document["rates"]
    assert rates["source"].startswith("measured, ")
    assert 1e8 < rates["bytes"] < 1e13
    assert 1e8 < rates["flops"] < 1e15
    assert rates["balance"] == pytest.approx(rates["flops"] / rates["bytes"])
    assert "assumed" not in document["text"]


def test_unknown_dump_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", SOFTMAX, "--dump", "wasm"]) == 2
    assert "invalid choice: 'wasm'" in capsys.readouterr().err
