"""Boxes whose input lies in several pieces have the bits that they have where it lies in one, and read nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.guard import Fence, fenced_like

from convt3d import GELU, Conv3d, ConvTranspose3d, Pipeline, ReLU
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.runtime.strips import InPieces, Piece
from convt3d.front.boxes import Boxes, Request

# The pipeline, the result's shape is that of all of it; weight; seed of the cuts.
CASES: dict[str, tuple[Pipeline, tuple[int, ...], tuple[int, ...], str]] = {
    "k3": (Pipeline(Conv3d(padding=1, bias=True), ReLU()), (2, 5, 14, 13, 19), (7, 5, 3, 3, 3), "float32"),
    "k5": (Pipeline(Conv3d(padding=2)), (1, 4, 15, 17, 33), (6, 4, 5, 5, 5), "float32"),
    "k3 s2": (Pipeline(Conv3d(stride=2, padding=1), GELU()), (1, 8, 18, 21, 35), (8, 8, 3, 3, 3), "float32"),
    "k4 s2": (Pipeline(ConvTranspose3d(stride=2, padding=1)), (1, 6, 9, 11, 13), (6, 4, 4, 4, 4), "float32"),
    "unequal": (
        Pipeline(ConvTranspose3d(stride=(1, 3, 2), padding=(1, 0, 2), bias=True)),
        (2, 4, 11, 9, 10),
        (4, 4, 3, 5, 4),
        "float32",
    ),
    "dilated": (Pipeline(Conv3d(padding=2, dilation=(1, 2, 1))), (1, 4, 13, 15, 18), (4, 4, 3, 3, 3), "float32"),
    "groups": (Pipeline(Conv3d(padding=1, groups=2)), (1, 8, 12, 13, 17), (8, 4, 3, 3, 3), "float32"),
    "float16": (Pipeline(Conv3d(padding=1)), (1, 8, 12, 13, 17), (8, 8, 3, 3, 3), "float16"),
    "float64": (Pipeline(Conv3d(padding=1)), (1, 8, 12, 13, 17), (8, 8, 3, 3, 3), "float64"),
}


def arrays(name: str, algorithm: str) -> tuple[Boxes, Any, list[Any]]:
    pipeline, shape, weight, dtype = CASES[name]
    rng = np.random.default_rng(3)
    shapes = pipeline.operand_shapes(shape, weight)
    x, *operands = (rng.standard_normal(each).astype(dtype) for each in (shape, *shapes))
    request = Request(pipeline, shape, tuple(shapes), dtype, Options(algorithm))
    return request.boxes, x, operands


def cut(given: Any, rng: Any, fences: list[Fence]) -> InPieces:
    """One piece in the middle, the others around it as strips lie, some of them in another order of axes."""
    low = [int(rng.integers(0, size)) for size in given.shape[2:]]
    high = [int(rng.integers(start + 1, size + 1)) for start, size in zip(low, given.shape[2:], strict=True)]
    spans = [(low[a], high[a]) for a in range(3)]
    boxes = [tuple(spans)]
    for axis in range(3):
        whole = [(0, size) for size in given.shape[2:]]
        for side in ((0, low[axis]), (high[axis], given.shape[2 + axis])):
            boxes.append((*spans[:axis], side, *whole[axis + 1 :]))
    pieces = []
    for box in boxes:
        part = given[(slice(None), slice(None), *(slice(*span) for span in box))]
        if part.size:
            part = np.asarray(part, order=rng.choice(["C", "F"]))
            pieces.append(Piece(fenced_like(part, bool(rng.integers(2)), fences), tuple(start for start, _ in box)))
    return InPieces(given.shape, pieces)


def drawn_box(boxes: Boxes, rng: Any) -> Any:
    spans = []
    for size in boxes.output[2:]:
        start = int(rng.integers(0, size))
        spans.append((start, int(rng.integers(start + 1, size + 1))))
    return ((0, boxes.output[1]), *spans)


@pytest.mark.parametrize("algorithm", ["winograd", "direct"])
@pytest.mark.parametrize("name", CASES)
def test_pieces_have_the_bits_of_the_whole(name: str, algorithm: str) -> None:
    boxes, x, operands = arrays(name, algorithm)
    rng, fences = np.random.default_rng(len(name)), []  # type: tuple[Any, list[Fence]]
    for _ in range(12):
        part = boxes.part(drawn_box(boxes, rng))
        given = x[(slice(None), *(slice(*take.ranges[0]) for take in part.reads))]
        pieces = cut(given, rng, fences)
        assert boxes.compute(part, pieces, operands).tobytes() == boxes.compute(part, given, operands).tobytes()
        if algorithm == "winograd" and not boxes.plan.method.direct:
            assert "whole" not in pieces.__dict__, "it was put together"
    for fence in fences:
        fence.free()


@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e30])
def test_a_wild_number_in_a_strip_is_found(wild: float) -> None:
    """Winograd's method leaves such a sample to direct summation, wherever the number stands."""
    boxes, x, operands = arrays("k3", "winograd")
    part = boxes.part(((0, boxes.output[1]), (4, 10), (3, 9), (5, 15)))
    given = x[(slice(None), *(slice(*take.ranges[0]) for take in part.reads))].copy()
    given[1, 2, 0, 4, 5] = wild
    d = given.shape[2]
    pieces = InPieces(given.shape, [Piece(given[:, :, 1:d], (1, 0, 0)), Piece(given[:, :, :1], (0, 0, 0))])
    assert boxes.compute(part, pieces, operands).tobytes() == boxes.compute(part, given, operands).tobytes()
    assert "whole" in pieces.__dict__


def test_weights_that_are_not_finite_have_it_put_together() -> None:
    boxes, x, operands = arrays("k3", "winograd")
    operands[0][0, 0, 0, 0, 0] = np.inf
    part = boxes.part(((0, boxes.output[1]), (4, 10), (3, 9), (5, 15)))
    given = x[(slice(None), *(slice(*take.ranges[0]) for take in part.reads))]
    d = given.shape[2]
    pieces = InPieces(given.shape, [Piece(given[:, :, 1:d], (1, 0, 0)), Piece(given[:, :, :1], (0, 0, 0))])
    assert boxes.compute(part, pieces, operands).tobytes() == boxes.compute(part, given, operands).tobytes()
