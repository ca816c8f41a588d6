"""Kernels know whether Triton interprets them, however that was asked for: the interpreter treats bfloat16 in a way of
its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.triton import need_triton

from convt3d.judge.export import export
from convt3d.spec.problems import PROBLEMS

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import torch
import convt3d as ct
from convt3d.gpu.run import run
from convt3d.spec.pipeline import Pipeline
torch.manual_seed(3)
x, w = torch.randn(1, 16, 2, 2, 2).bfloat16(), torch.randn(16, 4, 2, 2, 2).bfloat16()
got = run(Pipeline(ct.ConvTranspose3d(stride=2)), x, [w])
expected = torch.nn.functional.conv_transpose3d(x.float(), w.float(), None, 2)
torch.testing.assert_close(got, expected.bfloat16(), rtol=1e-2, atol=1e-3)
"""


def test_another_word_that_triton_takes_for_yes() -> None:
    """All other tests run with 1."""
    need_triton()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_INTERPRET": "ON"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("slug", PROBLEMS)
def test_an_exported_file_asks_in_the_same_way(slug: str) -> None:
    """By Triton's own setting, whatever the word was."""
    text = export(PROBLEMS[slug], "triton")
    assert "\nINTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)\n" in text
    assert "environ" not in text
