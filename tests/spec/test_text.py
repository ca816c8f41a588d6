"""Pipelines as text: every stage as repr writes it comes back, and nothing else is evaluated."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from spec.stage_rows import ROWS

from convt3d import Add, ConvTranspose3d, Keep, Pipeline
from convt3d.errors import ArgumentError, ArgumentTypeError
from convt3d.spec.text import read_stages, write_pipeline


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_stage_comes_back(row: object) -> None:
    stage = row.stage  # type: ignore[attr-defined]
    before = [Keep("kept")] if stage.uses == "kept" else []
    pipeline = Pipeline(
        *(() if isinstance(stage, ConvTranspose3d) else (ConvTranspose3d(stride=2, padding=1, output_padding=1),)),
        *before,
        stage,
    )
    assert read_stages(write_pipeline(pipeline)) == pipeline.stages


def test_the_form() -> None:
    text = "ConvTranspose3d(stride=2, bias=True) -> Keep(label='y') -> ReLU() -> Add(other='y')"
    assert write_pipeline(Pipeline(*read_stages(text))) == text
    assert read_stages("ConvTranspose3d(stride=2)->Add(-inf)")[1] == Add(float("-inf"))


@pytest.mark.parametrize(
    "text", ["", "Nonsense()", "ReLU", "__import__('os')", "ConvTranspose3d(abs(1))", "Stage()", "_Pool(2)"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="must be a stage with literal parameters"):
        read_stages(f"ConvTranspose3d() -> {text}")


def test_a_stage_refuses_its_parameters_itself() -> None:
    with pytest.raises(ArgumentError, match="output_padding"):
        read_stages("ConvTranspose3d(output_padding=5)")
    with pytest.raises(ArgumentTypeError, match="takes nothing by position"):
        read_stages("ConvTranspose3d(2) -> ReLU()")
