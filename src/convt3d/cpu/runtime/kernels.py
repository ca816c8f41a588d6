"""Native kernels by structure: emitted and compiled once, found in memory or on disk from then on."""

from __future__ import annotations

from ..plan.machine import Machine
from ..plan.structure import Structure
from .build import Code
from .compiled import compiled_kernel

compilations = 0  # since the process began; tests count them


def kernel(structure: Structure, machine: Machine) -> Code:
    """void run(int64 *parameters, int64 worker)"""

    def write() -> tuple[str, tuple[str, ...]]:
        from ..steps.program import emit  # a kernel found on disk needs no emitter

        global compilations
        compilations += 1
        return emit(structure, machine)

    return compiled_kernel(structure.key, write, ("run",), machine)
