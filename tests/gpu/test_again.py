"""A call once more (gpu/again.py): what Triton's launcher gets, and what profilers hear of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton", "3.4")
from convt3d.gpu.again import Again  # noqa: E402
from convt3d.plan.names import INPUT, OUTPUT  # noqa: E402


class Kernel:
    """As Triton compiles it, with a launcher that notes."""

    packed_metadata, function = "metadata", "function"

    def __init__(self) -> None:
        self.own: list[Any] = []
        self.theirs: list[Any] = []

    def run(self, *given: Any) -> None:
        self.own.append(given)

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *given, stream: self.theirs.append((grid, stream, *given))


def repeated(kernel: Kernel, x: str = "x", y: str = "y") -> None:
    again = Again((INPUT, OUTPUT))
    again.launches(kernel, 7, ["old x", 3, "old y"], {0: INPUT, 2: OUTPUT}, [64])
    again.run((x, y), 5)


def test_a_launch_has_the_arrays_of_its_call_and_the_arguments_of_the_first() -> None:
    kernel = Kernel()
    repeated(kernel)
    assert kernel.own == [(7, 1, 1, 5, "function", "metadata", None, None, None, "x", 3, "y", 64)]
    assert kernel.theirs == []


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_hears_of_a_launch(monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    """By Triton's own way, which makes what it is told."""
    monkeypatch.setattr(triton.knobs.runtime, hook, SimpleNamespace(calls=[print]))
    kernel = Kernel()
    repeated(kernel)
    assert kernel.own == []
    assert kernel.theirs == [((7, 1, 1), 5, "x", 3, "y", 64)]


def test_an_unknown_release_of_triton_launches_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.99.0")
    kernel = Kernel()
    repeated(kernel)
    assert (kernel.own, len(kernel.theirs)) == ([], 1)


def test_triton_launches_as_this_release_does() -> None:
    """The arguments that `CompiledKernel.__getitem__` gives its launcher, of the release that is installed."""
    from triton.compiler.compiler import CompiledKernel

    found: list[Any] = []
    kernel = object.__new__(CompiledKernel)
    kernel.module, kernel.function, kernel.packed_metadata = None, "function", "metadata"
    kernel._run = lambda *given: found.append(given)
    kernel._init_handles = lambda: None
    kernel.name, kernel.src = "name", None
    kernel[(7, 1, 1)]("x", 64, stream=5)
    (given,) = found
    assert given[:6] == (7, 1, 1, 5, "function", "metadata")
    assert given[9:] == ("x", 64)
