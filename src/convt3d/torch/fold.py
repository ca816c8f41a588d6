"""Which modules of PyTorch are stages of a pipeline, decided at each call: training or not, with hooks or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from torch import nn
from torch.nn.modules import module as module_hooks

from ..spec.shapes import ConvAxis, PoolAxis
from .stock import Tensor

# Text of stages (none for a module that does nothing), their operands, and why it cannot be folded (empty if it can).
Folded: TypeAlias = tuple[str, list[Tensor], str]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)


def why_apart(module: nn.Module) -> str:
    """Why a module must be called by itself, whatever its kind; empty if nothing speaks against folding it."""
    if any(len(getattr(module, name)) for name in _HOOKS):
        return "has hooks"
    if any(len(getattr(module_hooks, name)) for name in _GLOBAL_HOOKS):
        return "global module hooks are set"
    return "has a forward of its own" if "forward" in module.__dict__ else ""


def fold(module: nn.Module) -> Folded:
    """The stages a module means here and now."""
    rule = FOLDS.get(type(module))
    if rule is None:
        return "", [], f"{type(module).__name__} is no stage"
    apart = why_apart(module)
    return ("", [], apart) if apart else rule(module)


def fold_conv(conv: nn.ConvTranspose3d) -> Folded:
    operands = [conv.weight] if conv.bias is None else [conv.weight, conv.bias]
    sizes = (f"{name}={tuple(getattr(conv, name))}" for name in ("stride", "padding", "output_padding", "dilation"))
    text = f"ConvTranspose3d({', '.join(sizes)}, groups={conv.groups}, bias={conv.bias is not None})"
    return text, operands, why_apart(conv)


def fold_chain(modules: Sequence[nn.Module], shape: Sequence[int] = ()) -> tuple[str, list[Tensor], int, str]:
    """Stages and operands of a convolution and as many of the modules after it as can be folded into it; how many
    modules these are, and why the next is not among them. `shape` is the input's (5-D), where one is there."""
    text, operands, why = fold_conv(modules[0])
    count = 0 if why else 1
    while count and count < len(modules):
        stage, more, why = fold(modules[count])
        if not why and shape and type(modules[count]) in (nn.GroupNorm, nn.InstanceNorm3d):
            why = _why_refused(modules[count], shape_after(modules[:count], shape))
        if why:
            break
        text = f"{text} -> {stage}" if stage else text
        operands = operands + more
        count += 1
    return text, operands, count, why


