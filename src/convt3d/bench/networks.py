"""Whole networks, as their authors build them: of MONAI, of nnU-Net, and some written out.

An entry has a function that builds the network, the package it needs, and the shape of its input. Weights are drawn,
and running statistics moved away from 0 and 1, so that a mistake in them shows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Network:
    name: str
    make: Callable[[], Any]
    shape: tuple[int, ...]
    package: str = ""  # that it needs beside torch
    small: tuple[int, ...] = ()  # a shape that it takes in tests

    def build(self) -> Any:
        """In eval; always with the same numbers."""
        torch.manual_seed(0)
        network = self.make().eval()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm3d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.8, 1.2)
        return network

    def input(self, small: bool = False) -> Any:
        torch.manual_seed(1)
        return torch.randn((self.small or self.shape) if small else self.shape)


def _monai(name: str, *args: Any, **named: Any) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module("monai.networks.nets"), name)(*args, **named)


def _nnunet(name: str, **blocks: Any) -> Callable[[], Any]:
    def make() -> Any:
        kind = getattr(importlib.import_module("dynamic_network_architectures.architectures.unet"), name)
        norm = {"norm_op": nn.InstanceNorm3d, "norm_op_kwargs": {"eps": 1e-5, "affine": True}}
        leaky = {"nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}
        sizes = {"n_stages": 4, "features_per_stage": (32, 64, 128, 256), "strides": (1, 2, 2, 2), "kernel_sizes": 3}
        return kind(1, conv_op=nn.Conv3d, num_classes=4, conv_bias=True, **sizes, **blocks, **norm, **leaky)

    return make


def _risen(channels: int, out: int, kernel: int = 4, stride: int = 2, padding: int = 1) -> list[Any]:
    up = nn.ConvTranspose3d(channels, out, kernel, stride, padding, bias=False)
    return [up, nn.BatchNorm3d(out), nn.ReLU(True)]


def _gan() -> Any:
    """The generator of 3D-GAN: 64 voxels a side from 200 numbers."""
    tail = [nn.ConvTranspose3d(64, 1, 4, 2, 1), nn.Sigmoid()]
    return nn.Sequential(*_risen(200, 512, 4, 1, 0), *_risen(512, 256), *_risen(256, 128), *_risen(128, 64), *tail)


def _vae_decoder() -> Any:
    """Residual blocks of GroupNorm, SiLU and Conv3d between transposed convolutions."""

    class Residual(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)
            self.conv1, self.conv2 = (nn.Conv3d(channels, channels, 3, padding=1) for _ in range(2))

        def forward(self, x: Any) -> Any:
            y = self.conv1(nn.functional.silu(self.norm1(x)))
            return x + self.conv2(nn.functional.silu(self.norm2(y)))

    def level(channels: int) -> list[Any]:
        return [Residual(channels), nn.ConvTranspose3d(channels, channels // 2, 4, 2, 1)]

    return nn.Sequential(nn.Conv3d(4, 64, 3, padding=1), *level(64), *level(32), nn.GroupNorm(8, 16), nn.SiLU(),
                         nn.Conv3d(16, 1, 3, padding=1), nn.Tanh())  # fmt: skip


class _Hourglass(nn.Module):  # type: ignore[misc]
    """Of a stereo network's cost volume: two levels down and up, sums before the ReLU, and the mean disparity."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()

        def conv(cin: int, cout: int, stride: int = 1) -> Any:
            return nn.Sequential(nn.Conv3d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm3d(cout))

        def up(cin: int, cout: int) -> Any:
            made = nn.ConvTranspose3d(cin, cout, 3, 2, 1, output_padding=1, bias=False)
            return nn.Sequential(made, nn.BatchNorm3d(cout))

        self.first = nn.Sequential(conv(channels, channels), nn.ReLU(inplace=True))
        self.down1, self.same1 = conv(channels, 2 * channels, 2), conv(2 * channels, 2 * channels)
        self.down2, self.same2 = conv(2 * channels, 2 * channels, 2), conv(2 * channels, 2 * channels)
        self.up2, self.up1 = up(2 * channels, 2 * channels), up(2 * channels, channels)
        self.head = nn.Conv3d(channels, 1, 3, padding=1, bias=False)

    def forward(self, x: Any) -> Any:
        relu = nn.functional.relu
        first = self.first(x)
        half = relu(self.same1(relu(self.down1(first), inplace=True)))
        quarter = relu(self.same2(relu(self.down2(half), inplace=True)), inplace=True)
        half = relu(self.up2(quarter) + half, inplace=True)
        cost = self.head(self.up1(half) + first).squeeze(1)
        disparities = torch.arange(cost.shape[1], dtype=cost.dtype).view(1, -1, 1, 1)
        return (torch.softmax(cost, 1) * disparities).sum(1)


_CUBE, _SMALL = (1, 1, 64, 64, 64), (1, 1, 32, 32, 32)
_WIDTHS = {"channels": (16, 32, 64, 128), "strides": (2, 2, 2)}
_DYN = {"kernel_size": [3] * 4, "strides": [1, 2, 2, 2], "upsample_kernel_size": [2] * 3, "filters": [16, 32, 64, 128]}
_UNETR = {"feature_size": 16, "hidden_size": 192, "mlp_dim": 768, "num_heads": 6}
_DNA = "dynamic_network_architectures"

NETWORKS = {
    each.name: each
    for each in (
        Network("monai-unet", _monai("UNet", 3, 1, 2, **_WIDTHS, num_res_units=2), _CUBE, "monai", _SMALL),
        Network("monai-dynunet", _monai("DynUNet", 3, 1, 2, **_DYN), _CUBE, "monai", _SMALL),
        Network("monai-vnet", _monai("VNet", 3, 1, 2), _CUBE, "monai", _SMALL),
        Network("monai-attention-unet", _monai("AttentionUnet", 3, 1, 2, **_WIDTHS), _CUBE, "monai", _SMALL),
        Network("monai-unetr", _monai("UNETR", 1, 2, (64, 64, 64), **_UNETR), _CUBE, "monai"),
        Network("monai-swin-unetr", _monai("SwinUNETR", 1, 2, feature_size=12), _CUBE, "monai"),
        Network("monai-segresnet", _monai("SegResNet", 3, 8, 1, 2), _CUBE, "monai", _SMALL),
        Network(
            "nnunet", _nnunet("PlainConvUNet", n_conv_per_stage=2, n_conv_per_stage_decoder=2), _CUBE, _DNA, _SMALL
        ),
        Network(
            "nnunet-residual",
            _nnunet("ResidualEncoderUNet", n_blocks_per_stage=(1, 2, 2, 2), n_conv_per_stage_decoder=1),
            _CUBE,
            _DNA,
            _SMALL,
        ),
        Network("3d-gan", _gan, (1, 200, 1, 1, 1)),
        Network("3d-gan-batch", _gan, (16, 200, 1, 1, 1), small=(3, 200, 1, 1, 1)),
        Network("vae-decoder", _vae_decoder, (1, 4, 16, 16, 16), small=(2, 4, 6, 5, 7)),
        Network("stereo-hourglass", _Hourglass, (1, 32, 48, 64, 128), small=(1, 32, 8, 12, 16)),
    )
}
