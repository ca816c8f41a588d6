"""Arithmetic between results of pipelines that none of them takes, such as a gate times a skip: a pipeline of its own.

A pipeline has a convolution. In front of such a sum or product there is none, so one is put there, of each channel with
the number 1, and the pipeline goes back to its input behind it: it is not computed.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from .capture import UNCHANGED, Captured
from .graphs import example, is_tensor, name_of
from .upsample import TYPES, Kernel
from .views import same

_SIGNS = ("add", "sub", "mul", "div")


def with_convolutions(graph: Any, found: Captured) -> bool:
    """Puts them in place; whether there are any."""
    ours = {each.nodes[-1] for each in found.fused}
    chosen = [(node, main) for node in found.rest if (main := _main(node, ours)) is not None]
    for node, main in chosen:
        mode = getattr(example(main), "fake_mode", None)
        with graph.inserting_before(node), nullcontext() if mode is None else mode, torch.no_grad():
            kernel, channels = Kernel((1, 1, 1), False), example(main).shape[1]
            weight = graph.call_function(kernel, (main,))
            weight.meta["example_value"] = torch.empty((channels, 1, 1, 1, 1), dtype=example(main).dtype)
            new = graph.call_function(torch.conv_transpose3d, (main, weight, None, 1, 0, 0, channels))
            new.meta = dict(node.meta) | {"example_value": torch.empty_like(example(main)), UNCHANGED: True}
        node.replace_input_with(main, new)
    return bool(chosen)


def _main(node: Any, ours: Set[Any]) -> Any:
    """The operand of the result's shape, if both are results of pipelines; None if there is nothing to gain."""
    name, writes = name_of(node)
    operands = list(node.args[:2])
    if name not in _SIGNS or writes or node.kwargs or len(node.args) != 2 or not is_tensor(node):
        return None
    if not all(isinstance(each, fx.Node) and each in ours for each in operands) or operands[0] is operands[1]:
        return None
    result, tensors = example(node), [example(each) for each in operands]
    alike = all(each.dim() == 5 and each.dtype == result.dtype and each.is_contiguous() for each in tensors)
    if not alike or result.dtype not in TYPES or not result.is_cpu or result.requires_grad:
        return None
    for each, tensor in zip(operands, tensors, strict=True):
        if type(tensor.shape[1]) is int and all(map(same, tensor.shape, result.shape)):
            return each
    return None


def without_convolutions(graph: Any) -> None:
    """Takes those away again that no pipeline has taken."""
    for node in reversed(list(graph.nodes)):
        if UNCHANGED in node.meta and node.target is torch.conv_transpose3d:
            main, weight = node.args[:2]
            node.replace_all_uses_with(main)
            graph.erase_node(node)
            graph.erase_node(weight)
