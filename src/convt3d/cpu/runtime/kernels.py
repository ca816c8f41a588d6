"""Native kernels by structure: emitted and compiled once, found in memory or on disk from then on."""

from __future__ import annotations

from ..plan.machine import Machine
from ..plan.structure import Structure
from .build import Code
from .compiled import compiled

compilations = 0  # since the process began; tests count them


def kernel(structure: Structure, machine: Machine) -> Code:
    """void run(int64 *table, int64 worker)"""

    def write() -> str:
        from ..code.tile import emit  # a kernel found on disk needs no emitter

        global compilations
        compilations += 1
        return emit(structure, machine)

    return compiled(structure.key, write, ("run",), machine, name=structure.name)
