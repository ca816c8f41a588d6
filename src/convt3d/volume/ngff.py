"""OME-NGFF: the axes and scales of a volume, and those of a pipeline's result on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..spec.checks import as_triple
from ..spec.pipeline import Pipeline, Trace
from ..spec.stages import AvgPool3d, Conv3d, ConvTranspose3d, MaxPool3d, Recall

VERSION = "0.5"
SPATIAL = ("z", "y", "x")


@dataclass(frozen=True)
class Step:
    """Voxel o of a result lies at `pace * o + start` voxels of the input, along one axis."""

    pace: Fraction = Fraction(1)
    start: Fraction = Fraction(0)

    def then(self, pace: Fraction, start: Fraction) -> Step:
        """Of a stage behind it, by the same rule."""
        return Step(self.pace * pace, self.pace * start + self.start)


def steps(pipeline: Pipeline, trace: Trace) -> tuple[Step, Step, Step]:
    """Where voxels of the result lie in the input, along depth, height and width: a stage's output is at the middle of
    the inputs that it meets."""
    found = [_axis(pipeline, trace, axis) for axis in range(3)]
    return found[0], found[1], found[2]


def _axis(pipeline: Pipeline, trace: Trace, axis: int) -> Step:
    now, kept = Step(), {"x": Step()}
    for index, stage in enumerate(pipeline.stages):
        size = trace.values[index][2 + axis]
        if isinstance(stage, (Conv3d, ConvTranspose3d)):
            own = stage.axes(trace.values[index], trace.operands[index][0])[axis]
            middle = Fraction(own.dilation * (own.kernel - 1), 2)
            if isinstance(stage, ConvTranspose3d):
                now = now.then(Fraction(1, own.stride), (own.padding - middle) / own.stride)
            else:
                now = now.then(Fraction(own.stride), middle - own.padding)
        elif isinstance(stage, (MaxPool3d, AvgPool3d)):
            kernel, stride, padding = (as_triple(each)[axis] for each in stage.triples)
            now = now.then(Fraction(stride), Fraction(kernel - 1, 2) - padding)
        elif 2 + axis in stage.reduces:
            now = now.then(Fraction(size), Fraction(size - 1, 2))
        elif isinstance(stage, Recall):
            now = kept[stage.label]
        if stage.keeps:
            kept[stage.keeps] = now
        if stage.uses and size == 1 and trace.values[index + 1][2 + axis] > 1:
            now = kept[stage.uses]  # one number met a volume, whose grid is that of the result
    return now


def multiscale(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first multiscale image that a group's attributes describe, of version 0.5 or 0.4."""
    found = attributes.get("ome", attributes)
    images = found.get("multiscales") if isinstance(found, Mapping) else None
    return images[0] if isinstance(images, Sequence) and images else None


def result_metadata(image: Mapping[str, Any], axes: Sequence[str], along: Mapping[str, Step]) -> dict[str, Any]:
    """Attributes of the result's group: axes and units as they were, scales and translations of its own grid."""
    known = {axis["name"]: dict(axis) for axis in image["axes"]}
    names = [axis["name"] for axis in image["axes"]]
    scale, offset = _transformations(image, len(names))
    kept = {name: (scale[at], offset[at]) for at, name in enumerate(names)}
    described = [known.get(name, {"name": name, "type": "channel"}) for name in axes]
    scales, offsets = [], []
    for name in axes:
        width, start = kept.get(name, (1.0, 0.0))
        step = along.get(name, Step())
        scales.append(width * float(step.pace))
        offsets.append(start + width * float(step.start))
    transformations: list[dict[str, Any]] = [{"type": "scale", "scale": scales}]
    if any(offsets):
        transformations.append({"type": "translation", "translation": offsets})
    made = {"axes": described, "datasets": [{"path": "0", "coordinateTransformations": transformations}]}
    if "name" in image:
        made["name"] = image["name"]
    return {"ome": {"version": VERSION, "multiscales": [made]}}


def _transformations(image: Mapping[str, Any], count: int) -> tuple[list[float], list[float]]:
    """Scale and translation of the first dataset, those of the whole image applied after its own."""
    scale, offset = [1.0] * count, [0.0] * count
    own = image["datasets"][0].get("coordinateTransformations", ())
    for each in (*own, *image.get("coordinateTransformations", ())):
        if each.get("type") == "scale":
            scale = [a * b for a, b in zip(scale, each["scale"], strict=True)]
            offset = [a * b for a, b in zip(offset, each["scale"], strict=True)]
        elif each.get("type") == "translation":
            offset = [a + b for a, b in zip(offset, each["translation"], strict=True)]
    return scale, offset
