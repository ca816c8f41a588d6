"""Trains an autoencoder, a GAN and a U-Net for 100 steps with PyTorch's layers and with swapped ones, step by step in
turns: milliseconds of a step (medians), and how far the losses are apart at most.

    python benchmarks/loss_curves.py [steps]
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss, softplus

import convt3d.torch


def block(entering: int, leaving: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv3d(entering, leaving, 3, stride, 1), nn.InstanceNorm3d(leaving), nn.SiLU())


def up(entering: int, leaving: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose3d(entering, leaving, 4, 2, 1), nn.BatchNorm3d(leaving), nn.SiLU())


class UNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.top, self.deep = block(1, 16), nn.Sequential(block(16, 32, 2), block(32, 32))
        self.up, self.end = nn.ConvTranspose3d(32, 16, 2, 2), nn.Sequential(block(32, 16), nn.Conv3d(16, 1, 1))

    def forward(self, x: Any) -> Any:
        top = self.top(x)
        return self.end(torch.cat([top, self.up(self.deep(top))], 1))


def autoencoder() -> nn.Module:
    down = nn.Sequential(
        nn.Conv3d(1, 32, 4, 2, 1), nn.BatchNorm3d(32), nn.SiLU(), nn.Conv3d(32, 64, 4, 2, 1), nn.SiLU()
    )
    return nn.Sequential(down, up(64, 32), nn.ConvTranspose3d(32, 1, 4, 2, 1))


def gan() -> nn.Module:
    maker = nn.Sequential(up(8, 64), up(64, 32), nn.Conv3d(32, 1, 3, 1, 1), nn.Tanh())
    judge = nn.Sequential(
        nn.Conv3d(1, 32, 4, 2, 1), nn.SiLU(), nn.Conv3d(32, 64, 4, 2, 1), nn.SiLU(), nn.Conv3d(64, 1, 3)
    )
    return nn.ModuleList([maker, judge])


def gan_loss(nets: Any, x: Any) -> Any:
    return (
        softplus(-nets[1](x)).mean() + softplus(nets[1](nets[0](x[..., ::2, ::2, ::2].reshape(-1, 8, 8, 8, 8)))).mean()
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], Any]]] = {
    "autoencoder": (autoencoder, lambda net, x: mse_loss(net(x), x)),
    "GAN": (gan, gan_loss),
    "U-Net": (UNet, lambda net, x: mse_loss(net(x), x.roll(1, 2) * x)),
}


def main(steps: int) -> None:
    for name, (build, loss_of) in NETWORKS.items():
        torch.manual_seed(0)
        eager = build()
        swapped = copy.deepcopy(eager)
        convt3d.torch.swap(swapped)
        sides = [(net, torch.optim.SGD(net.parameters(), lr=0.01)) for net in (eager, swapped)]
        losses, times = ([], []), ([], [])
        for _ in range(steps):
            x = torch.randn(2, 1, 32, 32, 32)
            for side, (net, optimiser) in enumerate(sides):
                begun = time.perf_counter()
                optimiser.zero_grad()
                loss = loss_of(net, x)
                loss.backward()
                optimiser.step()
                losses[side].append(loss.item())
                times[side].append(time.perf_counter() - begun)
        stock, ours = (1e3 * statistics.median(each) for each in times)
        apart = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
        print(
            f"{name}: eager {stock:.1f} ms a step, swapped {ours:.1f}, eager over swapped {stock / ours:.2f}; ", end=""
        )
        print(f"loss {losses[0][0]:.4f} -> {losses[0][-1]:.4f}, curves at most {apart:.1e} apart")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
