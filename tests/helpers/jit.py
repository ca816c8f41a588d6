"""Compile a module for this host and hand out its functions: what the tests and the benchmark run."""

from __future__ import annotations

import ctypes
import time

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir as llvm_ir

from convt3d.cpu.ir import builder as ir
from convt3d.cpu.ir import values
from convt3d.cpu.ir.values import F32, F64, I64, PTR
from convt3d.cpu.plan.machine import architecture
from convt3d.cpu.runtime.build import context

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

X86 = architecture() == "x86_64"
i64, address = ctypes.c_int64, ctypes.c_void_p
NUMPY_TYPE = {F32: np.float32, F64: np.float64}


def host_features() -> str:
    return ",".join(f for f in llvm.get_host_cpu_features().flatten().split(",") if "prefer-256-bit" not in f)


def target_machine(cpu: str | None = None, features: str | None = None) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name() if cpu is None else cpu,
        features=host_features() if features is None else features,
        opt=3,
        reloc="pic",
        codemodel="small",
    )


CONTEXT = context()  # for good: the collector of garbage might free it before an engine that needs it


class Compiled:
    """An optimised module in memory; keep it alive while its functions are in use."""

    def __init__(self, module: llvm_ir.Module, cpu: str | None = None, features: str | None = None):
        module.triple = llvm.get_default_triple()
        start = time.perf_counter()
        parsed = llvm.parse_assembly(str(module), CONTEXT)
        parsed.verify()
        self.parse_seconds = time.perf_counter() - start
        machine = target_machine(cpu, features)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(parsed, passes)
        self.optimised = str(parsed)
        self.optimise_seconds = time.perf_counter() - start - self.parse_seconds
        self.object = machine.emit_object(parsed)
        self.assembly = machine.emit_assembly(parsed)
        self.engine = llvm.create_mcjit_compiler(parsed, machine)  # takes the machine over
        start = time.perf_counter()
        self.engine.finalize_object()
        self.codegen_seconds = time.perf_counter() - start

    def function(self, name: str, *argument_types, returns=None):
        return ctypes.CFUNCTYPE(returns, *argument_types)(self.engine.get_function_address(name))


def map_over_array(module: llvm_ir.Module, name: str, element: llvm_ir.Type, width: int, emit, **options) -> None:
    """void name(in, out, n): out[i] = emit(in[i]), a whole number of vectors."""
    b = ir.define(
        module,
        name,
        [("source", PTR), ("target", PTR), ("n", I64)],
        noalias=["source", "target"],
        prefer_vector_width=512,
        **options,
    )
    with b.loop(0, b.args["n"], width) as i:
        b.store(emit(b, b.load(b.args["source"], i, element, width)), b.args["target"], i)
    b.ret()


def apply(compiled: Compiled, name: str, x: np.ndarray) -> np.ndarray:
    """Run a map_over_array function; the array is padded to whole vectors."""
    padded = np.concatenate([x, np.zeros(-len(x) % 64, x.dtype)])
    result = np.empty_like(padded)
    compiled.function(name, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        padded.ctypes.data, result.ctypes.data, len(padded)
    )
    return result[: len(x)]


def build(arguments, body, returns=values.VOID, baseline=False):
    """Compile one function `f` whose body is emitted by body(builder, *arguments)."""
    module = llvm_ir.Module()
    b = ir.define(module, "f", arguments, returns, instructions=values.Instructions(not baseline, not baseline))
    body(b, *b.args.values())
    if baseline and not X86:
        pytest.skip("x86-64 of 2003")
    return Compiled(module, "x86-64", "") if baseline else Compiled(module)


def run_on_arrays(body, *arrays: np.ndarray, ints=(), baseline=False):
    """body(builder, pointers..., ints...) on numpy arrays and integers."""
    arguments = [(f"p{k}", PTR) for k in range(len(arrays))] + [(f"n{k}", I64) for k in range(len(ints))]
    compiled = build(arguments, lambda b, *values_: (body(b, *values_), b.ret()), baseline=baseline)
    compiled.function("f", *[address] * len(arrays), *[i64] * len(ints))(*(a.ctypes.data for a in arrays), *ints)
    return compiled
