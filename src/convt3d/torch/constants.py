"""Parts of a graph that no input and no parameter enters, such as masks of windows: computed once and kept.

A tensor is kept only if nobody can write to it later: if its memory does not leave the graph, and nothing else writes
there.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from .capture import RESULT
from .direct import plain_thread
from .graphs import example, is_barrier, is_tensor
from .joined import memory_of
from .stock import Tensor

FROM = 1 << 20  # bytes that are computed, where it is worth it
MOST = 256 << 20  # bytes that are kept
_MADE = ("zeros", "ones", "full", "arange", "linspace", "eye")
_NAMES = (
    "add", "sub", "mul", "truediv", "div", "neg", "eq", "ne", "lt", "le", "gt", "ge", "where", "masked_fill",
    "logical_not", "logical_and", "logical_or", "view", "reshape", "permute", "transpose", "contiguous", "squeeze",
    "unsqueeze", "flatten", "expand", "repeat", "stack", "cat", "flip", "roll", "clone", "setitem", "getitem",
)  # fmt: skip
_FUNCTIONS = {getattr(torch, name) for name in _MADE} | {
    function
    for module in (torch, operator, functional)
    for name in _NAMES
    if callable(function := getattr(module, name, None))
}
_METHODS = {*_NAMES, "fill_", "zero_"}


class Kept:
    """`kept()`: the results of a graph without inputs, always the same tensors."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._results: tuple[Tensor, ...] | None = None
        self.__name__ = "kept"  # torch.fx writes it

    def __call__(self) -> tuple[Tensor, ...]:
        if self._results is not None:
            return self._results
        with torch.inference_mode(False), torch.no_grad():
            results: tuple[Tensor, ...] = self._module.forward()
        if plain_thread():  # real tensors, that nobody watches
            self._results = results
        return results


def keep_constants(graph: Any, owner: Any) -> list[Any]:
    """Changes a graph; the nodes that are gone."""
    nodes = _constant(graph)
    leaving = [node for node in nodes if is_tensor(node) and any(user not in nodes for user in node.users)]
    if not leaving or sum(map(_bytes, nodes)) < FROM or sum(map(_bytes, leaving)) > MOST:
        return []
    inner, copies = fx.Graph(), dict[Any, Any]()
    for node in nodes:
        copies[node] = inner.node_copy(node, copies.__getitem__)
    inner.output(tuple(copies[node] for node in leaving))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        kept = graph.call_function(Kept(fx.GraphModule(owner, inner)), ())
        news = [graph.call_function(operator.getitem, (kept, at)) for at in range(len(leaving))]
    for node, new in zip(leaving, news, strict=True):
        new.meta = dict(node.meta) | {RESULT: node.name}
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in nodes)
    for node in reversed(nodes):
        graph.erase_node(node)
    return list(nodes)


def _constant(graph: Any) -> dict[Any, None]:
    """Nodes that are the same at each call, in order, without those whose memory others may write to."""
    shared: dict[int, list[Any]] = defaultdict(list)
    for node in graph.nodes:
        if is_tensor(node):
            shared[memory_of(node)].append(node)
    spoiled: set[int] = set()
    while True:
        found = _without(graph, spoiled)
        more = {memory for memory, own in shared.items() if memory not in spoiled and _is_seen(own, found)}
        if not more:
            return found
        spoiled |= more


def _without(graph: Any, spoiled: set[int]) -> dict[Any, None]:
    found: dict[Any, None] = {}
    for node in graph.nodes:
        inputs = node.all_input_nodes
        known = node.op == "call_function" and node.target in _FUNCTIONS
        known |= node.op == "call_method" and node.target in _METHODS
        own = is_tensor(node) and example(node).is_cpu and memory_of(node) not in spoiled
        writes = is_barrier(node) and bool(inputs)  # gives nothing, as `setitem`, or what it has written to
        if known and (own or writes) and all(each in found for each in inputs) and "out" not in node.kwargs:
            found[node] = None
    return found


def _is_seen(own: Sequence[Any], found: Mapping[Any, None]) -> bool:
    """Whether memory of constant nodes is written to by others, or leaves the graph."""
    if not any(node in found for node in own):
        return False
    users = [user for node in own for user in node.users]
    return any(user.op == "output" or (is_barrier(user) and user not in found) for user in users)


def _bytes(node: Any) -> int:
    return example(node).numel() * example(node).element_size() if is_tensor(node) else 0
