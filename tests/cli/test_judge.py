"""starter, sample, check and bench: as text and JSON, their files, and their exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import kernels_python

from convt3d.cli import main as cli
from convt3d.judge.check import Options
from convt3d.judge.languages import compiler_of
from convt3d.judge.timing import time_file
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

CONV = "conv-transpose-3d-asym-input-sq-kernel"
MAXES = "conv-transpose3d-max-max-sum"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kernels"


@pytest.fixture(autouse=True)
def _no_further_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/judge has tests of them."""
    monkeypatch.setattr("convt3d.judge.check.AGAIN_SECONDS", -1.0)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(*argv: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def kernel(tmp_path: Path):
    """An honest numpy kernel, changed by the lines that follow it."""

    def write(more: str = "", slug: str = CONV) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(kernels_python.solution(slug, kernels_python.NUMPY) + f"\nhonest = solution\n{more}\n")
        return path

    return write


BUG = "def solution(*a):\n    honest(*a)\n    a[2][..., -1] += 1"


def test_starter_writes_a_file_once(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("starter", MAXES, "--lang", "python")
    assert code == 0
    assert "convt3d check conv_transpose3d_max_max_sum.py" in out
    assert (tmp_path / "conv_transpose3d_max_max_sum.py").read_text().startswith(f"# convt3d problem: {MAXES}\n")
    code, _, err = run("starter", MAXES, "--lang", "python")
    assert code == 2
    assert "exists, and is not overwritten" in err
    code, out, _ = run("starter", MAXES, "--lang", "cuda", "-o", "other.cu", "--json")
    assert json.loads(out)["path"] == str(tmp_path / "other.cu")
    assert run("starter", MAXES, "--lang", "fortran")[0] == 2
    assert run("starter", MAXES, "--lang", "c", "--output", "no/folder.c")[0] == 2


def test_export_writes_a_file_once(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("export", MAXES, "--lang", "triton")
    assert code == 0
    assert "convt3d check conv_transpose3d_max_max_sum_triton.py" in out
    text = (tmp_path / "conv_transpose3d_max_max_sum_triton.py").read_text()
    assert text.startswith(f"# convt3d problem: {MAXES}\n")
    code, _, err = run("export", MAXES, "--lang", "triton")
    assert code == 2
    assert "exists, and is not overwritten" in err
    code, out, _ = run("export", CONV, "--lang", "triton", "-o", "other.py", "--json")
    assert json.loads(out) == {"slug": CONV, "language": "triton", "path": str(tmp_path / "other.py")}
    code, _, err = run("export", MAXES, "--lang", "fortran")
    assert code == 2
    assert "invalid choice: 'fortran'" in err
    code, _, err = run("export", "conv-transpose3d-max-max", "--lang", "triton")
    assert code == 2
    assert f"The nearest is '{MAXES}'" in err
    assert run("export", MAXES, "--lang", "triton", "--output", "no/folder.py")[0] == 2


def test_check_reads_the_problem_from_the_file(run, kernel) -> None:
    code, out, err = run("check", kernel(), "--seed", 4)
    assert (code, err) == (0, "")
    assert "passed" in out
    assert "seed          4" in out


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
    path = kernel(BUG)
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
    done = subprocess.run([sys.executable, script], env=_environment(), capture_output=True, text=True, timeout=600)
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
    done = subprocess.run([sys.executable, script], env=_environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout


def _environment() -> dict[str, str]:
    import os

    import convt3d

    return {**os.environ, "PYTHONPATH": str(Path(convt3d.__file__).parents[1])}


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
def test_a_judge_that_is_told_to_end_leaves_nothing(kernel, tmp_path: Path) -> None:
    """As a time-out of continuous integration does."""
    folder, seen = tmp_path / "temporary", tmp_path / "seen"
    folder.mkdir()
    path = kernel("import time\ndef solution(*a):\n    print('called', flush=True)\n    time.sleep(600)")
    command = [sys.executable, "-m", "convt3d", "check", path, "--case", "sample"]
    with seen.open("wb") as output:
        judge = subprocess.Popen(command, env={**_environment(), "TMPDIR": str(folder)}, stdout=output, stderr=output)
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
    code, out, _ = run("sample", kernel(BUG), "--json")
    document = json.loads(out)
    assert code == 1
    assert document["verdict"] == "wrong values"
    assert np.shape(document["got"]) == np.shape(document["expected"])
    code, out, _ = run("sample", kernel("def solution(*a): raise ValueError('mine')"))
    assert code == 1
    assert "ValueError: mine" in out


@pytest.mark.parametrize(
    ("name", "text", "piece"),
    [
        ("mine.f90", "", "must end in one of .py, .cu, .c"),
        ("mine.py", "def solution(*a): pass", "must be given, since FILE has no line"),
        ("mine.py", "# convt3d problem: nothing", "must be one of max-max-sum"),
        ("missing", None, "must be a file that can be read"),
    ],
)
def test_files_that_cannot_be_judged(run, tmp_path: Path, name: str, text: str | None, piece: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    for command in ("check", "sample", "bench"):
        code, out, err = run(command, path)
        assert (code, out) == (2, "")
        assert piece in err


WITHOUT = [path for path in sys.path if "site-packages" not in path and "dist-packages" not in path]


@pytest.mark.parametrize(
    ("head", "dtype", "piece"),
    [
        ("", "float32", "needs numpy: ModuleNotFoundError: No module named 'numpy'"),
        ("import torch\n", "float32", "needs torch: ModuleNotFoundError: No module named 'torch'"),
        ("import triton\n", "float32", "needs torch and triton: ModuleNotFoundError: No module named 'torch'"),
        ("", "bfloat16", "needs numpy and ml_dtypes: "),
    ],
)
def test_a_missing_library_is_no_verdict(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, dtype: str, piece: str
) -> None:
    monkeypatch.setattr("convt3d.judge.session.search_path", lambda: WITHOUT)
    path = tmp_path / "mine.py"
    path.write_text(f"# convt3d problem: {CONV}\n{head}def solution(*args): pass\n")
    code, out, err = run("check", path, "--dtype", dtype)
    assert (code, out) == (2, "")
    assert piece in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a_module_nobody_has", (2, "imports a_module_nobody_has, which is not installed here")),
        ("import a_module_nobody_has.inside as a", (2, "imports a_module_nobody_has, which is not installed here")),
        ("raise ModuleNotFoundError('numpy', name='numpy')", (1, "crash")),
        ("__import__('a_module_' + 'nobody_has')", (1, "crash")),
        ("try:\n    import a_module_nobody_has\nexcept ImportError:\n    pass", (1, "none was written")),
    ],
)
def test_a_module_that_is_not_installed_is_no_verdict(
    run, tmp_path: Path, text: str, expected: tuple[int, str]
) -> None:
    """What the kernel says about it is believed only if it is so."""
    path = tmp_path / "mine.py"
    path.write_text(f"# convt3d problem: {CONV}\n{text}\ndef solution(*args): pass\n")
    code, out, err = run("sample", path)
    assert code == expected[0]
    assert expected[1] in out + err


@pytest.mark.parametrize(
    ("environment", "name", "piece"),
    [
        ({"PATH": ""}, "conv_transpose.cu", "needs nvcc to be compiled, and there is none here"),
        (
            {"PATH": "", "CC": "cc-that-nobody-has"},
            "max_max_sum.c",
            "needs a compiler of this machine (cc or gcc or clang)",
        ),
        ({"CC": "false"}, "max_max_sum.c", "cannot compile a file with the types of float32 and nothing else"),
    ],
)
def test_a_missing_compiler_is_no_verdict(
    run, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], name: str, piece: str
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    code, out, err = run("check", EXAMPLES / name)
    assert (code, out) == (2, "")
    assert piece in err


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
    for word, piece in (("dept=5", "The nearest is 'depth'"), ("depth", "NAME=VALUE"), ("padding_d=99", "padding_d")):
        code, out, err = run("check", path, "--set", word)
        assert (code, out) == (2, "")
        assert piece in err


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text, self.images = "", []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.images += [value for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def test_a_page_of_the_verdict(run, kernel, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert run("check", kernel(BUG), "--case", "prime-sizes", "--html", target, "--seed", 2)[0] == 1
    page = page_of(target)
    for piece in ("wrong values", "(0, 0, 0, 0, 10)", "the last of 11 widths", "smallest that fails", "..........#"):
        assert piece in page.text
    assert [image[:22] for image in page.images] == ["data:image/png;base64,"]
    assert run("check", kernel(), "--case", "sample", "--html", target)[0] == 0
    page = page_of(target)
    assert "passed" in page.text
    assert "the small example of the problem's text" in page.text
    assert run("check", kernel(), "--case", "sample", "--html", tmp_path / "no" / "folder.html")[0] == 2


def test_what_a_kernel_says_is_text_on_the_page(run, kernel, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    evil = "</td><script>alert(1)</script><img src='http://x/'>"
    path = kernel(f'print("{evil}", flush=True)\ndef solution(*a):\n    raise ValueError("{evil}")')
    assert run("check", path, "--case", "sample", "--html", target)[0] == 1
    page = page_of(target)
    assert evil in page.text
    assert "script" not in page.tags
    assert not page.images


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
def test_watch_judges_again_when_the_file_changes(kernel, tmp_path: Path) -> None:
    path = kernel("def solution(*a): raise ValueError('the first')")
    command = [sys.executable, "-m", "convt3d", "check", path, "--case", "sample", "--watch"]
    watcher = subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "ValueError: the first" in _until("waiting for changes", watcher.stdout)
        other = tmp_path / "other.py"
        other.write_text("nothing")
        other.replace(path)
        assert _until("waiting for changes", watcher.stdout).startswith("waiting for changes")  # the error is on stderr
        kernel()
        assert "passed" in _until("waiting for changes", watcher.stdout)
        watcher.send_signal(signal.SIGINT)
        out, err = watcher.communicate(timeout=60)
        assert (watcher.returncode, out) == (130, "")
        assert "has no line `convt3d problem: SLUG`" in err
    finally:
        watcher.kill()
        watcher.communicate()


def test_a_watched_file_is_judged_once_it_stands_still(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sleep of the watcher is a moment in which an editor empties the file, removes it, or writes a piece."""
    path = tmp_path / "mine.py"
    path.write_text("first")
    moments = iter([None, "", "", "a piece", None, "a piece", "a piece", "the whole", "the whole", "the whole"])
    judged = []

    def sleep(seconds: float) -> None:
        text = next(moments)
        if text is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != text:
            path.write_text(text)

    def check_once(args: Any, before_text: str) -> None:
        judged.append(path.read_text())
        if len(judged) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("convt3d.cli.judge_check.time.sleep", sleep)
    monkeypatch.setattr("convt3d.cli.judge_check._check_once", check_once)
    assert run("check", path, "--watch")[0] == 130
    assert judged == ["first", "the whole"]
    assert next(moments, "nothing left") == "nothing left"


def _until(words: str, stream: Any) -> str:
    seen = ""
    while words not in seen:
        line = stream.readline()
        assert line, f"ended after {seen!r}"
        seen += line
    return seen


def test_watch_is_for_people(run, kernel) -> None:
    code, _, err = run("check", kernel(), "--watch", "--json")
    assert code == 2
    assert "Leave --json out" in err


def test_a_case_that_proves_nothing_is_refused(run, kernel) -> None:
    slug = "conv-transpose3d-layernorm-gelu-scaling"
    code, _, err = run("check", kernel(slug=slug), "--case", "scaling-zero")
    assert code == 2
    assert "scaling-zero: zeros would pass" in err


def test_bench_judges_before_it_times(run, kernel) -> None:
    code, out, _ = run("bench", kernel(BUG), "--json")
    document = json.loads(out)
    assert code == 1
    assert document["verdict"] == "wrong values"
    assert "seconds" not in document


def test_bench(run, kernel) -> None:
    code, out, _ = run("bench", kernel(), "--json", "--repeat", 3, "--size", "sample", "--set", "batch_size=2")
    document: dict[str, Any] = json.loads(out)
    assert code == 0
    assert document["values"]["batch_size"] == 2
    assert document["rounds"] == 3
    assert {"your kernel", "convt3d"} <= set(document["seconds"])
    assert all(len(times) == 3 and min(times) > 0 for times in document["all_seconds"].values())
    ratio = document["ratio_to_convt3d"]
    assert ratio > 0
    if "torch eager" in document["seconds"]:
        assert document["ratio_to_torch_eager"] > 0
        assert document["best_peer"] in ("torch eager", "torch channels_last")
    medians = {name: float(np.median(times)) for name, times in document["all_seconds"].items()}
    assert document["seconds"] == pytest.approx(medians)
    for name, ratio in document["ratios"].items():
        assert ratio == pytest.approx(medians[name] / medians["your kernel"])
    assert (document["size"], document["set"]) == ("sample", ["batch_size=2"])
    for name, seconds in medians.items():
        assert document["needed_gflops"][name] == pytest.approx(document["needed_flop"] / seconds / 1e9)
        assert document["of_roofline"][name] == pytest.approx(document["roofline_seconds"] / seconds)
    rates, flop, moved = document["rates"], document["needed_flop"], document["bytes"]
    assert document["roofline_seconds"] == pytest.approx(max(flop / rates["flops"], moved / rates["bytes"]))
    code, out, _ = run("bench", kernel(), "--repeat", 1, "--size", "sample", "--set", "batch_size=3")
    for piece in ("over yours", "GFLOP/s", "of roofline", "size     sample, batch_size=3", "roofline: "):
        assert piece in out


def test_a_kernel_that_skips_work_in_timed_runs_is_caught(run, kernel) -> None:
    """It is right on all cases of the check; a shape that comes for the fifth time must be a timed one."""
    late = (
        "calls = {}\ndef solution(*a):\n    calls[a[2].shape] = calls.get(a[2].shape, 0) + 1\n"
        "    if calls[a[2].shape] < 5: honest(*a)"
    )
    code, out, _ = run("bench", kernel(late), "--size", "two-groups", "--repeat", 8, "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["verdict"], document["case"]) == ("wrong values", "timed")


@pytest.mark.parametrize("shape_seen", [3, 5])
def test_a_kernel_that_caches_when_the_shape_repeats_is_caught(run, kernel, shape_seen: int) -> None:
    """It works honestly for as often as the check repeats a shape, and answers from memory afterwards."""
    cache = (
        "known = {}\ndef solution(*a):\n    seen = known.setdefault(a[2].shape, [])\n"
        f"    if len(seen) < {shape_seen}:\n        honest(*a)\n        seen.append(a[2].copy())\n"
        "    a[2][...] = seen[-1]"
    )
    code, out, _ = run("bench", kernel(cache), "--size", "two-groups", "--repeat", 8, "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["verdict"], document["case"]) == ("wrong values", "timed")


LARGE = {"in_channels": 128, "out_channels": 16, "depth": 8, "height": 8, "width": 8}
LARGE |= {"kernel_d": 5, "kernel_h": 5, "kernel_w": 5, "stride_d": 2, "stride_h": 2, "stride_w": 2}
ROUNDS_WHEN_LARGE = """
plain = wide
def wide(a):
    if a.size < 128 * 8**3: return plain(a)
    return ((np.ascontiguousarray(a).view(np.uint32) + np.uint32(4096)) & np.uint32(4294959104)).view(np.float32)
"""


@pytest.mark.parametrize(("more", "word"), [("", "passed"), (ROUNDS_WHEN_LARGE, "wrong values")])
def test_lower_precision_at_large_sizes_only_is_caught(kernel, more: str, word: str) -> None:
    """TF32 where results are too many for a float64 meaning of each: off by less than two results may differ."""
    problem = PROBLEMS[MAXES]
    values = problem.checked({**problem.sample, **LARGE})
    timing = time_file(str(kernel(more, MAXES)), problem, values, Options(DTYPES["float32"], seed=1), 1)
    assert timing.verdict.word == word, timing.verdict


def test_the_worked_example_of_the_document(run, tmp_path: Path) -> None:
    """Its kernel passes, and the two slips it tells of give what it shows; `...` stands for what is left out."""
    document = (EXAMPLES.parents[1] / "docs" / "judge.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    shown = re.findall(r"^```text\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    slip = code.replace("(height - 1) * stride_h", "(height - 1) * stride_w").replace(
        "+ 1, stride_h)", "+ 1, stride_w)"
    )
    in_c = (EXAMPLES / "max_max_sum.c").read_text().replace("stride_h, padding_h)", "stride_w, padding_h)")
    files = {"slip.py": slip, "slip.c": in_c, "mine.py": code}
    for (name, text), lines in zip(files.items(), shown, strict=True):
        if name.endswith(".c") and compiler_of("c") is None:
            continue
        (tmp_path / name).write_text(text)
        code, out, _ = run("check", tmp_path / name, "--seed", 7)
        assert code == (0 if name == "mine.py" else 1)
        printed = iter(out.splitlines())
        for line in lines.splitlines():
            start, left_out = line.removesuffix("..."), line.endswith("...")
            found = line == "..." or any(it.startswith(start) if left_out else it == line for it in printed)
            assert found, f"check no longer prints {line!r} for {name}"


@pytest.mark.parametrize(
    "name", ["conv_transpose.py", "max_max_sum.c", "layernorm_gelu_scaling.cpp", "conv_transpose_triton.py"]
)
def test_examples_pass(run, name: str) -> None:
    language = {".c": "c", ".cpp": "cpp"}.get(Path(name).suffix)
    if language and compiler_of(language) is None:
        pytest.skip(f"no compiler for {language} on this machine")
    cases = []
    if "triton" in name:
        pytest.importorskip("triton", reason="triton is not installed")
        cases = ["--case", "sample"]
    code, out, _ = run("check", EXAMPLES / name, *cases)
    assert code == 0, out


def test_the_cuda_example_is_compiled_and_not_run(run) -> None:
    code, out, err = run("check", EXAMPLES / "conv_transpose.cu")
    if compiler_of("cuda") is None:
        assert (code, out) == (2, "")
        assert "needs nvcc to be compiled" in err
    else:
        assert code == 1
        assert "compiled, not run" in out


def test_every_example_kernel_is_tested() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        "conv_transpose.py",
        "conv_transpose_triton.py",
        "conv_transpose.cu",
        "max_max_sum.c",
        "layernorm_gelu_scaling.cpp",
    }
