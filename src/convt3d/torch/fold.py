"""Which modules of PyTorch are stages of a pipeline, decided at each call: training or not, with hooks or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from operator import is_, itemgetter
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from ..errors import Error
from ..spec.shapes import ForwardAxis, PoolAxis, TransposedAxis
from ..spec.text import read_stages
from .stock import Tensor

# Text of stages (none for a module that does nothing), their operands, and why the module cannot be folded: what it
# does instead, as in "which draws random numbers" (empty if it can).
Folded: TypeAlias = tuple[str, list[Tensor], str]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
_CALLS = ("forward", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl")


def why_apart(module: nn.Module) -> str:
    """Why a module must be called by itself, whatever its kind; empty if nothing speaks against folding it."""
    if any(len(getattr(module, name)) for name in _HOOKS):
        return "has hooks"
    if any(len(getattr(module_hooks, name)) for name in _GLOBAL_HOOKS):
        return "is seen by global hooks"
    return "has a forward of its own" if any(name in module.__dict__ for name in _CALLS) else ""


_IMMUTABLE = frozenset((bool, int, float, str, type(None), tuple, torch.dtype, torch.device))
_TENSORS = ("_parameters", "_buffers")


class Watch:
    """All that folding the modules of a sequence depends on, as it is now. It keeps no module and no tensor: they may
    refer to the sequence."""

    def __init__(self, sequence: nn.Sequential) -> None:
        self._orders: list[tuple[Any, list[tuple[Any, type[Any]]]]] = []  # of each sequence: its modules
        self._looks: list[_Look] = []
        self.complete = self._add(sequence) and self.holds()

    def _add(self, sequence: nn.Sequential) -> bool:
        """Whether all that decides can be watched: attributes must be others when they change."""
        modules, complete = list(sequence._modules.values()), True
        self._orders.append((ref(sequence), [(ref(each), type(each)) for each in modules]))
        for module in modules:
            if type(module) in FOLDS or isinstance(module, (nn.Conv3d, nn.ConvTranspose3d)):
                self._looks.append(_Look(module))
                attributes = module.__dict__.items()
                complete &= all(type(value) in _IMMUTABLE or name[0] == "_" for name, value in attributes)
            elif isinstance(module, nn.Sequential):
                self._looks.append(_Look(module))
                complete &= self._add(module)
        return complete

    def holds(self) -> bool:
        """Whether it is now as it was, and nobody has set hooks or replaced calls."""
        for name in _GLOBAL_HOOKS:
            if getattr(module_hooks, name):
                return False
        for sequence, order in self._orders:
            modules = sequence()._modules.values()
            if len(modules) != len(order):
                return False
            for module, (known, kind) in zip(modules, order, strict=True):
                if module is not known() or type(module) is not kind:
                    return False
        for look in self._looks:  # noqa: SIM110 - a loop is quicker
            if not look.holds():
                return False
        return True


class _Look:
    """At one module: its attributes that cannot be changed in place, its parameters and buffers."""

    __slots__ = ("_attributes", "_module", "_size", "_tensors", "_values")

    def __init__(self, module: nn.Module) -> None:
        own = module.__dict__
        self._module, self._size = ref(module), len(own)
        names = [name for name, value in own.items() if type(value) in _IMMUTABLE]
        self._attributes = itemgetter("training", *names)
        self._values = self._attributes(own)
        tensors = (own[name].values() for name in _TENSORS)
        self._tensors = [[nothing if each is None else ref(each) for each in group] for group in tensors]

    def holds(self) -> bool:
        own = self._module().__dict__
        if len(own) != self._size:
            return False
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
            return False
        for name in _CALLS:
            if name in own:
                return False
        try:
            if not all(map(is_, self._attributes(own), self._values)):
                return False
        except KeyError:
            return False
        for known, name in zip(self._tensors, _TENSORS, strict=True):
            tensors = own[name]
            if len(tensors) != len(known):
                return False
            for tensor, kept in zip(tensors.values(), known, strict=True):
                if tensor is not kept():
                    return False
        return True


def nothing() -> None:
    """In the place of a reference to a tensor that is not there."""


def fold(module: nn.Module, training: bool) -> Folded:
    """The stages a module means in training or in eval, with the parameters it has here and now."""
    rule = FOLDS.get(type(module))
    if rule is None:
        return "", [], "is no stage of convt3d"
    apart = why_apart(module)
    return _unless_refused(*rule(module, training)) if not apart else ("", [], apart)


def _unless_refused(text: str, operands: list[Tensor], why: str) -> Folded:
    return text, operands, why or (_refusal(text) if text else "")


def _refusal(text: str) -> str:
    return _refusal_of(text)


_refusal._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


@lru_cache(maxsize=1024)
def _refusal_of(text: str) -> str:
    """Why no stage has these parameters, with which PyTorch computes something all the same (a negative eps, say)."""
    try:
        read_stages(text)
    except Error as error:
        return f"has parameters that no stage takes ({error.argument} {error.rule})"
    return ""


def fold_conv(conv: nn.Conv3d | nn.ConvTranspose3d) -> Folded:
    operands = [conv.weight] if conv.bias is None else [conv.weight, conv.bias]
    transposed = isinstance(conv, nn.ConvTranspose3d)
    names = ("stride", "padding", "output_padding", "dilation") if transposed else ("stride", "padding", "dilation")
    sizes = (f"{name}={_padding(getattr(conv, name))}" for name in names)
    more = f"groups={conv.groups}, bias={conv.bias is not None}"
    more = more if transposed else f"{more}, padding_mode={conv.padding_mode!r}"
    text = f"{'ConvTranspose3d' if transposed else 'Conv3d'}({', '.join(sizes)}, {more})"
    return _unless_refused(text, operands, why_apart(conv))


def fold_chain(
    modules: Sequence[nn.Module], shape: Sequence[int] = (), training: bool | None = None, by_batch: bool = False
) -> tuple[str, list[Tensor], int, str]:
    """Stages and operands of a convolution and as many of the modules after it as can be folded into it; how many
    modules these are, and why the next is not among them. `shape` is the input's (5-D), where one is there; `training`
    is each module's own unless it is given. `by_batch`: one BatchNorm may take the statistics of the batch, if no other
    follows or precedes it; running statistics that it has not are None among the operands."""
    text, operands, why = fold_conv(modules[0])
    count, norms = 0 if why else 1, 0
    while count and count < len(modules):
        module = modules[count]
        trains = module.training if training is None else training
        stage, more, why = fold(module, trains)
        if by_batch and isinstance(module, nn.BatchNorm3d):
            if takes_batch(module, trains) and not why_apart(module) and not norms:
                stage, more, why = _by_batch(module)
            elif norms and not why:
                why = "does not follow another norm of its kind"
            norms += 2 if takes_batch(module, trains) else 1
        if not why and shape and type(module) in (nn.GroupNorm, nn.InstanceNorm3d):
            why = _why_refused(module, shape_after(modules[:count], shape))
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
            _, channels, *kernel = m.weight.shape
            channels = channels * m.groups
            sizes = (_triple(each) for each in (m.stride, m.padding, m.output_padding, m.dilation))
            space = [TransposedAxis(*row).out for row in zip(space, kernel, *sizes, strict=True)]
        elif isinstance(m, nn.Conv3d):
            channels, _, *kernel = m.weight.shape
            if m.padding != "same":
                padding = (0, 0, 0) if m.padding == "valid" else _triple(m.padding)
                rows = zip(space, kernel, _triple(m.stride), padding, _triple(m.dilation), strict=True)
                space = [ForwardAxis(n, k, s, p, 0, d).out for n, k, s, p, d in rows]
        elif isinstance(m, (nn.MaxPool3d, nn.AvgPool3d)):
            space = [PoolAxis(*row, m.ceil_mode).out for row in zip(space, *_window(m), strict=True)]
    return batch, channels, *space


def _why_refused(m: Any, shape: Sequence[int]) -> str:
    """PyTorch raises an error where a norm would see one value; a stage would give zero."""
    batch, channels, *space = shape
    samples = batch * channels // m.num_groups if isinstance(m, nn.GroupNorm) else 1
    return "refuses a single value" if samples * prod(space) == 1 else ""


def number(value: float) -> str:
    """As text. A key is a constant to torch.compile, which may otherwise take a float for something that varies."""
    (constant,) = {float(value): None}
    return repr(constant)


def takes_batch(m: Any, training: bool) -> bool:
    """Whether a BatchNorm3d normalises by the statistics of the batch, and all that it then moves is there."""
    running = m.running_mean, m.running_var
    if type(m) is not nn.BatchNorm3d or (running[0] is None) != (running[1] is None):
        return False
    if running[0] is None:
        return not m.track_running_stats
    return training and m.track_running_stats and m.num_batches_tracked is not None


def _by_batch(m: Any) -> Folded:
    text = f"BatchNorm(eps={number(m.eps)}, affine={m.weight is not None})"
    return _unless_refused(text, [m.running_mean, m.running_var, *_affine(m)], _half(m))


# --- one rule for each kind of module ---------------------------------------------------------------------------------


def _batch_norm(m: Any, training: bool) -> Folded:
    if training or m.running_mean is None or m.running_var is None:
        return "", [], "uses the statistics of the batch"
    text = f"BatchNorm(eps={number(m.eps)}, affine={m.weight is not None})"
    return text, [m.running_mean, m.running_var, *_affine(m)], _half(m)


def _instance_norm(m: Any, training: bool) -> Folded:
    if m.track_running_stats:  # in eval, too: a BatchNorm by its numbers, but one that writes contiguous results
        return "", [], "has running statistics"
    return f"InstanceNorm(eps={number(m.eps)}, affine={m.weight is not None})", _affine(m), _half(m)


def _group_norm(m: Any, training: bool) -> Folded:
    return f"GroupNorm({m.num_groups}, eps={number(m.eps)}, affine={m.weight is not None})", _affine(m), _half(m)


def _layer_norm(m: Any, training: bool) -> Folded:
    if len(m.normalized_shape) != 1:
        return "", [], "normalises several axes"
    return f"LayerNorm('width', {number(m.eps)}, {m.weight is not None})", _affine(m), _half(m)


def _affine(m: Any) -> list[Tensor]:
    return [each for each in (m.weight, m.bias) if each is not None]


def _half(m: Any) -> str:
    """Stages have both weight and bias, or neither."""
    return "has a weight without a bias" if (m.weight is None) != (m.bias is None) else ""


def _dropout(m: Any, training: bool) -> Folded:
    return "", [], "draws random numbers" if training and m.p > 0 else ""


def _max_pool(m: Any, training: bool) -> Folded:
    if _triple(m.dilation) != (1, 1, 1) or m.return_indices:
        return "", [], "has a dilation, or returns indices"
    kernel, stride, padding = _window(m)
    return f"MaxPool3d({kernel}, {stride}, {padding}, ceil_mode={m.ceil_mode})", [], ""


def _avg_pool(m: Any, training: bool) -> Folded:
    kernel, stride, padding = _window(m)
    rest = f"{m.ceil_mode}, {m.count_include_pad}, divisor_override={m.divisor_override}"
    return f"AvgPool3d({kernel}, {stride}, {padding}, {rest})", [], ""


def _window(m: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    kernel = _triple(m.kernel_size)
    return kernel, (() if m.stride is None else _triple(m.stride)) or kernel, _triple(m.padding)


def _triple(value: Any) -> tuple[int, ...]:
    """PyTorch takes one number, a sequence of one, and one for each axis; an empty stride is the kernel."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * 3 if len(values) == 1 else values


