"""Attention in pieces: scores that are large are made, changed and used some rows at a time, inside the caches.

Windows of 7x7x7 voxels have 343 x 343 scores each; all of them at once, a model spends most of its time in moving them.
PyTorch's own functions compute the pieces. A chain of nodes from one matrix product to the next is one node then.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import fx

from .capture import RESULT
from .direct import direct
from .graphs import example, is_barrier, is_tensor, name_of
from .stock import Tensor

PIECE = 4 << 20  # bytes of scores at a time; there are two of them
FROM = 16 << 20  # bytes of all scores, where pieces are worth it
_PRODUCTS = (torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm", "__matmul__")
_SIGNS = {"add": "add_", "mul": "mul_", "multiply": "mul_", "sub": "sub_", "subtract": "sub_"}
_SIGNS |= dict.fromkeys(("div", "divide", "truediv", "true_divide"), "div_")


@dataclass(frozen=True)
class _Step:
    """What is done to scores: a method that writes, or "softmax". `tensor`: the number of its operand."""

    method: str
    tensor: int | None = None
    number: Any = None  # what is given besides
    split: int = 0  # the first axis of the scores is two at that time, of which the second has this length


Piece = tuple[slice, ...]


class Attention:
    """`attention(q, k, v, tensors)`: scores q @ k with some steps applied, times v."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self.steps = tuple(steps)
        self.split = next((step.split for step in steps if step.split), 0)
        self.__name__ = "attention"  # torch.fx writes it

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        if not direct((q, k, v, list(tensors))):
            return self._whole(q, k, v, tensors)
        shape = (*q.shape[:-1], k.shape[-1])
        result = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
        rooms: tuple[Tensor, ...] = ()
        for piece in pieces(shape, q.element_size(), self.split):
            size = [each.stop - each.start for each in piece]
            if not rooms:  # the first piece is the largest
                rooms = tuple(torch.empty(prod(size) * shape[-1], dtype=q.dtype) for _ in range(2))
            scores, other = (room[: prod(size) * shape[-1]].view(*size, shape[-1]) for room in rooms)
            torch.matmul(q[piece], k[piece[:-1]], out=scores)
            for step in self.steps:
                if step.method == "softmax":
                    torch.softmax(scores, -1, out=other)
                    scores, other = other, scores
                    continue
                given = [] if step.tensor is None else [_part(tensors[step.tensor], piece, step.split)]
                given += [] if step.number is None else [step.number]
                getattr(scores, step.method)(*given)
            torch.matmul(scores, v[piece[:-1]], out=result[piece])
        return result

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """The same where PyTorch must see each operation."""
        scores = torch.matmul(q, k)
        for step in self.steps:
            if step.method == "softmax":
                scores = torch.softmax(scores, -1)
                continue
            given = [] if step.tensor is None else [tensors[step.tensor]]
            given += [] if step.number is None else [step.number]
            split = scores.unflatten(0, (-1, step.split)) if step.split else scores
            split = getattr(split, step.method.removesuffix("_"))(*given)
            scores = split.flatten(0, 1) if step.split else split
        return torch.matmul(scores, v)


