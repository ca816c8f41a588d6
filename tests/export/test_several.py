"""Pipelines of several convolutions in one library: segments one after the other, with the bits of Python."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from helpers.c_library import by_python

# A value that a sweep alone makes, for a later one; one of size 1 that a larger one meets; two kinds of convolution.
TEXT = (
    "Conv3d(padding=1) -> Keep('a') -> ReLU() -> Keep('b') -> Sigmoid() -> ConvTranspose3d(padding=1, bias=True) -> "
    "Add('a') -> Mean('spatial') -> Conv3d() -> Multiply('b') -> Conv3d(padding=1) -> Add('x')"
)
SIZES = [
    ((2, 5, 6, 7, 9), 4),
    ((1, 5, 1, 12, 20), 4),
    ((1, 5, 1, 1, 1), 4),
    ((0, 5, 6, 7, 9), 4),
    ((2, 3, 4, 1, 3), 17),
]


@pytest.fixture(scope="module")
def several(export):  # type: ignore[no-untyped-def]
    return export(TEXT, "several")


@pytest.mark.parametrize(("x", "channels"), SIZES)
def test_bits(several, x, channels, rng: np.random.Generator) -> None:  # type: ignore[no-untyped-def]
    """Also where a weight, or a voxel, is not finite: each segment finds out for itself."""
    loaded, pipeline, a = several.load(), several.subject.pipeline, channels
    shapes = pipeline.operand_shapes(x, (a, x[1], 3, 3, 3), (a, a, 3, 3, 3), (a, a, 1, 1, 1), (x[1], a, 3, 3, 3))
    for wild, last in product((None, 1, 4) if x[0] == 2 else (None,), (False, True)):
        data, *operands = (rng.standard_normal(shape).astype(np.float32) for shape in (x, *shapes))
        if last:
            data = np.ascontiguousarray(data.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
        if wild is not None:
            operands[wild][0, 0, 0, 0, 0] = np.inf
        elif last and data.size:
            data[-1, 0, 0, 0, 0] = np.nan
        got, expected = (np.full(pipeline.trace(x, shapes).output, 7, np.float32) for _ in range(2))
        assert loaded.output_shape(data, operands, {}) == got.shape
        assert loaded.run(data, operands, got, {}, threads=1 + last, workspace=True) == 0, loaded.message
        by_python(pipeline, several.dtype, data, operands, expected)
        assert got.tobytes() == expected.tobytes(), (wild, last)


def test_messages_name_the_arrays_of_the_call(several, rng: np.random.Generator) -> None:
    loaded, pipeline, x = several.load(), several.subject.pipeline, (1, 2, 3, 4, 5)
    shapes = pipeline.operand_shapes(x, (3, 2, 3, 3, 3), (3, 3, 3, 3, 3), (3, 3, 1, 1, 1), (2, 3, 3, 3, 3))
    data, *operands = (np.zeros(shape, np.float32) for shape in (x, *shapes))
    names = several.subject.operands
    assert names == ("weight", "weight_2", "bias_2", "weight_3", "weight_4")
    out = np.full(x, 7, np.float32)
    for slot, name in enumerate(names):
        wrong = [
            *operands[:slot],
            np.concatenate([operands[slot]] * 2, axis=0 if slot in (1, 2) else 1),
            *operands[slot + 1 :],
        ]
        assert loaded.run(data, wrong, out, {}) == 2, name
        assert loaded.message.startswith(f"{name}:") or "earlier value" in loaded.message, loaded.message
        assert (out == 7).all()


def test_loops_of_one_name_that_differ(export, rng: np.random.Generator) -> None:
    """Rows of channels with taps of their own are so many inputs apart as the stride says, in each convolution."""
    exported = export("Conv3d(stride=(1, 3, 1), groups=2) -> Conv3d(stride=(1, 2, 1), groups=2)", "strides")
    loaded, pipeline, x = exported.load(), exported.subject.pipeline, (1, 2, 4, 30, 20)
    shapes = pipeline.operand_shapes(x, (2, 1, 2, 3, 2), (2, 1, 1, 4, 3))
    data, *operands = (rng.standard_normal(shape).astype(np.float32) for shape in (x, *shapes))
    got, expected = (np.full(pipeline.trace(x, shapes).output, 7, np.float32) for _ in range(2))
    assert loaded.run(data, operands, got, {}) == 0, loaded.message
    by_python(pipeline, exported.dtype, data, operands, expected)
    assert got.tobytes() == expected.tobytes()
