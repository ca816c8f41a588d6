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


@dataclass(frozen=True)
class Image:
    """The first image of a group, at its finest."""

    name: str | None
    path: str  # of the array, in the group
    axes: tuple[Mapping[str, Any], ...]  # none, where the version knows none
    transformations: tuple[Mapping[str, Any], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis["name"] for axis in self.axes)


def multiscale(attributes: Mapping[str, Any]) -> Image | None:
    """The first multiscale image that a group's attributes describe, of version 0.1 to 0.5; ValueError says what is not
    as it should be."""
    found = attributes.get("ome", attributes)
    images = found.get("multiscales") if isinstance(found, Mapping) else None
    if not isinstance(images, Sequence) or not images:
        return None
    image = _mapping(images[0], "the first of multiscales")
    datasets = _listed(image.get("datasets"), "datasets")
    if not datasets:
        raise ValueError("datasets is empty")
    first = _mapping(datasets[0], "the first of datasets")
    path = first.get("path")
    if not isinstance(path, str):
        raise ValueError("the first of datasets has no path")
    # Before version 0.4 axes were names alone, before 0.3 they were always the same.
    axes = [{"name": each} if isinstance(each, str) else each for each in _listed(image.get("axes", ()), "axes")]
    if not all(isinstance(_mapping(axis, "an axis").get("name"), str) for axis in axes):
        raise ValueError("an axis has no name")
    told = (*_listed(first.get("coordinateTransformations", ()), "coordinateTransformations"),)
    told += (*_listed(image.get("coordinateTransformations", ()), "coordinateTransformations"),)
    name = image.get("name")
    every = tuple(_mapping(each, "a coordinate transformation") for each in told)
    return Image(name if isinstance(name, str) else None, path, tuple(axes), every)


def _mapping(given: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} is no object")
    return given


def _listed(given: Any, name: str) -> Sequence[Any]:
    if not isinstance(given, (list, tuple)):
        raise ValueError(f"{name} is no list")
    return given


def result_metadata(image: Image, axes: Sequence[str], along: Mapping[str, Step]) -> dict[str, Any]:
    """Attributes of the result's group: axes and units as they were, scales and translations of its own grid."""
    known = {axis["name"]: dict(axis) for axis in image.axes}
    scale, offset = placed(image, len(image.axes))
    kept = {name: (scale[at], offset[at]) for at, name in enumerate(image.names)}
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
    made: dict[str, Any] = {
        "axes": described,
        "datasets": [{"path": "0", "coordinateTransformations": transformations}],
    }
    if image.name is not None:
        made["name"] = image.name
    return {"ome": {"version": VERSION, "multiscales": [made]}}


def placed(image: Image, count: int) -> tuple[list[float], list[float]]:
    """Scale and translation of an array with so many axes, those of the whole image applied after its own; ValueError
    says which cannot be understood."""
    scale, offset = [1.0] * count, [0.0] * count
    for each in image.transformations:
        kind = each.get("type")
        if kind not in ("scale", "translation"):
            continue
        numbers: Any = each.get(kind)
        if not (isinstance(numbers, (list, tuple)) and len(numbers) == count and all(map(_is_number, numbers))):
            raise ValueError(f"a {kind} is not a list of {count} numbers, one for each axis")
        if kind == "scale":
            scale = [a * b for a, b in zip(scale, numbers, strict=True)]
            offset = [a * b for a, b in zip(offset, numbers, strict=True)]
        else:
            offset = [a + b for a, b in zip(offset, numbers, strict=True)]
    return scale, offset


def _is_number(given: Any) -> bool:
    return isinstance(given, (int, float))
