"""The table of stages: for every backend (the meaning, PyTorch, gradients, ONNX, JAX, ...) an entry for each stage, or
the reason why it has none.

Each backend keeps its entries beside each other in one file:

    STOCK: StageTable[Callable[..., Tensor]] = StageTable("PyTorch", __name__)

    @STOCK.of(ReLU)
    def relu(stage, v): ...

`tests/test_backends.py` goes over all of them; docs/stages.md shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from ..errors import UnsupportedStageError
from . import stages
from .stage import Stage

Entry = TypeVar("Entry")


def vocabulary() -> dict[str, type[Stage]]:
    """Every stage that a pipeline may hold, by its name: the public classes that nothing else derives from."""
    kinds = [kind for kind in vars(stages).values() if isinstance(kind, type) and issubclass(kind, Stage)]
    last = [kind for kind in kinds if not any(kind in other.__mro__[1:] for other in kinds)]
    return {kind.__name__: kind for kind in last if not kind.__name__.startswith("_")}


class StageTable(Generic[Entry]):
    """What one backend makes of each stage. `module` is where its entries stand."""

    def __init__(self, backend: str, module: str, entries: Mapping[type[Stage], Entry] | None = None) -> None:
        self.backend, self.module = backend, module
        self.entries: dict[type[Stage], Entry] = dict(entries or {})
        self.reasons: dict[type[Stage], str] = {}  # of stages it does not support

    def of(self, *kinds: type[Stage]) -> Callable[[Entry], Entry]:
        """Enters what follows for these stages."""

        def enter(entry: Entry) -> Entry:
            self.entries.update(dict.fromkeys(kinds, entry))
            return entry

        return enter

    def unsupported(self, kind: type[Stage], reason: str) -> None:
        """Says why the backend has none."""
        self.reasons[kind] = reason

    def __getitem__(self, kind: type[Stage]) -> Entry:
        try:
            return self.entries[kind]
        except KeyError:
            file = self.module.replace(".", "/") + ".py"
            rule = self.reasons.get(kind) or f"has no entry in the table of {self.backend}"
            remedy = "Leave it out, or use another backend" if kind in self.reasons else f"Add one in {file}"
            raise UnsupportedStageError(self.backend, "stage", kind.__name__, rule, remedy) from None