def _padding(value: Any) -> str:
    """As text: a word, or sizes."""
    return repr(value) if isinstance(value, str) else str(_triple(value))


def _softmax(m: Any, training: bool) -> Folded:
    return ("Softmax('channels')", [], "") if m.dim in (1, -4) else ("", [], "goes along another axis than channels")


def _stage(text: str | Callable[[Any], str]) -> Callable[[Any, bool], Folded]:
    """A module without tensors; `text` may need its parameters."""
    return lambda m, training: (text if isinstance(text, str) else text(m), [], "")


FOLDS: dict[type[nn.Module], Callable[[Any, bool], Folded]] = {
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
    nn.LeakyReLU: _stage(lambda m: f"LeakyReLU({number(m.negative_slope)})"),
    nn.PReLU: lambda m, training: ("PReLU()", [m.weight], ""),
    nn.SiLU: _stage("SiLU()"),
    nn.GELU: _stage(lambda m: f"GELU({m.approximate!r})"),
    nn.Sigmoid: _stage("Sigmoid()"),
    nn.Tanh: _stage("Tanh()"),
    nn.Softplus: _stage(lambda m: f"Softplus({number(m.beta)}, {number(m.threshold)})"),
    nn.Hardswish: _stage("HardSwish()"),
    nn.Hardtanh: _stage(lambda m: f"HardTanh({number(m.min_val)}, {number(m.max_val)})"),
    nn.Mish: _stage("Mish()"),
}
