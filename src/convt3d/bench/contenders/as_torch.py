"""A pipeline as a function of torch tensors: every stage as a PyTorch user writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.nn import functional

from ...spec import stages as s
from ...spec.pipeline import Pipeline
from ...spec.stage import Stage

SPACE = (2, 3, 4)


def torch_function(pipeline: Pipeline) -> Callable[[Any, Sequence[Any]], Any]:
    """f(x, operands in slot order)."""
    steps = [
        (stage, _STEPS[type(stage)], [at for at, slot in enumerate(pipeline.slots) if slot.stage == index])
        for index, stage in enumerate(pipeline.stages)
    ]

    def function(x: Any, operands: Sequence[Any]) -> Any:
        value, labelled = x, {"x": x}
        for stage, step, own in steps:
            value = step(stage, value, [operands[at] for at in own], labelled)
        return value

    return function


def _conv(stage: s.ConvTranspose3d, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    stride, padding, extra, dilation = stage.triples
    bias = given[1] if stage.bias else None
    return functional.conv_transpose3d(x, given[0], bias, stride, padding, extra, stage.groups, dilation)


def _max_pool(stage: s.MaxPool3d, x: Any, *_: Any) -> Any:
    return functional.max_pool3d(x, *stage.triples, 1, stage.ceil_mode)


def _avg_pool(stage: s.AvgPool3d, x: Any, *_: Any) -> Any:
    return functional.avg_pool3d(x, *stage.triples, stage.ceil_mode, stage.count_include_pad)


def _dims(stage: Any) -> tuple[int, ...]:
    return (1,) if stage.over == "channels" else SPACE


def _softmax(stage: s.Softmax, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    y = x.softmax(1) if stage.over == "channels" else x.flatten(2).softmax(2).reshape(x.shape)
    if stage.scale is None:
        return y
    return y * (_column(given[0]) if stage.scale == "channel" else stage.scale)


def _layer_norm(stage: s.LayerNorm, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    weight, bias = given or (None, None)
    if stage.over == "width":
        return functional.layer_norm(x, x.shape[-1:], weight, bias, stage.eps)
    return functional.layer_norm(x.movedim(1, -1), (x.shape[1],), weight, bias, stage.eps).movedim(-1, 1)


def _group_norm(stage: s.GroupNorm, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    weight, bias = given or (None, None)
    return functional.group_norm(x, stage.num_groups, weight, bias, stage.eps)


def _instance_norm(stage: s.InstanceNorm, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    weight, bias = given or (None, None)
    if x[0, 0].numel() == 1:  # instance_norm refuses a single voxel
        return functional.group_norm(x, x.shape[1], weight, bias, stage.eps)
    return functional.instance_norm(x, weight=weight, bias=bias, eps=stage.eps)


def _batch_norm(stage: s.BatchNorm, x: Any, given: Sequence[Any], _: Mapping[str, Any]) -> Any:
    mean, variance, *affine = given
    weight, bias = affine or (None, None)
    return functional.batch_norm(x, mean, variance, weight, bias, eps=stage.eps)


def _keep(stage: s.Keep, x: Any, given: Sequence[Any], labelled: dict[str, Any]) -> Any:
    labelled[stage.label] = x
    return x


def _other(stage: s.Binary, given: Sequence[Any], labelled: Mapping[str, Any]) -> Any:
    if stage.other == "channel":
        return _column(given[0])
    return given[0] if stage.other == "tensor" else labelled[stage.label] if stage.label else stage.other


def _column(vector: Any) -> Any:
    return vector.reshape(1, -1, 1, 1, 1)


_STEPS: dict[type[Stage], Callable[..., Any]] = {
    s.ConvTranspose3d: _conv,
    s.MaxPool3d: _max_pool,
    s.AvgPool3d: _avg_pool,
    s.Sum: lambda stage, x, *_: x.sum(_dims(stage), keepdim=True),
    s.Mean: lambda stage, x, *_: x.mean(_dims(stage), keepdim=True),
    s.Max: lambda stage, x, *_: x.amax(_dims(stage), keepdim=True),
    s.LogSumExp: lambda stage, x, *_: x.logsumexp(_dims(stage), keepdim=True),
    s.Softmax: _softmax,
    s.LayerNorm: _layer_norm,
    s.GroupNorm: _group_norm,
    s.InstanceNorm: _instance_norm,
    s.BatchNorm: _batch_norm,
    s.Keep: _keep,
    s.Add: lambda stage, x, given, labelled: x + _other(stage, given, labelled),
    s.Subtract: lambda stage, x, given, labelled: x - _other(stage, given, labelled),
    s.Multiply: lambda stage, x, given, labelled: x * _other(stage, given, labelled),
    s.Divide: lambda stage, x, given, labelled: x / _other(stage, given, labelled),
    s.Clamp: lambda stage, x, *_: x.clamp(stage.min, stage.max),
    s.GELU: lambda stage, x, *_: functional.gelu(x, approximate=stage.approximate),
    s.ReLU: lambda stage, x, *_: x.relu(),
    s.LeakyReLU: lambda stage, x, *_: functional.leaky_relu(x, stage.negative_slope),
    s.PReLU: lambda stage, x, given, _: functional.prelu(x, given[0]),
    s.Sigmoid: lambda stage, x, *_: x.sigmoid(),
    s.Tanh: lambda stage, x, *_: x.tanh(),
    s.SiLU: lambda stage, x, *_: functional.silu(x),
    s.HardSwish: lambda stage, x, *_: functional.hardswish(x),
    s.HardTanh: lambda stage, x, *_: functional.hardtanh(x, stage.min_val, stage.max_val),
    s.Mish: lambda stage, x, *_: functional.mish(x),
    s.Softplus: lambda stage, x, *_: functional.softplus(x, stage.beta, stage.threshold),
    s.Exp: lambda stage, x, *_: x.exp(),
}
