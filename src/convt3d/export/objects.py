"""The kernels of a library as object files: one for each structure and instruction set, with names of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product

from ..cpu.plan.machine import LEVELS, SVE, Isa, Machine
from ..cpu.plan.registers import RegisterTile, any_tile
from ..cpu.plan.structure import Structure
from ..cpu.plan.winograd import EXACT_OUTPUTS, EXACT_POINTS, GatherKind, ScatterKind, Scheme, terms
from ..cpu.runtime.build import Target, compile_ir
from ..cpu.runtime.team import team_ir
from ..cpu.steps.conv import Convolution
from ..spec.dtypes import DType, bfloat16, float32

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
TARGETS = tuple(_TRIPLES)


@dataclass(frozen=True)
class Level:
    """An instruction set of a target."""

    target: str
    isa: Isa
    more: tuple[str, ...] = ()  # features beside it

    @property
    def name(self) -> str:
        return "_".join((self.isa.name, *self.more))

    @property
    def machine(self) -> Machine:
        """Any processor that has it. Caches and cores are those of the processor that runs the code, and are asked for
        then; no code depends on them."""
        features = [f"+{name}" for name in sorted({*self.isa.features, *self.more})] or ["+neon"]
        tuning = ["-prefer-256-bit"] if self.target == "x86_64" else []
        return Machine(
            isa=self.isa.name,
            cpu=self.isa.generic_cpu,
            features=",".join(features + tuning),
            vector_bytes=self.isa.vector_bytes,
            vector_registers=self.isa.vector_registers,
            l1d=32 << 10,
            l2=512 << 10,
            l3=8 << 20,
            cores=4,
            threads=4,
        )

    @property
    def tile(self) -> RegisterTile:
        """Output channels in a block of packed weights, and vectors of positions that go with them."""
        return any_tile(self.isa.vector_registers)

    def compile(self, ir: str) -> bytes:
        host = self.machine
        if self.isa == SVE:  # code of fixed vectors runs where those of the processor are at least as long
            ir = re.sub(r"^(define .*\)) nounwind", r"\1 nounwind vscale_range(2,16)", ir, flags=re.MULTILINE)
        return compile_ir(ir, Target.cross(_TRIPLES[self.target], host.cpu, host.features)).object_code


def levels(target: str, dtype: DType = float32) -> list[Level]:
    """The best first."""
    found = [Level(target, isa) for isa in ((SVE,) if target == "aarch64" else ()) + LEVELS[target]]
    paired = [Level(target, found[0].isa, (PAIRS,))] if target == "x86_64" and dtype == bfloat16 else []
    return paired + found


PAIRS = "avx512bf16"  # multiplies pairs of bfloat16 numbers, in forms whose rewrites leave the kernel as it is


def for_any_channels(structure: Structure, level: Level) -> Structure:
    """The code of a sweep for every number of channels."""
    tile = any_tile(level.isa.vector_registers)
    steps = (replace(step, tile=tile, blocks=0) if isinstance(step, Convolution) else step for step in structure.steps)
    return Structure(tuple(steps), structure.dtype, level.isa.name)


class Kernels:
    """Kernels of an instruction set. The loops in which the time is spent are the same in many of them, and are
    compiled once."""

    _FUNCTION = re.compile(
        r'^define internal (void @"((?:micro|sum)_\w+)"\([^)]*\) nounwind)\s*\{.*?^\}\n', re.M | re.S
    )

    def __init__(self, level: Level, name: str) -> None:
        self.level, self.name = level, name
        self._heads: dict[str, None] = {}  # declarations of what LLVM itself has, and the target
        self._shared: dict[str, str] = {}
        self._bodies: dict[str, list[str]] = {}  # of each name, as kernels have it: most have the same

    def object(self, structure: Structure, name: str) -> bytes:
        """void name(int64 *table, int64 worker)"""
        from ..cpu.code.tile import emit  # here: nobody else needs LLVM

        text = self._told_apart(emit(for_any_channels(structure, self.level), self.level.machine))
        self._heads |= dict.fromkeys(re.findall(r"^(?:declare |target |!\d+ = ).*$", text, re.M))
        text = self._named(self._FUNCTION.sub(self._kept_apart, text))
        return self.level.compile(_renamed(text, {"run": name}))

    def _told_apart(self, text: str) -> str:
        """Loops of one name that differ, in the distance from row to row, have a number of their own."""
        for found in self._FUNCTION.finditer(text):
            body, name = found.group(0), found.group(2)
            bodies = self._bodies.setdefault(name, [])
            if body not in bodies:
                bodies.append(body)
            if number := bodies.index(body):
                text = text.replace(f'@"{name}"', f'@"{name}_{number}"')
        return text

    def _kept_apart(self, found: re.Match[str]) -> str:
        head, name = found.groups()
        kept = self._shared.setdefault(name, found.group(0).replace("define internal", "define hidden", 1))
        assert kept == found.group(0).replace("define internal", "define hidden", 1), name
        return f"declare hidden {head}\n"

    def _named(self, text: str) -> str:
        return re.sub(r'@"(micro|sum)_', rf'@"{self.name}_\1_', text)

    def shared(self) -> bytes:
        """What they have in common."""
        return self.level.compile(self._named("\n".join([*self._heads, *self._shared.values()])))


def blocks_object(dtype: DType, level: Level, name: str) -> bytes:
    """What reads and writes arrays whose channels lie side by side."""
    from ..cpu.code.tile import STORAGE
    from ..cpu.ir.blocks import blocks_ir

    text = blocks_ir(STORAGE[dtype.name], level.machine)
    return level.compile(_renamed(text, {"read": f"{name}_read", "write": f"{name}_write"}))


# Schemes of Winograd's method: those that round no worse than direct summation.
LONGEST = EXACT_POINTS + 1 - EXACT_OUTPUTS
SCHEMES = (Scheme(1, 1), *(Scheme(EXACT_OUTPUTS, taps) for taps in range(1, LONGEST + 1)))


def gather_kinds() -> list[GatherKind]:
    """By the terms along the depth, the schemes along height and width, and whether pieces are even."""
    terms = _terms("inputs_matrix")
    return [GatherKind(*which) for which in product(terms, SCHEMES, SCHEMES, (False, True))]


def scatter_kinds() -> list[ScatterKind]:
    return [ScatterKind(*which) for which in product(_terms("outputs_matrix"), SCHEMES, SCHEMES)]


def _terms(matrix: str) -> range:
    return range(1, 1 + max(terms(getattr(scheme, matrix)) for scheme in SCHEMES))


def transforms_object(dtype: DType, level: Level, name: str) -> bytes:
    """Of Winograd's method, for every kernel and stride: each under its own name."""
    from ..cpu.code.tile import STORAGE
    from ..cpu.code.winograd import emit_transforms

    gathers, scatters = gather_kinds(), scatter_kinds()
    text = emit_transforms(level.machine, STORAGE[dtype.name], gathers, scatters)
    names = [*(kind.name for kind in gathers), *(kind.name for kind in scatters)]
    return level.compile(_renamed(text, {one: f"{name}_{one}" for one in names}))


def team_object(level: Level, name: str) -> bytes:
    return level.compile(_renamed(team_ir(level.target), {"attend": f"{name}_attend", "launch": f"{name}_launch"}))


def _renamed(ir: str, names: dict[str, str]) -> str:
    """IR whose functions have other names, which only the library sees."""
    for old, new in names.items():
        ir = re.sub(rf'^define (?:external )?(.*?)@"?{old}"?\(', rf"define hidden \1@{new}(", ir, flags=re.MULTILINE)
    return ir
