"""A call of a plan once more. The first one notes what it allocates and launches; the next, on arrays that lie alike,
allocates the same, fills in pointers and launches the compiled kernels, and looks at nothing else.

Nothing of a call is kept: no array, no stream, no graph that was being recorded. So calls of any threads, on any
streams of the device, may repeat one `Again` at a time; once its first call has ended it is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..plan.names import ArrayName

Step = Callable[[list[Any], int], None]  # with the arrays of a call, on a stream


# Triton's releases that launch as `_runner` does.
_LAUNCH_SO = range(4, 10)


def _runner(kernel: Any, grid: int) -> Callable[..., None]:
    """Triton's own way to launch a compiled kernel, which tells profilers of each launch, and where none listens a
    shorter one: what it would tell them takes as long as all else."""
    theirs = kernel[(grid, 1, 1)]
    import triton
    from triton import knobs

    major, minor = map(int, triton.__version__.split(".")[:2])
    if major != 3 or minor not in _LAUNCH_SO:
        return theirs  # type: ignore[no-any-return]
    run, function, metadata, runtime = kernel.run, kernel.function, kernel.packed_metadata, knobs.runtime

    def launch(*values: Any, stream: int) -> None:
        if _heard(runtime.launch_enter_hook) or _heard(runtime.launch_exit_hook):
            theirs(*values, stream=stream)
        else:
            run(grid, 1, 1, stream, function, metadata, None, None, None, *values)

    return launch


def _heard(hook: Any) -> bool:
    """Whether anybody listens. A chain of nobody is an object, too."""
    return bool(getattr(hook, "calls", hook))


class Again:
    """What a call does, in order; None instead of steps if one of them cannot be repeated. Arrays have numbers, which
    are found sooner than names: those that a call is given come first."""

    def __init__(self, given: Sequence[ArrayName]) -> None:
        self.steps: list[Step] | None = []
        self.numbers = {name: number for number, name in enumerate(given)}

    def allocates(self, name: ArrayName, shape: Sequence[int], kind: Any, like: ArrayName, zeros: bool) -> None:
        own, other, shape = self._number(name), self.numbers[like], tuple(shape)

        def step(arrays: list[Any], stream: int) -> None:
            made = arrays[other].new_zeros if zeros else arrays[other].new_empty
            arrays[own] = made(shape, dtype=kind)

        self._note(step)

    def shows(self, name: ArrayName, source: ArrayName, offset: int) -> None:
        """`name` is `source` from a place on: kernels take its address, and its strides from elsewhere."""
        own, other = self._number(name), self.numbers[source]

        def step(arrays: list[Any], stream: int) -> None:
            arrays[own] = arrays[other].as_strided((1,), (1,), offset) if offset else arrays[other]

        self._note(step)

    def launches(
        self, kernel: Any, grid: int, arguments: Sequence[Any], pointers: Mapping[int, ArrayName], constants: Any
    ) -> None:
        """`kernel` is what Triton gives for a launch; its interpreter gives nothing."""
        if not hasattr(kernel, "packed_metadata"):
            self.steps = None
            return
        runner = _runner(kernel, grid)
        given = [None if place in pointers else value for place, value in enumerate(arguments)] + list(constants)
        slots = tuple((place, self.numbers[name]) for place, name in pointers.items())

        def step(arrays: list[Any], stream: int) -> None:
            values = given.copy()
            for place, number in slots:
                values[place] = arrays[number]
            runner(*values, stream=stream)

        self._note(step)

    def drops(self, name: ArrayName) -> None:
        own = self.numbers[name]

        def step(arrays: list[Any], stream: int) -> None:
            arrays[own] = None

        self._note(step)

    def run(self, given: Sequence[Any], stream: int) -> list[Any]:
        """With the arrays that a call is given; gives all that are left at its end, by their numbers."""
        assert self.steps is not None
        arrays = [*given, *[None] * (len(self.numbers) - len(given))]
        for step in self.steps:
            step(arrays, stream)
        return arrays

    def _number(self, name: ArrayName) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def _note(self, step: Step) -> None:
        if self.steps is not None:
            self.steps.append(step)
