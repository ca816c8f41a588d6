"""Trains a small autoencoder, a GAN and a U-Net twice, with PyTorch's layers and with ours: one curve, two times."""

import time

try:
    import torch
    from torch import nn
    from torch.nn.functional import avg_pool3d, mse_loss, softplus
except ImportError:
    torch = None


def autoencoder() -> "nn.ModuleList":
    down = nn.Sequential(nn.Conv3d(1, 24, 3, 2, 1), nn.BatchNorm3d(24), nn.ReLU(), nn.Conv3d(24, 48, 3, 2, 1))
    return nn.ModuleList([down, nn.ConvTranspose3d(48, 1, 8, 4, 2)])


def gan() -> "nn.ModuleList":
    up = nn.Sequential(nn.ConvTranspose3d(8, 32, 4, 2, 1), nn.BatchNorm3d(32), nn.SiLU(), nn.Conv3d(32, 1, 3, 1, 1))
    return nn.ModuleList([up, nn.Sequential(nn.Conv3d(1, 32, 4, 2, 1), nn.SiLU(), nn.Conv3d(32, 1, 4, 2, 1))])


def unet() -> "nn.ModuleList":
    deep = nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(16, 32, 3, 1, 1), nn.LeakyReLU(), nn.ConvTranspose3d(32, 16, 2, 2))
    return nn.ModuleList([nn.Conv3d(1, 16, 3, 1, 1), deep, nn.Conv3d(32, 1, 3, 1, 1)])


LOSSES = {  # what networks make of volumes x
    autoencoder: lambda nets, x: mse_loss(nets[1](nets[0](x)), x),
    gan: lambda nets, x: softplus(-nets[1](x)).mean() + softplus(nets[1](nets[0](x.view(2, 8, 12, 12, 12)))).mean(),
    unet: lambda nets, x: mse_loss(nets[2](torch.cat([y := nets[0](x), nets[1](y)], 1)), avg_pool3d(x, 3, 1, 1)),
}


def train(build, swapped: bool) -> "tuple[list[float], float]":
    """The loss of each step, and the milliseconds of the last one."""
    torch.manual_seed(0)
    nets, losses = build(), []
    if swapped:
        convt3d.torch.swap(nets)
    optimiser = torch.optim.SGD(nets.parameters(), lr=0.005)
    for _ in range(5):
        begun = time.perf_counter()
        loss = LOSSES[build](nets, torch.randn(2, 1, 24, 24, 24))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses, 1e3 * (time.perf_counter() - begun)


if torch is None:
    print("skipped: this example needs torch (pip install torch)")
else:
    import convt3d.torch

    for each in LOSSES:
        (eager, slow), (ours, fast) = (train(each, swapped) for swapped in (False, True))
        print(each.__name__, f"stock loss {eager[-1]:.4f}, {slow:.1f} ms; swapped {ours[-1]:.4f}, {fast:.1f} ms a step")
