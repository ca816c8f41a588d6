"""The one table: for every stage of the vocabulary, what PyTorch calls it. Rows feed all tests of meanings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from convt3d.spec import backends
from convt3d.spec import stages as vocabulary
from convt3d.spec.stage import Stage
from convt3d.spec.stages import (
    GELU,
    Add,
    AvgPool3d,
    BatchNorm,
    Clamp,
    Conv3d,
    ConvTranspose3d,
    Divide,
    Exp,
    GroupNorm,
    HardSwish,
    HardTanh,
    InstanceNorm,
    Keep,
    LayerNorm,
    LeakyReLU,
    Log,
    LogSumExp,
    Max,
    MaxPool3d,
    Mean,
    Mish,
    Multiply,
    PReLU,
    Recall,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Subtract,
    Sum,
    Tanh,
)

inf, nan = float("inf"), float("nan")
Tensor = torch.Tensor

# Prime sizes that differ from one another; six channels divide into groups. The second has axes of size 1 and 2.
SHAPES = ((2, 6, 3, 5, 7), (1, 6, 1, 3, 2))


@dataclass(frozen=True)
class Row:
    """torch(x, *tensors) is what stage means; a label's value comes as a tensor."""

    stage: Stage
    torch: Callable[..., Tensor]
    why: str
    kernel: tuple[int, int, int, int] | None = None  # Cout/groups, Kd, Kh, Kw of a convolution
    chains: bool = True  # whether random chains may hold it (False: it makes everything after it NaN or Inf)
    fused: bool = False  # PyTorch deviates for an infinite weight: it computes x * s + (bias - mean * s), Inf - Inf

    def weight(self, channels: int) -> tuple[int, ...] | None:
        """The shape of a convolution's weight for so many input channels."""
        if self.kernel is None:
            return None
        if isinstance(self.stage, Conv3d):
            groups = self.stage.groups
            return self.kernel[0] * groups, channels // groups, *self.kernel[1:]
        return channels, *self.kernel

    @property
    def id(self) -> str:
        return f"{self.stage!r}: {self.why}"


def classes() -> set[type[Stage]]:
    """Every stage."""
    return {getattr(vocabulary, name) for name in backends.vocabulary()}


