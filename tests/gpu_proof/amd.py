"""What AMD's compiler makes of the kernels: registers, spills, shared memory and matrix instructions, without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convt3d.gpu.config import AMD, SHARED
from convt3d.spec.problems import PROBLEMS

from .compile import compiled_call, launches
from .jobs import FURTHER, Job

THREADS = {9: 64, 11: 32}  # of a warp
MOST_SHARED = {**{name: SHARED[generation] << 10 for name, generation in AMD.items()}, "gfx950": 160 << 10}  # bytes
KINDS = ("float32", "float16", "float64")
# float64 has none on RDNA.
MATRIX = {9: {"float32": "bf16", "float16": "f16", "float64": "f64"}, 11: {"float32": "bf16", "float16": "f16"}}
_MATRIX = re.compile(r"\b(v_(?:s?mfma|s?wmma)\w+)")
_COUNT = re.compile(r"\.(vgpr_count|agpr_count|vgpr_spill_count|sgpr_spill_count):\s*(\d+)")


@dataclass(frozen=True)
class AmdRow:
    """One kernel in machine code."""

    job: Job
    architecture: str
    kernel: str
    kind: str
    registers: int  # of a thread, accumulators of matrix instructions among them
    spills: int
    shared: int
    matrix: Mapping[str, int]

    def faults(self) -> list[str]:
        found = [f"{self.spills} spills"] if self.spills else []
        if self.shared > MOST_SHARED[self.architecture]:
            found.append(f"{self.shared} bytes of shared memory")
        wanted = MATRIX[AMD[self.architecture]].get(self.job.arithmetic, "")
        idle = bool(wanted) and not self.matrix
        if self.kind == "dot" and (idle or not all(wanted and wanted in name for name in self.matrix)):
            found.append(f"matrix instructions {dict(self.matrix)} instead of {wanted or 'none'}")
        return found

    def line(self) -> str:
        matrix = ", ".join(sorted(self.matrix))
        cells = [f"{self.kernel} ({self.kind})", self.job.arithmetic, self.architecture, str(self.registers)]
        return "| " + " | ".join([*cells, str(self.spills), f"{self.shared / 1024:g} KiB", matrix]) + " |"


def amd_jobs(names: Iterable[str] = PROBLEMS) -> list[tuple[Job, str]]:
    return [(Job(name, kind, AMD[one]), one) for name in names for kind in KINDS for one in AMD]


def further_amd_jobs() -> list[tuple[Job, str]]:
    return amd_jobs(FURTHER)


def amd_rows(job: Job, architecture: str) -> Iterator[AmdRow]:
    """Compiled as they would be launched there."""
    for launch in launches(job.plan(), job.channels_last):
        made = compiled_call(
            launch.function, ("hip", architecture, THREADS[AMD[architecture]]), *launch.arguments, **launch.options
        )
        yield _row(job, architecture, launch.text.name.split("_", 3)[3], launch.step.label, made)


def _row(job: Job, architecture: str, kernel: str, kind: str, compiled: Any) -> AmdRow:
    text = compiled.asm["amdgcn"]
    counts = {name: int(number) for name, number in _COUNT.findall(text)}
    return AmdRow(
        job,
        architecture,
        kernel,
        kind,
        registers=counts["vgpr_count"],
        spills=counts["vgpr_spill_count"],
        shared=compiled.metadata.shared,
        matrix=dict(Counter(_MATRIX.findall(text))),
    )


HEAD = """\
## AMD

The same kernels for gfx90a (MI210), gfx942 (MI300), gfx950 (MI350) and gfx1100 (RX 7900), compiled and never run.
Registers are those of a thread, of which gfx9 has 512 and gfx1100 256; a block has 64 KiB of shared memory, on gfx950
160 KiB. gfx1100 has no matrix instructions for float64.
"""
COLUMNS = ("operator: kernel", "type", "architecture", "registers", "spills", "shared", "matrix instructions")


def amd_table(rows: Iterable[AmdRow]) -> Iterator[str]:
    """Of the convolutions; copies and guards are alike, and tested as well."""
    yield HEAD
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + "---|" * len(COLUMNS)
    for row in rows:
        if row.kind == "dot":
            yield row.line().replace("| ", f"| {row.job.name.removeprefix('conv-transpose')[3:]}: ", 1)
    yield ""
