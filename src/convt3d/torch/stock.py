"""The same meaning in PyTorch's own operations: what runs where the CPU engine cannot, and what backward recomputes."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from ..spec import stages
from ..spec.backends import StageTable
from ..spec.checks import Triple, as_triple
from ..spec.pipeline import Pipeline
from ..spec.shapes import Shape
from ..spec.stage import Stage
from ..spec.stages import Binary
from .layout import result_format, shapes_of

Tensor: TypeAlias = Any  # torch may be absent where types are checked
Others: TypeAlias = Mapping[type[Stage], Callable[..., Tensor]]
NO_OTHERS: Others = {}
# PyTorch's, also where somebody puts ours in their place.
_conv_transpose3d, _conv3d = functional.conv_transpose3d, functional.conv3d
AXES = stages.OVER


def run(
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    others: Others = NO_OTHERS,
    known: tuple[int, Tensor] | None = None,
) -> Tensor:
    """The result as eager PyTorch computes it, in the memory format of the operators; `others` are meanings that some
    stages have instead of PyTorch's. `known` is a value that is there already, and its number."""
    x, operands, unbatched = batched(pipeline, x, operands)
    last = len(pipeline.stages)
    value = values(pipeline, x, operands, {last}, others, known)[last]
    if not torch._C._functorch.is_functorch_wrapped_tensor(x):
        value = value.contiguous(memory_format=result_format(pipeline, x, weights_of(pipeline, operands)))
    return as_result(pipeline, value, unbatched)


def as_result(pipeline: Pipeline, value: Tensor, unbatched: bool = False) -> Tensor:
    """The last value without the axes that the pipeline drops, and without the batch of an unbatched call."""
    for axis in reversed(pipeline.dropped):
        value = value.select(axis, 0)
    return value[0] if unbatched else value


def as_value(pipeline: Pipeline, result: Tensor, unbatched: bool) -> Tensor:
    """The other way round."""
    result = result[None] if unbatched else result
    for axis in pipeline.dropped:
        result = result.unsqueeze(axis)
    return result


def function_of(pipeline: Pipeline) -> Callable[[Tensor, Sequence[Tensor]], Tensor]:
    """f(x, operands in slot order): the stages as a user of PyTorch writes them, in the memory format they give."""
    last = len(pipeline.stages)
    return lambda x, operands: as_result(pipeline, values(pipeline, x, operands, {last})[last])


def batched(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], bool]:
    """x with a batch, and whether it had none; second values with as many axes, as broadcasting has them; numbers as
    often as they are needed."""
    unbatched = x.dim() == 4
    x = x[None] if unbatched else x
    tensors = list(operands)
    for at, (slot, tensor) in enumerate(zip(pipeline.slots, operands, strict=True)):
        if slot.operand.kind == "tensor":
            tensors[at] = tensor.reshape(*(1,) * (5 - tensor.dim()), *tensor.shape)
        elif slot.operand.kind == "channel" and slot.operand.number and tensor.dim() == 0:
            shapes = value_shapes(pipeline, x, operands)
            tensors[at] = tensor.expand(shapes[slot.stage][1]).contiguous()
    return x, tensors, unbatched


def weights_of(pipeline: Pipeline, operands: Sequence[Tensor]) -> list[Tensor]:
    """Of the convolutions."""
    return [tensor for slot, tensor in zip(pipeline.slots, operands, strict=True) if slot.operand.kind == "kernel"]


def value_shapes(pipeline: Pipeline, x: Tensor, operands: Sequence[Tensor]) -> list[Shape]:
    """Of all values, for a batched x."""
    kernels = tuple(weight.shape for weight in weights_of(pipeline, operands))
    try:
        return _known_shapes(pipeline, x.shape, kernels)
    except TypeError:  # sizes that are symbols are no keys
        return shapes_of(pipeline, x.shape, kernels)


@lru_cache(maxsize=1024)
def _known_shapes(pipeline: Pipeline, x: Sequence[int], kernels: Sequence[Sequence[int]]) -> list[Shape]:
    return shapes_of(pipeline, x, kernels)


def own_operands(pipeline: Pipeline, operands: Sequence[Tensor], index: int) -> list[Tensor]:
    """The operands of one stage."""
    return [tensor for slot, tensor in zip(pipeline.slots, operands, strict=True) if slot.stage == index]


