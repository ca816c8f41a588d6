"""Triton files as PTX: right, beyond the end of an array, and what is no Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.triton import need_compiled

from convt3d.errors import ArgumentError
from convt3d.judge.verdict import OUT_OF_BOUNDS

SLUG = "conv-transpose-3d-asym-input-sq-kernel"
EXAMPLE = Path(__file__).parents[2] / "examples" / "kernels" / "conv_transpose_triton.py"


def test_the_judge_runs_what_triton_compiles(judge: Any) -> None:
    need_compiled()
    text = EXAMPLE.read_text()
    right = judge(text, SLUG, dtype="bfloat16", cases=("sample",), limit=120, compiled=True)
    assert right.verdict.passed, right.verdict
    # It catches what is raised, and goes on: the machine's word counts all the same.
    over = text.replace("mask=inside)\n", "mask=at < voxels + 1)\n").replace(
        "    conv_transpose[(", "    try:\n     conv_transpose[("
    )
    over = (
        over.replace("BLOCK=block,\n    )", "BLOCK=block,\n     )").rstrip("\n")
        + "\n    except Exception:\n        pass\n"
    )
    past = judge(over, SLUG, cases=("sample",), limit=120, compiled=True)
    assert past.verdict.word == OUT_OF_BOUNDS, past.verdict
    assert "a store of 4 bytes 0 bytes after the end of `y`" in past.verdict.reason
    assert "line 31 of `conv_transpose`" in past.verdict.reason


def test_only_triton_has_something_to_compile(judge: Any) -> None:
    with pytest.raises(ArgumentError, match="is for files that import triton"):
        judge("def solution(*a): pass", SLUG, compiled=True)
