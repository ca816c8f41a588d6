"""What a tiny call costs above its kernel: functions, prepared pipelines, modules, with and without gradients.

Prints microseconds, the best of several rounds in turns. Run it on a quiet machine: python benchmarks/small_calls.py
"""

from __future__ import annotations

import copy
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import convt3d
import convt3d.torch

CALLS, ROUNDS = 20, 401


def best(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of each, all of them in every round."""
    for call in calls.values():
        call(), call()
    rounds = [[timeit.timeit(call, number=CALLS) for call in calls.values()] for _ in range(ROUNDS)]
    return {name: min(column) / CALLS * 1e6 for name, column in zip(calls, zip(*rounds, strict=True), strict=True)}


def without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def main() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((1, 4, 2, 2, 2), (4, 4, 2, 2, 2)))
    pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.ReLU())
    constant = w.copy()
    constant.flags.writeable = False
    writable, fixed = pipe.prepare(w), pipe.prepare(constant)
    tensor = torch.from_numpy(x)
    eager = nn.ConvTranspose3d(4, 4, 2, 2)
    module = convt3d.torch.ConvTranspose3d(4, 4, 2, 2)
    sequence = nn.Sequential(nn.ConvTranspose3d(4, 4, 2, 2), nn.BatchNorm3d(4), nn.ReLU()).eval()
    swapped = copy.deepcopy(sequence)
    convt3d.torch.swap(swapped)
    tensors: dict[str, Callable[[], Any]] = {
        "nn.ConvTranspose3d": lambda: eager(tensor),
        "convt3d.torch.ConvTranspose3d": lambda: module(tensor),
        "nn.Sequential: convolution, norm, ReLU": lambda: sequence(tensor),
        "the same, swapped": lambda: swapped(tensor),
    }
    arrays: dict[str, Callable[[], Any]] = {
        "pipe(x, w)": lambda: pipe(x, w),
        "prepared, weights compared": lambda: writable(x),
        "prepared, weights read-only": lambda: fixed(x),
    }
    quiet = {f"{name}, no_grad": without_gradients(call) for name, call in tensors.items()}
    for name, time in best(arrays | quiet | tensors).items():
        print(f"{name:50s} {time:8.1f} us")


if __name__ == "__main__":
    main()