def values(
    pipeline: Pipeline,
    x: Tensor,
    operands: Sequence[Tensor],
    wanted: set[int],
    others: Others = NO_OTHERS,
    known: tuple[int, Tensor] | None = None,
) -> dict[int, Tensor]:
    """The wanted values, by number: value i enters stage i. Others are dropped as soon as they have been used. Those
    behind one that is `known`, with its number, are computed from there."""
    first, value = known or (0, x)
    found = {first: value} if first in wanted else {}
    kept = {"x": x}
    for index in range(first, max(wanted, default=0)):
        stage, own = pipeline.stages[index], own_operands(pipeline, operands, index)
        if stage.uses:
            own = [kept[stage.uses]]
        value = (others.get(type(stage)) or STOCK[type(stage)])(stage, value, *own)
        if stage.keeps:
            kept[stage.keeps] = value
        if index + 1 in wanted:
            found[index + 1] = value
    return found


def column(vector: Tensor) -> Tensor:
    """One number for each channel, of shape (C,), (C, 1, 1, 1) or (1, C, 1, 1, 1), to meet axis 1 of a value."""
    return vector.reshape(1, -1, 1, 1, 1)


def other(stage: Binary, operand: Tensor | None) -> Tensor | float:
    """The second value of an arithmetic stage: its number, or the tensor it is given."""
    if operand is None:
        return stage.other
    return column(operand) if stage.other == "channel" else operand


# --- one function for each stage --------------------------------------------------------------------------------------


