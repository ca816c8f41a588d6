"""Interpolation by whole factors as what it is: a transposed convolution of each channel with fixed weights.

Trilinear interpolation reads copies of the outermost voxels beyond the border, which a padding in front of it adds. It
is written so before pipelines are looked for; what none of them takes is PyTorch's own function again.

Where PyTorch's trilinear interpolation needs one voxel only, it still adds zero times another one: the next of the
first along an axis, and the voxel itself where an axis stays as long as it is. NaN and infinities are carried by that,
so the padding adds it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional

from .capture import RESULT
from .graphs import example, is_tensor
from .stock import Tensor

_FUNCTION = "convt3d_interpolates"  # in the meta of a convolution: the arguments of the function that it stands for
_MOST = 4  # times as long an axis becomes: each step has weights, and code, of its own
TYPES = (torch.float32, torch.float64)  # in which the weights are exact enough


class Kernel:
    """`kernel(x)` gives the weights for tensors with the channels and of the type of x, always the same tensor."""

    def __init__(self, factors: Sequence[int], linear: bool) -> None:
        self.factors, self.linear = tuple(factors), linear
        self._made: dict[tuple[int, Any], Tensor] = {}
        self.__name__ = "kernel"  # torch.fx writes it

    def __call__(self, x: Tensor) -> Tensor:
        key = x.shape[1], x.dtype
        if key not in self._made:
            with torch.inference_mode(False):
                self._made[key] = self.weights(*key)
        return self._made[key]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Taps along each axis."""
        return tuple(2 * factor if self.linear and factor > 1 else factor for factor in self.factors)

    def weights(self, channels: int, dtype: Any) -> Tensor:
        d, h, w = (self._axis(factor, size) for factor, size in zip(self.factors, self.sizes, strict=True))
        one = d[:, None, None] * h[:, None] * w
        return one.to(dtype).expand(channels, 1, *one.shape).contiguous()

    def _axis(self, factor: int, size: int) -> Tensor:
        """A triangle, of which each output has two places."""
        places = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
        return 1 - places.abs() / factor if self.linear else torch.ones(size, dtype=torch.float64)


class Padding:
    """`padding(x)`: x with copies of its outermost voxels along the axes that become longer, for trilinear weights."""

    def __init__(self, factors: Sequence[int]) -> None:
        self.axes = tuple(axis for axis, factor in enumerate(factors, 2) if factor > 1)
        self.around = [side for factor in reversed(factors) for side in (int(factor > 1),) * 2]
        self.__name__ = "padding"  # torch.fx writes it

    def __call__(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, self.around, "replicate")
        for axis in self.axes:
            next_one = padded.select(axis, min(2, x.shape[axis]))
            padded.select(axis, 0).add_(next_one, alpha=0)
        return padded if len(self.axes) == 3 else padded.add_(padded, alpha=0)


def as_convolutions(graph: Any) -> None:
    """In place."""
    for node in list(graph.nodes):
        found = _kernel(node)
        if found is not None:
            _write(graph, node, found)


def _kernel(node: Any) -> Kernel | None:
    """The weights of an interpolation that can be one, and is not differentiated."""
    if node.op != "call_function" or node.target is not functional.interpolate or not is_tensor(node):
        return None
    x, size, scale, mode, corners, *rest = _arguments(node)
    result, tensor = example(node), example(x)
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 5 or not tensor.is_cpu or result.requires_grad:
        return None
    usual = mode in ("nearest", "nearest-exact") or (mode == "trilinear" and not corners)
    if not usual or any(rest) or tensor.dtype not in TYPES or type(tensor.shape[1]) is not int:
        return None
    factors = _factors(tensor.shape[2:], size, scale)
    if factors is None or max(factors) == 1 or not (tensor.is_contiguous() and result.is_contiguous()):
        return None
    if mode == "trilinear" and 3 in factors:
        return None  # its middle voxels meet a neighbour with a weight of zero, or of a rounding error
    return Kernel(factors, mode == "trilinear")


def _arguments(node: Any) -> list[Any]:
    """x, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias."""
    names = "input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"
    usual = None, None, None, "nearest", None, None, False
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return [given.get(name, default) for name, default in zip(names, usual, strict=True)]


def _factors(shape: Sequence[Any], size: Any, scale: Any) -> tuple[int, ...] | None:
    """How many times as long each axis becomes, where that is a whole number."""
    wanted = scale if size is None else size
    each = tuple(wanted) if isinstance(wanted, (list, tuple)) else (wanted,) * 3
    if size is not None:
        if not all(type(number) is int and number > 0 for number in (*each, *shape)):
            return None
        each = tuple(to / of for to, of in zip(each, shape, strict=True))
    if len(each) != 3 or not all(isinstance(number, (int, float)) and number in range(1, _MOST + 1) for number in each):
        return None
    return tuple(int(number) for number in each)


def _write(graph: Any, node: Any, kernel: Kernel) -> None:
    x, tensor = _arguments(node)[0], example(node)
    sides = [1 if kernel.linear and factor > 1 else 0 for factor in kernel.factors]
    paddings = [
        ((2 * side - 1) * factor + taps) // 2
        for side, factor, taps in zip(sides, kernel.factors, kernel.sizes, strict=True)
    ]
    channels = example(x).shape[1]
    mode = getattr(tensor, "fake_mode", None)
    with graph.inserting_before(node), nullcontext() if mode is None else mode, torch.no_grad():
        weight = graph.call_function(kernel, (x,))
        weight.meta["example_value"] = torch.empty((channels, 1, *kernel.sizes), dtype=tensor.dtype)
        padded = x
        if any(sides):
            padding = Padding(kernel.factors)
            padded = graph.call_function(padding, (x,))
            padded.meta["example_value"] = padding(example(x))
        rest = list(kernel.factors), paddings, 0, channels
        new = graph.call_function(torch.conv_transpose3d, (padded, weight, None, *rest))
    new.meta = dict(node.meta) | {RESULT: node.name, _FUNCTION: (node.args, node.kwargs)}
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def as_functions(graph: Any) -> None:
    """Whatever is no pipeline's becomes what it was."""
    for node in reversed(list(graph.nodes)):
        if _FUNCTION in node.meta and node.target is torch.conv_transpose3d:
            args, kwargs = node.meta[_FUNCTION]
            with graph.inserting_before(node):
                old = graph.call_function(functional.interpolate, args, kwargs)
            old.meta = dict(node.meta)
            node.replace_all_uses_with(old)
            made = [each for each in node.all_input_nodes if each not in old.all_input_nodes]
            graph.erase_node(node)
            for each in made:
                graph.erase_node(each)
