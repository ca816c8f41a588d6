"""What the compiler makes of a Triton kernel for a GPU that need not be here: machine code, and the facts read from it.

Triton brings ptxas and the disassemblers along. Its own cache keeps what was compiled. The kernel must come from a
module that was imported without TRITON_INTERPRET: the interpreter's functions cannot be compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convt3d.gpu.plan import GpuPlan
from convt3d.gpu.run import Execution
from convt3d.gpu.steps import GpuStep
from convt3d.gpu.text.kernel import KernelText
from convt3d.plan.names import ArrayName

_TENSOR = re.compile(r"^\s*(?:@!?%p\d+ )?((?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.:]*)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_LABEL = re.compile(r"^(\.L\w+):")
_BRANCH = re.compile(r"\bBRA\S*\s.*?(\.L\w+)")
_PRODUCTS = ("FFMA", "FMUL", "DFMA", "HMMA", "DMMA", "HGMMA", "UTCHMMA", "HFMA2", "FFMA2")
_USAGE = re.compile(r"REG:(\d+)")
_SCALAR_LOAD = re.compile(r"= tt\.load [^\n]* : !tt\.ptr<")
_LOAD_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


@dataclass(frozen=True)
class Facts:
    """Of one kernel in machine code."""

    registers: int  # of a thread
    spills: int  # instructions that put registers into local memory or take them back
    shared: int  # bytes of a block
    tensor_columns: int  # of tensor memory, sm_100
    tensor: Mapping[str, int]  # tensor-core instructions of the PTX, and how often each stands there
    loads: Mapping[int, int]  # loads of tiles from global memory: bits -> instructions; tables and scalars left out
    stores: Mapping[int, int]
    instructions: int
    warps: int
    loop: int = 0  # instructions of the innermost loop with most products; 0: there is none

    @property
    def wide_loads(self) -> float:
        """The share of a tile's bytes that 128-bit instructions load, as the code is written."""
        total = sum(bits * count for bits, count in self.loads.items())
        return sum(bits * count for bits, count in self.loads.items() if bits >= 128) / total if total else 1.0

    @property
    def tensor_kinds(self) -> tuple[str, ...]:
        """mma, wgmma, tcgen05: those that are there."""
        names = {"mma.sync": "mma", "wgmma.mma_async": "wgmma", "tcgen05.mma": "tcgen05"}
        return tuple(short for long, short in names.items() if any(name.startswith(long) for name in self.tensor))


@dataclass(frozen=True)
class Launch:
    """A kernel of a plan with the arguments and options it would be launched with; its arrays have shapes and no
    contents."""

    step: GpuStep
    text: KernelText
    function: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]  # constexprs among them

    @property
    def arrays(self) -> dict[ArrayName, Any]:
        given = dict(zip(self.function.arg_names, self.arguments, strict=False))
        return {array: given[name] for name, array in self.text.pointers.items()}


class _Recorder(Execution):
    """An execution whose kernels note how they are launched, and do nothing."""

    def __init__(self, plan: GpuPlan, x: Any, operands: Sequence[Any], out: Any) -> None:
        super().__init__(plan, x, operands, out)
        self.launches: list[Launch] = []

    def _launch(self, function: Any, text: KernelText) -> None:
        def note(*arguments: Any, **options: Any) -> None:
            step = self.plan.steps[self.code.kernels.index(text)]
            self.launches.append(Launch(step, text, function, arguments, options))

        super()._launch({(text.grid,): note}, text)


def launches(plan: GpuPlan, channels_last: bool = False) -> list[Launch]:
    """What an execution of the plan launches, in order, on contiguous arrays or on those with channels last."""
    import torch

    def empty(shape: Sequence[int]) -> Any:
        array = torch.empty(tuple(shape), dtype=getattr(torch, plan.dtype.name), device="meta")
        return array.to(memory_format=torch.channels_last_3d) if channels_last and array.dim() == 5 else array

    operands = list(map(empty, plan.trace.operand_shapes))
    recorder = _Recorder(plan, empty(plan.trace.values[0]), operands, empty(plan.trace.output))
    recorder.run()
    return recorder.launches


