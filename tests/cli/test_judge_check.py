"""`check` and `sample`: as text and JSON, what is kept, and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from helpers import kernels_python
from helpers.command import Terminal, environment
from helpers.kernels_python import LAST_COLUMN_WRONG

from convt3d.cli import main as cli
from convt3d.judge.languages import compiler_of

CONV = "conv-transpose-3d-asym-input-sq-kernel"
MAXES = "conv-transpose3d-max-max-sum"


def test_check_reads_the_problem_from_the_file(run, kernel) -> None:
    code, out, err = run("check", kernel(), "--seed", 4)
    assert (code, err) == (0, "")
    assert "passed" in out
    assert "seed            4" in out


def test_check_as_json(run, kernel) -> None:
    code, out, _ = run("check", kernel(), "--json", "--case", "sample", "--case", "two-groups", "--dtype", "float64")
    document = json.loads(out)
    assert code == 0
    assert (document["verdict"], document["dtype"], document["language"]) == ("passed", "float64", "python")
    assert [case["name"] for case in document["cases"]] == ["sample"] * 3 + ["two-groups"]
    assert all(case["worst"] <= 1 for case in document["cases"])


def test_a_fresh_seed_each_time_and_the_same_on_request(run, kernel) -> None:
    path = kernel()
    documents = [json.loads(run("check", path, "--json", "--case", "sample")[1]) for _ in range(2)]
    assert documents[0]["seed"] != documents[1]["seed"]
    again = json.loads(run("check", path, "--json", "--case", "sample", "--seed", documents[0]["seed"])[1])
    assert [case["worst"] for case in again["cases"]] == [case["worst"] for case in documents[0]["cases"]]


def test_a_failure_is_explained_and_kept(run, kernel, tmp_path: Path) -> None:
    path = kernel(LAST_COLUMN_WRONG)
    picture, folder = tmp_path / "wrong.png", tmp_path / "kept"
    code, out, _ = run("check", path, "--picture", picture, "--keep", folder, "--seed", 2, "--case", "prime-sizes")
    assert code == 1
    for piece in (
        "wrong values",
        "first bad voxel",
        "(0, 0, 0, 0, 10)",
        "the last of 11 widths",
        "# wrong",
        "..........#",
    ):
        assert piece in out, piece
    assert picture.read_bytes().startswith(b"\x89PNG")
    script, arrays = folder / "failing-prime-sizes.py", folder / "failing-prime-sizes.npz"
    assert len(script.read_text().splitlines()) == 3
    with np.load(arrays) as kept:
        assert kept["expected"].shape == kept["got"].shape == (1, 13, 5, 7, 11)
    done = subprocess.run([sys.executable, script], env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "(0, 0, 0, 0, 10)" in done.stdout
    path.write_text(kernels_python.solution(CONV, kernels_python.NUMPY))
    assert run("check", path, "--case", arrays)[0] == 0
    for more, piece in (
        (("--case", "sample"), "must be all names or all files"),
        (("--problem", MAXES), "must be the one that all files"),
        (("--dtype", "float64"), "must be the one that all files"),
    ):
        code, out, err = run("check", path, "--case", arrays, *more)
        assert (code, out) == (2, "")
        assert piece in err


def test_a_case_that_ends_in_a_crash_is_kept_too(run, kernel, tmp_path: Path) -> None:
    path = kernel("def solution(*a):\n    1 / 0")
    code, out, _ = run("check", path, "--keep", tmp_path / "kept", "--json")
    arrays, script = json.loads(out)["kept"]
    assert code == 1
    with np.load(arrays) as kept:
        assert "got" not in kept.files
    done = subprocess.run([sys.executable, script], env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
def test_a_judge_that_is_told_to_end_leaves_nothing(kernel, tmp_path: Path) -> None:
    """As a time-out of continuous integration does."""
    folder, seen = tmp_path / "temporary", tmp_path / "seen"
    folder.mkdir()
    path = kernel("import time\ndef solution(*a):\n    print('called', flush=True)\n    time.sleep(600)")
    command = [sys.executable, "-m", "convt3d", "check", path, "--case", "sample"]
    with seen.open("wb") as output:
        judge = subprocess.Popen(command, env={**environment(), "TMPDIR": str(folder)}, stdout=output, stderr=output)
    try:
        while judge.poll() is None and len(list(folder.iterdir())) < 2:
            time.sleep(0.05)
        time.sleep(0.3)
        judge.terminate()
        assert judge.wait(600) == 128 + 15, seen.read_text()
    finally:
        judge.kill()
        judge.wait()
    assert not list(folder.iterdir())


def test_a_kept_case_that_was_changed_is_refused(run, kernel, tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"nothing")
    code, _, err = run("check", kernel(), "--case", broken)
    assert code == 2
    assert "is no case that --keep wrote" in err


def test_sample_shows_input_expected_and_got(run, kernel) -> None:
    code, out, _ = run("sample", kernel())
    assert code == 0
    for piece in ("input (1, 2, 2, 3, 4)", "kernel (2, 2, ", "expected (", "got (", "passed"):
        assert piece in out
    code, out, _ = run("sample", kernel(LAST_COLUMN_WRONG), "--json")
    document = json.loads(out)
    assert code == 1
    assert document["verdict"] == "wrong values"
    assert np.shape(document["got"]) == np.shape(document["expected"])
    code, out, _ = run("sample", kernel("def solution(*a): raise ValueError('mine')"))
    assert code == 1
    assert "ValueError: mine" in out


def test_set_changes_the_sample_or_the_cases_named(run, kernel) -> None:
    path = kernel("def solution(*a):\n    assert (a[6], a[13]) == (5, 3)\n    honest(*a)")
    sizes = ("--set", "depth=5", "--set", "stride_h=3")
    code, out, _ = run("check", path, *sizes, "--json")
    assert code == 0, out
    assert {case["name"] for case in json.loads(out)["cases"]} == {"sample"}
    code, out, _ = run("check", path, *sizes, "--case", "two-groups", "--json")
    assert code == 0, out
    assert {case["name"] for case in json.loads(out)["cases"]} == {"two-groups"}
    assert run("check", path, "--set", "depth=6")[0] == 1
    for command in ("check", "sample", "bench"):
        code, out, err = run(command, path, "--set", "batch_size=0")
        assert (code, out) == (2, "")
        assert "batch_size=0: gives an empty result" in err
    for word, piece in (("dept=5", "The nearest is 'depth'"), ("depth", "NAME=VALUE"), ("padding_d=99", "padding_d")):
        code, out, err = run("check", path, "--set", word)
        assert (code, out) == (2, "")
        assert piece in err


def test_a_case_that_proves_nothing_is_refused(run, kernel) -> None:
    slug = "conv-transpose3d-layernorm-gelu-scaling"
    code, _, err = run("check", kernel(slug=slug), "--case", "scaling-zero")
    assert code == 2
    assert "scaling-zero: zeros would pass" in err


def test_one_sample_that_was_asked_for_is_not_made_two(run, kernel) -> None:
    """Of the one voxel of this sample a constant is as right as the kernel: that is said, and nothing is changed."""
    counts = "import sys\ndef solution(*a):\n    assert a[4] == 1, 'another batch'\n    honest(*a)"
    code, out, err = run("check", kernel(counts, MAXES), "--set", "batch_size=1")
    assert (code, out) == (2, "")
    assert "--set = batch_size=1: leaves no case that tells a right result from a wrong one" in err
    assert "sample: a constant would pass" in err
    code, out, _ = run("check", kernel(counts, MAXES), "--set", "batch_size=1", "--set", "depth=6")
    assert code == 0, out
    code, out, _ = run("check", kernel("", MAXES), "--case", "sample", "--json")
    assert code == 0
    assert all("with 2 samples, since of one a constant would pass" in one["why"] for one in json.loads(out)["cases"])


def test_sample_with_other_sizes(run, kernel) -> None:
    code, out, _ = run("sample", kernel(slug=MAXES), "--set", "depth=7", "--set", "batch_size=2", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["values"]["depth"], document["values"]["batch_size"]) == (7, 2)
    assert np.shape(document["input"])[:3:2] == (2, 7)
    assert np.shape(document["expected"]) == np.shape(document["got"]) == (2, 1, 2, 1, 1)
    code, _, err = run("sample", kernel(slug=MAXES), "--set", "dept=7")
    assert code == 2
    assert "The nearest is 'depth'" in err


def test_names_of_figures_mean_one_thing(run, kernel) -> None:
    _, out, _ = run("check", kernel("def solution(*a):\n    honest(*a)\n    a[2][0, 0] += a[6] > 4"), "--seed", 3)
    names = [line.split("  ")[0] for line in out.partition("\n\n")[0].splitlines()]
    assert {"tolerance used", "worst error", "smallest found"} <= set(names)
    assert len(names) == len(set(names))


def test_what_a_compiler_prints_is_shown_as_it_is(terminal: Terminal, tmp_path: Path) -> None:
    if compiler_of("c") is None:
        pytest.skip("no C compiler on this machine")
    path = tmp_path / "mine.c"
    call = f"no_such_function({', '.join('1' * 60)});"
    path.write_text(f"/* convt3d problem: {MAXES} */\nvoid solution(void) {{\n    no_such_type x; {call}\n}}\n")
    with redirect_stdout(terminal):
        assert cli.main(["check", str(path)]) == 1
    table, _, below = terminal.getvalue().partition("└")
    assert max(map(len, table.splitlines())) <= 120  # 80 columns, and codes for colours
    lines = below.splitlines()[2:]
    assert all(line.startswith("    | ") for line in lines)
    assert any(line.endswith(call) for line in lines), "a line of source was folded"
    assert any("no_such_type" in line and "error" in line for line in lines)
