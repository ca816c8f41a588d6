"""The command line: every command as text and as JSON, files in and out, and what each ending's exit code is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convt3d
from convt3d.cli import demo, files, measure
from convt3d.cli.choose import compact
from convt3d.cpu.plan import machine
from convt3d.front.solutions import problems
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.reference import evaluate

MAX = "conv-transpose3d-max-max-sum"
ASYM = "conv-transpose-3d-asym-input-sq-kernel"
SOFTMAX = "conv-transpose3d-avgpool-clamp-softmax-multiply"
NORM = "conv-transpose3d-layernorm-gelu-scaling"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def document(run: Run) -> Callable[..., Any]:
    """The JSON document of a command that ends well."""

    def call(*argv: object) -> Any:
        code, out, err = run(*argv, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


# --- list, show, explain, info ----------------------------------------------------------------------------------------


def test_list(run: Run, document: Any) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["name", "computes", "arguments", "slug"]
    assert [line.split()[-1] for line in lines[1:-1]] == list(problems)
    assert [problems[line.split()[0]].slug for line in lines[1:-1]] == list(problems)
    listed = document("list")
    assert {entry["slug"]: entry["arity"] for entry in listed} == {
        ASYM: 25,
        MAX: 19,
        "conv-transpose3d-sum-layernorm-avgpool-gelu": 22,
        SOFTMAX: 25,
        NORM: 22,
    }
    assert all(set(entry) == {"slug", "title", "difficulty", "tags", "arity", "computes"} for entry in listed)


@pytest.mark.parametrize("slug", problems)
def test_show(slug: str, run: Run, document: Any) -> None:
    problem = problems[slug]
    code, out, err = run("show", slug)
    assert (code, err) == (0, "")
    assert problem.statement.strip() in out
    assert "const [VAR]* input,\n" in out
    assert all(parameter.name in out for parameter in problem.parameters)
    assert all(case.name in out and compact(case.values) in out for case in problem.cases)
    shown = document("show", slug)
    assert [parameter["name"] for parameter in shown["parameters"]] == [p.name for p in problem.parameters]
    assert shown["benchmark"] == dict(problem.benchmark)
    assert shown["shapes"]["sample"]["output"] == list(problem.shapes(problem.sample)["output"])
    assert len(shown["cases"]) == len(problem.cases)
    assert any("ConvTranspose3d" in stage for stage in shown["pipeline"])


def test_compact_values_name_each_number_once() -> None:
    values = {"batch_size": 1234567, "depth": 2, "height": 3, "width": 4, "stride_d": 2, "stride_h": 2, "stride_w": 2}
    assert compact({**values, "clamp_max": float("inf")}) == (
        "batch_size 1234567, volume 2x3x4, stride 2, clamp_max inf"
    )


def test_explain(run: Run, document: Any) -> None:
    code, out, _ = run("explain", MAX, "--size", "benchmark")
    assert code == 0
    assert "nominal 268.4 GFLOP" in out
    plan = document("explain", MAX, "--size", "benchmark", "--set", "batch_size=1", "--dtype", "float64")
    assert plan["nominal_flop"] * 16 == 2 * 16 * 64 * 32**3 * 32 * 125
    assert plan["dtype"] == "float64"
    assert "max_pool_of_max_pool" in plan["rewrites"]
    assert plan["text"].startswith("pipeline on float64")


def test_info(run: Run, document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_CACHE_DIR", "/somewhere/else")
    code, out, _ = run("info")
    assert code == 0
    facts = document("info")
    assert facts["cache_directory"] == "/somewhere/else"
    assert "/somewhere/else" in out
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["versions"]["convt3d"] == convt3d.__version__
    assert facts["cpu"] in out
    assert facts["isa"] in out
    assert {"vector_bytes", "l1d_bytes", "l2_bytes", "l3_bytes", "threads", "python"} <= set(facts)
    monkeypatch.setenv("CONVT3D_CACHE_DIR", "off")
    facts = document("info")
    assert (facts["cache_directory"], facts["cache_usable"]) == (None, False)


def test_info_says_whether_the_cache_is_usable_and_creates_nothing(
    run: Run, document: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh = machine._detect.__wrapped__  # as in a process that knows nothing yet
    monkeypatch.setattr("convt3d.cli.info.machine", lambda: fresh("", ""))
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "kernels"))
    assert document("info")["cache_usable"] is True
    assert f"{tmp_path / 'kernels'} (the first kernel creates it)" in run("info")[1]
    (tmp_path / "file").touch()
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "file"))
    facts = document("info")
    assert (facts["cache_usable"], facts["cache_obstacle"]) == (False, f"{tmp_path / 'file'} is not a directory")
    assert f"in memory only: {tmp_path / 'file'} is not a directory" in run("info")[1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slug", problems)
def test_run_every_problem_in_every_type(slug: str, dtype: str, document: Any) -> None:
    result = document("run", slug, "--dtype", dtype, "--repeat", 2)
    assert result["check"]["passed"]
    assert result["check"]["voxels"] > 0
    assert result["check"]["worst"] <= result["check"]["tolerance"]
    assert result["dtype"] == dtype
    assert len(result["all_seconds"]) == 2
    assert result["seconds"] == min(result["all_seconds"])
    assert result["needed_gflops"] == pytest.approx(result["needed_flop"] / result["seconds"] / 1e9)
    assert result["nominal_gflops"] >= result["needed_gflops"]
    assert result["values"] == dict(problems[slug].sample)
    assert result["output"] is None


@pytest.mark.parametrize(("slug", "case"), [(slug, case.name) for slug in problems for case in problems[slug].cases])
def test_run_every_case(slug: str, case: str, run: Run) -> None:
    code, out, err = run("run", slug, "--size", case)
    assert (code, err) == (0, "")
    assert re.search(r"^check +passed$", out, re.MULTILINE)


def test_set_changes_sizes_and_scalars(document: Any) -> None:
    chosen = ("--set", "depth=6", "--set", "clamp_max=inf", "--set", "clamp_min=-0.5", "--set", "batch_size=2")
    result = document("run", SOFTMAX, *chosen)
    assert result["values"]["clamp_max"] == "inf"
    assert result["values"]["depth"] == 6
    assert result["output_shape"][0] == 2
    nan = document("run", NORM, "--set", "scaling_factor=nan")
    assert nan["check"]["passed"]  # NaN everywhere, as it should be


def test_the_seed_decides_the_arrays(tmp_path: Path, run: Run) -> None:
    results = []
    for number, seed in enumerate((7, 7, 8)):
        path = tmp_path / f"{number}.npy"
        assert run("run", NORM, "--seed", seed, "--output", path)[0] == 0
        results.append(np.load(path))
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def _arrays(slug: str, rng: np.random.Generator, dtype: str = "float32", **changed: Any) -> tuple[dict[str, Any], Any]:
    values = {**problems[slug].sample, **changed}
    arrays = {name: array.astype(dtype) for name, array in problems[slug].make_inputs(values, rng).items()}
    wide = [arrays[name].astype(np.float64) for name in problems[slug].operand_names]
    vectors = [array.reshape(-1) if array.shape[0] == 1 else array for array in wide]  # `scale` is (1, Cout, 1, 1, 1)
    return arrays, evaluate(problems[slug].pipeline(values), arrays["input"].astype(np.float64), vectors)


@pytest.mark.parametrize("slug", problems)
def test_arrays_from_a_file_and_into_one(slug: str, tmp_path: Path, rng: np.random.Generator, document: Any) -> None:
    arrays, expected = _arrays(slug, rng, depth=8, height=7, batch_size=3)
    np.savez(tmp_path / "in.npz", **arrays)
    result = document("run", slug, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npy")
    assert result["check"]["passed"]
    assert result["seed"] is None
    assert (result["values"]["depth"], result["values"]["batch_size"]) == (8, 3)
    assert result["output"] == {"path": str(tmp_path / "out.npy"), "dtype": "float32"}
    got = np.load(tmp_path / "out.npy")
    assert got.dtype == np.float32
    assert np.allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npz", "out.npy"]


def test_bfloat16_is_saved_as_float32_and_says_so(tmp_path: Path, run: Run) -> None:
    code, out, _ = run("run", ASYM, "--dtype", "bfloat16", "--output", tmp_path / "out.npy")
    assert code == 0
    assert "bfloat16 stored as float32" in out
    saved = np.load(tmp_path / "out.npy")
    assert saved.dtype == np.float32
    assert not np.any(saved.view(np.uint32) & 0xFFFF)  # every one of them is a bfloat16


def test_the_type_of_a_file_is_kept_unless_another_is_asked_for(
    tmp_path: Path, rng: np.random.Generator, document: Any
) -> None:
    arrays, _ = _arrays(ASYM, rng, "float64")
    np.savez(tmp_path / "in.npz", **arrays)
    assert document("run", ASYM, "--input", tmp_path / "in.npz")["dtype"] == "float64"
    assert document("run", ASYM, "--input", tmp_path / "in.npz", "--dtype", "float16")["dtype"] == "float16"


def test_scale_may_be_a_vector(tmp_path: Path, rng: np.random.Generator, document: Any) -> None:
    arrays, _ = _arrays(SOFTMAX, rng)
    np.savez(tmp_path / "in.npz", **{**arrays, "scale": arrays["scale"].reshape(-1)})
    assert document("run", SOFTMAX, "--input", tmp_path / "in.npz")["check"]["passed"]


def test_groups_multiply_the_kernels_channels(tmp_path: Path, rng: np.random.Generator, document: Any) -> None:
    arrays, _ = _arrays(ASYM, rng, in_channels=4, out_channels=6, groups=2)
    np.savez(tmp_path / "in.npz", **arrays)
    result = document("run", ASYM, "--input", tmp_path / "in.npz", "--set", "groups=2")
    assert result["values"]["out_channels"] == 6
    assert result["output_shape"][1] == 6


def _without(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in arrays.items() if key != name}


BROKEN_FILES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "unknown name": (lambda a: {**a, "inputs": a["input"]}, "holds 'inputs'"),
    "missing name": (lambda a: _without(a, "kernel"), "lacks kernel"),
    "contradiction": (lambda a: {**a, "conv_bias": a["conv_bias"][:-1]}, "out_channels = 2: contradicts kernel"),
    "rank": (lambda a: {**a, "input": a["input"][0]}, "must have the layout"),
    "integers": (lambda a: {**a, "input": a["input"].astype(np.int32)}, "array of int32"),
    "mixed types": (lambda a: {**a, "input": a["input"].astype(np.float64)}, "must be of one type"),
    "pickles": (lambda a: {**a, "input": np.array([{}, None], dtype=object)}, "cannot be read"),
}


@pytest.mark.parametrize("broken", BROKEN_FILES)
def test_files_that_do_not_fit(broken: str, tmp_path: Path, rng: np.random.Generator, run: Run) -> None:
    change, message = BROKEN_FILES[broken]
    np.savez(tmp_path / "in.npz", **change(_arrays(MAX, rng)[0]))
    code, out, err = run("run", MAX, "--input", tmp_path / "in.npz")
    assert (code, out) == (2, "")
    assert message in err


def test_files_that_are_none(tmp_path: Path, rng: np.random.Generator, run: Run) -> None:
    np.save(tmp_path / "single.npy", np.ones(3))
    (tmp_path / "noise.npz").write_bytes(rng.bytes(100))
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "torn.npz", **_arrays(MAX, rng)[0])
    (tmp_path / "torn.npz").write_bytes((tmp_path / "torn.npz").read_bytes()[:-40])
    for name in ("single.npy", "noise.npz", "empty.npz", "torn.npz", "absent.npz", "."):
        code, _, err = run("run", MAX, "--input", tmp_path / name)
        assert code == 2, name
        assert "--input" in err
        assert err.count("\n") == 1


def test_sizes_that_contradict_the_file(tmp_path: Path, rng: np.random.Generator, run: Run) -> None:
    np.savez(tmp_path / "in.npz", **_arrays(MAX, rng)[0])
    code, _, err = run("run", MAX, "--input", tmp_path / "in.npz", "--set", "depth=99")
    assert code == 2
    assert "contradicts --set, where it is 99" in err


def test_results_that_cannot_be_saved(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "no" / "out.npy", tmp_path):
        code, out, err = run("run", MAX, "--output", path)
        assert (code, out) == (2, "")
        assert "--output" in err

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "out.npy").write_text("as it was")
    monkeypatch.setattr(files.np, "save", full_disk)
    code, _, err = run("run", MAX, "--output", tmp_path / "out.npy")
    assert code == 2
    assert "No space left on device" in err
    assert (tmp_path / "out.npy").read_text() == "as it was"
    assert len(list(tmp_path.iterdir())) == 1


# --- demo -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmark shapes of the size of samples."""
    small = {slug: replace(p, benchmark={**p.sample, "batch_size": 3}) for slug, p in problems.items()}
    monkeypatch.setattr(demo, "problems", small)


