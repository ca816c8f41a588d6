"""Pools, and adaptive pools whose windows are all alike."""

from __future__ import annotations

from typing import Any

from ...spec import stages as s
from ...spec.stage import Stage
from ..views import PLAIN, NoStageError, Value
from .base import Meaning, inside, rule, triple, without_gradient
from .reductions import reduced


def _pooled(value: Any, stage: Stage, result: Any) -> Meaning:
    if not inside(value).plain:
        raise NoStageError("pools other axes than depth, height and width")
    return Meaning(value, ((stage, ()),), PLAIN, tuple(result.shape))


def _window(stride: Any) -> Any:
    return None if stride is None or (isinstance(stride, (list, tuple)) and not stride) else triple(stride)


@rule("max_pool3d")
def _max_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
    return_indices: Any = False,
    *,
    result: Any,
) -> Meaning:
    if triple(dilation) != (1, 1, 1) or return_indices:
        raise NoStageError("has a dilation, or returns indices")
    pool = s.MaxPool3d(triple(kernel_size), _window(stride), triple(padding), ceil_mode=bool(ceil_mode))
    return _pooled(input, pool, result)


@rule("avg_pool3d")
def _avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: Any = False,
    count_include_pad: Any = True,
    divisor_override: Any = None,
    *,
    result: Any,
) -> Meaning:
    counting = bool(ceil_mode), bool(count_include_pad), divisor_override
    return _pooled(input, s.AvgPool3d(triple(kernel_size), _window(stride), triple(padding), *counting), result)


@rule("adaptive_avg_pool3d")
def _adaptive_avg_pool3d(input: Any, output_size: Any, *, result: Any) -> Meaning:
    if _to_one(input, output_size):
        return reduced(s.Mean, input, (2, 3, 4), True)
    return _pooled(input, s.AvgPool3d(_even_windows(input, output_size)), result)


@rule("adaptive_max_pool3d")
def _adaptive_max_pool3d(input: Any, output_size: Any, return_indices: Any = False, *, result: Any) -> Meaning:
    if return_indices:
        raise NoStageError("returns indices")
    if _to_one(input, output_size):
        without_gradient(input, "where several values are largest")
        return reduced(s.Max, input, (2, 3, 4), True)
    return _pooled(input, s.MaxPool3d(_even_windows(input, output_size)), result)


def _to_one(value: Any, output_size: Any) -> bool:
    if not inside(value).plain:
        raise NoStageError("pools other axes than depth, height and width")
    sizes = output_size if isinstance(output_size, (list, tuple)) else (output_size,) * 3
    return all(type(size) is int and size == 1 for size in sizes)


def _even_windows(value: Value, output_size: Any) -> Any:
    """Windows of an adaptive pool that are all alike."""
    wanted = output_size if isinstance(output_size, (list, tuple)) else (output_size,) * 3
    windows = []
    for size, count in zip(value.sizes[2:], wanted, strict=True):
        count = size if count is None else count
        if type(size) is not int or type(count) is not int or count < 1 or size % count:
            raise NoStageError("has windows of unequal sizes")
        windows.append(size // count)
    return tuple(windows)
