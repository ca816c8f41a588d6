"""Takes statistics over space out of a pipeline: what is left are pipelines whose boxes depend on boxes.

Such a stage needs numbers for each sample and channel that all of a value has a part in. They are computed from the
value that enters it; then the stage is arithmetic with them, and part of a pipeline whose boxes depend on boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ..spec.pipeline import Pipeline
from ..spec.stage import Stage
from ..spec.stages import (
    Add,
    Binary,
    Convolution,
    ConvTranspose3d,
    Exp,
    Keep,
    Multiply,
    Recall,
    Softmax,
    Subtract,
)
from ..spec.window import over_space


class Maker(Protocol):
    """Makes values, which have a shape and a type: now, or later."""

    def of_boxes(self, pipeline: Pipeline, source: Any, operands: Sequence[Any]) -> Any:
        """What a pipeline whose boxes depend on boxes makes of a value."""

    def small(self, pipeline: Pipeline, source: Any, operands: Sequence[Any]) -> Any:
        """What a pipeline makes of one number for each sample and channel."""

    def finished(self, stage: Stage, value: Any, own: Sequence[Any], words: Sequence[str]) -> tuple[Any, ...]:
        """What the statistics of a value come to: (B, C, 1, 1, 1), for each of the words."""


class Walk:
    """Goes through the stages. The value is `large`, what `stages` make of `source`, or `small`: one number for each
    sample and channel, known to every box."""

    def __init__(self, pipeline: Pipeline, x: Any, operands: Sequence[Any], maker: Maker, persist: bool) -> None:
        self.source, self.x, self.maker, self.persist = x, x, maker, persist
        self.stages: list[Stage] = []
        self.operands: list[Any] = []
        self.small: Any = None
        self.small_stages: list[Stage] = []
        self.small_operands: list[Any] = []
        self.small_kept: dict[str, Any] = {}
        for index, stage in enumerate(pipeline.stages):
            own = [array for slot, array in zip(pipeline.slots, operands, strict=True) if slot.stage == index]
            self.later = pipeline.stages[index + 1 :]
            self._stage(stage, own)

    def result(self, maker: Maker) -> Any:
        """The result, made by a maker of its own where it is large."""
        return self._small_value() if self.small is not None else self._value(maker)

    def _value(self, maker: Maker) -> Any:
        """The large value as it stands."""
        if all(isinstance(stage, Keep) for stage in self.stages):
            return self.source
        used = {stage.uses for stage in self.stages}
        stages = [stage for stage in self.stages if not (isinstance(stage, Keep) and stage.label not in used)]
        pipeline, operands = _with_convolution(stages, self.operands, self.source)
        return maker.of_boxes(pipeline, self.source, operands)

    def _small_value(self) -> Any:
        if self.small_stages:
            pipeline, operands = _with_convolution(self.small_stages, self.small_operands, self.small)
            self.small = self.maker.small(pipeline, self.small, operands)
            self.small_stages, self.small_operands = [], []
        return self.small

    def _stage(self, stage: Stage, own: Sequence[Any]) -> None:
        if stage.uses in self.small_kept:
            self._with_small(stage, self.small_kept[stage.uses])
        elif self.small is not None:
            self._on_small(stage, own)
        elif over_space(stage):
            self._statistics(stage, own)
        else:
            if stage.uses == "x" and self.source is not self.x and isinstance(stage, Binary):
                stage, own = replace(stage, other="tensor"), [self.x]
            self._append(stage, *own)

    def _append(self, stage: Stage, *own: Any) -> None:
        self.stages.append(stage)
        self.operands += own

    def _with_small(self, stage: Stage, kept: Any) -> None:
        """The value meets a small one by its name."""
        if isinstance(stage, Recall):
            self.small, self.small_stages, self.small_operands = kept, [], []
        elif self.small is not None:
            self.small_stages.append(replace(stage, other="tensor"))  # type: ignore[call-arg]
            self.small_operands.append(kept)
        else:
            self._append(replace(stage, other="tensor"), kept)  # type: ignore[call-arg]

    def _on_small(self, stage: Stage, own: Sequence[Any]) -> None:
        if isinstance(stage, Keep):
            self.small_kept[stage.label] = self._small_value()
        elif stage.uses:
            small = self._small_value()
            self.small = None
            self._back_to(stage.uses)
            if isinstance(stage, Binary):  # the two have changed sides
                turned = {} if isinstance(stage, (Add, Multiply)) else {"reverse": not stage.reverse}  # type: ignore[attr-defined]
                self._append(replace(stage, other="tensor", **turned), small)
        else:
            self.small_stages.append(stage)
            self.small_operands += own

    def _back_to(self, label: str) -> None:
        """The large value of that name is the current one again; what nobody will use is forgotten."""
        named = [stage.label if isinstance(stage, Keep) else None for stage in self.stages]
        wanted = {stage.uses for stage in self.later}
        last = max(
            (at for at, name in enumerate(named) if name is not None and (name in wanted or name == label)), default=-1
        )
        counts = [len(stage.operands()) for stage in self.stages]
        self.stages, self.operands = self.stages[: last + 1], self.operands[: sum(counts[: last + 1])]
        if (last < 0 or named[last] != label) and self.stages:
            self._append(Recall(label))

    def _statistics(self, stage: Stage, own: Sequence[Any]) -> None:
        value = self._value(self.maker)
        names = {stage.label for stage in self.stages if isinstance(stage, Keep)} | {"x"}
        crossing = {later.uses for later in self.later} & names
        recalls = any(isinstance(later, Recall) and later.uses in names for later in self.later)
        if self.persist and crossing <= {"x"} and not recalls:
            self.source, self.stages, self.operands = value, [], []
        finished = self.maker.finished
        if stage.reduces:
            (self.small,) = finished(stage, value, (), ("value",))
            self.small_stages, self.small_operands = [], []
        elif isinstance(stage, Softmax):
            shift, scale = finished(stage, value, own, ("shift", "scale"))
            self._append(Subtract("tensor"), shift)
            self._append(Exp())
            self._append(Multiply("tensor"), scale)
        else:
            shift, scale, offset = finished(stage, value, own, ("shift", "scale", "offset"))
            self._append(Subtract("tensor"), shift)
            self._append(Multiply("tensor"), scale)
            self._append(Add("tensor"), offset)


def _with_convolution(stages: list[Stage], operands: list[Any], source: Any) -> tuple[Pipeline, list[Any]]:
    """A pipeline has one: where there is none, one that changes nothing."""
    if any(isinstance(stage, Convolution) for stage in stages):
        return Pipeline(*stages), operands
    channels = source.shape[1]
    ones = np.ones((channels, 1, 1, 1, 1), source.dtype)
    return Pipeline(ConvTranspose3d(groups=channels), *stages), [ones, *operands]
