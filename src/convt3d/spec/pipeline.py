"""A pipeline: a flat, frozen sequence of stages around one or more convolutions, with names for the tensors it takes.

A value is used again by name: `Keep("y")` labels it, and `Add("y")`, `Multiply("y")`, ... take it as second value;
`Recall("y")` goes back to it:

    Pipeline(ConvTranspose3d(stride=2), Keep("y"), HardSwish(), Multiply("y"))        # y * hardswish(y)
    Pipeline(ConvTranspose3d(stride=2), Keep("y"), Tanh(), Keep("t"), Recall("y"), Sigmoid(), Multiply("t"))

The label "x" stands for the pipeline's input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError, ShapeError, described
from .checks import is_a, remedy_for
from .shapes import Shape, check_extent
from .stage import Operand, Stage
from .stages import Binary, Convolution, Keep, Recall


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

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The same for all stages, in slot order."""
        return tuple(shape for shapes in self.operands for shape in shapes)


class Pipeline:
    """Frozen and hashable; equal pipelines are interchangeable."""

    __slots__ = ("__weakref__", "_hash", "convolutions", "dropped", "slots", "stages")

    stages: tuple[Stage, ...]
    convolutions: tuple[int, ...]  # indices of these stages
    slots: tuple[Slot, ...]
    dropped: tuple[int, ...]  # axes of (B, C, D, H, W) that the result does not have
    _hash: int | None

    def __init__(self, *stages: Stage) -> None:
        for position, stage in enumerate(stages):
            if not is_a(stage, Stage) or type(stage) in (Stage, Binary, Convolution):
                raise ArgumentTypeError("Pipeline", f"stage {position}", stage, "must be a stage", _instead(stage))
        convolutions = [position for position, stage in enumerate(stages) if isinstance(stage, Convolution)]
        if not convolutions:
            raise ArgumentError(
                "Pipeline",
                "stages",
                stages,
                "must hold a ConvTranspose3d or a Conv3d",
                "Write Pipeline(ConvTranspose3d(...), ...): the other stages are fused around it",
            )
        _check_labels(stages)
        _check_recalls(stages)
        _check_drops(stages)
        for name, value in (
            ("stages", tuple(stages)),
            ("convolutions", tuple(convolutions)),
            ("slots", _name_slots(stages)),
            ("dropped", tuple(sorted(axis for stage in stages for axis in stage.drops))),
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
    def conv_index(self) -> int:
        """Of the convolution, where there is one alone: each segment of a longer pipeline has one."""
        (index,) = self.convolutions
        return index

    @property
    def conv(self) -> Convolution:
        stage = self.stages[self.conv_index]
        assert isinstance(stage, Convolution)
        return stage

    def result_shape(self, output: Shape, batched: bool = True) -> tuple[int, ...]:
        """Of the result, where the last value is of shape `output`."""
        if batched and not self.dropped:
            return output
        dropped = self.dropped if batched else (0, *self.dropped)
        return tuple(size for axis, size in enumerate(output) if axis not in dropped)

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The tensors after the input, in the order a call takes them."""
        return tuple(slot.name for slot in self.slots)

    def bind(self, operator: str, positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Operands in slot order from what a call was given by position and by name."""
        if not named and len(positional) == len(self.slots) and not any(value is None for value in positional):
            return tuple(positional)
        return bind(operator, ("input",), self.operand_names, positional, named)

    def trace(self, x: Sequence[int], operands: Sequence[Sequence[int]]) -> Trace:
        """All shapes, or the error that says which stage cannot take what reaches it."""
        given = dict(zip(self.operand_names, map(tuple, operands), strict=True))
        return self._walk(x, lambda slot, _: given[slot.name])

    def operand_shapes(self, x: Sequence[int], *kernels: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Shapes of all operands when only input and weights are known, one for each convolution (tensors take the
        value's whole shape)."""
        own = dict(zip(self.convolutions, map(tuple, kernels), strict=True))

        def usual(slot: Slot, value: Shape) -> tuple[int, ...]:
            return own[slot.stage] if slot.operand.kind == "kernel" else slot.operand.usual_shape(value)

        return tuple(shape for stage in self._walk(x, usual).operands for shape in stage)

    def _walk(self, x: Sequence[int], shape_of: Callable[[Slot, Shape], tuple[int, ...]]) -> Trace:
        shape = _input_shape(x)
        values, normal, labelled = [shape], [], {"x": shape}
        for index, stage in enumerate(self.stages):
            own = [slot for slot in self.slots if slot.stage == index]
            kernels = [self._normal(slot, shape_of, shape) for slot in own if slot.operand.kind == "kernel"]
            try:
                out = stage.out_shape(shape, kernels)
            except ShapeError as error:  # the stage knows no number of its own
                error.argument = {slot.operand.role: slot.name for slot in own}.get(error.argument, error.argument)
                raise
            if stage.uses:
                out = stage.meet(shape, labelled[stage.uses])
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


def bind(
    operator: str,
    before: tuple[str, ...],
    names: tuple[str, ...],
    positional: Sequence[Any],
    named: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Tensors in the order of `names` from what was given by position, after the arguments `before`, and by name."""
    takes = f"takes {', '.join((*before, *names)) or 'no tensors'}"
    remedy = "Pass each of them once, by position or by name"
    after = f" after {before[-1]}" if before else ""
    if len(positional) > len(names) or (not named and len(positional) < len(names)):
        received = described(f"{len(positional)} tensors{after}")
        raise ArgumentTypeError(operator, "operands", received, f"{takes}: {len(names)}{after}", remedy)
    given = dict(zip(names, positional, strict=False))
    for name, value in named.items():
        if name not in names or name in given:
            rule = f"{'is given twice' if name in given else 'is unknown'}; the pipeline {takes}"
            instead = remedy if name in names else remedy_for(name, names)
            raise ArgumentTypeError(operator, name, described(type(value).__name__), rule, instead)
        given[name] = value
    for name in names:
        if given.get(name) is None:
            raise ArgumentTypeError(operator, name, None, f"is missing; the pipeline {takes}", remedy)
    return tuple(given[name] for name in names)


def _instead(stage: Any) -> str:
    """What to write in the place of something that is no stage."""
    if any(base.__module__.partition(".")[0] == "torch" for base in type(stage).__mro__):
        return "Stages hold no weights: write convt3d's own, such as convt3d.GELU(), or use convt3d.torch.swap(model)"
    if is_a(stage, type) and issubclass(stage, Stage):
        return f"Write {stage.__name__}(...), with brackets"
    if is_a(stage, Iterable) and not is_a(stage, str):
        return "Write Pipeline(*stages), with a star"
    return "Write stages such as GELU() or Add(1.0)"


def _input_shape(x: Sequence[int]) -> Shape:
    shape = tuple(x)
    rule = None
    if len(shape) != 5:
        rule = f"must be 5-D (B, C, D, H, W) or 4-D (C, D, H, W), not {len(shape)}-D"
    elif min(shape[1:]) < 1:
        rule = "must have at least one channel and one voxel (only the batch may be empty)"
    if rule:
        raise ShapeError("Pipeline", "input", described(f"array of shape {shape}"), rule, "Reshape the input")
    b, c, d, h, w = shape
    return check_extent("Pipeline", (b, c, d, h, w))


def _check_labels(stages: Sequence[Stage]) -> None:
    labels = ["x"]
    for stage in stages:
        if isinstance(stage, Keep):
            if stage.label in labels:
                raise ArgumentError("Keep", "label", stage.label, "is already in use", "Choose another name")
            labels.append(stage.label)
        if stage.uses is not None and stage.uses not in labels:
            given = ", or write 'channel' or 'tensor' for an array given at the call"
            raise ArgumentError(
                stage.name,
                "other" if isinstance(stage, Binary) else "label",
                stage.uses,
                f"names no earlier value; known here: {', '.join(map(repr, labels))}",
                f"Put Keep(name) earlier{given if isinstance(stage, Binary) else ''}",
            )


def _check_drops(stages: Sequence[Stage]) -> None:
    """An axis may be dropped where no later stage can tell: they take numbers one by one, or reduce another axis."""
    dropped: set[int] = set()
    last = ""  # stage that has dropped one
    for stage in stages:
        plain = not (stage.couples or stage.uses or stage.operands() or isinstance(stage, Keep))
        if dropped and not plain and (not stage.reduces or dropped & set(stage.reduces)):
            raise ArgumentError(
                last,
                "keepdim",
                False,
                f"drops an axis before {stage!r}: after it only stages that work number by number, without tensors and "
                "names, and reductions over other axes may follow",
                "Write keepdim=True, or drop the axis later",
            )
        last = stage.name if stage.drops else last
        dropped |= set(stage.drops)


def _check_recalls(stages: Sequence[Stage]) -> None:
    """Nothing is computed in vain: the value that a Recall replaces has a name, under which it is used later. But a
    pipeline may go back to its input at once: then its convolution is not computed."""
    used: set[str] = set()
    lost: Recall | None = None  # that replaces the value which leaves this stage
    for stage in reversed(stages[2:] if _skips_convolution(stages) else stages):
        if isinstance(stage, Keep):
            lost = None if stage.label in used else lost
            continue
        if lost is not None:
            break
        used |= {stage.uses} if stage.uses else set()
        lost = stage if isinstance(stage, Recall) else None
    if lost is not None:
        raise ArgumentError(
            "Recall",
            "label",
            lost.label,
            "throws away the value before it, which nothing uses",
            "Put Keep(name) before Recall and use that name later, or leave out what is not needed",
        )


def _skips_convolution(stages: Sequence[Stage]) -> bool:
    return len(stages) > 1 and isinstance(stages[0], Convolution) and stages[1] == Recall("x")


def _name_slots(stages: Sequence[Stage]) -> tuple[Slot, ...]:
    """A convolution has `weight` and `bias`, the second one `weight_2` and `bias_2`; other tensors carry their stage:
    `layernorm_weight`, `add_other_2`."""
    slots: list[Slot] = []
    seen: dict[str, int] = {}
    convolutions = 0
    for index, stage in enumerate(stages):
        convolutions += isinstance(stage, Convolution)
        for operand in stage.operands():
            plain = operand.role if isinstance(stage, Convolution) else f"{_snake(stage.name)}_{operand.role}"
            seen[plain] = convolutions if isinstance(stage, Convolution) else seen.get(plain, 0) + 1
            slots.append(Slot(plain if seen[plain] == 1 else f"{plain}_{seen[plain]}", index, operand))
    return tuple(slots)


def _snake(name: str) -> str:
    return re.sub(r"3d$", "", name).lower()
