"""A pipeline of a captured graph, as a function that owns its weights."""

from __future__ import annotations

from collections.abc import Sequence

from . import prepared
from .functions import pipeline
from .stock import Tensor

_MOST_CHANGES = 3  # after which its operands are not taken for weights any more


class OwnedCall:
    """`call(x, operands, text)` is `pipeline(x, operands, text)`, for one text. Folded and packed weights are made
    once, and again where PyTorch says that an operand has changed; where that happens call after call, operands are no
    weights, and nothing is kept for them."""

    def __init__(self) -> None:
        self.changes = 0
        self.__name__ = "pipeline"  # torch.fx writes it

    def __call__(self, x: Tensor, operands: Sequence[Tensor], text: str) -> Tensor:
        if self.changes < _MOST_CHANGES:
            states = prepared.owned(self).states
            before = states.get(0)
            result = prepared.run(self, 0, "pipeline", x, operands, (text,), lambda: (operands, text))
            if before is not None:
                self.changes = self.changes + 1 if states[0] is not before else 0
            if self.changes >= _MOST_CHANGES:
                states.clear()
            if result is not None:
                return result
        return pipeline(x, operands, text)
