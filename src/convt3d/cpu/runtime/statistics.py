"""Combines the statistics of tiles, in float64 and in a fixed order, into what the next sweep applies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...plan.names import ArrayName, StatisticWord, ValueName
from ...plan.sweeps import Finish
from ...spec.stage import Stage
from ...spec.stages import GroupNorm, InstanceNorm, LogSumExp, Max, Mean, Softmax
from .elementary import exp, log

Array = npt.NDArray[np.float64]


def finish(
    of: Finish, partials: Array, counts: Array, operands: list[Array], number: npt.DTypeLike
) -> dict[ArrayName, Array]:
    """partials (B, tiles, C, words), voxels of each tile (tiles,) -> vectors (B, C) that are applied, or the next value
    (B, C, 1, 1, 1), to be rounded to `number`."""
    with np.errstate(all="ignore"):
        if isinstance(of.result, ValueName):
            value = _reduced(of.stage, partials, counts)
            return {of.result: value.reshape(*value.shape, 1, 1, 1)}
        if isinstance(of.stage, Softmax):
            vectors = _softmax(of.stage, partials, operands)
        else:
            assert isinstance(of.stage, (InstanceNorm, GroupNorm))
            found = moments_of(of.stage, partials, counts)
            vectors = normalised(of.stage, found, partials.shape[2], operands, number)
        return {of.result.vector(word): values for word, values in vectors.items()}


def _reduced(stage: Stage, partials: Array, counts: Array) -> Array:
    if isinstance(stage, LogSumExp):
        most, total = _max_and_total(partials)
        return _finite_or_zero(most) + log(total)
    if isinstance(stage, Max):
        largest: Array = partials[..., 0].max(axis=1)
        return largest
    total = over_tiles(partials[..., 0])
    return total / counts.sum() if isinstance(stage, Mean) else total


def over_tiles(parts: Array) -> Array:
    """(B, tiles, ...) -> (B, ...): NumPy adds pairwise along the last axis only."""
    total: Array = np.ascontiguousarray(parts.transpose(0, *range(2, parts.ndim), 1)).sum(axis=-1)
    return total


def _finite_or_zero(x: Array) -> Array:
    return np.where(np.isinf(x), 0.0, x)


def _max_and_total(partials: Array) -> tuple[Array, Array]:
    """Largest value, and the sum of exp(value - largest); an infinite maximum counts as zero in the exponent."""
    most = partials[..., 0].max(axis=1)
    moved = exp(_finite_or_zero(partials[..., 0]) - _finite_or_zero(most)[:, None])
    return most, over_tiles(partials[..., 1] * moved)


def _softmax(stage: Softmax, partials: Array, operands: list[Array]) -> dict[StatisticWord, Array]:
    factor: Any = 1.0 if stage.scale is None else operands[0] if stage.scale == "channel" else stage.scale
    if stage.shift is not None:
        return {"scale": factor / over_tiles(partials[..., 0])}
    most, total = _max_and_total(partials)
    # inf - inf and -inf - -inf make every voxel NaN
    return {"shift": most, "scale": np.where(np.isinf(most), np.nan, factor / total)}


def moments(partials: Array, counts: Array, groups: int) -> tuple[Array, Array]:
    """Means and squared distances of tiles, combined over tiles and the channels of groups: mean and biased variance,
    (B, groups)."""
    batch, tiles, channels, _ = partials.shape
    size = channels // groups
    parts = partials.reshape(batch, tiles, groups, size, 2)
    n = counts.reshape(1, tiles, 1, 1)
    total = counts.sum() * size
    mean = over_tiles(parts[..., 0] * n).sum(axis=-1) / total
    distance = parts[..., 0] - mean[:, None, :, None]
    variance: Array = over_tiles(parts[..., 1] + n * distance * distance).sum(axis=-1) / total
    return mean, variance


def moments_of(stage: InstanceNorm | GroupNorm, partials: Array, counts: Array) -> tuple[Array, Array]:
    """Of what the norm takes together."""
    return moments(partials, counts, stage.num_groups if isinstance(stage, GroupNorm) else partials.shape[2])


def normalised(
    stage: InstanceNorm | GroupNorm,
    found: tuple[Array, Array],
    channels: int,
    operands: list[Array],
    number: npt.DTypeLike,
) -> dict[StatisticWord, Array]:
    """What is applied, by these moments."""
    mean, variance = found
    deviation, size = 1.0 / np.sqrt(variance + stage.eps), channels // mean.shape[1]
    shift, scale = (each if size == 1 else np.repeat(each, size, axis=1) for each in (mean, deviation))
    weight, bias = operands if stage.affine else (1.0, 0.0)
    return affine(shift, scale * weight, bias, number)


def affine(shift: Array, scale: Array, bias: Any, number: npt.DTypeLike) -> dict[StatisticWord, Array]:
    """What Affine applies."""
    near = shift.astype(number)
    rest = np.where(np.isfinite(scale.astype(number)), (near - shift) * scale, 0.0)  # the mean lies between two numbers
    return {"shift": near.astype(np.float64), "scale": scale, "offset": rest + bias}
