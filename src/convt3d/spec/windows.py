"""A reduction along one spatial axis as a pool whose window is the whole axis, once sizes are known (docs/math.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from .dtypes import DType
from .pipeline import Pipeline, Trace
from .rewrite import Rewritten, Step
from .shapes import Shape
from .stage import Stage
from .stages import Add, AvgPool3d, Clamp, Exp, Keep, Log, LogSumExp, Max, MaxPool3d, Mean, Recall, Subtract, Sum


def axes_as_windows(rewritten: Rewritten, trace: Trace, dtype: DType) -> Rewritten:
    """The pipeline with such reductions replaced, and a step that says so; itself if there are none."""
    before = rewritten.pipeline
    if not any(stage.reduces in _ONE for stage in before.stages):
        return rewritten
    stages: list[Stage] = []
    names = _fresh(before)
    for stage, shape in zip(before.stages, trace.values, strict=False):
        if stage.reduces in _ONE:
            stages += _AS_WINDOW[type(stage)](_window(stage, shape), names, dtype)
        else:
            stages.append(stage)
    after = Pipeline(*stages)
    step = Step(axes_as_windows.__name__, before, after, 0, 0, None)
    return Rewritten(after, (*rewritten.steps, step))


_ONE = ((2,), (3,), (4,))  # depth, height, width


def _window(stage: Stage, shape: Shape) -> tuple[int, int, int]:
    d, h, w = (shape[axis] if axis in stage.reduces else 1 for axis in (2, 3, 4))
    return d, h, w


def _log_sum_exp(window: tuple[int, int, int], names: Callable[[], str], dtype: DType) -> Sequence[Stage]:
    """m + log(sum(exp(x - m))), m the maximum, but finite: exp then gives 0 or Inf by itself, as it must."""
    value, most, largest = names(), names(), float(np.finfo(dtype.accumulate).max)
    highest = (Keep(value), MaxPool3d(window), Clamp(-largest, largest), Keep(most))
    return *highest, Recall(value), Subtract(most), Exp(), AvgPool3d(window, divisor_override=1), Log(), Add(most)


_AS_WINDOW: dict[type[Stage], Callable[..., Sequence[Stage]]] = {
    Sum: lambda window, names, dtype: (AvgPool3d(window, divisor_override=1),),
    Mean: lambda window, names, dtype: (AvgPool3d(window),),
    Max: lambda window, names, dtype: (MaxPool3d(window),),
    LogSumExp: _log_sum_exp,
}


def _fresh(pipeline: Pipeline) -> Callable[[], str]:
    """Names that no value of the pipeline has."""
    taken = {stage.label for stage in pipeline.stages if isinstance(stage, Keep)}
    free = (name for name in map("axis{}".format, count()) if name not in taken)
    return lambda: next(free)
