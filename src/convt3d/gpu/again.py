"""A call of a plan once more. The first one notes what it allocates and launches; the next, on arrays that lie alike,
allocates the same, fills in pointers and launches the compiled kernels, and looks at nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..plan.names import ArrayName

Step = Callable[[dict[ArrayName, Any], int], None]  # with the arrays of a call, on a stream


@dataclass
class Again:
    """What a call does, in order; None instead of steps if one of them cannot be repeated."""

    steps: list[Step] | None = field(default_factory=list)

    def allocates(self, name: ArrayName, shape: Sequence[int], kind: Any, like: ArrayName, zeros: bool) -> None:
        def step(arrays: dict[ArrayName, Any], stream: int) -> None:
            made = arrays[like].new_zeros if zeros else arrays[like].new_empty
            arrays[name] = made(shape, dtype=kind)

        self._note(step)

    def shows(self, name: ArrayName, source: ArrayName, offset: int) -> None:
        """`name` is `source` from a place on: kernels take its address, and its strides from elsewhere."""

        def step(arrays: dict[ArrayName, Any], stream: int) -> None:
            arrays[name] = arrays[source].as_strided((1,), (1,), offset) if offset else arrays[source]

        self._note(step)

    def launches(
        self, kernel: Any, grid: int, arguments: Sequence[Any], pointers: Mapping[int, ArrayName], constants: Any
    ) -> None:
        """`kernel` is what Triton gives for a launch; its interpreter gives nothing."""
        if not hasattr(kernel, "packed_metadata"):
            self.steps = None
            return
        runner = kernel[(grid, 1, 1)]
        given = [None if place in pointers else value for place, value in enumerate(arguments)] + list(constants)
        slots = tuple(pointers.items())

        def step(arrays: dict[ArrayName, Any], stream: int) -> None:
            values = given.copy()
            for place, name in slots:
                values[place] = arrays[name]
            runner(*values, stream=stream)

        self._note(step)

    def drops(self, name: ArrayName) -> None:
        def step(arrays: dict[ArrayName, Any], stream: int) -> None:
            del arrays[name]

        self._note(step)

    def run(self, arrays: dict[ArrayName, Any], stream: int) -> None:
        assert self.steps is not None
        for step in self.steps:
            step(arrays, stream)

    def _note(self, step: Step) -> None:
        if self.steps is not None:
            self.steps.append(step)
