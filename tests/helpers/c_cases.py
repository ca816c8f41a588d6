"""Arrays to try an exported library on: of a problem or of a pipeline, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from convt3d.errors import Error
from convt3d.export.forms import Subject
from convt3d.judge.cases import draw
from convt3d.spec.dtypes import DType
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.problem_file import Values
from convt3d.spec.stages import Conv3d, GroupNorm

from .c_runner import Case

PIPELINES = {  # every kind of step, with parameters that differ from axis to axis
    "pools": (
        "MaxPool3d(2) -> ConvTranspose3d(stride=2, groups=2, output_padding=1) -> LayerNorm('width', affine=True) -> "
        "AvgPool3d(3, stride=2, padding=1) -> Add('tensor') -> PReLU()",
        "float32",
    ),
    "kept": (  # stored between two sweeps
        "Conv3d(padding='same', padding_mode='reflect') -> Keep('y') -> InstanceNorm(affine=True) -> Exp() -> Add('y')",
        "float64",
    ),
    "strided": (
        "Conv3d(stride=(1, 2, 3), padding=1, bias=True) -> GroupNorm(2, affine=True) -> SiLU() -> MaxPool3d(2)",
        "float16",
    ),
    "spatial": (
        "ConvTranspose3d(stride=(2, 3, 12), bias=True) -> Softmax('spatial') -> Multiply('channel') -> Sum('width')",
        "bfloat16",
    ),
}


def pipeline_of(subject: Subject, case: Case) -> Pipeline:
    return subject.problem.pipeline(case.values) if subject.problem else subject.pipeline


def drawn(subject: Subject, dtype: DType, rng: np.random.Generator, number: int, large: bool = False) -> Case:
    """Every third has channels last, some have a NaN, and tensors are repeated along some axes. `large` ones have so
    many channels, and such kernels and strides, that Winograd's method is often taken."""
    x, operands, output, values = (
        _problem(subject, dtype, rng, large) if subject.problem else _pipeline(subject, dtype, rng, number, large)
    )
    if number % 3 == 0:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    if number % 7 == 0:
        x[(0,) * 5] = dtype.narrow(np.array([np.nan]))[0]
    return Case(x, operands, np.full(output, 7, dtype.storage), values, number % 4 + 1)


def _problem(subject: Subject, dtype: DType, rng: np.random.Generator, large: bool) -> tuple[Any, ...]:
    problem = subject.problem
    assert problem is not None
    values = draw(problem, rng)
    while large:
        values = _enlarged(draw(problem, rng), rng)
        try:
            if problem.shapes(values)["output"]:
                break
        except Error:
            continue
    arrays = {name: dtype.narrow(array) for name, array in problem.make_inputs(values, rng).items()}
    operands = [arrays[name] if name == "kernel" else arrays[name].reshape(-1) for name in problem.operand_names]
    return arrays["input"], operands, problem.shapes(values)["output"], values


def _enlarged(values: Values, rng: np.random.Generator) -> Values:
    groups = int(values.get("groups", 1))
    new: dict[str, int | float] = {**values, "batch_size": 2}
    new |= {f"{name}_channels": groups * int(rng.integers(3, 33)) for name in ("in", "out")}
    for axis, size in zip("dhw", ("depth", "height", "width"), strict=True):
        new |= {f"stride_{axis}": int(rng.integers(1, 3)), f"kernel_{axis}": int(rng.integers(2, 6))}
        new |= {size: int(rng.integers(4, 16)), f"output_padding_{axis}": 0}
    return {name: new[name] for name in values}


def _pipeline(subject: Subject, dtype: DType, rng: np.random.Generator, number: int, large: bool) -> tuple[Any, ...]:
    pipeline, conv = subject.pipeline, subject.pipeline.conv
    groups = conv.groups * (2 if any(isinstance(stage, GroupNorm) for stage in pipeline.stages) else 1)
    while True:
        cin, cout = groups * int(rng.integers(1, 33 if large else 7)), groups * int(rng.integers(2, 40))
        taps, sizes = rng.integers(1, 6 if large else 5, 3).tolist(), rng.integers(1, 22, 3).tolist()
        kernel = (cout, cin // conv.groups) if isinstance(conv, Conv3d) else (cin, cout // conv.groups)
        x = (int(rng.integers(1, 3)), cin, *sizes)
        try:
            shapes = pipeline.operand_shapes(x, (*kernel, *taps))
            output = pipeline.trace(x, shapes).output
            break
        except Error:
            continue
    tensors = [slot.operand.kind == "tensor" for slot in pipeline.slots]
    if number % 5 == 0:
        shapes = tuple((1, *s[1:3], 1, s[4]) if t else s for s, t in zip(shapes, tensors, strict=True))
    operands = [dtype.narrow(rng.standard_normal(shape) / (4 if len(shape) > 1 else 1)) for shape in shapes]
    return dtype.narrow(rng.standard_normal(x)), operands, output, {}
