"""Calls of PyTorch's own modules in a graph, written as the functions they call; torch 2.4 captures them whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from .fold import why_apart
from .graphs import example

# The function, and its arguments after the input; strings name tensors of the module.
Call: TypeAlias = tuple[Any, tuple[Any, ...]]


def inline_modules(graph: Any, owner: Any) -> None:
    """In place. Modules with hooks, of other kinds and in training stay as they are."""
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        module = owner.get_submodule(node.target)
        rule = _CALLS.get(type(module))
        call = None if rule is None or why_apart(module) else rule(module)
        if call is None:
            continue
        function, rest = call
        with graph.inserting_before(node):
            given = [_tensor(graph, node, module, each) if isinstance(each, _Name) else each for each in rest]
            new = graph.call_function(function, (node.args[0], *given))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


class _Name(str):
    """Of a tensor of a module."""


def _tensor(graph: Any, node: Any, module: Any, name: str) -> Any:
    tensor = getattr(module, name)
    if tensor is None:
        return None
    made = graph.get_attr(f"{node.target}.{name}")
    mode = getattr(example(node), "fake_mode", None)
    made.meta["example_value"] = tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)
    return made


_WEIGHT, _BIAS = _Name("weight"), _Name("bias")


def _conv(m: Any) -> Call | None:
    rest = _WEIGHT, _BIAS, m.stride, m.padding, m.dilation, m.groups
    return (torch.conv3d, rest) if m.padding_mode == "zeros" else None


def _conv_transpose(m: Any) -> Call:
    return torch.conv_transpose3d, (_WEIGHT, _BIAS, m.stride, m.padding, m.output_padding, m.groups, m.dilation)


def _batch_norm(m: Any) -> Call | None:
    if m.training or m.running_mean is None:
        return None
    statistics = _Name("running_mean"), _Name("running_var")
    return functional.batch_norm, (*statistics, _WEIGHT, _BIAS, False, 0.0, m.eps)


def _instance_norm(m: Any) -> Call | None:
    if m.track_running_stats:
        return None
    return functional.instance_norm, (None, None, _WEIGHT, _BIAS, True, 0.0, m.eps)


def _dropout(m: Any) -> Call | None:
    return None if m.training else (functional.dropout, (m.p, False, m.inplace))


def _max_pool(m: Any) -> Call:
    rest = m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices
    return functional.max_pool3d, rest


def _upsample(m: Any) -> Call:
    return functional.interpolate, (m.size, m.scale_factor, m.mode, m.align_corners, m.recompute_scale_factor)


def _avg_pool(m: Any) -> Call:
    rest = m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
    return functional.avg_pool3d, rest


_CALLS: dict[type[Any], Callable[[Any], Call | None]] = {
    nn.Conv3d: _conv,
    nn.ConvTranspose3d: _conv_transpose,
    nn.BatchNorm3d: _batch_norm,
    nn.InstanceNorm3d: _instance_norm,
    nn.GroupNorm: lambda m: (functional.group_norm, (m.num_groups, _WEIGHT, _BIAS, m.eps)),
    nn.LayerNorm: lambda m: (functional.layer_norm, (m.normalized_shape, _WEIGHT, _BIAS, m.eps)),
    nn.Dropout: _dropout,
    nn.Dropout3d: _dropout,
    nn.MaxPool3d: _max_pool,
    nn.AvgPool3d: _avg_pool,
    nn.AdaptiveAvgPool3d: lambda m: (functional.adaptive_avg_pool3d, (m.output_size,)),
    nn.Upsample: _upsample,
    nn.Softmax: lambda m: None if m.dim is None else (functional.softmax, (m.dim,)),
    nn.ReLU: lambda m: (functional.relu, (m.inplace,)),
    nn.ReLU6: lambda m: (functional.relu6, (m.inplace,)),
    nn.LeakyReLU: lambda m: (functional.leaky_relu, (m.negative_slope, m.inplace)),
    nn.ELU: lambda m: (functional.elu, (m.alpha, m.inplace)),
    nn.PReLU: lambda m: (torch.prelu, (_WEIGHT,)),
    nn.SiLU: lambda m: (functional.silu, (m.inplace,)),
    nn.Mish: lambda m: (functional.mish, (m.inplace,)),
    nn.Hardswish: lambda m: (functional.hardswish, (m.inplace,)),
    nn.Hardtanh: lambda m: (functional.hardtanh, (m.min_val, m.max_val, m.inplace)),
    nn.Softplus: lambda m: (functional.softplus, (m.beta, m.threshold)),
    nn.Sigmoid: lambda m: (torch.sigmoid, ()),
    nn.Tanh: lambda m: (torch.tanh, ()),
}
