"""Padding that repeats voxels of the input, made a stage of its own once sizes are known (docs/math.md)."""

from __future__ import annotations

from dataclasses import replace

from .pipeline import Pipeline
from .rewrite import Rewritten, Step
from .stage import Stage
from .stages import Conv3d
from .stages.padding import Pad


def padding_apart(rewritten: Rewritten, weight: tuple[int, ...]) -> Rewritten:
    """The pipeline, whose weight has that shape, with a stage that pads in front of its convolution; itself where that
    adds zeros."""
    before, conv = rewritten.pipeline, rewritten.pipeline.conv
    if not isinstance(conv, Conv3d) or conv.padding_mode == "zeros":
        return rewritten
    at = before.conv_index
    pad = Pad(conv.paddings(weight), conv.padding_mode)
    stages: list[Stage] = [pad] if any(map(any, pad.sides)) else []
    plain = replace(conv, padding=0, padding_mode="zeros")
    after = Pipeline(*before.stages[:at], *stages, plain, *before.stages[at + 1 :])
    return Rewritten(after, (*rewritten.steps, Step(padding_apart.__name__, before, after, 0, 0, None)))