@pytest.mark.usefixtures("small_demo")
def test_demo(run: Run, document: Any) -> None:
    code, out, err = run("demo")
    assert (code, err) == (0, "")
    assert out.count("passed") == 5
    assert out.count("3 of 3") == 5
    shown = document("demo", "--quick")
    assert shown["passed"] is True
    assert [row["slug"] for row in shown["operators"]] == list(problems)
    assert all(row["batch"] == 1 and row["check"]["passed"] for row in shown["operators"])
    assert shown["machine"]["isa"]


def test_memory_that_was_kept_counts_as_extra_memory_again(document: Any) -> None:
    """As it does in `bench`, which starts a process: what one run leaves to the next is not for nothing."""
    sizes = ("--size", "benchmark", *("--set", "batch_size=1"), *("--set", "width=8"), *("--set", "height=16"))
    found = [document("run", NORM, *sizes)["extra_bytes"] for _ in range(3)]
    if None in found:
        pytest.skip("this system does not tell the most memory a process held")
    assert min(found) >= 1 << 20, found


def test_the_demo_takes_what_time_and_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problems[NORM]
    assert demo._affordable(problem, 0.001) == problem.benchmark["batch_size"]
    assert demo._affordable(problem, 3.0) == 2
    assert demo._affordable(problem, 50.0) == 1
    monkeypatch.setattr(demo, "physical_memory", lambda: 2**28)
    assert demo._affordable(problem, 0.001) < 8