def _conv(kernel: tuple[int, int, int, int], why: str, **parameters: Any) -> Row:
    given = {name: value for name, value in parameters.items() if name != "bias"}

    def function(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.conv_transpose3d(x, w, bias, **given)

    return Row(ConvTranspose3d(**parameters), function, why, kernel)


def _forward(kernel: tuple[int, int, int, int], why: str, **parameters: Any) -> Row:
    given = {name: value for name, value in parameters.items() if name not in ("bias", "padding_mode")}

    def function(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        mode, padding = parameters.get("padding_mode", "zeros"), parameters.get("padding", 0)
        if mode == "zeros":
            return functional.conv3d(x, w, bias, **given)
        sides = [size for size in reversed(padding) for _ in range(2)]
        return functional.conv3d(functional.pad(x, sides, mode), w, bias, **{**given, "padding": 0})

    return Row(Conv3d(**parameters), function, why, kernel)


def _reduction(stage: type[Stage], function: Callable[[Tensor, tuple[int, ...]], Tensor]) -> list[Row]:
    return [
        Row(stage("channels"), lambda x: function(x, (1,)), "one channel is left"),
        Row(stage("spatial"), lambda x: function(x, (2, 3, 4)), "one voxel is left, depth x height x width at once"),
        Row(stage("depth"), lambda x: function(x, (2,)), "one plane is left"),
        Row(stage("height"), lambda x: function(x, (3,)), "one row of each plane is left"),
        Row(stage("width"), lambda x: function(x, (4,)), "one voxel of each row is left"),
    ]


def _softmax_space(x: Tensor) -> Tensor:
    return torch.softmax(x.flatten(2), 2).reshape(x.shape)


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    last = x.permute(0, 2, 3, 4, 1).contiguous()
    return functional.layer_norm(last, last.shape[-1:], weight, bias, eps).permute(0, 4, 1, 2, 3)


def _row_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """PyTorch refuses instance_norm of a single voxel ("when training"), but not a group_norm of single channels."""
    if x[0, 0].numel() > 1:
        return functional.instance_norm(x, weight=weight, bias=bias, eps=eps)
    return torch.group_norm(x, x.shape[1], weight, bias, eps)


def _column(vector: Tensor) -> Tensor:
    return vector.reshape(1, -1, 1, 1, 1)


ROWS: tuple[Row, ...] = (
    _conv((3, 2, 3, 4), "the defaults"),
    _conv(
        (2, 3, 4, 2), "stride 2 with bias, kernels unequal", stride=2, padding=(1, 1, 0), output_padding=1, bias=True
    ),
    _conv(
        (1, 3, 2, 1),
        "everything unequal; kernel < stride along width leaves voxels without a tap",
        stride=(2, 1, 3),
        padding=(1, 0, 1),
        output_padding=(1, 1, 2),
        dilation=(1, 2, 1),
        bias=True,
    ),
    _conv((2, 2, 1, 3), "two groups: weight[1] counts the outputs of one group", groups=2, stride=(1, 2, 1), bias=True),
    _conv((1, 2, 3, 2), "depthwise, dilated", groups=6, dilation=(3, 1, 2), padding=(0, 1, 1)),
    _forward((3, 1, 1, 1), "the defaults"),
    _forward((3, 3, 3, 3), "the size is kept, with bias", padding="same", bias=True),
    _forward((2, 3, 2, 3), "every second voxel, kernels unequal", stride=2, padding=(2, 1, 2)),
    _forward((1, 1, 2, 1), "voxels that no output reads", stride=(3, 1, 2), padding=(0, 1, 0)),
    _forward((2, 3, 2, 2), "dilated", dilation=(1, 2, 3), padding=(1, 2, 3), bias=True),
    _forward((2, 2, 1, 3), "edges repeated", padding=(1, 0, 2), padding_mode="replicate"),
    Row(MaxPool3d((1, 2, 2)), lambda x: functional.max_pool3d(x, (1, 2, 2)), "stride = kernel, odd tail dropped"),
    Row(MaxPool3d(2, 1, 1), lambda x: functional.max_pool3d(x, 2, 1, 1), "overlapping windows; padding is -inf, not 0"),
    Row(
        MaxPool3d((1, 1, 2), (2, 3, 2), 0, ceil_mode=True),
        lambda x: functional.max_pool3d(x, (1, 1, 2), (2, 3, 2), 0, 1, True),
        "gaps between windows, last one cut by ceil_mode",
    ),
    Row(AvgPool3d((1, 3, 2)), lambda x: functional.avg_pool3d(x, (1, 3, 2)), "stride = kernel, odd tail dropped"),
    Row(AvgPool3d(2, 1, 1), lambda x: functional.avg_pool3d(x, 2, 1, 1), "padding counts as zeros"),
    Row(
        AvgPool3d((2, 3, 2), (2, 1, 3), (1, 1, 1), True, False),
        lambda x: functional.avg_pool3d(x, (2, 3, 2), (2, 1, 3), (1, 1, 1), True, False),
        "padding and the cut window do not count",
    ),
    Row(
        AvgPool3d((2, 3, 2), (2, 2, 3), 1, True, True),
        lambda x: functional.avg_pool3d(x, (2, 3, 2), (2, 2, 3), 1, True, True),
        "padding counts, but not what ceil_mode hangs over it",
    ),
    Row(
        AvgPool3d((1, 3, 2), 2, (0, 1, 1), False, True, 5),
        lambda x: functional.avg_pool3d(x, (1, 3, 2), 2, (0, 1, 1), False, True, 5),
        "a divisor of one's own",
    ),
    *_reduction(Sum, lambda x, dims: x.sum(dims, keepdim=True)),
    *_reduction(Mean, lambda x, dims: x.mean(dims, keepdim=True)),
    *_reduction(Max, lambda x, dims: x.amax(dims, keepdim=True)),
    *_reduction(LogSumExp, lambda x, dims: x.logsumexp(dims, keepdim=True)),
    Row(Softmax("channels"), lambda x: torch.softmax(x, 1), "over channels"),
    Row(Softmax("spatial"), _softmax_space, "over all voxels at once"),
    Row(
        Softmax("spatial", scale="channel"),
        lambda x, s: _softmax_space(x) * _column(s),
        "with a factor for each channel",
    ),
    Row(
        Softmax("channels", scale="channel"),
        lambda x, s: torch.softmax(x, 1) * _column(s),
        "a factor for each channel, along the softmax itself",
    ),
    Row(Softmax("channels", scale=-2.5), lambda x: torch.softmax(x, 1) * -2.5, "with a negative number as factor"),
    Row(LayerNorm(), lambda x: _layer_norm(x, None, None, 1e-5), "the operators' meaning: channels, eps 1e-5"),
    Row(LayerNorm(eps=0.3, affine=True), lambda x, w, b: _layer_norm(x, w, b, 0.3), "affine, an eps that shows"),
    Row(LayerNorm("width"), lambda x: _row_norm(x, None, None, 1e-5), "KernelBench's meaning: each row"),
    Row(LayerNorm("width", 0.2, True), lambda x, w, b: _row_norm(x, w, b, 0.2), "affine vectors lie along the width"),
    Row(GroupNorm(3), lambda x: torch.group_norm(x, 3), "two channels in each group"),
    Row(
        GroupNorm(2, eps=0.1, affine=True),
        lambda x, w, b: torch.group_norm(x, 2, w, b, 0.1),
        "affine for each channel",
        fused=True,
    ),
    Row(GroupNorm(1), lambda x: torch.group_norm(x, 1), "a whole sample is one group"),
    Row(InstanceNorm(), lambda x: _instance_norm(x, None, None, 1e-5), "each channel by itself"),
    Row(InstanceNorm(eps=0.1, affine=True), lambda x, w, b: _instance_norm(x, w, b, 0.1), "affine", fused=True),
    Row(BatchNorm(), lambda x, m, v: functional.batch_norm(x, m, v), "inference: given statistics"),
    Row(
        BatchNorm(eps=0.3, affine=True),
        lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b, eps=0.3),
        "affine, an eps that shows",
    ),
    Row(
        BatchNorm(eps=0.0, affine=True),
        lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b, eps=0.0),
        "zero variance shows",
    ),
    Row(Keep("kept"), lambda x: x, "changes nothing"),
    Row(Recall("kept"), lambda x, o: o, "back to the kept value"),
    Row(Add(-1.75), lambda x: x + -1.75, "number"),
    Row(Add("channel"), lambda x, o: x + _column(o), "vector"),
    Row(Add("tensor"), lambda x, o: x + o, "array"),
    Row(Add("kept"), lambda x, o: x + o, "residual"),
    Row(Add(inf), lambda x: x + inf, "Inf + -Inf is NaN", chains=False),
    Row(Add(nan), lambda x: x + nan, "NaN as a number is allowed", chains=False),
    Row(Subtract(0.6), lambda x: x - 0.6, "number; the order matters"),
    Row(Subtract("channel"), lambda x, o: x - _column(o), "vector"),
    Row(Subtract("kept"), lambda x, o: x - o, "label"),
    Row(Subtract(0.6, reverse=True), lambda x: torch.rsub(x, 0.6), "number minus value"),
    Row(Subtract("channel", True), lambda x, o: _column(o) - x, "vector minus value"),
    Row(Subtract("tensor", True), lambda x, o: o - x, "array minus value"),
    Row(Subtract("kept", True), lambda x, o: o - x, "kept value minus this one"),
    Row(Multiply(-1.4), lambda x: x * -1.4, "negative number"),
    Row(Multiply(0.0), lambda x: x * 0.0, "Inf * 0 is NaN", chains=False),
    Row(Multiply("channel"), lambda x, o: x * _column(o), "vector"),
    Row(Multiply("tensor"), lambda x, o: x * o, "array"),
    Row(Multiply("x"), lambda x, o: x * o, "the pipeline's input"),
    Row(Divide(-0.7), lambda x: x / -0.7, "negative number"),
    Row(Divide(-0.0), lambda x: x / -0.0, "the sign of zero decides the sign of Inf", chains=False),
    Row(Divide(1.5, reverse=True), lambda x: 1.5 / x, "number by value: division by zero gives Inf", chains=False),
    Row(Divide(0.0, reverse=True), lambda x: 0.0 / x, "0 / 0 is NaN", chains=False),
    Row(Divide("channel", True), lambda x, o: _column(o) / x, "vector by value", chains=False),
    Row(Divide("tensor", True), lambda x, o: o / x, "array by value", chains=False),
    Row(Divide("x", True), lambda x, o: o / x, "the pipeline's input by value", chains=False),
    Row(Divide("channel"), lambda x, o: x / _column(o), "vector"),
    Row(Divide("tensor"), lambda x, o: x / o, "array"),
    Row(Clamp(-0.5, 1.25), lambda x: x.clamp(-0.5, 1.25), "two-sided"),
    Row(Clamp(min=0.3), lambda x: x.clamp(min=0.3), "only from below"),
    Row(Clamp(max=-0.3), lambda x: x.clamp(max=-0.3), "only from above"),
    Row(Clamp(-inf, 0.9), lambda x: x.clamp(-inf, 0.9), "infinite bound"),
    Row(Clamp(0.7, 0.7), lambda x: x.clamp(0.7, 0.7), "equal bounds: NaN still travels"),
    Row(GELU(), functional.gelu, "exact, with erf"),
    Row(GELU("tanh"), lambda x: functional.gelu(x, approximate="tanh"), "the tanh formula"),
    Row(ReLU(), functional.relu, "NaN travels"),
    Row(LeakyReLU(), functional.leaky_relu, "default slope"),
    Row(LeakyReLU(-0.3), lambda x: functional.leaky_relu(x, -0.3), "negative slope"),
    Row(PReLU(), functional.prelu, "a slope for each channel"),
    Row(Sigmoid(), torch.sigmoid, "plain"),
    Row(Tanh(), torch.tanh, "plain"),
    Row(SiLU(), functional.silu, "plain"),
    Row(HardSwish(), functional.hardswish, "plain"),
    Row(HardTanh(), functional.hardtanh, "default bounds"),
    Row(HardTanh(-0.4, 1.7), lambda x: functional.hardtanh(x, -0.4, 1.7), "unequal bounds"),
    Row(Mish(), functional.mish, "plain"),
    Row(Softplus(), functional.softplus, "defaults; wide data pass the threshold"),
    Row(Softplus(-1.3, 2.0), lambda x: functional.softplus(x, -1.3, 2.0), "negative beta, threshold inside the data"),
    Row(Exp(), torch.exp, "plain"),
    Row(Log(), torch.log, "NaN below zero, -Inf at it", chains=False),
)
