"""A pipeline: a flat, frozen sequence of stages around one ConvTranspose3d, with names for the tensors it takes.

A value is used again by name: `Keep("y")` labels it, and `Add("y")`, `Multiply("y")`, ... take it as second value:

    Pipeline(ConvTranspose3d(stride=2), Keep("y"), HardSwish(), Multiply("y"))        # y * hardswish(y)

The label "x" stands for the pipeline's input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError, ShapeError, described
from .shapes import Shape, check_extent
from .stage import Operand, Stage
from .stages import Binary, ConvTranspose3d, Keep


@dataclass(frozen=True)
class Slot:
    """A tensor the pipeline takes at the call, after its input."""

    name: str
    stage: int  # index of the stage that uses it
    operand: Operand


@dataclass(frozen=True)
class Trace:
    """The shapes of a pipeline applied to given arrays; `values[i]` enters stage i, `values[-1]` is the result."""

    values: tuple[Shape, ...]
    operands: tuple[tuple[tuple[int, ...], ...], ...]  # normal shapes of the tensors of each stage

    @property
    def output(self) -> Shape:
        return self.values[-1]


class Pipeline:
    """Frozen and hashable; equal pipelines are interchangeable."""

    __slots__ = ("__weakref__", "_hash", "conv_index", "slots", "stages")

    stages: tuple[Stage, ...]
    conv_index: int
    slots: tuple[Slot, ...]
    _hash: int | None

    def __init__(self, *stages: Stage) -> None:
        for position, stage in enumerate(stages):
            if not isinstance(stage, Stage) or type(stage) in (Stage, Binary):
                raise ArgumentTypeError(
                    "Pipeline", f"stage {position}", stage, "must be a stage", "Write stages such as GELU() or Add(1.0)"
                )
        convolutions = [position for position, stage in enumerate(stages) if isinstance(stage, ConvTranspose3d)]
        if len(convolutions) != 1:
            raise ArgumentError(
                "Pipeline",
                "stages",
                stages,
                f"must hold exactly one ConvTranspose3d, not {len(convolutions)}",
                "Chain several pipelines for several convolutions",
            )
        _check_labels(stages)
        for name, value in (
            ("stages", tuple(stages)),
            ("conv_index", convolutions[0]),
            ("slots", _name_slots(stages)),
            ("_hash", None),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Pipeline is frozen; build a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Pipeline is frozen; build a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.stages

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.stages == other.stages

    def __hash__(self) -> int:
        if self._hash is None:  # computed when first asked for: stages with symbols for sizes have none
            object.__setattr__(self, "_hash", hash(self.stages))
        return int(self._hash)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Pipeline({', '.join(map(repr, self.stages))})"

    @property
    def conv(self) -> ConvTranspose3d:
        stage = self.stages[self.conv_index]
        assert isinstance(stage, ConvTranspose3d)
        return stage

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The tensors after `x`, in the order a call takes them."""
        return tuple(slot.name for slot in self.slots)

    def bind(self, operator: str, positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Operands in slot order from what a call was given by position and by name."""
        if not named and len(positional) == len(self.slots) and not any(value is None for value in positional):
            return tuple(positional)
        names = self.operand_names
        signature = f"takes x, {', '.join(names)}"
        remedy = "Pass each of them once, by position or by name"
        if len(positional) > len(names):
            raise ArgumentTypeError(
                operator, "operands", described(f"{len(positional)} tensors after x"), signature, remedy
            )
        given = dict(zip(names, positional, strict=False))
        for name, value in named.items():
            if name not in names or name in given:
                rule = f"{'is given twice' if name in given else 'is unknown'}; the pipeline {signature}"
                raise ArgumentTypeError(operator, name, described(type(value).__name__), rule, remedy)
            given[name] = value
        for name in names:
            if given.get(name) is None:
                raise ArgumentTypeError(operator, name, None, f"is missing; the pipeline {signature}", remedy)
        return tuple(given[name] for name in names)

    def trace(self, x: Sequence[int], operands: Sequence[Sequence[int]]) -> Trace:
        """All shapes, or the error that says which stage cannot take what reaches it."""
        given = dict(zip(self.operand_names, map(tuple, operands), strict=True))
        return self._walk(x, lambda slot, _: given[slot.name])

    def operand_shapes(self, x: Sequence[int], kernel: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Shapes of all operands when only input and weight are known (tensors take the value's whole shape)."""

        def usual(slot: Slot, value: Shape) -> tuple[int, ...]:
            return tuple(kernel) if slot.operand.kind == "kernel" else slot.operand.usual_shape(value)

        return tuple(shape for stage in self._walk(x, usual).operands for shape in stage)

    def _walk(self, x: Sequence[int], shape_of: Callable[[Slot, Shape], tuple[int, ...]]) -> Trace:
        shape = _input_shape(x)
        values, normal, labelled = [shape], [], {"x": shape}
        for index, stage in enumerate(self.stages):
            own = [slot for slot in self.slots if slot.stage == index]
            kernels = [self._normal(slot, shape_of, shape) for slot in own if slot.operand.kind == "kernel"]
            out = stage.out_shape(shape, kernels)
            if isinstance(stage, Binary) and stage.label:
                out = _broadcast(stage, shape, labelled[stage.label])
            if isinstance(stage, Keep):
                labelled[stage.label] = shape
            others = [
                self._normal(slot, shape_of, out if slot.operand.kind == "out_channel" else shape)
                for slot in own
                if slot.operand.kind != "kernel"
            ]
            shape = check_extent(stage.name, out)
            values.append(shape)
            normal.append((*kernels, *others))
        return Trace(tuple(values), tuple(normal))

    def _normal(self, slot: Slot, shape_of: Callable[[Slot, Shape], tuple[int, ...]], value: Shape) -> tuple[int, ...]:
        return slot.operand.normal_shape(self.stages[slot.stage].name, slot.name, shape_of(slot, value), value)


def _input_shape(x: Sequence[int]) -> Shape:
    shape = tuple(x)
    rule = None
    if len(shape) != 5:
        rule = f"must be 5-D (B, C, D, H, W) or 4-D (C, D, H, W), not {len(shape)}-D"
    elif min(shape[1:]) < 1:
        rule = "must have at least one channel and one voxel (only the batch may be empty)"
    if rule:
        raise ShapeError("Pipeline", "x", described(f"array of shape {shape}"), rule, "Reshape the input")
    b, c, d, h, w = shape
    return check_extent("Pipeline", (b, c, d, h, w))


def _broadcast(stage: Binary, value: Shape, other: Shape) -> Shape:
    """A kept value may have size 1 where the current one has not, and the other way round."""
    if any(v != o and 1 not in (v, o) for v, o in zip(value, other, strict=True)):
        raise ShapeError(
            stage.name,
            "other",
            stage.other,
            f"names a value of shape {other}, which does not fit the current shape {value}",
            "Sizes must be equal, or 1 on an axis to repeat",
        )
    b, c, d, h, w = (o if v == 1 else v for v, o in zip(value, other, strict=True))
    return b, c, d, h, w


def _check_labels(stages: Sequence[Stage]) -> None:
    labels = ["x"]
    for stage in stages:
        if isinstance(stage, Keep):
            if stage.label in labels:
                raise ArgumentError("Keep", "label", stage.label, "is already in use", "Choose another name")
            labels.append(stage.label)
        if isinstance(stage, Binary) and stage.label is not None and stage.label not in labels:
            raise ArgumentError(
                stage.name,
                "other",
                stage.other,
                f"names no earlier value; known here: {', '.join(map(repr, labels))}",
                "Put Keep(name) earlier, or write 'channel' or 'tensor' for an array given at the call",
            )


def _name_slots(stages: Sequence[Stage]) -> tuple[Slot, ...]:
    """The convolution's tensors are `w` and `bias`; others carry their stage: `layernorm_weight`, `add_other_2`."""
    slots: list[Slot] = []
    seen: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for operand in stage.operands():
            plain = operand.role if isinstance(stage, ConvTranspose3d) else f"{_snake(stage.name)}_{operand.role}"
            seen[plain] = seen.get(plain, 0) + 1
            slots.append(Slot(plain if seen[plain] == 1 else f"{plain}_{seen[plain]}", index, operand))
    return tuple(slots)


def _snake(name: str) -> str:
    return re.sub(r"3d$", "", name).lower()
