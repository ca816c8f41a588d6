"""Statistics over space of a value that comes in boxes: of one, of several together, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..cpu.runtime.statistics import finish
from ..plan.names import StatisticsName, ValueName
from ..plan.sweeps import Finish
from ..spec.stage import Stage
from ..spec.stages import LogSumExp, Max, Mean, Softmax, Sum

AT_ONCE = 1 << 19  # voxels of one channel that are taken to float64 together
_KINDS: dict[type[Stage], str] = {Sum: "sum", Mean: "sum", Max: "max", LogSumExp: "maxexp", Softmax: "maxexp"}


def kind_of(stage: Stage) -> str:
    """Which numbers the stage needs; norms have moments."""
    return _KINDS.get(type(stage), "moments")


def statistics(kind: str, block: Any) -> Any:
    """(B, C, 1 + numbers): voxels, and the numbers that the engine keeps of a tile (plan/sweeps.py)."""
    depth = block.shape[2]
    planes = max(1, AT_ONCE // max(1, prod(block.shape[3:])))
    if depth > planes:
        return combine(kind, [statistics(kind, block[:, :, at : at + planes]) for at in range(0, depth, planes)])
    batch, channels = block.shape[:2]
    found = np.empty((batch, channels, 2 if kind in ("sum", "max") else 3))
    found[..., 0] = float(prod(block.shape[2:]))
    with np.errstate(all="ignore"):
        for sample in range(batch):
            for channel in range(channels):
                found[sample, channel, 1:] = _NUMBERS[kind](block[sample, channel].astype(np.float64).ravel())
    return found


def _maxexp(values: Any) -> tuple[float, ...]:
    most = values.max()
    return most, np.exp(values - (0.0 if np.isinf(most) else most)).sum()


def _moments(values: Any) -> tuple[float, ...]:
    mean = values.mean()
    values -= mean
    return mean, np.dot(values, values)


_NUMBERS: dict[str, Any] = {
    "sum": lambda values: (values.sum(),),
    "max": lambda values: (values.max(),),
    "maxexp": _maxexp,
    "moments": _moments,
}


def combine(kind: str, parts: Sequence[Any]) -> Any:
    """Statistics of the union of some disjoint boxes."""
    each = np.stack(parts)
    voxels, first = each[..., 0], each[..., 1]
    total = voxels.sum(axis=0)
    with np.errstate(all="ignore"):
        if kind == "sum":
            numbers = [first.sum(axis=0)]
        elif kind == "max":
            numbers = [first.max(axis=0)]
        elif kind == "maxexp":
            most = first.max(axis=0)
            finite = [np.where(np.isinf(v), 0.0, v) for v in (first, most)]
            numbers = [most, (each[..., 2] * np.exp(finite[0] - finite[1])).sum(axis=0)]
        else:
            mean = (first * voxels).sum(axis=0) / total
            numbers = [mean, (each[..., 2] + voxels * (first - mean) ** 2).sum(axis=0)]
    return np.stack([total, *numbers], axis=-1)


def finished(stage: Stage, dtype: str, totals: Any, operands: Sequence[Any]) -> dict[str, Any]:
    """What statistics (B, C, 1 + numbers) of all of a value come to, as the engine finishes them: arrays (B, C, 1, 1,
    1) by their words."""
    counts, partials = totals[:1, 0, 0], totals[:, None, :, 1:]
    vectors = [np.asarray(operand, np.float64).reshape(-1) for operand in operands]
    result = ValueName(0) if stage.reduces else StatisticsName(0)
    found = finish(Finish(stage, (), result), partials, counts, vectors, np.dtype(dtype))
    shape = (*totals.shape[:2], 1, 1, 1)
    with np.errstate(over="ignore"):
        named = {getattr(name, "word", "value"): array.astype(dtype) for name, array in found.items()}
        return {
            word: np.ascontiguousarray(np.broadcast_to(array.reshape(-1, *shape[1:]), shape))
            for word, array in named.items()
        }
