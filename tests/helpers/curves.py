"""Three small networks and their training: an autoencoder, a GAN (a generator of transposed convolutions against a
discriminator of strided ones) and a U-Net with a skip. Data, weights and optimiser are the same for everyone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import convt3d.torch


def autoencoder() -> nn.ModuleDict:
    """Smooth functions: a BatchNorm puts values on both sides of a ReLU's corner, where a rounding decides."""
    net = nn.Sequential(
        nn.Conv3d(2, 12, 3, stride=2, padding=1), nn.BatchNorm3d(12), nn.SiLU(),
        nn.Conv3d(12, 16, 3, stride=2, padding=1), nn.BatchNorm3d(16), nn.SiLU(),
        nn.ConvTranspose3d(16, 12, 4, stride=2, padding=1), nn.BatchNorm3d(12), nn.SiLU(),
        nn.ConvTranspose3d(12, 2, 4, stride=2, padding=1), nn.Sigmoid(),
    )  # fmt: skip
    return nn.ModuleDict({"net": net})


def train_autoencoder(nets: nn.ModuleDict, dtype: Any, steps: int) -> Iterator[Any]:
    optimiser = torch.optim.SGD(nets.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x = data(step, (2, 2, 8, 12, 12), dtype).sigmoid()
        loss = functional.mse_loss(nets["net"](x), x)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield loss


def gan() -> nn.ModuleDict:
    """Smooth functions: beside the corner of a ReLU a rounding decides, and two players soon make much of that."""
    generator = nn.Sequential(
        nn.ConvTranspose3d(10, 24, (2, 3, 3)), nn.BatchNorm3d(24), nn.SiLU(),
        nn.ConvTranspose3d(24, 12, 4, stride=2, padding=1), nn.BatchNorm3d(12), nn.SiLU(),
        nn.ConvTranspose3d(12, 1, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv3d(1, 12, 4, stride=2, padding=1), nn.SiLU(),
        nn.Conv3d(12, 24, 4, stride=2, padding=1), nn.InstanceNorm3d(24, affine=True), nn.SiLU(),
        nn.Conv3d(24, 1, (2, 3, 3)), nn.Flatten(),
    )  # fmt: skip
    return nn.ModuleDict({"generator": generator, "discriminator": discriminator})


def train_gan(nets: nn.ModuleDict, dtype: Any, steps: int) -> Iterator[Any]:
    """Both losses in their turn."""
    generator, discriminator = nets["generator"], nets["discriminator"]
    g_steps, d_steps = (torch.optim.SGD(net.parameters(), lr=0.01) for net in (generator, discriminator))
    verdict = functional.binary_cross_entropy_with_logits
    for step in range(steps):
        real, noise = data(step, (3, 1, 8, 12, 12), dtype).tanh(), data(-1 - step, (3, 10, 1, 1, 1), dtype)
        fake = generator(noise)
        found, missed = discriminator(real), discriminator(fake.detach())
        loss = verdict(found, torch.ones_like(found)) + verdict(missed, torch.zeros_like(missed))
        d_steps.zero_grad()
        loss.backward()
        d_steps.step()
        believed = discriminator(fake)
        deceived = verdict(believed, torch.ones_like(believed))
        g_steps.zero_grad()
        deceived.backward()
        g_steps.step()
        yield loss + deceived


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU())
        self.deep = nn.Sequential(nn.Conv3d(8, 16, 3, padding=1), nn.InstanceNorm3d(16, affine=True), nn.LeakyReLU())
        self.up = nn.ConvTranspose3d(16, 8, 2, stride=2)
        self.last = nn.Sequential(nn.Conv3d(16, 8, 3, padding=1), nn.LeakyReLU(), nn.Conv3d(8, 3, 1))

    def forward(self, x: Any) -> Any:
        skip = self.down(x)
        deep = self.deep(functional.max_pool3d(skip, 2))
        return self.last(torch.cat([self.up(deep), skip], 1))


def train_unet(nets: nn.ModuleDict, dtype: Any, steps: int) -> Iterator[Any]:
    optimiser = torch.optim.SGD(nets.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x = data(step, (2, 1, 6, 12, 10), dtype)
        smooth = functional.avg_pool3d(x, 3, 1, 1)[:, 0]
        labels = (smooth > 0).long() + (smooth > 0.2).long()
        loss = functional.cross_entropy(nets["net"](x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield loss


NETWORKS: dict[str, tuple[Callable[[], nn.ModuleDict], Callable[..., Iterator[Any]]]] = {
    "autoencoder": (autoencoder, train_autoencoder),
    "GAN": (gan, train_gan),
    "U-Net": (lambda: nn.ModuleDict({"net": UNet()}), train_unet),
}


def data(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """The same numbers for everyone."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64)
    return drawn.to(dtype)


def curve(name: str, steps: int, ours: bool, dtype: Any = torch.float32) -> list[float]:
    """The loss of each step."""
    build, train = NETWORKS[name]
    torch.manual_seed(1)
    nets = build().to(dtype).train()
    if ours:
        convt3d.torch.swap(nets)
    return [loss.item() for loss in train(nets, dtype, steps)]