def compile_launch(launch: Launch, capability: int) -> Facts:
    return compile_call(launch.function, capability, *launch.arguments, **launch.options)


def compile_call(function: Any, capability: int, *arguments: Any, **options: Any) -> Facts:
    return _facts(compiled_call(function, ("cuda", capability, 32), *arguments, **options))


def compiled_call(function: Any, where: tuple[str, int | str, int], *arguments: Any, **options: Any) -> Any:
    """Compiled as `function[grid](*arguments, **options)` would, `where` being a backend, one of its architectures and
    the threads of a warp: Triton's own functions derive types, constants and alignments from the arguments, as a launch
    lets them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget(*where)
    backend = make_backend(target)
    bind = create_function_from_signature(function.signature, function.params, backend)
    bound, specialised, given = bind(*arguments, **options)
    parsed, signature, constants, attributes = function._pack_args(backend, options, bound, specialised, given)
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=target, options=dict(vars(parsed)))


def _facts(compiled: Any) -> Facts:
    code, registers = disassembled(compiled.asm["cubin"])
    instructions = Counter(_INSTRUCTION.findall(code))
    loads = _by_bits(instructions, ("LDG", "LDGSTS"))
    loads[32] -= len(_SCALAR_LOAD.findall(compiled.asm["ttgir"]))
    return Facts(
        registers=registers,
        spills=_count(instructions, ("LDL", "STL")),
        shared=compiled.metadata.shared,
        tensor_columns=getattr(compiled.metadata, "tmem_size", 0) or 0,
        tensor=dict(Counter(_TENSOR.findall(compiled.asm["ptx"]))),
        loads={bits: count for bits, count in sorted(loads.items()) if count > 0},
        stores=dict(sorted(_by_bits(instructions, ("STG",)).items())),
        instructions=sum(instructions.values()),
        loop=loop_of(code),
        warps=compiled.metadata.num_warps,
    )


def loop_of(code: str) -> int:
    """Instructions of the loop in which a kernel multiplies: of those with none inside, that with most products."""
    names: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []  # first, last instruction
    for line in code.splitlines():
        label, found = _LABEL.match(line.strip()), _INSTRUCTION.match(line)
        if label:
            labels[label[1]] = len(names)
        elif found:
            branch = _BRANCH.search(line)
            if branch and labels.get(branch[1], len(names)) < len(names):
                loops.append((labels[branch[1]], len(names)))
            names.append(found[1].split(".")[0])
    inner = [one for one in loops if not any(one != other and _inside(other, one) for other in loops)]
    products = {one: sum(name in _PRODUCTS for name in names[one[0] : one[1] + 1]) for one in inner}
    best = max(inner, key=lambda one: products[one], default=None)
    return best[1] - best[0] + 1 if best is not None and products[best] else 0


def _inside(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] <= one[0] and one[1] <= other[1]


def disassembled(cubin: bytes) -> tuple[str, int]:
    """The machine code as text, and the registers of a thread."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        Path(path).write_bytes(cubin)
        code = _run("nvdisasm", "-c", path)
        found = _USAGE.search(_run("cuobjdump", "-res-usage", path))
    if found is None:
        raise RuntimeError("cuobjdump printed no resource usage")
    return code, int(found[1])


def _run(tool: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True, check=True, timeout=600)
    return done.stdout + done.stderr


def _count(instructions: Mapping[str, int], names: tuple[str, ...]) -> int:
    return sum(count for name, count in instructions.items() if name.split(".")[0] in names)


def _by_bits(instructions: Mapping[str, int], names: tuple[str, ...]) -> Counter[int]:
    found: Counter[int] = Counter()
    for name, count in instructions.items():
        first, *parts = name.split(".")
        if first in names:
            found[next((_LOAD_BITS[part] for part in parts if part in _LOAD_BITS), 32)] += count
    return found
