"""Forward and backward of small layers: microseconds with eager PyTorch, swapped, and swapped by our kernels only. One
thread, best of seven.

    python benchmarks/small_steps.py
"""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import nn

import convt3d.torch
from convt3d.torch import convolutions

LAYERS = {
    "transposed 4 -> 4 @2^3": ((1, 4, 2), [nn.ConvTranspose3d(4, 4, 3)]),
    "conv 4 -> 4 @2^3": ((1, 4, 2), [nn.Conv3d(4, 4, 3, padding=1)]),
    "transposed 4 -> 4 @2^3, InstanceNorm, LeakyReLU": (
        (1, 4, 2),
        [nn.ConvTranspose3d(4, 4, 3), nn.InstanceNorm3d(4, affine=True), nn.LeakyReLU()],
    ),
    "transposed 4 -> 4 @2^3, BatchNorm, ReLU": (
        (1, 4, 2),
        [nn.ConvTranspose3d(4, 4, 3), nn.BatchNorm3d(4), nn.ReLU()],
    ),
    "conv 16 -> 16 @8^3, batch 2": ((2, 16, 8), [nn.Conv3d(16, 16, 3, padding=1)]),
    "conv 16 -> 16 @8^3, batch 2, BatchNorm, ReLU": (
        (2, 16, 8),
        [nn.Conv3d(16, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU()],
    ),
    "conv 32 -> 32 @16^3": ((1, 32, 16), [nn.Conv3d(32, 32, 3, padding=1)]),
}


def microseconds(layer: Any, x: Any) -> float:
    """Of a step, after which a weight is another one."""
    grad, learnt = torch.ones_like(layer(x)), [x, *layer.parameters()]

    def step() -> None:
        torch.autograd.grad(layer(x), learnt, grad)
        with torch.no_grad():
            learnt[1][0, 0, 0, 0, 0] += 1e-6

    best = float("inf")
    for _ in range(7):
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < 0.05:
            step()
            count += 1
        best = min(best, (time.perf_counter() - begun) / count)
    return 1e6 * best


if __name__ == "__main__":
    torch.set_num_threads(1)
    usual = convolutions.SMALL
    for name, ((batch, channels, size), modules) in LAYERS.items():
        x = torch.randn(batch, channels, size, size, size, requires_grad=True)
        eager = nn.Sequential(*modules)
        swapped = copy.deepcopy(eager)
        convt3d.torch.swap(swapped)
        with convt3d.num_threads(1):
            stock, ours = microseconds(eager, x), microseconds(swapped, x)
            convolutions.SMALL = 0
            kernels = microseconds(swapped, x)
            convolutions.SMALL = usual
        print(f"{name}: eager {stock:.0f}, swapped {ours:.0f}, by our kernels {kernels:.0f}")
