"""How a tensor of a captured graph shows a pipeline's value (B, C, D, H, W): permuted, flattened, without some axes.

A view is a tuple of groups, one for each axis of the tensor: the axes of the value that it runs over, outermost first.
`((0,), (1,), (2, 3, 4))` is `value.flatten(2)`. A group without axes has size 1; an axis in no group has size 1, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

View: TypeAlias = tuple[tuple[int, ...], ...]
PLAIN: View = ((0,), (1,), (2,), (3,), (4,))


def same(one: Any, other: Any) -> bool:
    """Whether two sizes are equal, whatever symbols in them stand for; no guard is made of the question."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(one == other))


class NoStageError(Exception):
    """Says why a node of a graph is no stage; never leaves this folder."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph that a pipeline computes."""

    node: Any
    view: View
    sizes: tuple[Any, ...]  # of the pipeline's value
    root: Any  # the node whose memory it shares

    @property
    def plain(self) -> bool:
        return is_plain(self.view)

    def size(self, group: tuple[int, ...]) -> Any:
        return prod(self.sizes[axis] for axis in group)

    def axis(self, dim: Any) -> int:
        """A dimension of the tensor, counted from the front."""
        if not isinstance(dim, int) or isinstance(dim, bool) or not -len(self.view) <= dim < len(self.view):
            raise NoStageError("goes along an axis that is not known here")
        return dim % len(self.view)

    def axes(self, dims: Any) -> tuple[int, ...]:
        """Several of them, or one; all where None."""
        if dims is None:
            return tuple(range(len(self.view)))
        return tuple(self.axis(dim) for dim in (dims if isinstance(dims, (list, tuple)) else (dims,)))


def is_plain(view: View) -> bool:
    """Whether the tensor has the value's five axes in their places."""
    named = {axis for group in view for axis in group}
    return len(view) == 5 and all(g == (at,) or (g == () and at not in named) for at, g in enumerate(view))


def calls(view: View) -> list[tuple[str, tuple[Any, ...]]]:
    """The methods of tensors that give this one from the value, one after the other, with their arguments."""
    if is_plain(view):
        return []
    axes = [axis for group in view for axis in group]
    ones = tuple(axis for axis in range(5) if axis not in axes)
    found: list[tuple[str, tuple[Any, ...]]] = [("squeeze", (ones,))] if ones else []
    if axes != sorted(axes):
        found.append(("permute", tuple(sorted(axes).index(axis) for axis in axes)))
    for at, group in enumerate(view):
        if not group:
            found.append(("unsqueeze", (at,)))
        elif len(group) > 1:
            found.append(("flatten", (at, at + len(group) - 1)))
    return found


def tidy(view: Sequence[tuple[int, ...]], sizes: Sequence[Any]) -> View:
    """Groups of several axes without those of size 1."""
    return tuple(
        tuple(axis for axis in group if not same(sizes[axis], 1)) if len(group) > 1 else group for group in view
    )


def permuted(value: Value, dims: Sequence[Any]) -> View:
    order = [value.axis(dim) for dim in dims]
    if sorted(order) != list(range(len(value.view))):
        raise NoStageError("permutes other axes than its own")
    return tuple(value.view[dim] for dim in order)


def reshaped(value: Value, shape: Sequence[Any]) -> View:
    """The view of the same numbers in the same order with another shape, if its axes are whole axes of the value."""
    atoms = [axis for group in value.view for axis in group]
    view: list[tuple[int, ...]] = []
    for wanted in shape:
        if same(wanted, 1):
            view.append((atoms.pop(0),) if atoms and same(value.sizes[atoms[0]], 1) else ())
            continue
        group: list[int] = []
        while atoms and not same(value.size(tuple(group)), wanted):
            group.append(atoms.pop(0))
        if not same(value.size(tuple(group)), wanted):
            raise NoStageError("splits an axis")
        view.append(tuple(group))
    if not all(same(value.sizes[axis], 1) for axis in atoms):
        raise NoStageError("splits an axis")
    return tidy(view, value.sizes)


def met(one: Value, other: Value) -> tuple[View, tuple[Any, ...]]:
    """View and sizes of what an operation on both tensors gives, by the rules of broadcasting: axes meet from the
    right, and those that meet must be the same axes of the pipeline's values."""
    longest = max(len(one.view), len(other.view))
    left, right = (((),) * (longest - len(each.view)) + each.view for each in (one, other))
    view = tuple(_met(a, b, one, other) for a, b in zip(left, right, strict=True))
    axes = [axis for group in view for axis in group]
    if len(set(axes)) != len(axes):
        raise NoStageError("meets a tensor with its axes in another order")
    sizes = tuple(b if same(a, 1) else a for a, b in zip(one.sizes, other.sizes, strict=True))
    for group in view:
        if len(group) > 1 and any(not same(a, b) for a, b in ((one.sizes[x], other.sizes[x]) for x in group)):
            raise NoStageError("meets a tensor of another shape")
    for axis, (a, b) in enumerate(zip(one.sizes, other.sizes, strict=True)):
        if not (same(a, b) or same(a, 1) or same(b, 1)) or (axis not in axes and not same(sizes[axis], 1)):
            raise NoStageError("meets a tensor of another shape")
    return view, sizes


def _met(a: tuple[int, ...], b: tuple[int, ...], one: Value, other: Value) -> tuple[int, ...]:
    if a == b:
        return a
    if same(other.size(b), 1):  # repeated along a
        return a or b
    if same(one.size(a), 1):
        return b
    raise NoStageError("meets a tensor with its axes in another order")
