"""Who a kernel is timed beside: convt3d itself, and PyTorch in both memory layouts where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..front.verify import Storage
from ..plan.cores import get_num_threads
from ..run.execute import execute
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from ..spec.problems import Problem
from ..spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    Clamp,
    ConvTranspose3d,
    LayerNorm,
    MaxPool3d,
    Multiply,
    Softmax,
    Sum,
)

EAGER, CHANNELS_LAST, OWN = "torch eager", "torch channels_last", "convt3d"

Peer = Callable[[Mapping[str, Storage]], tuple[Storage, float]]  # arrays by name -> result, seconds


def peers(problem: Problem, values: Mapping[str, Any], dtype: DType) -> dict[str, Peer]:
    found = {OWN: _own(problem, values, dtype)}
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        torch.set_num_threads(get_num_threads())
        found[EAGER] = _torch(torch, problem, values, dtype, torch.contiguous_format)
        found[CHANNELS_LAST] = _torch(torch, problem, values, dtype, torch.channels_last_3d)
    return found


def _operands(problem: Problem, arrays: Mapping[str, Storage]) -> tuple[Storage, ...]:
    """In the pipeline's order, vectors 1-D."""
    own = ((name, arrays[name]) for name in problem.operand_names)
    return tuple(array if name == "kernel" else array.reshape(-1) for name, array in own)


def _own(problem: Problem, values: Mapping[str, Any], dtype: DType) -> Peer:
    pipeline = problem.pipeline(values)
    result = np.empty(problem.shapes(values)["output"], dtype.storage)

    def run(arrays: Mapping[str, Storage]) -> tuple[Storage, float]:
        operands = _operands(problem, arrays)
        begun = time.perf_counter()
        execute(pipeline, dtype, arrays["input"], operands, result)
        return result, time.perf_counter() - begun

    return run


def _torch(torch: Any, problem: Problem, values: Mapping[str, Any], dtype: DType, layout: Any) -> Peer:
    pipeline = problem.pipeline(values)

    def tensor(array: Storage) -> Any:
        raw = torch.from_numpy(array.view(np.int16) if dtype.name == "bfloat16" else array)
        typed = raw.view(torch.bfloat16) if dtype.name == "bfloat16" else raw
        return typed.contiguous(memory_format=layout) if typed.ndim == 5 else typed

    def run(arrays: Mapping[str, Storage]) -> tuple[Storage, float]:
        x, operands = tensor(arrays["input"]), [tensor(array) for array in _operands(problem, arrays)]
        with torch.no_grad():
            begun = time.perf_counter()
            result = _eager(torch.nn.functional, pipeline, x, list(operands))
            seconds = time.perf_counter() - begun
        plain = result.contiguous()
        bits = plain.view(torch.int16) if dtype.name == "bfloat16" else plain
        return bits.numpy().view(dtype.storage), seconds

    return run


def _eager(f: Any, pipeline: Pipeline, value: Any, operands: list[Any]) -> Any:
    """The stages of the problems as a PyTorch user writes them."""
    for stage in pipeline.stages:
        if isinstance(stage, ConvTranspose3d):
            weight, bias = operands.pop(0), operands.pop(0) if stage.bias else None
            stride, padding, extra, dilation = stage.triples
            value = f.conv_transpose3d(value, weight, bias, stride, padding, extra, stage.groups, dilation)
        elif isinstance(stage, MaxPool3d):
            value = f.max_pool3d(value, stage.triples[0])
        elif isinstance(stage, AvgPool3d):
            value = f.avg_pool3d(value, stage.triples[0])
        elif isinstance(stage, Sum):
            value = value.sum(1, keepdim=True)
        elif isinstance(stage, LayerNorm):
            value = f.layer_norm(value.movedim(1, -1), (value.shape[1],), eps=stage.eps).movedim(-1, 1)
        elif isinstance(stage, GELU):
            value = f.gelu(value)
        elif isinstance(stage, Clamp):
            value = value.clamp(stage.min, stage.max)
        elif isinstance(stage, Softmax):
            value = value.flatten(2).softmax(2).view(value.shape)
        elif isinstance(stage, (Add, Multiply)):
            other = operands.pop(0).reshape(-1, 1, 1, 1) if isinstance(stage.other, str) else stage.other
            value = value + other if isinstance(stage, Add) else value * other
        else:
            raise NotImplementedError(type(stage).__name__)
    return value
