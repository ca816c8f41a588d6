"""Voxels that rounding errors decide: infinity times what may be zero, or a little to either side of it, is anything.

Every value of a pipeline has a tolerance, as its result has (judge/tolerance.py): a number is only known to lie within
it. A stage that is a function of each number by itself is evaluated at both ends, at the middle and, where that lies
between, at zero. If not all of them are finite, nor all the same infinity, nor all NaN, nothing is known of the stage's
value there, nor of what depends on it. In a convolution that is so of a number whose tolerance reaches zero, where it
meets an infinite weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from convt3d.judge.tolerance import MARGIN, NORMS, PLAYS, Chain, Errors, root_mean_square
from convt3d.spec.dtypes import DType
from convt3d.spec.pipeline import Pipeline
from convt3d.spec.reference import MEANINGS
from convt3d.spec.rewrite import round_scalars
from convt3d.spec.stage import Stage
from convt3d.spec.stages import Add, BatchNorm, Binary, ConvTranspose3d, Keep, LayerNorm, Multiply, Recall


@dataclass(frozen=True)
class Known:
    """What is known of numbers: that they lie within a tolerance, or, of some, nothing."""

    values: Any
    tolerance: Any
    nothing: Any

    def corners(self) -> list[Any]:
        around = [self.values, self.values - self.tolerance, self.values + self.tolerance]
        return [*around, np.where(self.near_zero, 0.0, self.values)]

    @property
    def near_zero(self) -> Any:
        """But not known to be zero."""
        return (np.abs(self.values) <= self.tolerance) & (self.tolerance > 0.0)


def exactly(array: Any) -> Known:
    return Known(array, np.zeros_like(array), np.zeros(array.shape, bool))


def undetermined(pipeline: Pipeline, dtype: DType, x: Any, operands: Sequence[Any], rng: np.random.Generator) -> Any:
    """Which voxels of the result. Arrays are float64, vectors 1-D."""
    stages, own = _taken_apart(round_scalars(pipeline, dtype), operands)
    pipeline = Pipeline(*stages)
    values = iter(_values(Chain(pipeline, x, [array for arrays in own for array in arrays]), dtype, rng))
    kept, now = {"x": exactly(x)}, exactly(x)
    with np.errstate(all="ignore"):
        for stage, arrays in zip(stages, own, strict=True):
            if isinstance(stage, Keep):
                kept[stage.label] = now
            elif isinstance(stage, Recall):
                now = kept[stage.label]
            else:
                others = [kept[stage.label]] if isinstance(stage, Binary) and stage.label else map(exactly, arrays)
                now = Known(*next(values), _nothing_known(stage, now, list(others)))
    return now.nothing


def _taken_apart(pipeline: Pipeline, operands: Sequence[Any]) -> tuple[list[Stage], list[list[Any]]]:
    """Stages and their operands; a norm's weight and bias are a factor and a term of their own."""
    stages: list[Stage] = []
    own: list[list[Any]] = []
    for index, stage in enumerate(pipeline.stages):
        arrays = [array for slot, array in zip(pipeline.slots, operands, strict=True) if slot.stage == index]
        if isinstance(stage, BatchNorm):
            mean, var, *affine = arrays
            with np.errstate(all="ignore"):
                factor = (affine[0] if affine else 1.0) / np.sqrt(var + stage.eps)
                arrays = [factor, (affine[1] if affine else 0.0) - mean * factor]
        elif isinstance(stage, NORMS) and stage.affine:
            stages.append(replace(stage, affine=False))
            own.append([])
        else:
            stages.append(stage)
            own.append(arrays)
            continue
        shape = (1, 1, 1, 1, -1) if isinstance(stage, LayerNorm) and stage.over == "width" else (1, -1, 1, 1, 1)
        stages += [Multiply("tensor"), Add("tensor")]
        own += [[array.reshape(shape)] for array in arrays]
    return stages, own


def _values(chain: Chain, dtype: DType, rng: np.random.Generator) -> list[tuple[Any, Any]]:
    """After each stage but Keep and Recall: the meaning and its tolerance."""
    numbers = np.finfo(dtype.accumulate)
    errors = Errors(rng, float(numbers.eps) / 2, float(numbers.smallest_subnormal))

    def noted(leave: Any, enter: Any) -> list[Any]:
        seen: list[Any] = []

        def note(last: bool, value: Any, rounded: Any) -> Any:
            seen.append(leave(last, value, rounded))
            return seen[-1]

        chain.play(note, enter)
        return seen

    exact = noted(lambda last, value, rounded: value, lambda stage, value: value)
    plays = [noted(errors.leave, errors.enter) for _ in range(PLAYS)]
    with np.errstate(invalid="ignore"):  # inf - inf
        changes = [[one - value for one in played] for value, *played in zip(exact, *plays, strict=True)]
    return [(value, MARGIN * root_mean_square(change)) for value, change in zip(exact, changes, strict=True)]


def _nothing_known(stage: Stage, now: Known, others: list[Known]) -> Any:
    """After a stage: where its numbers are decided by rounding errors, and what depends on such numbers."""
    meaning = MEANINGS[type(stage)]
    # NaN spreads to all that depends on it, where no other number is unusual but the stage's own.
    marked = [np.where(known.nothing, np.nan, 0.5) for known in (now, *others)]
    plain = [np.full(known.values.shape, 0.5) for known in (now, *others)]
    depends = np.isnan(meaning(stage, *marked)) & ~np.isnan(meaning(stage, *plain))
    if isinstance(stage, ConvTranspose3d):
        meetings = meaning(replace(stage, bias=False), now.near_zero * 1.0, np.isinf(others[0].values) * 1.0)
        return depends | (meetings > 0.0)
    if stage.couples:
        return depends
    kinds = [_kind(meaning(stage, *corner)) for corner in product(*(known.corners() for known in (now, *others)))]
    return depends | np.any([kind != kinds[0] for kind in kinds], axis=0)


def _kind(values: Any) -> Any:
    """Finite, NaN, or which infinity."""
    return np.where(np.isnan(values), 2.0, np.where(np.isinf(values), np.sign(values), 0.0))
