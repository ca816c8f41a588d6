"""Pipelines whose results are computed in chunks, each for a reason of its own, and arrays for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from convt3d import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Conv3d,
    ConvTranspose3d,
    Exp,
    GroupNorm,
    InstanceNorm,
    Keep,
    LayerNorm,
    LeakyReLU,
    LogSumExp,
    Max,
    MaxPool3d,
    Mean,
    Multiply,
    Pipeline,
    PReLU,
    Recall,
    ReLU,
    Sigmoid,
    Softmax,
    Subtract,
    Sum,
    Tanh,
)

X, W = (2, 8, 9, 10, 11), (8, 8, 3, 3, 3)

# Boxes of the result depend on boxes of the input: (pipeline, input, weight).
LOCAL: dict[str, tuple[Pipeline, tuple[int, ...], tuple[int, ...]]] = {
    "stride": (Pipeline(ConvTranspose3d(stride=2, padding=1)), X, W),
    "unequal parameters": (
        Pipeline(ConvTranspose3d(stride=(1, 2, 3), padding=(2, 0, 1), output_padding=(0, 1, 2), dilation=(2, 1, 1))),
        (1, 8, 7, 5, 4),
        (8, 4, 3, 2, 4),
    ),
    "gaps between taps": (Pipeline(ConvTranspose3d(stride=3), ReLU()), (1, 8, 5, 4, 3), (8, 8, 2, 2, 2)),
    "a long stride": (
        Pipeline(ConvTranspose3d(stride=(12, 1, 1), dilation=2, padding=2), LayerNorm("width")),
        (1, 8, 3, 9, 9),
        (8, 8, 2, 2, 3),
    ),
    "groups": (Pipeline(ConvTranspose3d(groups=4, padding=1), PReLU()), X, (8, 2, 3, 3, 3)),
    "size 1": (Pipeline(ConvTranspose3d(padding=1, bias=True)), (1, 3, 1, 13, 1), (3, 5, 3, 3, 3)),
    "convolution": (Pipeline(Conv3d(padding=1, bias=True), ReLU()), X, W),
    "strided and dilated": (Pipeline(Conv3d(padding=2, stride=2, dilation=2), GELU()), (1, 8, 13, 14, 17), W),
    "inputs nobody reads": (Pipeline(Conv3d(stride=3)), (1, 8, 11, 10, 9), W),
    "reflected": (Pipeline(Conv3d(padding=1, padding_mode="reflect"), Add("x"), ReLU()), X, W),
    "around the edge": (Pipeline(Conv3d(padding=2, padding_mode="circular"), Add("tensor")), X, W),
    "padding behind a pool": (Pipeline(AvgPool3d(2), Conv3d(padding=1, padding_mode="replicate")), X, W),
    "pools with padding": (
        Pipeline(
            AvgPool3d(3, 2, 1, True, count_include_pad=False),
            ConvTranspose3d(stride=3, padding=1),
            AvgPool3d(2, 2, 1, True),
            Sigmoid(),
        ),
        X,
        W,
    ),
    "overlapping windows": (Pipeline(ConvTranspose3d(padding=1), MaxPool3d(3, 2, 1)), X, W),
    "one window": (Pipeline(ConvTranspose3d(padding=1), AvgPool3d(5)), X, W),
    "two pools": (
        Pipeline(ConvTranspose3d(stride=2, padding=2, bias=True), MaxPool3d(2), MaxPool3d(3), Sum()),
        X,
        (8, 8, 5, 5, 5),
    ),
    "a pool over phases": (
        Pipeline(ConvTranspose3d(stride=2, padding=1, output_padding=1), LayerNorm(), AvgPool3d(2), GELU()),
        X,
        W,
    ),
    "a pool in the weights": (Pipeline(ConvTranspose3d(stride=2), AvgPool3d(2), BatchNorm()), X, (8, 8, 4, 4, 4)),
    "the input again": (Pipeline(Conv3d(padding=1), Add("x"), ReLU()), X, W),
    "a name in a chain": (Pipeline(ConvTranspose3d(), Keep("y"), Sigmoid(), Multiply("y"), MaxPool3d(2)), X, W),
    "a name past a pool": (Pipeline(ConvTranspose3d(), Keep("y"), AvgPool3d(3, 1, 1), Subtract("y")), X, W),
    "axes reduced": (Pipeline(ConvTranspose3d(stride=2), Mean("depth"), LogSumExp("width"), Tanh()), X, W),
}

# Several convolutions, with the shapes of their weights.
SEVERAL: dict[str, tuple[Pipeline, tuple[tuple[int, ...], ...]]] = {
    "a block": (Pipeline(Conv3d(padding=1, bias=True), ReLU(), Conv3d(padding=1), Add("x"), ReLU()), (W, W)),
    "down and up": (
        Pipeline(
            Conv3d(padding=1),
            Keep("y"),
            Conv3d(stride=2, padding=1),
            GELU(),
            ConvTranspose3d(stride=2, padding=1, output_padding=(0, 1, 0)),
            Add("y"),
            MaxPool3d(2),
        ),
        (W, W, W),
    ),
    "a tensor for the second": (
        Pipeline(ConvTranspose3d(stride=(1, 2, 1)), Conv3d(padding=1, padding_mode="reflect"), Multiply("tensor")),
        (W, W),
    ),
}

# Statistics cross chunks.
OVER_SPACE: dict[str, Pipeline] = {
    "instance norm": Pipeline(Conv3d(padding=1), InstanceNorm(affine=True), LeakyReLU()),
    "two norms": Pipeline(Conv3d(padding=1), GroupNorm(4, affine=True), ReLU(), InstanceNorm()),
    "before and after": Pipeline(
        InstanceNorm(), ReLU(), Conv3d(padding=1), Add("x"), Softmax("spatial"), Multiply("channel")
    ),
    "squeeze and excite": Pipeline(ConvTranspose3d(stride=2), Keep("y"), Mean("spatial"), Sigmoid(), Multiply("y")),
    "sides of a difference": Pipeline(ConvTranspose3d(stride=2), Keep("y"), Max("spatial"), Subtract("y"), Exp()),
    "recalled": Pipeline(
        ConvTranspose3d(), Keep("y"), Sigmoid(), Max("spatial"), Keep("m"), Recall("y"), Subtract("m"), Sigmoid()
    ),
    "one number": Pipeline(ConvTranspose3d(stride=2), LogSumExp("spatial", keepdim=False), Tanh()),
    "the convolution behind it": Pipeline(Mean("spatial"), ConvTranspose3d(stride=2), ReLU()),
    "pooled before it": Pipeline(
        AvgPool3d(2), ReLU(), GroupNorm(2), ConvTranspose3d(stride=2, padding=1), Sum("spatial")
    ),
}


def arrays_for(
    pipeline: Pipeline, x: tuple[int, ...], weight: Any, dtype: Any = np.float32, seed: int = 0
) -> list[Any]:
    """Input and operands: signed, variances positive. `weight` is a shape, or one for each convolution."""
    rng = np.random.default_rng(seed)
    weights = weight if len(pipeline.convolutions) > 1 else (weight,)
    shapes = [("input", x), *zip(pipeline.operand_names, pipeline.operand_shapes(x, *weights), strict=True)]
    drawn = [(name, rng.standard_normal(shape).astype(dtype)) for name, shape in shapes]
    return [np.abs(array) + dtype(0.5) if "var" in name else array for name, array in drawn]


def same_bits(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