def _conv(stage: stages.ConvTranspose3d, v: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    stride, padding, output_padding, dilation = stage.triples
    return _conv_transpose3d(v, w, bias, stride, padding, output_padding, stage.groups, dilation)


def _conv_forward(stage: stages.Conv3d, v: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    padded, padding = (v, stage.padding) if stage.padding_mode == "zeros" else padded_input(stage, v, w)
    padding = padding if isinstance(padding, str) else as_triple(padding)
    return _conv3d(padded, w, bias, as_triple(stage.stride), padding, as_triple(stage.dilation), stage.groups)


def padded_input(stage: stages.Conv3d, v: Tensor, w: Tensor) -> tuple[Tensor, Triple]:
    """The input with the voxels that PyTorch's function does not add itself, and the padding that is left to it."""
    d, h, width = stage.paddings(w.shape)
    if stage.padding_mode == "zeros" and all(before == after for before, after in (d, h, width)):
        return v, (d[0], h[0], width[0])
    mode = "constant" if stage.padding_mode == "zeros" else stage.padding_mode
    return functional.pad(v, [*width, *h, *d], mode), (0, 0, 0)


def _max_pool(stage: stages.MaxPool3d, v: Tensor) -> Tensor:
    kernel, stride, padding = stage.triples
    return functional.max_pool3d(v, kernel, stride, padding, ceil_mode=stage.ceil_mode)


def avg_pool_type(v: Tensor) -> Tensor:
    """PyTorch averages 16-bit numbers on no CPU; float32 does it for them."""
    return v.float() if v.is_cpu and v.dtype in (torch.float16, torch.bfloat16) else v


def _avg_pool(stage: stages.AvgPool3d, v: Tensor) -> Tensor:
    kernel, stride, padding = stage.triples
    if stage.divisor_override is not None and torch.onnx.is_in_onnx_export():
        return _sum_over_divisor(stage, v, stage.divisor_override)
    rest = stage.ceil_mode, stage.count_include_pad, stage.divisor_override
    return functional.avg_pool3d(avg_pool_type(v), kernel, stride, padding, *rest).to(v.dtype)


def _sum_over_divisor(stage: stages.AvgPool3d, v: Tensor, divisor: int) -> Tensor:
    """The same as a mean over whole windows: pools of ONNX have no divisor, and its exporters leave it out."""
    kernel, stride, padding = stage.triples
    if stage.ceil_mode:
        b, c, d, h, w = map(_number, v.shape)
        axes = reversed(stage.axes((b, c, d, h, w)))
        missing = [(axis.out - 1) * axis.stride + axis.kernel - axis.size - 2 * axis.padding for axis in axes]
        v = functional.pad(v, [side for more in missing for side in (0, max(more, 0))])
    mean = functional.avg_pool3d(avg_pool_type(v), kernel, stride, padding, False, True)
    return (mean * (prod(kernel) / divisor)).to(v.dtype)


def _softmax(stage: stages.Softmax, v: Tensor, scale: Tensor | None = None) -> Tensor:
    result = softmax_over(stage, v)
    factor = column(scale) if scale is not None else stage.scale
    return result if factor is None else result * factor


def softmax_over(stage: stages.Softmax, v: Tensor) -> Tensor:
    if stage.over == "channels":
        return torch.softmax(v, 1)
    return torch.softmax(v.flatten(2), 2).reshape(v.shape)


def _layer_norm(stage: stages.LayerNorm, v: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    if stage.over == "width":
        return functional.layer_norm(v, [_number(v.shape[4])], weight, bias, stage.eps)
    weight, bias = (None if each is None else each.reshape(-1) for each in (weight, bias))
    return functional.layer_norm(v.movedim(1, 4), [_number(v.shape[1])], weight, bias, stage.eps).movedim(4, 1)


def _group_norm(stage: stages.GroupNorm, v: Tensor, *affine: Tensor) -> Tensor:
    return torch.group_norm(v, stage.num_groups, *_vectors(affine), stage.eps)


def _instance_norm(stage: stages.InstanceNorm, v: Tensor, *affine: Tensor) -> Tensor:
    # one channel to a group: the same sums
    return torch.group_norm(v, _number(v.shape[1]), *_vectors(affine), stage.eps)


def _number(size: int) -> int:
    """A size as a constant of what torch.jit.trace records: the older exporter to ONNX takes no other here."""
    if not torch.jit.is_tracing():
        return size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return int(size)


def _batch_norm(stage: stages.BatchNorm, v: Tensor, mean: Tensor, var: Tensor, *affine: Tensor) -> Tensor:
    mean, var = mean.reshape(-1), var.reshape(-1)
    return functional.batch_norm(v, mean, var, *_vectors(affine), False, 0.0, stage.eps)


def _vectors(affine: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    weight, bias = affine or (None, None)
    return (None, None) if weight is None or bias is None else (weight.reshape(-1), bias.reshape(-1))


_ENTRIES: dict[type[Stage], Callable[..., Tensor]] = {
    stages.ConvTranspose3d: _conv,
    stages.Conv3d: _conv_forward,
    stages.MaxPool3d: _max_pool,
    stages.AvgPool3d: _avg_pool,
    stages.Sum: lambda stage, v: v.sum(AXES[stage.over], keepdim=True),
    stages.Mean: lambda stage, v: v.mean(AXES[stage.over], keepdim=True),
    stages.Max: lambda stage, v: v.amax(AXES[stage.over], keepdim=True),
    stages.LogSumExp: lambda stage, v: v.logsumexp(AXES[stage.over], keepdim=True),
    stages.Softmax: _softmax,
    stages.LayerNorm: _layer_norm,
    stages.GroupNorm: _group_norm,
    stages.InstanceNorm: _instance_norm,
    stages.BatchNorm: _batch_norm,
    stages.Add: lambda stage, v, o=None: v + other(stage, o),
    stages.Subtract: lambda stage, v, o=None: operator.sub(*stage.sides(v, other(stage, o))),
    stages.Multiply: lambda stage, v, o=None: v * other(stage, o),
    stages.Divide: lambda stage, v, o=None: operator.truediv(*stage.sides(v, other(stage, o))),
    stages.Clamp: lambda stage, v: v.clamp(stage.min, stage.max),
    stages.GELU: lambda stage, v: functional.gelu(v, approximate=stage.approximate),
    stages.ReLU: lambda stage, v: functional.relu(v),
    stages.LeakyReLU: lambda stage, v: functional.leaky_relu(v, stage.negative_slope),
    stages.PReLU: lambda stage, v, weight: functional.prelu(v, weight.reshape(-1)),
    stages.Sigmoid: lambda stage, v: v.sigmoid(),
    stages.Tanh: lambda stage, v: v.tanh(),
    stages.SiLU: lambda stage, v: functional.silu(v),
    stages.HardSwish: lambda stage, v: functional.hardswish(v),
    stages.HardTanh: lambda stage, v: functional.hardtanh(v, stage.min_val, stage.max_val),
    stages.Mish: lambda stage, v: functional.mish(v),
    stages.Softplus: lambda stage, v: functional.softplus(v, stage.beta, stage.threshold),
    stages.Exp: lambda stage, v: v.exp(),
    stages.Log: lambda stage, v: v.log(),
    stages.Keep: lambda stage, v: v,
    stages.Recall: lambda stage, v, kept: kept,
}
STOCK: StageTable[Callable[..., Tensor]] = StageTable("PyTorch", __name__, _ENTRIES)
