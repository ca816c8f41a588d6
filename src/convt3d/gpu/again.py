"""A call of a plan once more. The first one notes what it allocates and launches; the next, on arrays that lie alike,
allocates the same, fills in pointers and launches the compiled kernels, and looks at nothing else.

Nothing of a call is kept: no array, no stream, no graph that was being recorded. So calls of any threads, on any
streams of the device, may repeat one `Again` at a time; once its first call has ended it is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ..plan.names import ArrayName

Step = Callable[[list[Any], int, bool], None]  # with the arrays of a call, on a stream, and whether profilers listen

_LAUNCH_SO = range(4, 10)  # of Triton 3: releases that launch as `Again.launches` does


def _as_known() -> bool:
    """Whether the Triton that is installed launches so."""
    import triton

    major, minor = map(int, triton.__version__.split(".")[:2])
    return major == 3 and minor in _LAUNCH_SO


@cache
def _hooks() -> Any:
    from triton import knobs

    return knobs.runtime


def _heard() -> bool:
    """Whether anybody listens to launches. A chain of nobody is an object, too."""
    hooks = _hooks().launch_enter_hook, _hooks().launch_exit_hook
    return any(getattr(hook, "calls", hook) for hook in hooks)


class Again:
    """What a call does, in order; None instead of steps if one of them cannot be repeated. Arrays have numbers, which
    are found sooner than names: those that a call is given come first."""

    def __init__(self, given: Sequence[ArrayName]) -> None:
        self.steps: list[Step] | None = []
        self.numbers = {name: number for number, name in enumerate(given)}

    def allocates(self, name: ArrayName, shape: Sequence[int], kind: Any, like: ArrayName, zeros: bool) -> None:
        own, other, shape = self._number(name), self.numbers[like], tuple(shape)

        def step(arrays: list[Any], stream: int, heard: bool) -> None:
            made = arrays[other].new_zeros if zeros else arrays[other].new_empty
            arrays[own] = made(shape, dtype=kind)

        self._note(step)

    def shows(self, name: ArrayName, source: ArrayName, offset: int) -> None:
        """`name` is `source` from a place on: kernels take its address, and its strides from elsewhere."""
        own, other = self._number(name), self.numbers[source]

        def step(arrays: list[Any], stream: int, heard: bool) -> None:
            arrays[own] = arrays[other].as_strided((1,), (1,), offset) if offset else arrays[other]

        self._note(step)

    def launches(
        self, kernel: Any, grid: int, arguments: Sequence[Any], pointers: Mapping[int, ArrayName], constants: Any
    ) -> None:
        """`kernel` is what Triton gives for a launch; its interpreter gives nothing."""
        if not hasattr(kernel, "packed_metadata"):
            self.steps = None
            return
        # Triton's own way tells profilers of each launch; where none listens there is a shorter one: what it would tell
        # them takes as long as all else.
        run, theirs, ours = kernel.run, kernel[(grid, 1, 1)], _as_known()
        head = [grid, 1, 1, 0, kernel.function, kernel.packed_metadata, None, None, None]
        given = [*head, *(None if place in pointers else value for place, value in enumerate(arguments)), *constants]
        slots = tuple((len(head) + place, self.numbers[name]) for place, name in pointers.items())

        def step(arrays: list[Any], stream: int, heard: bool) -> None:
            values = given.copy()
            values[3] = stream
            for place, number in slots:
                values[place] = arrays[number]
            if ours and not heard:
                run(*values)
            else:
                theirs(*values[len(head) :], stream=stream)

        self._note(step)

    def drops(self, name: ArrayName) -> None:
        own = self.numbers[name]

        def step(arrays: list[Any], stream: int, heard: bool) -> None:
            arrays[own] = None

        self._note(step)

    def run(self, given: Sequence[Any], stream: int) -> list[Any]:
        """With the arrays that a call is given; gives all that are left at its end, by their numbers."""
        assert self.steps is not None
        arrays = [*given, *[None] * (len(self.numbers) - len(given))]
        heard = _heard()
        for step in self.steps:
            step(arrays, stream, heard)
        return arrays

    def _number(self, name: ArrayName) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def _note(self, step: Step) -> None:
        if self.steps is not None:
            self.steps.append(step)
