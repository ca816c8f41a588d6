"""The code of a plan's kernels, written and compiled anew: as LLVM IR, as assembly, or as the time each step took."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from ..cpu.code.tile import emit
from ..cpu.plan.plan import Plan
from ..cpu.runtime.build import Target, compile_ir, load
from .terminal import Screen


@dataclass(frozen=True)
class KernelDump:
    """One kernel: the sweeps that use it, its texts, and the seconds of each step of its build in order."""

    kernel: str
    sweeps: tuple[int, ...]
    ir: str
    asm: str
    seconds: dict[str, float]
    object_bytes: int

    def document(self, what: str) -> dict[str, object]:
        shown: dict[str, object] = {"ir": self.ir, "asm": self.asm, "steps": self.seconds}
        return {"kernel": self.kernel, "sweeps": self.sweeps, what: shown[what], "object_bytes": self.object_bytes}


def dump_kernels(plan: Plan) -> list[KernelDump]:
    """Sweeps of equal structure share a kernel; no cache is read or written."""
    keys = [planned.structure.key for planned in plan.sweeps]
    return [
        _dump(plan, keys.index(key), tuple(at + 1 for at, other in enumerate(keys) if other == key))
        for key in dict.fromkeys(keys)
    ]


def _dump(plan: Plan, first: int, sweeps: tuple[int, ...]) -> KernelDump:
    structure, target = plan.sweeps[first].structure, Target.of(plan.machine)
    start = time.perf_counter()
    text = emit(structure, plan.machine)
    written = time.perf_counter() - start
    texts: dict[str, str] = {}
    compile_ir(text, target, dumps=texts)
    build = compile_ir(text, target)  # making the texts takes time too
    start = time.perf_counter()
    load(build.object_code, ["run"])
    loaded = time.perf_counter() - start
    seconds = {"write": written, **build.seconds, "load": loaded}
    return KernelDump(structure.name, sweeps, texts["parse"], texts["emit"], seconds, len(build.object_code))


def dump_text(dumps: list[KernelDump], what: str) -> str:
    if what == "steps":
        return _step_table(dumps)
    mark = ";" if what == "ir" else "#"
    return "\n".join(f"{mark} {_title(dump)}\n{dump.ir if what == 'ir' else dump.asm}" for dump in dumps)


def _title(dump: KernelDump) -> str:
    return f"sweep {', '.join(map(str, dump.sweeps))}: {dump.kernel}"


def _step_table(dumps: list[KernelDump]) -> str:
    rows = [[step, *(f"{dump.seconds[step] * 1e3:.2f}" for dump in dumps)] for step in dumps[0].seconds]
    rows.append(["all", *(f"{sum(dump.seconds.values()) * 1e3:.2f}" for dump in dumps)])
    rows.append(["object bytes", *(str(dump.object_bytes) for dump in dumps)])
    names = [f"sweep {', '.join(map(str, dump.sweeps))}" for dump in dumps]
    table = Screen(sys.stdout).table(["step, ms", *names], rows, right=range(1, len(dumps) + 1))
    return "\n".join([*map(_title, dumps), table])
