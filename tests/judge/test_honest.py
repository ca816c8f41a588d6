"""An honest kernel in every language passes every problem, in each type the language has."""

from __future__ import annotations

import pytest
from helpers import kernels_c, kernels_python, kernels_triton
from helpers.triton import need_triton

from convt3d.judge.check import Options, check
from convt3d.judge.languages import compiler_of
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

SUFFIX = {"c": ".c", "cpp": ".cpp", "cuda": ".cu"}
FEW = ("sample", "unequal-everything", "kernel-smaller-than-stride", "drawn-1")
slugs = pytest.mark.parametrize("slug", PROBLEMS)


def needs(language: str) -> None:
    if compiler_of(language) is None:
        pytest.skip(f"no compiler for {language} on this machine")


@slugs
def test_numpy(judge, slug: str) -> None:
    """All cases."""
    judgement = judge(kernels_python.solution(slug, kernels_python.NUMPY), slug)
    assert judgement.verdict.passed, judgement.verdict
    assert len(judgement.results) >= 15


@slugs
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_numpy_types(judge, slug: str, dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    judgement = judge(kernels_python.solution(slug, kernels_python.NUMPY), slug, dtype=dtype, cases=FEW)
    assert judgement.verdict.passed, judgement.verdict


@pytest.mark.parametrize("slug", list(PROBLEMS)[2:4])
def test_torch_tensors(judge, slug: str) -> None:
    """Arithmetic on torch tensors is allowed. ModelNew, below, covers every problem."""
    pytest.importorskip("torch")
    text = kernels_python.solution(slug, kernels_python.TORCH)
    judgement = judge(text, slug, dtype="bfloat16", cases=FEW, again=1)
    assert judgement.verdict.passed, judgement.verdict


@slugs
def test_model_new(judge, slug: str) -> None:
    pytest.importorskip("torch")
    judgement = judge(kernels_python.model(slug), slug, cases=FEW)
    assert judgement.verdict.passed, judgement.verdict


@slugs
def test_triton(judge, slug: str) -> None:
    """Through the interpreter, which is slow: the two smallest cases."""
    need_triton()
    pytest.importorskip("torch")
    judgement = judge(kernels_triton.solution(slug), slug, cases=("sample", "unequal-everything"), limit=60)
    assert judgement.verdict.passed, judgement.verdict


@slugs
def test_c(judge, slug: str) -> None:
    """All cases."""
    needs("c")
    judgement = judge(kernels_c.source(slug, "c"), slug, ".c")
    assert judgement.verdict.passed, judgement.verdict
    assert len(judgement.results) >= 15


@pytest.mark.parametrize("slug", list(PROBLEMS)[::2])
def test_c_double(judge, slug: str) -> None:
    needs("c")
    judgement = judge(kernels_c.source(slug, "c"), slug, ".c", dtype="float64", cases=FEW)
    assert judgement.verdict.passed, judgement.verdict


@pytest.mark.parametrize("slug", list(PROBLEMS)[1::2])
def test_cpp(judge, slug: str) -> None:
    needs("cpp")
    judgement = judge(kernels_c.source(slug, "cpp"), slug, ".cpp", cases=FEW)
    assert judgement.verdict.passed, judgement.verdict


@pytest.mark.parametrize("slug", list(PROBLEMS)[::2])
def test_cuda(judge, slug: str) -> None:
    needs("cpp")
    judgement = judge(kernels_c.source(slug, "cuda"), slug, ".cu", cases=FEW)
    assert judgement.verdict.passed, judgement.verdict


def test_c_in_a_folder_with_any_name(tmp_path) -> None:
    needs("c")
    slug = "conv-transpose3d-max-max-sum"
    folder = tmp_path / 'a "b" \\ c\'s $d'
    folder.mkdir()
    (folder / "mine.c").write_text(kernels_c.source(slug, "c"))
    options = Options(DTYPES["float32"], ("sample",))
    assert check(str(folder / "mine.c"), PROBLEMS[slug], options).verdict.passed


def test_shared_library(judge, tmp_path) -> None:
    """A library somebody compiled with whatever they have."""
    import subprocess

    needs("c")
    slug = "conv-transpose3d-layernorm-gelu-scaling"
    source, library = tmp_path / "mine.c", tmp_path / "mine.so"
    source.write_text(kernels_c.source(slug, "c"))
    subprocess.run([compiler_of("c"), "-O1", "-shared", "-fPIC", source, "-o", library, "-lm"], check=True)
    judgement = judge(library.read_bytes(), slug, ".so", cases=FEW)
    assert judgement.verdict.passed, judgement.verdict
