"""Modules: `ConvTranspose3d` in the place of PyTorch's, and one for each fused operator.

Each is an `nn.ConvTranspose3d` by its constructor, its parameters and its state_dict, so weights go either way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from . import functions
from .stock import Tensor


class ConvTranspose3d(nn.ConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.ConvTranspose3d`, computed by convt3d."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        output_padding = self._sized(input, output_size)
        conv = self.stride, self.padding, output_padding, self.groups, self.dilation
        return functions.conv_transpose3d(input, self.weight, self.bias, *conv)

    def _sized(self, input: Tensor, output_size: list[int] | None) -> Any:
        """output_padding, or the one that gives `output_size`."""
        if output_size is None:
            return self.output_padding
        geometry = self.stride, self.padding, self.kernel_size
        return self._output_padding(input, output_size, *geometry, 3, self.dilation)


class LazyConvTranspose3d(nn.LazyConvTranspose3d, ConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.LazyConvTranspose3d`: takes in_channels from its first input, and is a ConvTranspose3d from then on."""

    cls_to_become = ConvTranspose3d


class _Fused(ConvTranspose3d):
    """A convolution with a tail; `tail` names what its repr shows beside the convolution."""

    tail: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        return ", ".join([super().extra_repr(), *(f"{name}={getattr(self, name)!r}" for name in self.tail)])

    def _affine(self, elementwise_affine: bool) -> None:
        """Weight and bias of the norm over the channels, if asked for."""
        like = {"device": self.weight.device, "dtype": self.weight.dtype}
        for name, fill in (("norm_weight", torch.ones), ("norm_bias", torch.zeros)):
            made = nn.Parameter(fill(self.out_channels, **like)) if elementwise_affine else None
            self.register_parameter(name, made)

    @property
    def _tail_of_norm(self) -> dict[str, Any]:
        return {
            "bias": self.bias,
            "norm_weight": self.norm_weight,
            "norm_bias": self.norm_bias,
            "eps": self.eps,
            "approximate": self.approximate,
            "groups": self.groups,
            "dilation": self.dilation,
        }


class ConvTranspose3dMaxMaxSum(_Fused):
    """ConvTranspose3d -> MaxPool3d(2) -> MaxPool3d(3) -> sum over channels."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return functions.conv_transpose3d_max_max_sum(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            output_padding=self._sized(input, output_size),
            groups=self.groups,
            dilation=self.dilation,
        )


class ConvTranspose3dSumLayerNormAvgPoolGELU(_Fused):
    """ConvTranspose3d -> + sum_weight -> LayerNorm over channels -> AvgPool3d(2) -> GELU."""

    tail = ("sum_weight", "eps", "approximate")

    def __init__(
        self,
        *conv: Any,
        sum_weight: float = 1.0,
        eps: float = 1e-5,
        elementwise_affine: bool = False,
        approximate: str = "none",
        **named: Any,
    ) -> None:
        super().__init__(*conv, **named)
        self.sum_weight, self.eps, self.approximate = sum_weight, eps, approximate
        self._affine(elementwise_affine)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        conv = self.stride, self.padding, self._sized(input, output_size)
        return functions.conv_transpose3d_sum_layernorm_avgpool_gelu(
            input, self.weight, self.sum_weight, *conv, **self._tail_of_norm
        )


class ConvTranspose3dAvgPoolClampSoftmaxMultiply(_Fused):
    """AvgPool3d(pool_kernel) -> ConvTranspose3d -> clamp -> softmax over voxels -> * scale, a parameter."""

    tail = ("pool_kernel", "clamp_min", "clamp_max")

    def __init__(
        self,
        *conv: Any,
        pool_kernel: Any = 2,
        clamp_min: float | None = 0.0,
        clamp_max: float | None = 1.0,
        **named: Any,
    ) -> None:
        super().__init__(*conv, **named)
        self.pool_kernel, self.clamp_min, self.clamp_max = pool_kernel, clamp_min, clamp_max
        like = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.scale = nn.Parameter(torch.ones(1, self.out_channels, 1, 1, 1, **like))

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is not None:
            pooled = torch.nn.functional.avg_pool3d(input, self.pool_kernel)
            output_padding = self._sized(pooled, output_size)
        else:
            output_padding = self.output_padding
        return functions.conv_transpose3d_avgpool_clamp_softmax_multiply(
            input,
            self.weight,
            self.scale,
            self.stride,
            self.padding,
            output_padding,
            self.pool_kernel,
            self.clamp_min,
            self.clamp_max,
            bias=self.bias,
            groups=self.groups,
            dilation=self.dilation,
        )


class ConvTranspose3dLayerNormGELUScaling(_Fused):
    """ConvTranspose3d -> LayerNorm over channels -> GELU -> * scaling_factor."""

    tail = ("scaling_factor", "eps", "approximate")

    def __init__(
        self,
        *conv: Any,
        scaling_factor: float = 1.0,
        eps: float = 1e-5,
        elementwise_affine: bool = False,
        approximate: str = "none",
        **named: Any,
    ) -> None:
        super().__init__(*conv, **named)
        self.scaling_factor, self.eps, self.approximate = scaling_factor, eps, approximate
        self._affine(elementwise_affine)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        conv = self.stride, self.padding, self._sized(input, output_size)
        return functions.conv_transpose3d_layernorm_gelu_scaling(
            input, self.weight, self.scaling_factor, *conv, **self._tail_of_norm
        )
