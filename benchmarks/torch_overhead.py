"""What a call through convt3d.torch costs above the numpy functions, on the tiny sample of each problem.

Prints microseconds, the best of several rounds in turns. Run it on a quiet machine: python benchmarks/torch_overhead.py
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import convt3d
import convt3d.torch

FUNCTIONS = {
    "conv-transpose3d-max-max-sum": "conv_transpose3d_max_max_sum",
    "conv-transpose3d-sum-layernorm-avgpool-gelu": "conv_transpose3d_sum_layernorm_avgpool_gelu",
    "conv-transpose3d-avgpool-clamp-softmax-multiply": "conv_transpose3d_avgpool_clamp_softmax_multiply",
    "conv-transpose-3d-asym-input-sq-kernel": "conv_transpose3d",
    "conv-transpose3d-layernorm-gelu-scaling": "conv_transpose3d_layernorm_gelu_scaling",
}
CALLS, ROUNDS = 1000, 9


def best(*calls: Callable[[], Any]) -> list[float]:
    """Microseconds of each, all of them in every round."""
    rounds = [[timeit.timeit(call, number=CALLS) for call in calls] for _ in range(ROUNDS)]
    return [min(column) / CALLS * 1e6 for column in zip(*rounds, strict=True)]


def main() -> None:
    print(f"{'us per call':50s} {'numpy':>8s} {'torch':>8s} {'above':>8s}")
    for slug, name in FUNCTIONS.items():
        problem = convt3d.problems[slug]
        made = problem.make_inputs(problem.sample, np.random.default_rng(0))
        arrays = [array.astype(np.float32) for array in made.values()]
        tensors = [torch.from_numpy(array.copy()) for array in arrays]
        sizes = {
            size: tuple(problem.sample[f"{size}_{axis}"] for axis in "dhw")
            for size in ("stride", "padding", "output_padding", "dilation")
            if f"{size}_d" in problem.sample
        }
        numpy_function, torch_function = getattr(convt3d, name), getattr(convt3d.torch, name)
        if not np.array_equal(numpy_function(*arrays, **sizes), torch_function(*tensors, **sizes).numpy()):
            raise SystemExit(f"{slug}: results differ, so no time is told")
        pair = best(lambda: numpy_function(*arrays, **sizes), lambda: torch_function(*tensors, **sizes))  # noqa: B023
        print(f"{slug:50s} {pair[0]:8.1f} {pair[1]:8.1f} {pair[1] - pair[0]:8.1f}")


if __name__ == "__main__":
    main()