def pieces(shape: Sequence[int], itemsize: int, split: int) -> Iterator[Piece]:
    """Of all axes of the scores but the last: as many of one axis at a time as a piece takes, all of those after it,
    and one of those before. `split`: none goes past a multiple of it on the first axis."""
    *axes, _ = shape
    within = [prod(shape[at + 1 :]) * itemsize for at in range(len(axes))]
    at = next((at for at, size in enumerate(within) if size <= PIECE), len(axes) - 1)
    most = max(1, PIECE // within[at])
    turn = split if split and at == 0 else axes[at]
    most = -(-turn // -(-turn // most))  # all about as large
    starts = [[slice(one, one + 1) for one in range(size)] for size in axes[:at]]
    runs = [
        slice(one, min(one + most, begin + turn))
        for begin in range(0, axes[at], turn)
        for one in range(begin, begin + turn, most)
    ]
    yield from product(*starts, runs, *([slice(0, size)] for size in axes[at + 1 :]))


def _part(tensor: Tensor, piece: Piece, split: int) -> Tensor:
    """What a tensor that is broadcast to the scores has for a piece."""
    axes = [*piece, slice(None)]
    if split:
        first = axes[0].start // split
        axes[0] = slice(axes[0].start - first * split, axes[0].stop - first * split)
        if tensor.dim() > len(axes):
            tensor = tensor[first if tensor.shape[0] > 1 else 0]
    axes = axes[len(axes) - tensor.dim() :]
    return tensor[tuple(own if size > 1 else slice(None) for own, size in zip(axes, tensor.shape, strict=True))]


# --- in a graph -------------------------------------------------------------------------------------------------------


def in_pieces(graph: Any) -> list[Any]:
    """Changes a graph; the nodes that are gone."""
    gone: list[Any] = []
    for node in list(graph.nodes):
        found = _Chain(node).found() if _is_product(node) and node not in gone else None
        if found is not None:
            gone += found.replace(graph)
    return gone


def _is_product(node: Any) -> bool:
    return node.target in _PRODUCTS and len(node.args) == 2 and not node.kwargs and all(map(is_tensor, node.args))


class _Chain:
    """From one matrix product on, as long as nobody else uses its scores."""

    def __init__(self, first: Any) -> None:
        self.first, self.nodes = first, [first]
        self.steps: list[_Step] = []
        self.tensors: list[Any] = []
        self.split = 0

    def found(self) -> _Chain | None:
        if not self._begins():
            return None
        while len(self.nodes[-1].users) == 1:
            last = self.nodes[-1]
            node = next(iter(last.users))
            if not is_tensor(node) or example(node).dtype != example(last).dtype:
                return None
            if _is_product(node):
                return self if self._ends(node) else None
            if not self._takes(node, last):
                return None
            self.nodes.append(node)
        return None

    def _begins(self) -> bool:
        q, k, scores = (example(each) for each in (*self.first.args, self.first))
        if not isinstance(scores, torch.Tensor) or scores.dim() not in (3, 4) or not scores.is_cpu:
            return False
        if not all(type(size) is int for each in (q, k, scores) for size in each.shape):
            return False
        large = scores.numel() * scores.element_size() >= FROM
        alike = q.dtype == k.dtype == scores.dtype and q.shape[:-2] == k.shape[:-2] == scores.shape[:-2]
        return large and alike and scores.is_floating_point() and not scores.requires_grad

    def _ends(self, node: Any) -> bool:
        """Whether it is the product with the values, and nothing before it would be done too late there."""
        scores, v = node.args
        shape, result = example(self.first).shape, example(node)
        if scores is not self.nodes[-1] or v in self.nodes or example(scores).shape != shape:
            return False
        if example(v).dtype != result.dtype or example(v).shape[:-2] != shape[:-2] or result.requires_grad:
            return False
        if not any(step.method == "softmax" for step in self.steps):
            return False
        self.nodes.append(node)
        at = self.first
        while at is not node:
            if is_barrier(at) and at not in self.nodes:
                return False
            at = at.next
        return bool(result.is_contiguous())

    def _takes(self, node: Any, scores: Any) -> bool:
        name, _ = name_of(node)
        if name in _SIGNS:
            return self._takes_sign(node, scores, name)
        if name == "softmax":
            return self._takes_softmax(node, scores)
        if node.op != "call_method" or node.kwargs or node.args[0] is not scores:
            return False
        if node.target in ("masked_fill", "masked_fill_"):
            return len(node.args) == 3 and type(node.args[2]) in (int, float) and self._add("masked_fill_", *node.args)
        if node.target in ("view", "reshape"):
            return self._takes_view(tuple(example(node).shape))
        same = node.target == "contiguous" and len(node.args) == 1
        return same or (node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype))

    def _takes_sign(self, node: Any, scores: Any, name: str) -> bool:
        if node.kwargs or len(node.args) != 2 or example(node).shape != example(scores).shape:
            return False
        first, second = node.args
        if second is scores and _SIGNS[name] in ("add_", "mul_"):
            first, second = second, first
        return first is scores and second is not scores and self._add(_SIGNS[name], scores, second)

    def _add(self, method: str, scores: Any, other: Any, number: Any = None) -> bool:
        if type(other) in (int, float):
            self.steps.append(_Step(method, number=other))
            return True
        if not isinstance(other, fx.Node) or not is_tensor(other) or other in self.nodes:
            return False
        tensor, axes = example(other), example(scores).dim()
        if not tensor.is_cpu or tensor.dim() > axes or not all(type(size) is int for size in tensor.shape):
            return False
        self.steps.append(_Step(method, len(self.tensors), number, self.split))
        self.tensors.append(other)
        return True

    def _takes_softmax(self, node: Any, scores: Any) -> bool:
        named = {key: value for key, value in node.kwargs.items() if key != "_stacklevel" and value is not None}
        dim = named.pop("dim", node.args[1] if len(node.args) > 1 else None)
        if named or len(node.args) > 2 or node.args[0] is not scores or dim not in (-1, example(scores).dim() - 1):
            return False
        self.steps.append(_Step("softmax"))
        return True

    def _takes_view(self, shape: tuple[int, ...]) -> bool:
        """Whether it splits the first axis in two, always the same way, or undoes that."""
        whole = tuple(example(self.first).shape)
        if shape == whole:
            self.split = 0
            return True
        if shape[2:] != whole[1:] or len(shape) != len(whole) + 1:
            return False
        if any(step.split not in (0, shape[1]) for step in self.steps):
            return False
        self.split = shape[1]
        return True

    def replace(self, graph: Any) -> list[Any]:
        last = self.nodes[-1]
        with graph.inserting_before(last):
            given = (*self.first.args, last.args[1], list(self.tensors))
            new = graph.call_function(Attention(self.steps), given)
        new.meta = dict(last.meta) | {RESULT: last.name}
        last.replace_all_uses_with(new)
        for node in reversed(self.nodes):
            graph.erase_node(node)
        return self.nodes