def _write_zeros(plan: Any, x: Any, operands: Any, out: Any) -> None:
    out[...] = 0


@pytest.mark.usefixtures("small_demo")
def test_a_failed_check_is_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "execute_plan", _write_zeros)
    for argv in (["run", NORM], ["demo"]):
        code, out, _ = run(*argv)
        assert code == 1
        assert "FAILED" in out
        code, out, _ = run(*argv, "--json")
        assert code == 1
        assert json.loads(out)


def test_voxels_that_are_never_written_fail_the_check(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "execute_plan", lambda *_: None)
    code, out, _ = run("run", NORM, "--json")
    assert code == 1
    assert json.loads(out)["check"]["worst"] == "inf"


# --- endings ----------------------------------------------------------------------------------------------------------

BAD_INPUT = [
    (["show", "conv-transpose3d-max-max-sun"], f"The nearest is '{MAX}'"),
    (["run", MAX, "--size", "bechmark"], "The nearest is 'benchmark'"),
    (["run", MAX, "--set", "dept=3"], "The nearest is 'depth'"),
    (["run", MAX, "--set", "depth"], "must be NAME=VALUE"),
    (["run", MAX, "--set", "depth=1.5"], "depth = '1.5': must be an integer"),
    (["run", MAX, "--set", "depth=inf"], "must be an integer"),
    (["run", MAX, "--set", "depth=-1"], "must be >= 0"),
    (["run", MAX, "--set", "depth=1"], "max-pool kernel"),
    (["run", SOFTMAX, "--set", "clamp_min=2"], "clamp_min, clamp_max"),
    (["run", SOFTMAX, "--set", "clamp_min=low"], "inf and nan are allowed"),
    (["run", MAX, "--set", "depth=100000", "--set", "height=100000"], "must fit in this machine's"),
    (["run", MAX, "--set", "depth=10000000000", "--set", "height=10000000000"], "64-bit offsets"),
    (["explain", MAX, "--set", "stride_d=0"], "must be >= 1"),
]


@pytest.mark.parametrize(("argv", "message"), BAD_INPUT, ids=[" ".join(argv) for argv, _ in BAD_INPUT])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_bad_input_is_one_line_and_exit_code_2(argv: list[str], message: str, more: list[str], run: Run) -> None:
    code, out, err = run(*argv, *more)
    assert (code, out) == (2, "")
    assert err.startswith("convt3d: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["run"],
        ["run", MAX, "--dtype", "int8"],
        ["run", MAX, "--repeat", "0"],
        ["run", MAX, "--seed", "-1"],
        ["list", "extra"],
    ],
)
def test_bad_usage_is_exit_code_2(argv: list[str], run: Run) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert "usage: convt3d" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError(), 2)])
def test_endings_from_inside_a_run(error: BaseException, code: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise error

    monkeypatch.setattr(measure, "make_plan", stop)
    got, out, err = run("run", MAX)
    assert (got, out) == (code, "")
    assert err.startswith("convt3d: ")
    assert err.count("\n") == 1
