"""Which GPU kernels are compiled without a GPU: plans of the five operators and of further pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from convt3d.gpu.config import MOST_CONFIGURATIONS
from convt3d.gpu.plan import GpuPlan, gpu_plan
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.problems import PROBLEMS
from convt3d.spec.text import read_stages, write_pipeline

from .limits import GENERATIONS

# Type of the arrays and precision of products.
ARITHMETIC = {
    "float32": ("float32", "bf16x6"),
    "ieee": ("float32", "ieee"),
    "tf32": ("float32", "tf32"),
    "float16": ("float16", "ieee"),
    "bfloat16": ("bfloat16", "ieee"),
    "float64": ("float64", "ieee"),
}


@dataclass(frozen=True)
class Subject:
    """Stages as text, the shapes of input and weights, and whether offsets are 64-bit in spite of them."""

    stages: str
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    wide: bool | None = None


_CUBE = (16, 20, 24)
FURTHER: Mapping[str, Subject] = {
    "groups": Subject(
        "ConvTranspose3d(stride=(1, 2, 3), padding=1, groups=3, bias=True) -> ReLU()",
        (2, 96, *_CUBE),
        (96, 40, 3, 3, 3),
    ),
    "groups, 64-bit offsets": Subject(
        "ConvTranspose3d(stride=2, padding=1, groups=2) -> Tanh()", (2, 64, *_CUBE), (64, 32, 4, 4, 4), wide=True
    ),
    "depthwise": Subject(
        "ConvTranspose3d(stride=2, padding=1, output_padding=1, groups=64, bias=True) -> AvgPool3d(2) -> Mish()",
        (2, 64, *_CUBE),
        (64, 2, 3, 3, 3),
    ),
    "dilation, few inputs": Subject(
        "ConvTranspose3d(stride=2, padding=2, dilation=(3, 2, 1), bias=True) -> HardSwish()",
        (4, 3, *_CUBE),
        (3, 24, 3, 3, 3),
    ),
    "norm of many channels, 64-bit offsets": Subject(
        "ConvTranspose3d(stride=2) -> LayerNorm(affine=True) -> GELU()", (4, 64, *_CUBE), (64, 300, 2, 2, 2), wide=True
    ),
    "overlapping windows": Subject(
        "ConvTranspose3d(stride=2, padding=1) -> LayerNorm() -> MaxPool3d(3, 2, 1) -> GELU() -> AvgPool3d(3, 2, 1)",
        (2, 32, *_CUBE),
        (32, 48, 3, 3, 3),
    ),
    "instance norm of sums": Subject(
        "ConvTranspose3d(stride=2, padding=1) -> Sum() -> AvgPool3d(2) -> InstanceNorm(affine=True) -> Tanh()",
        (2, 16, *_CUBE),
        (16, 16, 3, 3, 3),
    ),
    "group norm, mean": Subject(
        "ConvTranspose3d(stride=2) -> GroupNorm(4, affine=True) -> SiLU() -> Mean('spatial')",
        (2, 24, *_CUBE),
        (24, 48, 2, 2, 2),
    ),
    "skip": Subject(
        "ConvTranspose3d(stride=2) -> BatchNorm(affine=True) -> PReLU() -> Add('tensor') -> Keep('a') -> LogSumExp() "
        "-> Multiply('a')",
        (2, 32, *_CUBE),
        (32, 40, 2, 2, 2),
    ),
    "stages before": Subject(
        "MaxPool3d(2) -> ReLU() -> Keep('a') -> ConvTranspose3d(stride=1, padding=1) -> Add('a') -> Softmax() "
        "-> Max('spatial')",
        (2, 32, *_CUBE),
        (32, 32, 3, 3, 3),
    ),
    "softmax over space, 64-bit offsets": Subject(
        "ConvTranspose3d(stride=2, padding=1) -> Softmax('spatial') -> Softmax()",
        (2, 16, *_CUBE),
        (16, 16, 3, 3, 3),
        wide=True,
    ),
    "everything is one": Subject("ConvTranspose3d(stride=1)", (1, 1, 1, 1, 1), (1, 1, 1, 1, 1)),
}


@dataclass(frozen=True)
class Job:
    """The kernels of one plan: of the problem at its benchmark's shape, or the further pipeline, of this name; `choice`
    is the number of a configuration, None what the heuristic takes. Arrays are contiguous, or have channels last."""

    name: str
    arithmetic: str
    generation: int
    choice: int | None = None
    channels_last: bool = False

    def plan(self) -> GpuPlan:
        one = _subject(self.name)
        pipeline, (dtype, precision) = Pipeline(*read_stages(one.stages)), ARITHMETIC[self.arithmetic]
        operands = pipeline.operand_shapes(one.x, one.kernel)
        return gpu_plan(pipeline, one.x, operands, DTYPES[dtype], self.generation, precision, one.wide, self.choice)


def _subject(name: str) -> Subject:
    if name in FURTHER:
        return FURTHER[name]
    problem = PROBLEMS[name]
    shapes = problem.shapes(problem.benchmark)
    return Subject(write_pipeline(problem.build(problem.benchmark)), shapes["input"], shapes["kernel"])


def jobs() -> list[Job]:
    """The plans of the heuristic for the five operators: what the report lists."""
    return [Job(slug, kind, one) for slug in PROBLEMS for kind in ARITHMETIC for one in GENERATIONS]


def further_jobs() -> list[Job]:
    """Those for the further pipelines, in types that differ in the instructions they use."""
    return [
        Job(name, kind, one) for name in FURTHER for kind in ("float32", "float16", "float64") for one in GENERATIONS
    ]


def channels_last(job: Job) -> Job:
    return replace(job, channels_last=True)


def tuned(job: Job) -> list[Job]:
    """With each configuration that autotuning may take."""
    return [replace(job, choice=at) for at in range(MOST_CONFIGURATIONS)]
