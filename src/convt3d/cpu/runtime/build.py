"""From LLVM IR text to native code in five named steps: parse, verify, optimise, emit, load.

`STEPS` is the whole recipe, in order. Each step leaves a product that can be dumped as text. Kernels arrive already
vectorised and unrolled, so optimising only tidies addresses; no step vectorises or unrolls.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import AllocationError, BuildError, described
from ...recent import undisturbed
from ..plan.machine import Machine, machine
from .elf import undefined_symbols
from .link import NOTHING, in_process, link

# Cleans what an emitter writes naively; half the compile time of "full" at the same speed of register-tile kernels.
QUICK = ("sroa", "simplify_cfg", "instruction_combine")
OLDER = ("sroa", "cfg_simplification", "instruction_combining")  # the same, as llvmlite 0.44 calls them
RECIPES = ("quick", "full")
_ROOM = 64 << 20  # bytes that a build may take


@dataclass(frozen=True)
class Target:
    """What code is emitted for. `triple=None` is this process, and only such code can be loaded."""

    cpu: str
    features: str
    triple: str | None = None

    @staticmethod
    def of(host: Machine) -> Target:
        return Target(host.cpu, host.features)

    @staticmethod
    def cross(triple: str, cpu: str = "generic", features: str = "") -> Target:
        """Another system, e.g. `Target.cross("aarch64-unknown-linux-gnu", features="+neon")`."""
        return Target(cpu, features, triple)


class Function(NamedTuple):
    """A native function that cannot be gone while somebody holds this."""

    address: int
    code: Code


class Code:
    """Native functions in memory. The memory lives as long as this object or any function taken from it."""

    def __init__(self, owner: Any, addresses: dict[str, int]) -> None:
        self._owner = owner
        self.addresses = addresses

    def __getitem__(self, name: str) -> Function:
        return Function(self.addresses[name], self)

    def function(self, name: str, *argument_types: Any, returns: Any = None) -> Callable[..., Any]:
        """The native function `name`; calling it releases the GIL."""
        function = ctypes.CFUNCTYPE(returns, *argument_types)(self.addresses[name])
        function.keeps_alive = self  # type: ignore[attr-defined]
        return function


@dataclass
class Build:
    """One build on its way through `STEPS`: what went in, and what each step has made so far."""

    ir: str
    target: Target
    names: tuple[str, ...] = ()
    given: Mapping[str, int] = field(default_factory=dict)  # addresses of what the code expects from elsewhere
    recipe: str = "quick"
    dumps: MutableMapping[str, str] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    object_code: bytes = b""
    code: Code | None = None
    context: Any = None
    module: Any = None
    target_machine: Any = None


def compile_ir(
    ir: str,
    target: Target | None = None,
    *,
    recipe: str = "quick",
    dumps: MutableMapping[str, str] | None = None,
    lock: AbstractContextManager[Any] = undisturbed,
) -> Build:
    """Compile IR text to an object file; the result holds `object_code` and `seconds` per step.

    `dumps`, when given, receives the product of each step: {"parse": IR, "optimise": IR, "emit": assembly}. `lock` is
    another one where somebody holds the usual one for several threads.
    """
    if recipe not in RECIPES:
        raise BuildError("build", "recipe", recipe, "is not known", f"Use one of {', '.join(RECIPES)}")
    try:
        mmap.mmap(-1, _ROOM).close()
    except OSError:
        rule = "LLVM needs memory to compile, and would end the process without it"
        received = described(f"less than {_ROOM:,} bytes")
        raise AllocationError("build", "memory", received, rule, "Raise the limit (ulimit -v)") from None
    build = Build(ir, target or Target.of(machine()), recipe=recipe, dumps=dumps)
    _run(build, COMPILE_STEPS, lock)
    return build


def load(object_code: bytes, names: Sequence[str], given: Mapping[str, int] = NOTHING) -> Code:
    """Load an object file emitted for this machine and find the functions `names` in it. `given` are addresses of
    names that it expects and the process does not know by itself."""
    build = Build("", Target.of(machine()), names=tuple(names), given=given, object_code=object_code)
    _run(build, LOAD_STEPS)
    assert build.code is not None
    return build.code


def _run(
    build: Build,
    steps: Sequence[tuple[str, Callable[[Build], None]]],
    lock: AbstractContextManager[Any] = undisturbed,
) -> None:
    with lock:
        for name, step in steps:
            start = time.perf_counter()
            try:
                step(build)
            except RuntimeError as problem:
                _free(build)
                raise BuildError(
                    "build", f"step {name}", build.target.cpu, str(problem), "This is a defect of convt3d: report it"
                ) from problem
            build.seconds[name] = time.perf_counter() - start


def _parse(build: Build) -> None:
    import llvmlite.binding as llvm

    _initialise(cross=build.target.triple is not None)
    build.target_machine = _target_machine(build.target)
    build.context = context()
    build.module = llvm.parse_assembly(build.ir, build.context)
    build.module.triple = build.target_machine.triple
    build.module.data_layout = str(build.target_machine.target_data)
    _dump(build, "parse", lambda: str(build.module))


def _verify(build: Build) -> None:
    build.module.verify()


def _optimise(build: Build) -> None:
    import llvmlite.binding as llvm
    from llvmlite.binding.newpassmanagers import ModulePassManager

    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = llvm.create_pass_builder(build.target_machine, options)
    if build.recipe == "quick" and hasattr(ModulePassManager, f"add_{QUICK[0]}_pass"):
        # One call for all functions: after each, a thread waits for another that writes the next kernel.
        passes = llvm.create_new_module_pass_manager()
        for name in QUICK:
            getattr(passes, f"add_{name}_pass")()
        passes.run(build.module, builder)
        passes.close()
    else:
        _optimise_functions(build, builder)
    _dump(build, "optimise", lambda: str(build.module))


def _optimise_functions(build: Build, builder: Any) -> None:
    """One by one: the full recipe, and the quick one where llvmlite (0.44) has sroa among its older passes only."""
    import llvmlite.binding as llvm

    older = build.recipe == "quick"
    passes = llvm.create_function_pass_manager(build.module) if older else builder.getFunctionPassManager()
    for name in OLDER if older else ():
        getattr(passes, f"add_{name}_pass")()
    for function in build.module.functions:
        if not function.is_declaration:
            passes.run(function, *(() if older else (builder,)))
    passes.close()


def _emit(build: Build) -> None:
    # Code generation alters the module, so the assembly is made from a copy, by a generator of its own.
    _dump(build, "emit", lambda: str(_target_machine(build.target).emit_assembly(build.module.clone())))
    build.object_code = _object_code(build.target_machine, build.module)
    _free(build)


def _object_code(target_machine: Any, module: Any) -> bytes:
    """What `target_machine.emit_object(module)` gives. llvmlite lets one thread at a time into LLVM, which itself asks
    for no more than a context for each: this call, most of a build, is made without llvmlite's lock."""
    import llvmlite.binding as llvm

    lib, ffi = llvm.ffi.lib, llvm.ffi
    emit = getattr(lib.LLVMPY_TargetMachineEmitToMemory, "_cfn", None)
    if emit is None:
        return bytes(target_machine.emit_object(module))
    with ffi.OutputString() as problem:
        buffer = emit(target_machine, module, 1, problem)
        if not buffer:
            raise RuntimeError(str(problem))
    try:
        return ctypes.string_at(lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer))
    finally:
        lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _free(build: Build) -> None:
    """Under the lock and in this order, and not by the garbage collector, which knows neither: it might run during
    another thread's fork, or free the context before the module in it."""
    for one in (build.module, build.context, build.target_machine):
        if one is not None:
            one.close()
    build.module = build.context = build.target_machine = None


