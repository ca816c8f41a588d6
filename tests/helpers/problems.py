"""The five operators as pipelines, with their benchmark shapes; written from the definitions alone."""

from __future__ import annotations

from dataclasses import dataclass

from convt3d.spec.pipeline import Pipeline
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    Clamp,
    ConvTranspose3d,
    LayerNorm,
    MaxPool3d,
    Multiply,
    Softmax,
    Sum,
)


@dataclass(frozen=True)
class Problem:
    slug: str
    pipeline: Pipeline
    x: tuple[int, int, int, int, int]
    kernel: tuple[int, int, int, int, int]
    operands: tuple[str, ...]  # after x
    output: tuple[int, int, int, int, int]


PROBLEMS = (
    Problem(
        "conv-transpose-3d-asym-input-sq-kernel",
        Pipeline(ConvTranspose3d()),
        (8, 48, 96, 96, 96),
        (48, 24, 3, 3, 3),
        ("weight",),
        (8, 24, 98, 98, 98),
    ),
    Problem(
        "conv-transpose3d-max-max-sum",
        Pipeline(ConvTranspose3d(stride=2, padding=2, bias=True), MaxPool3d(2), MaxPool3d(3), Sum()),
        (16, 32, 32, 32, 32),
        (32, 64, 5, 5, 5),
        ("weight", "bias"),
        (16, 1, 10, 10, 10),
    ),
    Problem(
        "conv-transpose3d-sum-layernorm-avgpool-gelu",
        Pipeline(ConvTranspose3d(stride=2, padding=1, output_padding=1), Add(1.0), LayerNorm(), AvgPool3d(2), GELU()),
        (32, 32, 16, 32, 32),
        (32, 64, 3, 3, 3),
        ("weight",),
        (32, 64, 16, 32, 32),
    ),
    Problem(
        "conv-transpose3d-avgpool-clamp-softmax-multiply",
        Pipeline(
            AvgPool3d(2),
            ConvTranspose3d(stride=2, padding=1, output_padding=1),
            Clamp(0.0, 1.0),
            Softmax("spatial"),
            Multiply("channel"),
        ),
        (32, 32, 32, 64, 64),
        (32, 64, 3, 3, 3),
        ("weight", "multiply_other"),
        (32, 64, 32, 64, 64),
    ),
    Problem(
        "conv-transpose3d-layernorm-gelu-scaling",
        Pipeline(ConvTranspose3d(stride=2, padding=1), LayerNorm(), GELU(), Multiply(1.0)),
        (32, 32, 16, 32, 32),
        (32, 64, 4, 4, 4),
        ("weight",),
        (32, 64, 32, 64, 64),
    ),
)
