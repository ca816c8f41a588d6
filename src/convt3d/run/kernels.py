"""Native kernels by structure: emitted and compiled once, found in memory or on disk from then on."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from ..cache import object_cache
from ..plan.machine import Machine
from ..plan.structure import Structure
from .build import Code, Target, compile_ir, load
from .keys import entry_key


class NativeKernel(NamedTuple):
    address: int  # of void run(int64 *parameters, int64 worker)
    names: tuple[str, ...]  # of the parameters, in order
    code: Code  # keeps the code alive


compilations = 0  # since the process began; tests count them


def kernel(structure: Structure, machine: Machine) -> NativeKernel:
    return _kernel(structure.key, _Wanted(structure, machine))


class _Wanted:
    """Carries what is needed to compile, equal for all: only the key decides."""

    def __init__(self, structure: Structure, machine: Machine) -> None:
        self.structure, self.machine = structure, machine

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Wanted) and self.machine == other.machine

    def __hash__(self) -> int:
        return hash(self.machine)


@lru_cache(maxsize=512)
def _kernel(key: str, wanted: _Wanted) -> NativeKernel:
    machine = wanted.machine
    packed = object_cache().fetch(entry_key(key, machine), lambda: _compile(wanted.structure, machine))
    size = int.from_bytes(packed[:8], "little")
    names = tuple(json.loads(packed[8 : 8 + size]))
    code = load(packed[8 + size :], ["run"])
    return NativeKernel(code.addresses["run"], names, code)


def _compile(structure: Structure, machine: Machine) -> bytes:
    """The parameter names and the object file in one piece, as they are cached."""
    from ..emit.program import emit  # a kernel found on disk needs no emitter

    global compilations
    compilations += 1
    text, names = emit(structure, machine)
    header = json.dumps(names).encode()
    return len(header).to_bytes(8, "little") + header + compile_ir(text, Target.of(machine)).object_code