def _load(build: Build) -> None:
    image = link(build.object_code, build.names, build.given)
    build.code = Code(image, image.addresses) if image else _load_by_llvm(build)


def _load_by_llvm(build: Build) -> Code:
    import llvmlite.binding as llvm

    _initialise(cross=False)
    # The loader ends the whole process on a symbol it cannot find, so it only sees objects that are complete.
    for name, address in in_process(undefined_symbols(build.object_code), build.given).items():
        llvm.add_symbol(name, address)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(build.target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(build.object_code))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(name) for name in build.names}
    if absent := [name for name, address in addresses.items() if not address]:
        raise RuntimeError(f"the object file does not define {', '.join(absent)}")
    return Code(engine, addresses)


COMPILE_STEPS = (("parse", _parse), ("verify", _verify), ("optimise", _optimise), ("emit", _emit))
LOAD_STEPS = (("load", _load),)
STEPS = COMPILE_STEPS + LOAD_STEPS


def _target_machine(target: Target) -> Any:
    """A new LLVM target machine: an execution engine takes ownership of the one it is given, so none is shared.
    Code generation at level 1 takes a fifth less time than at level 2, and the kernels are as fast."""
    import llvmlite.binding as llvm

    if target.triple is None:
        native = llvm.Target.from_triple(llvm.get_process_triple())
        return native.create_target_machine(cpu=target.cpu, features=target.features, opt=1, jit=True)
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1, reloc="pic", codemodel="default"
    )


def context() -> Any:
    """A new LLVM context whose pointers have no types. llvmlite 0.44 gives pointers types unless the environment asks
    it not to, and what it does for others in this process, such as numba, must stay as it is."""
    import llvmlite
    import llvmlite.binding as llvm

    if getattr(llvmlite, "opaque_pointers_enabled", True):
        return llvm.create_context()
    return llvm.ContextRef(llvm.ffi.lib.LLVMPY_ContextCreate(True))


def _initialise(cross: bool) -> None:
    """Register LLVM's code generators; repeating it costs nothing."""
    import llvmlite.binding as llvm

    if cross:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()


def _dump(build: Build, step: str, text: Callable[[], str]) -> None:
    if build.dumps is not None:
        build.dumps[step] = text()
