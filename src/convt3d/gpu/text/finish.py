"""Kernels that combine the partial statistics of tiles, in float64 and in a fixed order.

Partials lie as (plane, sample, channel, part), so that those of one sample and group of channels are one range.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from ...plan.names import StatisticsName, StatisticWord, ValueName
from ...spec.stage import Stage
from ...spec.stages import GroupNorm, InstanceNorm, LogSumExp, Max, Mean, Softmax
from .code import Code, Constants
from .kernel import KernelText, written

if TYPE_CHECKING:
    from ..plan import GpuPlan
    from ..steps import GpuFinish

_BLOCK = 1024


def finish_text(plan: GpuPlan, step: GpuFinish, name: str, constants: Constants) -> KernelText:
    code = Code(plan.dtype, constants)
    code.pointer("partials", step.partials)
    size = step.shape[1] // step.groups
    code.number("length", size * step.parts)
    code.number("plane", prod(step.shape[:2]) * step.parts)
    wide = ".to(tl.int64)" if plan.wide else ""
    code.add(
        f"program = tl.program_id(0){wide}  # sample and group of channels", "part_at = partials + program * length"
    )
    _KINDS[step.kind](code)
    stage = step.finish.stage
    result = step.finish.result
    if isinstance(result, ValueName):
        code.number("voxels", prod(step.shape[2:]))
        value = code.pointer("value", result)
        code.add(f"tl.store({value} + program + tl.arange(0, 1), {_VALUES.get(type(stage), 'total')})")
    elif isinstance(stage, Softmax):
        _softmax(code, stage, result)
    else:
        assert isinstance(stage, (GroupNorm, InstanceNorm))
        _norm(code, plan, step, stage, result)
    title = f"{stage.name}: combines partial statistics ({step.kind})."
    return written(name, code, {"BLOCK": _BLOCK}, title, step.shape[0] * step.groups)


def _loop(code: Code, *lines: str) -> None:
    with code.block("for start in range(0, length, BLOCK):"):
        code.add("at = start + tl.arange(0, BLOCK)", "there = at < length", *lines)


def _load(plane: int, other: str = "0.0") -> str:
    return f"tl.load(part_at + {plane} * plane + at, mask=there, other={other}).to(tl.float64)"


_MEAN = f"{_load(0)} + {_load(3)}"  # of a tile, in two parts


def _sum(code: Code) -> None:
    code.add("totals = tl.zeros((BLOCK,), tl.float64)")
    _loop(code, f"totals += {_load(0)}")
    code.add("total = tl.sum(totals, 0, keep_dims=True)")


def _max(code: Code) -> None:
    code.add('peaks = tl.zeros((BLOCK,), tl.float64) - float("inf")')
    lowest = 'float("-inf")'
    _loop(code, f"peak = {_load(0, lowest)}", "peaks = tl.where((peak > peaks) | (peak != peak), peak, peaks)")
    code.add("peak = largest(peaks, 0)")


def _max_exp(code: Code) -> None:
    _max(code)
    code.add("totals = tl.zeros((BLOCK,), tl.float64)")
    _loop(
        code,
        f"moved = tl.exp(finite_or_zero({_load(0)}) - finite_or_zero(peak))",
        f"part = {_load(1)}",
        "totals += tl.where(part == 0.0, 0.0, moved * part)  # a part without voxels has no peak to move from",
    )
    code.add("total = tl.sum(totals, 0, keep_dims=True)")


def _moments(code: Code) -> None:
    """Means and squared distances of tiles, each with its number of voxels."""
    code.add("totals = tl.zeros((BLOCK,), tl.float64)", "numbers = tl.zeros((BLOCK,), tl.float64)")
    _loop(code, f"number = {_load(2)}", f"totals += number * ({_MEAN})", "numbers += number")
    code.add("number = tl.sum(numbers, 0, keep_dims=True)", "mean = tl.sum(totals, 0, keep_dims=True) / number")
    code.add("totals = tl.zeros((BLOCK,), tl.float64)")
    _loop(
        code,
        f"away = tl.where(there, {_MEAN} - mean, 0.0)",
        f"totals += {_load(1)} + {_load(2)} * away * away",
    )
    code.add("variance = tl.sum(totals, 0, keep_dims=True) / number")


_KINDS: dict[str, Callable[[Code], None]] = {"sum": _sum, "max": _max, "maxexp": _max_exp, "moments": _moments}
_VALUES: dict[type[Stage], str] = {
    Mean: "total / voxels",
    Max: "peak",
    LogSumExp: "finite_or_zero(peak) + tl.log(total)",
}


def _softmax(code: Code, stage: Softmax, result: StatisticsName) -> None:
    factor = code.constant(stage.scale) if isinstance(stage.scale, float) else "1.0"
    scale = code.pointer("scale", result.vector("scale"))
    value = f"{factor} / total"
    if stage.shift is None:
        shift = code.pointer("shift", result.vector("shift"))
        code.add(f"tl.store({shift} + program + tl.arange(0, 1), peak)")
        # inf - inf and -inf - -inf make every voxel NaN
        value = f'tl.where(tl.abs(peak) == float("inf"), float("nan"), {value})'
    code.add(f"tl.store({scale} + program + tl.arange(0, 1), {value})")


def _norm(code: Code, plan: GpuPlan, step: GpuFinish, stage: GroupNorm | InstanceNorm, result: StatisticsName) -> None:
    """What the next sweep applies to each channel: (v - shift) * scale + offset."""
    words: tuple[StatisticWord, ...] = ("shift", "scale", "offset")
    shift, scale, offset = (code.pointer(word, result.vector(word)) for word in words)
    code.number("size", step.shape[1] // step.groups)
    code.number("groups", step.groups)
    code.add(f"deviation = 1.0 / tl.sqrt(variance + {code.constant(stage.eps)})")
    weight, bias = "1.0", "0.0"
    if step.finish.arrays:
        pointers = [code.pointer(plan.array_name(array), array) for array in step.finish.arrays]
        weight, bias = (
            f"tl.load({pointer} + program % groups * size + at, mask=there, other=0.0)" for pointer in pointers
        )
    with code.block("for start in range(0, size, BLOCK):"):
        code.add("at = start + tl.arange(0, BLOCK)", "there = at < size", "none = tl.zeros((BLOCK,), tl.float64)")
        code.add(f"factor = none + deviation * {weight}", f"near = (none + mean).to({code.acc})")
        code.add(f"applied = tl.abs(factor.to({code.acc})) < float('inf')")
        code.add("rest = tl.where(applied, (near - mean) * factor, 0.0)  # the mean lies between two numbers")
        code.add(f"tl.store({shift} + program * size + at, near, mask=there)")
        code.add(f"tl.store({scale} + program * size + at, factor, mask=there)")
        code.add(f"tl.store({offset} + program * size + at, rest + {bias}, mask=there)")
