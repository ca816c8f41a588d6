"""A pipeline of a captured graph, as a function that owns its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from torch.nn import Parameter

from . import prepared
from .engine import memory
from .functions import pipeline
from .stock import Tensor

_MOST_CHANGES = 3  # after which its operands are not taken for weights any more


@dataclass(frozen=True)
class Place:
    """Channels of a larger, contiguous tensor that a value takes: `size` from `offset` on, of `total`."""

    offset: int
    size: int
    total: int

    def within(self, room: Tensor) -> Tensor:
        return room if self.size == self.total else room.narrow(1, self.offset, self.size)

    def room(self, part: Tensor) -> Tensor | None:
        """The larger tensor, if the part lies in one; its strides tell, that of samples included."""
        b, _, *space = part.shape
        strides = [self.total * prod(space), *(prod(space[at:]) for at in range(4))]
        start = part.storage_offset() - self.offset * strides[1]
        end = (start + b * strides[0]) * part.element_size()
        if list(part.stride()) != strides or start < 0 or end > part.untyped_storage().nbytes():
            return None
        return part.as_strided((b, self.total, *space), strides, start)

    def new(self, kind: Any, beside: tuple[Place, Tensor] | None, shape: Sequence[int]) -> Tensor | None:
        """Memory for the value: beside another value of the same larger tensor, or in a new one."""
        b, _, *space = shape
        whole = (b, self.total, *space)
        room = memory("pipeline", whole, kind) if beside is None else beside[0].room(beside[1])
        return self.within(room) if room is not None and tuple(room.shape) == whole else None


class OwnedCall:
    """`call(x, operands, text)` is `pipeline(x, operands, text)`, for one text. Folded and packed weights are made
    once for each model that shares its graph, and again where PyTorch says that an operand has changed; where that
    happens call after call, operands are no weights, and nothing is kept for them.

    With a `place`, the result is a slice of a larger tensor where possible: of a new one, or of that in which the
    last argument has the place `beside`."""

    def __init__(self) -> None:
        self.changes = 0
        self.place: Place | None = None
        self.beside: Place | None = None
        self.__name__ = "pipeline"  # torch.fx writes it

    def __call__(self, x: Tensor, operands: Sequence[Tensor], text: str, first: Tensor | None = None) -> Tensor:
        if self.changes < _MOST_CHANGES:
            states = prepared.owned(self).states
            # Models of one class may share a graph: each has parameters of its own.
            place = next((id(each) for each in operands if type(each) is Parameter), 0)
            before = states.get(place)
            if before is None:
                prepared.forget_dead(states)
            room = None
            if self.place is not None and self.beside is not None:
                room = partial(self.place.new, x.dtype, None if first is None else (self.beside, first))
            result = prepared.run(self, place, "pipeline", x, operands, (text,), lambda: (operands, text), room)
            if before is not None:  # if there is none now, another thread gave up
                self.changes = self.changes + 1 if states.get(place) is not before else 0
            if self.changes >= _MOST_CHANGES:
                states.clear()
            if result is not None:
                return result
        return pipeline(x, operands, text)
