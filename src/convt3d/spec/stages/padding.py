"""Voxels around the input that are copies of others: a stage that nobody asks for, made from a Conv3d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ..shapes import Box, Range, Shape
from ..stage import SPATIAL, Stage

Sides: TypeAlias = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # before and after each axis
NUMPY_MODES: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@dataclass(frozen=True, eq=False, repr=False)
class Pad(Stage):
    """Voxels added around the input, copies of others."""

    sides: Sides
    mode: str

    couples: ClassVar[frozenset[str]] = SPATIAL

    def out_shape(self, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Shape:
        d, h, w = (size + sum(sides) for size, sides in zip(shape[2:], self.sides, strict=True))
        return shape[0], shape[1], d, h, w

    def reads(self, box: Box, shape: Shape, operands: Sequence[tuple[int, ...]]) -> Box:
        d, h, w = (self._held(axis, shape[2 + axis], wanted) for axis, wanted in enumerate(box[1:]))
        return box[0], d, h, w

    def sources(self, axis: int, size: int) -> npt.NDArray[np.int64]:
        """The voxel of the input that each place of the padded axis holds."""
        return np.pad(np.arange(size, dtype=np.int64), self.sides[axis], NUMPY_MODES[self.mode])

    def _held(self, axis: int, size: int, wanted: Range) -> Range:
        """What a range of the padded axis holds copies of; up to the end of the input where it goes beyond that."""
        low, high = wanted
        found, before = self.sources(axis, size)[low:high], self.sides[axis][0]
        first = 0 if low < before else int(found.min())
        return first, size if high > before + size else int(found.max()) + 1