def shape_after(modules: Sequence[Any], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of what a convolution and modules that can be folded into it give."""
    batch, channels, *space = shape
    for m in modules:
        if isinstance(m, nn.ConvTranspose3d):
            channels = m.out_channels
            rows = zip(space, m.kernel_size, m.stride, m.padding, m.output_padding, m.dilation, strict=True)
            space = [ConvAxis(*row).out for row in rows]
        elif isinstance(m, (nn.MaxPool3d, nn.AvgPool3d)):
            windows = zip(space, _triple(m.kernel_size), _triple(m.stride), _triple(m.padding), strict=True)
            space = [PoolAxis(*row, m.ceil_mode).out for row in windows]
    return batch, channels, *space


def _why_refused(m: Any, shape: Sequence[int]) -> str:
    """PyTorch raises an error where a norm would see one value; a stage would give zero."""
    batch, channels, *space = shape
    samples = batch * channels // m.num_groups if isinstance(m, nn.GroupNorm) else 1
    return f"{type(m).__name__} refuses a single value" if samples * prod(space) == 1 else ""


def number(value: float) -> str:
    """As text. A key is a constant to torch.compile, which may otherwise take a float for something that varies."""
    (constant,) = {float(value): None}
    return repr(constant)


# --- one rule for each kind of module ---------------------------------------------------------------------------------


def _batch_norm(m: Any) -> Folded:
    if m.training or m.running_mean is None or m.running_var is None:
        return "", [], f"{type(m).__name__} uses the statistics of the batch"
    return (
        f"BatchNorm(eps={number(m.eps)}, affine={m.weight is not None})",
        [m.running_mean, m.running_var, *_affine(m)],
        _half(m),
    )


def _instance_norm(m: Any) -> Folded:
    if m.track_running_stats:  # in eval, too: a BatchNorm by its numbers, but one that writes contiguous results
        return "", [], "InstanceNorm3d has running statistics"
    return f"InstanceNorm(eps={number(m.eps)}, affine={m.weight is not None})", _affine(m), _half(m)


def _group_norm(m: Any) -> Folded:
    return f"GroupNorm({m.num_groups}, eps={number(m.eps)}, affine={m.weight is not None})", _affine(m), _half(m)


def _layer_norm(m: Any) -> Folded:
    if len(m.normalized_shape) != 1:
        return "", [], "LayerNorm over several axes is no stage"
    return f"LayerNorm('width', {number(m.eps)}, {m.weight is not None})", _affine(m), _half(m)


def _affine(m: Any) -> list[Tensor]:
    return [each for each in (m.weight, m.bias) if each is not None]


def _half(m: Any) -> str:
    """Stages have both weight and bias, or neither."""
    return "has a weight without a bias" if (m.weight is None) != (m.bias is None) else ""


def _dropout(m: Any) -> Folded:
    return "", [], f"{type(m).__name__} draws random numbers" if m.training and m.p > 0 else ""


def _max_pool(m: Any) -> Folded:
    if _triple(m.dilation) != (1, 1, 1) or m.return_indices:
        return "", [], "MaxPool3d with dilation or indices is no stage"
    return (
        f"MaxPool3d({_triple(m.kernel_size)}, {_triple(m.stride)}, {_triple(m.padding)}, ceil_mode={m.ceil_mode})",
        [],
        "",
    )


def _avg_pool(m: Any) -> Folded:
    if m.divisor_override is not None:
        return "", [], "AvgPool3d with a divisor of its own is no stage"
    window = f"{_triple(m.kernel_size)}, {_triple(m.stride)}, {_triple(m.padding)}"
    return f"AvgPool3d({window}, {m.ceil_mode}, {m.count_include_pad})", [], ""


def _triple(value: Any) -> tuple[int, ...]:
    return (value, value, value) if isinstance(value, int) else tuple(value)


def _softmax(m: Any) -> Folded:
    return ("Softmax('channels')", [], "") if m.dim in (1, -4) else ("", [], "Softmax over this axis is no stage")


def _stage(text: str) -> Callable[[Any], Folded]:
    return lambda m: (text, [], "")


FOLDS: dict[type[nn.Module], Callable[[Any], Folded]] = {
    nn.BatchNorm3d: _batch_norm,
    nn.SyncBatchNorm: _batch_norm,
    nn.InstanceNorm3d: _instance_norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.MaxPool3d: _max_pool,
    nn.AvgPool3d: _avg_pool,
    nn.Softmax: _softmax,
    nn.Identity: _stage(""),
    nn.Dropout: _dropout,
    nn.Dropout3d: _dropout,
    nn.AlphaDropout: _dropout,
    nn.FeatureAlphaDropout: _dropout,
    nn.ReLU: _stage("ReLU()"),
    nn.ReLU6: _stage("HardTanh(0.0, 6.0)"),
    nn.LeakyReLU: lambda m: (f"LeakyReLU({number(m.negative_slope)})", [], ""),
    nn.PReLU: lambda m: ("PReLU()", [m.weight], ""),
    nn.SiLU: _stage("SiLU()"),
    nn.GELU: lambda m: (f"GELU({m.approximate!r})", [], ""),
    nn.Sigmoid: _stage("Sigmoid()"),
    nn.Tanh: _stage("Tanh()"),
    nn.Softplus: lambda m: (f"Softplus({number(m.beta)}, {number(m.threshold)})", [], ""),
    nn.Hardswish: _stage("HardSwish()"),
    nn.Hardtanh: lambda m: (f"HardTanh({number(m.min_val)}, {number(m.max_val)})", [], ""),
    nn.Mish: _stage("Mish()"),
}
