"""Who a kernel is timed beside: convt3d itself, and PyTorch in both memory layouts where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..front.verify import Storage
from ..plan.cores import get_num_threads
from ..run.execute import execute
from ..spec.dtypes import DType
from ..spec.problems import Problem

EAGER, CHANNELS_LAST, OWN = "torch eager", "torch channels_last", "convt3d"

Peer = Callable[[Mapping[str, Storage]], tuple[Storage, float]]  # arrays by name -> result, seconds


def peers(problem: Problem, values: Mapping[str, Any], dtype: DType) -> dict[str, Peer]:
    found = {OWN: _own(problem, values, dtype)}
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        importlib.import_module("convt3d.bench.contenders.onednn").hold_below_amx()
        torch.set_num_threads(get_num_threads())
        found[EAGER] = _torch(torch, problem, values, dtype, torch.contiguous_format)
        found[CHANNELS_LAST] = _torch(torch, problem, values, dtype, torch.channels_last_3d)
    return found


def notes(names: Iterable[str], dtype: DType) -> dict[str, str]:
    """What is to be said about the times of some of them."""
    found = [name for name in names if name in (EAGER, CHANNELS_LAST)]
    note = importlib.import_module("convt3d.bench.contenders.onednn").note(dtype) if found else ""
    return dict.fromkeys(found, note) if note else {}


def operands_of(problem: Problem, arrays: Mapping[str, Storage]) -> tuple[Storage, ...]:
    """In the pipeline's order, vectors 1-D."""
    own = ((name, arrays[name]) for name in problem.operand_names)
    return tuple(array if name == "kernel" else array.reshape(-1) for name, array in own)


def _own(problem: Problem, values: Mapping[str, Any], dtype: DType) -> Peer:
    pipeline = problem.pipeline(values)
    result = np.empty(problem.shapes(values)["output"], dtype.storage)

    def run(arrays: Mapping[str, Storage]) -> tuple[Storage, float]:
        operands = operands_of(problem, arrays)
        begun = time.perf_counter()
        execute(pipeline, dtype, arrays["input"], operands, result)
        return result, time.perf_counter() - begun

    return run


def _torch(torch: Any, problem: Problem, values: Mapping[str, Any], dtype: DType, layout: Any) -> Peer:
    stock = importlib.import_module("convt3d.torch.stock").function_of(problem.pipeline(values))

    def tensor(array: Storage) -> Any:
        raw = torch.from_numpy(array.view(np.int16) if dtype.name == "bfloat16" else array)
        typed = raw.view(torch.bfloat16) if dtype.name == "bfloat16" else raw
        return typed.contiguous(memory_format=layout) if typed.ndim == 5 else typed

    def run(arrays: Mapping[str, Storage]) -> tuple[Storage, float]:
        x, operands = tensor(arrays["input"]), [tensor(array) for array in operands_of(problem, arrays)]
        with torch.no_grad():
            begun = time.perf_counter()
            result = stock(x, operands)
            seconds = time.perf_counter() - begun
        plain = result.contiguous()
        bits = plain.view(torch.int16) if dtype.name == "bfloat16" else plain
        return bits.numpy().view(dtype.storage), seconds

    return run
