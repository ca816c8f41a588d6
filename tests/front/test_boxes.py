"""Boxes of a result have the bits that the same voxels have where all is computed at once, wherever they are cut."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from helpers.chunked import LOCAL, arrays_for, same_bits

from convt3d.cpu.plan.choice import Options
from convt3d.front.boxes import Boxes, Request, Take

st = pytest.importorskip("hypothesis.strategies")
from hypothesis import given, settings  # noqa: E402 - where it is installed


def read(x: Any, takes: tuple[Take, ...]) -> Any:
    for axis, take in enumerate(takes, 1):
        x = np.concatenate([x.take(range(*part), axis) for part in take.ranges], axis)
        x = x if take.order is None else x.take(take.order, axis)
    return np.ascontiguousarray(x)


def in_boxes(boxes: Boxes, cuts: list[list[int]], x: Any, operands: list[Any]) -> Any:
    result = np.full(boxes.output, np.nan, x.dtype)
    for d, h, w in product(*(list(pairwise(own)) for own in cuts)):
        box = ((0, boxes.output[1]), d, h, w)
        part = boxes.part(box)
        tensors, own = iter(boxes.own_tensors(part)), []
        for slot, array in zip(boxes.request.pipeline.slots, operands, strict=True):
            if slot.operand.kind == "tensor":
                array = array[(slice(None), *(slice(*span) for span in next(tensors)))]
            own.append(array)
        index = (slice(None), *(slice(*span) for span in box))
        result[index] = boxes.compute(part, read(x, part.reads), own)
    return result


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("name", LOCAL)
@settings(max_examples=2, deadline=None, derandomize=True)
@given(data=st.data())
def test_boxes_have_the_bits_of_the_whole(name: str, algorithm: str, data: Any) -> None:
    pipeline, shape, weight = LOCAL[name]
    precision = data.draw(st.sampled_from(["full", "fast"]))
    x, *operands = arrays_for(pipeline, shape, weight)
    expected = pipeline(x, *operands, algorithm=algorithm, precision=precision)
    options = Options(algorithm, precision)
    boxes = Request(pipeline, shape, tuple(o.shape for o in operands), "float32", options).boxes
    cuts = [sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in boxes.output[2:]]
    assert same_bits(in_boxes(boxes, cuts, x, operands), expected)


def test_a_box_reads_what_it_depends_on_and_no_more() -> None:
    pipeline, shape, weight = LOCAL["convolution"]
    boxes = Request(pipeline, shape, (weight, (8,)), "float32", Options("direct")).boxes
    part = boxes.part(((0, 8), (3, 6), (0, 10), (4, 5)))
    assert [take.ranges for take in part.reads] == [((0, 8),), ((2, 7),), ((0, 10),), ((3, 6),)]
    assert part.computed == part.box


def test_circular_padding_reads_both_ends() -> None:
    pipeline, shape, weight = LOCAL["around the edge"]
    boxes = Request(pipeline, shape, (weight, (2, 8, 11, 12, 13)), "float32").boxes
    assert boxes.part(((0, 8), (0, 2), (0, 12), (0, 13))).reads[1].ranges == ((0, 2), (7, 9))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_wild_inputs_are_computed_as_they_are_in_memory(value: float) -> None:
    """Of Winograd's method too: only boxes that hold such a number are summed directly, all others keep their bits."""
    pipeline, shape, weight = LOCAL["convolution"]
    x, *operands = arrays_for(pipeline, shape, weight)
    x[1, 2, 3, 4, 5] = value
    boxes = Request(pipeline, shape, tuple(o.shape for o in operands), "float32", Options("winograd")).boxes
    got = in_boxes(boxes, [[0, 4, 9], [0, 10], [0, 6, 11]], x, operands)
    exact = pipeline(x, *operands, algorithm="winograd")
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-4)


def test_weights_that_are_not_finite() -> None:
    pipeline, shape, weight = LOCAL["pools with padding"]
    x, *operands = arrays_for(pipeline, shape, weight)
    operands[0][1, 2, 0, 1, 2] = np.inf
    boxes = Request(pipeline, shape, (weight,), "float32").boxes
    got = in_boxes(boxes, [[0, 3, boxes.output[2]], [0, boxes.output[3]], [0, 5, boxes.output[4]]], x, operands)
    np.testing.assert_allclose(got, pipeline(x, *operands), rtol=1e-5)
