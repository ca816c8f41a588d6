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

from ..emit.triton_kernel import KernelText
from ..plan.gpu import INT32_MAX, GpuPlan
from .gpu import Execution, launch_options

ALIGNED = 16  # bytes of a pointer, elements of a number: what Triton tells the compiler when a launch has such ones

_TENSOR = re.compile(r"^\s*(?:@!?%p\d+ )?((?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.:]*)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
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
    """A kernel of a plan and the arguments it would be launched with; its arrays have shapes and no contents."""

    text: KernelText
    function: Any
    values: Mapping[str, Any]

    @property
    def arrays(self) -> dict[str, Any]:
        """By the plan's names."""
        found = (one for one in self.text.arguments if one.array is not None and one.axis is None)
        return {str(one.array): self.values[one.name] for one in found}


class _Recorder(Execution):
    """Everything of an execution but the launches."""

    def __init__(self, plan: GpuPlan, x: Any, operands: Sequence[Any], out: Any) -> None:
        super().__init__(plan, x, operands, out)
        self.launches: list[Launch] = []

    def _launch(self, function: Any, text: KernelText) -> None:
        values = {argument.name: self._value(argument) for argument in text.arguments}
        self.launches.append(Launch(text, function, values))


def launches(plan: GpuPlan) -> list[Launch]:
    """What an execution of the plan on contiguous arrays launches, in order."""
    import torch

    def empty(shape: Sequence[int]) -> Any:
        return torch.empty(tuple(shape), dtype=getattr(torch, plan.dtype.name), device="meta")

    operands = [empty(shape) for shapes in plan.trace.operands for shape in shapes]
    recorder = _Recorder(plan, empty(plan.trace.values[0]), operands, empty(plan.trace.output))
    recorder.run()
    return recorder.launches


def compile_launch(launch: Launch, capability: int) -> Facts:
    """Compiled as Triton would for these arguments: it looks for ones and for multiples of 16."""
    types, constants, aligned = {}, dict(launch.text.constexprs), set()
    for argument in launch.text.arguments:
        name, value = argument.name, launch.values[argument.name]
        pointer = argument.type.startswith("*")
        types[name] = argument.type if pointer or value <= INT32_MAX else "i64"
        if not pointer and value == 1:
            constants[name] = 1
        elif pointer or value % ALIGNED == 0:
            aligned.add(name)
    options = launch_options(launch.text)
    return compile_kernel(launch.function, capability, types, constants, frozenset(aligned), options)


def compile_kernel(
    function: Any,
    capability: int,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    aligned: frozenset[str],
    options: Mapping[str, Any],
) -> Facts:
    """`types`: Triton's type of each argument; `constants`: its constexprs; `aligned`: arguments known to be."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(function.arg_names)
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    source = ASTSource(
        function,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", ALIGNED]] for name in names if name in aligned},
    )
    done = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))
    return _facts(done)


def _facts(compiled: Any) -> Facts:
    code, registers = _disassembled(compiled.asm["cubin"])
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
        warps=compiled.metadata.num_warps,
    )


def _disassembled(cubin: bytes) -> tuple[str, int]:
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
