"""Concatenations of channels without a copy: pipelines write their results where the concatenation wants them.

The first of its parts that a pipeline computes makes memory for the whole and is a slice of it; the others are written
beside it. Parts that PyTorch computes are copied there. A tensor may lie inside a larger one only if nobody can tell:
if nothing writes to it or to the whole, it does not leave the graph, and no gradient is recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .capture import RESULT
from .graphs import example, is_barrier, is_tensor
from .owned_call import OwnedCall, Place
from .stock import Tensor

_CATS = (torch.cat, torch.concat, torch.concatenate)


class Joined:
    """`joined(parts, first)` is `torch.cat(parts, 1)`; `first` is the part that was written first, into memory for the
    whole unless something has prevented that."""

    def __init__(self, place: Place, first: Place, parts: Sequence[Place]) -> None:
        self.place, self.first, self.parts = place, first, tuple(parts)
        self.__name__ = "joined"  # torch.fx writes it

    def __call__(self, parts: Sequence[Tensor], first: Tensor) -> Tensor:
        room = self.first.room(first)
        if room is None:
            return torch.cat(parts, 1)
        for part, place in zip(parts, self.parts, strict=True):
            wanted = place.within(room)
            if part.data_ptr() != wanted.data_ptr() or part.stride() != wanted.stride():
                wanted.copy_(part)
        return self.place.within(room)


@dataclass(frozen=True)
class _Cat:
    """A concatenation of channels: its parts, with the channels of each."""

    node: Any
    parts: tuple[Any, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class _Inside:
    """Where a value lies: in the memory of a concatenation that lies in no other."""

    root: Any
    place: Place

    def part(self, offset: int, size: int) -> _Inside:
        return replace(self, place=replace(self.place, offset=self.place.offset + offset, size=size))


def join(graph: Any) -> list[Any]:
    """Changes the concatenations of a graph that has its pipelines; the nodes that are gone."""
    nodes = list(graph.nodes)
    shared: dict[int, list[Any]] = defaultdict(list)  # nodes with the same memory
    for node in nodes:
        if is_tensor(node):
            shared[memory_of(node)].append(node)
    found = {each.node: each for each in map(_cat, nodes) if each is not None and _unwritten(each.node, shared)}
    inside: dict[Any, _Inside] = {}
    for cat in reversed(found.values()):
        own = inside.setdefault(cat.node, _Inside(cat.node, Place(0, sum(cat.sizes), sum(cat.sizes))))
        for part, at in _places(cat, own):
            movable = part in found or isinstance(part.target, OwnedCall)
            if movable and part not in inside and cat.parts.count(part) == 1 and _stays(part, shared):
                inside[part] = at
    order = {node: at for at, node in enumerate(nodes)}
    first: dict[Any, Any] = {}  # of each root, the pipeline whose result is there first
    for node in sorted(inside, key=order.__getitem__):
        if isinstance(node.target, OwnedCall):
            first.setdefault(inside[node].root, node)
    for node, at in inside.items():
        if isinstance(node.target, OwnedCall):
            beside = first[at.root]
            node.target.place, node.target.beside = at.place, inside[beside].place
            node.args = node.args if beside is node else (*node.args, beside)
    return [cat.node for cat in found.values() if _replaced(graph, cat, inside, first, order)]


def _replaced(
    graph: Any, cat: _Cat, inside: Mapping[Any, _Inside], first: Mapping[Any, Any], order: Mapping[Any, int]
) -> bool:
    own = inside[cat.node]
    beside = first.get(own.root)
    if beside is None or order[beside] > order[cat.node]:
        return False
    joined = Joined(own.place, inside[beside].place, [at.place for _, at in _places(cat, own)])
    with graph.inserting_before(cat.node):
        new = graph.call_function(joined, (list(_arguments(cat.node)[0]), beside))
    new.meta = dict(cat.node.meta) | {RESULT: cat.node.name}
    cat.node.replace_all_uses_with(new)
    graph.erase_node(cat.node)
    return True


def _places(cat: _Cat, own: _Inside) -> list[tuple[Any, _Inside]]:
    """The parts, and where each belongs."""
    offsets = [sum(cat.sizes[:at]) for at in range(len(cat.sizes))]
    return [(part, own.part(offset, size)) for part, offset, size in zip(cat.parts, offsets, cat.sizes, strict=True)]


def _arguments(node: Any) -> tuple[Any, Any]:
    """The tensors of a concatenation, and its axis."""
    tensors, dim = (*node.args, None, None)[:2]
    named = node.kwargs
    return named.get("tensors", tensors), named.get("dim", named.get("axis", 0 if dim is None else dim))


def _cat(node: Any) -> _Cat | None:
    """A concatenation of channels of tensors of one kind, whose result is contiguous."""
    if node.op != "call_function" or node.target not in _CATS or "out" in node.kwargs or not is_tensor(node):
        return None
    parts, dim = _arguments(node)
    result = example(node)
    if not isinstance(parts, (list, tuple)) or dim not in (1, -4) or not all(map(is_tensor, parts)):
        return None
    tensors = [example(part) for part in parts]
    alike = all(each.dim() == 5 and each.dtype == result.dtype and each.device == result.device for each in tensors)
    sizes = tuple(each.shape[1] for each in tensors) if alike else ()
    if not sizes or not all(type(size) is int and size for size in sizes) or result.device.type != "cpu":
        return None
    if any(each.requires_grad for each in (result, *tensors)) or not result.is_contiguous():
        return None
    return _Cat(node, tuple(parts), sizes)


def memory_of(node: Any) -> int:
    """The same number for nodes that share their memory."""
    return int(example(node).untyped_storage()._cdata)


def _unwritten(node: Any, shared: Mapping[int, Sequence[Any]]) -> bool:
    """Whether nothing writes to its memory."""
    return not any(is_barrier(user) for each in shared[memory_of(node)] for user in each.users)


def _stays(node: Any, shared: Mapping[int, Sequence[Any]]) -> bool:
    """Whether its memory does not leave the graph either; it is contiguous, as slices of samples are."""
    leaves = any(user.op == "output" for each in shared[memory_of(node)] for user in each.users)
    return not leaves and _unwritten(node, shared) and bool(example(node).is_contiguous())
