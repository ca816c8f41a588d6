"""Kernels that people read: those of examples/kernels, and the one of docs/judge.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from convt3d.judge.languages import compiler_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kernels"

CUDA = (  # one for each problem
    "conv_transpose.cu",
    "max_max_sum.cu",
    "sum_layernorm_avgpool_gelu.cu",
    "avgpool_clamp_softmax_multiply.cu",
    "layernorm_gelu_scaling.cu",
)


@pytest.fixture(autouse=True)
def _no_further_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/judge has tests of them."""
    monkeypatch.setattr("convt3d.judge.check.AGAIN_SECONDS", -1.0)


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
    "name",
    [
        "conv_transpose.py",
        "max_max_sum.c",
        "layernorm_gelu_scaling.cpp",
        "conv_transpose_triton.py",
        *CUDA,
        *(pytest.param(f"{name} all", marks=pytest.mark.exhaustive) for name in CUDA),
    ],
)
def test_examples_pass(run, name: str) -> None:
    name, _, every = name.partition(" ")
    language = {".c": "c", ".cpp": "cpp", ".cu": "cpp"}.get(Path(name).suffix)
    if language and compiler_of(language) is None:
        pytest.skip(f"no compiler for {language} on this machine")
    cases = []
    if "triton" in name:
        pytest.importorskip("triton", reason="triton is not installed")
        cases = ["--case", "sample"]
    if name in CUDA and not every:
        cases = ["--case", "sample", "--case", "unequal-everything"]
    code, out, _ = run("check", EXAMPLES / name, *cases)
    assert code == 0, out


def test_cuda_is_not_timed(run) -> None:
    code, out, err = run("bench", EXAMPLES / "conv_transpose.cu")
    assert (code, out) == (2, "")
    assert "nothing about its time on a GPU" in err


def test_every_example_kernel_is_tested() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        "conv_transpose.py",
        "conv_transpose_triton.py",
        *CUDA,
        "max_max_sum.c",
        "layernorm_gelu_scaling.cpp",
    }
