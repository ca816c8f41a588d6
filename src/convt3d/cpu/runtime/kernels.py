"""Native kernels by structure: emitted and compiled once, found in memory or on disk from then on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..plan.machine import Machine
from ..plan.plan import Plan
from ..plan.structure import Structure
from .build import Code
from .compiled import Wanted, compile_together, compiled

compilations = 0  # since the process began; tests count them


def kernel(structure: Structure, machine: Machine) -> Code:
    """void run(int64 *table, int64 worker)"""
    return compiled(structure.key, partial(_write, structure, machine), ("run",), machine, name=structure.name)


def compile_kernels(plans: Iterable[Plan]) -> None:
    """Compiles what these plans are going to run, by all threads; later plans are made meanwhile."""
    compile_together(
        Wanted(structure.key, partial(_write, structure, plan.machine), plan.machine, structure.name)
        for plan in plans
        for structure in (planned.structure for planned in plan.sweeps)
    )


def _write(structure: Structure, machine: Machine) -> str:
    from ..code.tile import emit  # a kernel found on disk needs no emitter

    global compilations
    compilations += 1
    return emit(structure, machine)
