"""Pipelines as text: every stage as repr writes it comes back, and nothing else is evaluated."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from spec.stage_rows import ROWS

from convt3d import Add, ConvTranspose3d, Keep, Pipeline
from convt3d.errors import ArgumentError, ArgumentTypeError, Error
from convt3d.spec.stages import Convolution
from convt3d.spec.text import read_stages, write_pipeline


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_stage_comes_back(row: object) -> None:
    stage = row.stage  # type: ignore[attr-defined]
    before = [Keep("kept")] if stage.uses == "kept" else []
    pipeline = Pipeline(
        *(() if isinstance(stage, Convolution) else (ConvTranspose3d(stride=2, padding=1, output_padding=1),)),
        *before,
        stage,
    )
    assert read_stages(write_pipeline(pipeline)) == pipeline.stages


def test_the_form() -> None:
    text = "ConvTranspose3d(stride=2, bias=True) -> Keep(label='y') -> ReLU() -> Add(other='y')"
    assert write_pipeline(Pipeline(*read_stages(text))) == text
    assert read_stages("ConvTranspose3d(stride=2)->Add(-inf)")[1] == Add(float("-inf"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a stage with its parameters"),
        ("ReLU() Tanh()", "must be a stage with its parameters. Write it like .*, with -> between stages"),
        ("nn.ReLU()", "must be a stage with its parameters"),
        ("-" * 100_000, "must be a stage with its parameters"),
        ("Relu()", r"there is no stage 'Relu'. Did you mean ReLU\?"),
        ("BatchNorm3d()", r"there is no stage 'BatchNorm3d'. Did you mean BatchNorm\?"),
        ("MaxPol3d(2)", r"Did you mean MaxPool3d\?"),
        ("Nonsense()", "there is no stage 'Nonsense'. Stages are .*, ReLU, "),
        ("__import__('os')", "there is no stage '__import__'"),
        ("Stage()", "there is no stage 'Stage'"),
        ("Binary(1.0)", "there is no stage 'Binary'"),
        ("_Pool(2)", "there is no stage '_Pool'"),
        ("ReLU", r"has no brackets. Write ReLU\(\)"),
        ("MaxPool3d(2, strid=1)", r"MaxPool3d has no parameter 'strid'. Did you mean stride\?"),
        ("ReLU(inplace=True)", "ReLU has no parameter 'inplace'. It has none"),
        ("ReLU(**{})", "ReLU has no parameter None"),
        ("Clamp(abs(1))", "must be numbers, True, False, None, or words in quotes"),
        ("ReLU(1)", r"ReLU: arguments by position = \(1,\): takes nothing by position"),
        ("MaxPool3d()", "kernel_size = no value: is missing; MaxPool3d takes kernel_size, stride, padding, ceil_mode"),
        ("LeakyReLU('steep')", "LeakyReLU: negative_slope = 'steep': must be a real number"),
    ],
)
def test_anything_else_is_refused_by_the_word_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        read_stages(f"ConvTranspose3d() -> {text}")


def test_a_stage_refuses_its_parameters_itself() -> None:
    with pytest.raises(ArgumentError, match="output_padding"):
        read_stages("ConvTranspose3d(output_padding=5)")
    with pytest.raises(ArgumentTypeError, match="takes nothing by position"):
        read_stages("ConvTranspose3d(2) -> ReLU()")
