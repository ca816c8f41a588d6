"""How a file becomes something that can be called: by its name and its imports, compiled where that is needed.

| file | becomes |
|---|---|
| .py with `solution` or `ModelNew` | a module; torch tensors if it imports torch, else numpy arrays |
| .py that imports triton | the same, through Triton's interpreter, or compiled to PTX that is run on the CPU |
| .c, .cc, .cpp, .cxx | a shared library, by the system's compiler |
| .so, .dylib | used as it is |
| .cu | a shared library that plays a GPU on the CPU; where that cannot be, compiled by nvcc, and not run |
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..errors import ArgumentError, described
from ..spec.dtypes import DType
from ..spec.problem_file import TENSOR
from ..spec.problems import PROBLEMS, Problem
from .cuda import assembly_line, compilations, device_word, host_source
from .nvrtc import PACKAGES, includes, library, words
from .sandbox import Ended, Limits, Sandbox, TimedOut, script
from .verdict import COMPILE_ERROR, NOT_ALLOWED, NOT_RUN, TIME_OUT, WRONG_SIGNATURE, Rejected, rejected

C_SUFFIXES = (".c",)
CPP_SUFFIXES = (".cc", ".cpp", ".cxx")
LIBRARY_SUFFIXES = (".so", ".dylib")
COMPILERS = {"c": ("cc", "gcc", "clang"), "cpp": ("c++", "g++", "clang++")}
STANDARDS = {"c": "-std=gnu11", "cpp": "-std=gnu++17"}
REALS = {"float32": "float", "float64": "double", "float16": "_Float16", "bfloat16": "__bf16"}
CUDA_REALS = {**REALS, "float16": "__half", "bfloat16": "__nv_bfloat16"}
MOST_SOURCE = 4_000_000  # bytes
# What a kernel has no use for, and one that means to take the judge's rules off has.
INSIDES = ("__main__", "_destroy", "_getframe", "_current_frames", "currentframe", "f_back", "f_globals", "tb_frame")
HEADER = re.compile(r"convt3d problem:\s*([a-z0-9-]+)")


@dataclass(frozen=True)
class Program:
    """A file that can be loaded by the kernel's process. `kind`: python or native."""

    kind: str
    path: str
    language: str
    torch: bool = False
    triton: bool = False
    allow_torch: bool = False
    compiled: bool = False  # Triton: its PTX is run
    notes: Mapping[str, str] = field(default_factory=dict)  # CUDA: what NVIDIA's compiler says, by architecture

    def libraries(self, dtype: DType) -> list[str]:
        """What must be installed before the file can be called with arrays of this type."""
        if self.kind == "native":
            return []
        if self.torch:
            return ["torch", "triton"] if self.triton else ["torch"]
        return ["numpy", "ml_dtypes"] if dtype.name == "bfloat16" else ["numpy"]


def language_of(path: str) -> str:
    """python, triton, c, cpp, library or cuda."""
    _check_file(path)
    suffix = Path(path).suffix.lower()
    known = {".py": "python", ".cu": "cuda", **dict.fromkeys(C_SUFFIXES, "c"), **dict.fromkeys(CPP_SUFFIXES, "cpp")}
    known |= dict.fromkeys(LIBRARY_SUFFIXES, "library")
    if suffix not in known:
        rule = f"must end in one of {', '.join(known)}"
        raise ArgumentError("judge", "FILE", path, rule, "Name the file by its language; `convt3d starter` does")
    if suffix == ".py" and "triton" in imports(path):
        return "triton"
    return known[suffix]


def problem_of(path: str, slug: str | None) -> Problem:
    """The one asked for, or the one that the header `convt3d problem: SLUG` names."""
    language = language_of(path)
    if slug is None:
        found = None if language == "library" else HEADER.search(source_text(path))
        if not found:
            rule = "must be given, since FILE has no line `convt3d problem: SLUG`"
            raise ArgumentError("judge", "--problem", described("nothing"), rule, "Name the problem (`convt3d list`)")
        slug = found[1]
    return PROBLEMS[slug]


def _check_file(path: str) -> None:
    try:
        size = os.path.getsize(path)
        readable = os.path.isfile(path) and os.access(path, os.R_OK)
    except OSError:
        readable, size = False, 0
    if not readable:
        raise ArgumentError("judge", "FILE", path, "must be a file that can be read", "Check its name")
    if size > MOST_SOURCE and Path(path).suffix.lower() not in LIBRARY_SUFFIXES:
        raise ArgumentError("judge", "FILE", path, f"must be source of at most {MOST_SOURCE} bytes", "Split it")


def source_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8-sig", errors="replace")


def imports(path: str) -> set[str]:
    """The packages a Python file imports anywhere; nothing for one that does not parse."""
    try:
        tree = ast.parse(source_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def missing_module(program: Program, name: str) -> bool:
    """Whether a Python file imports a package of this name that is nowhere to be found."""
    package = name.partition(".")[0]
    if program.kind != "python" or package not in imports(program.path):
        return False
    return package not in sys.builtin_module_names and importlib.util.find_spec(package) is None


def insides(path: str) -> str | None:
    """The first word by which a Python file reaches for the process it runs in; `if __name__ == "__main__"` is none."""
    try:
        tree = ast.parse(source_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    compared = {
        id(side)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "__name__"
        for side in node.comparators
    }
    for node in ast.walk(tree):
        words: list[object] = []
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            words = [alias.name for alias in node.names] + [getattr(node, "module", None)]
            if "gc" in words:
                return "gc"
        elif isinstance(node, ast.Attribute):
            words = [node.attr]
        elif isinstance(node, ast.Constant) and id(node) not in compared:
            words = [node.value]
        for word in words:
            if isinstance(word, str) and word in INSIDES:
                return word
    return None


def make_program(
    path: str, problem: Problem, dtype: DType, folder: str, *, allow_torch: bool, limits: Limits, compiled: bool = False
) -> Program:
    """Ready to be loaded; compiled into `folder`. Raises Rejected where the compiler refuses. `compiled`: what Triton's
    compiler makes of its kernels is run, instead of their text."""
    language = language_of(path)
    if compiled and language != "triton":
        rule = "is for files that import triton"
        raise ArgumentError("judge", "--compiled", described(f"with {Path(path).name}"), rule, "Leave it out")
    path = os.path.abspath(path)
    if language in ("python", "triton"):
        word = insides(path)
        if word:
            raise rejected(NOT_ALLOWED, f"its source names `{word}`: a kernel has no business there")
        used = imports(path)
        uses_torch, triton = "torch" in used or language == "triton", language == "triton"
        return Program("python", path, language, uses_torch, triton, allow_torch, compiled)
    if language == "library":
        return Program("native", path, language, allow_torch=allow_torch)
    made = _compile_cuda if language == "cuda" else partial(_compile, language)
    built = made(path, problem, dtype, folder, limits)
    notes = _on_gpus(path, dtype, folder, limits)[0] if language == "cuda" else {}
    return Program("native", built, language, allow_torch=allow_torch, notes=notes)


def compiler_of(language: str) -> str | None:
    named = os.environ.get({"c": "CC", "cpp": "CXX"}[language])
    return next((found for name in (named, *COMPILERS[language]) if name and (found := shutil.which(name))), None)


def _compile(language: str, path: str, problem: Problem, dtype: DType, folder: str, limits: Limits) -> str:
    compiler = _needed_compiler(language, path)
    library, caller = _library_and_call(language, problem, folder)
    flags = [STANDARDS[language], "-O3", "-march=native", "-fopenmp", "-fPIC", *_macros(dtype)]
    plain = [flag for flag in flags if flag not in ("-fopenmp", "-march=native")]  # not every compiler has them
    for choice in (flags, plain):
        code, told = _run(
            [compiler, *choice, "-include", "stddef.h", "-include", path, "-shared", caller, "-o", library, "-lm"],
            folder,
            limits,
        )
        if code == 0:
            return library
    code, alone = _run([compiler, *plain, "-w", "-fsyntax-only", path], folder, limits)
    if code:
        _check_compiler(compiler, language, plain, dtype, folder, limits)
        raise rejected(COMPILE_ERROR, alone)
    raise rejected(WRONG_SIGNATURE, f"a call with the problem's {len(problem.parameters)} arguments fails: {told}")


def _needed_compiler(language: str, path: str) -> str:
    compiler = compiler_of(language)
    if compiler is None:
        names = " or ".join(COMPILERS[language])
        rule = f"needs a compiler of this machine ({names}), and there is none"
        raise ArgumentError("judge", "FILE", path, rule, "Install one, or give a shared library")
    return compiler


def _library_and_call(language: str, problem: Problem, folder: str) -> tuple[str, str]:
    """Where the library goes, and the file with a call."""
    caller = os.path.join(folder, f"call.{language}")
    Path(caller).write_text(_call_text(problem, language), encoding="utf-8")
    return os.path.join(folder, "kernel.so"), caller


def _check_compiler(
    compiler: str, language: str, flags: Sequence[str], dtype: DType, folder: str, limits: Limits
) -> None:
    """A compiler that refuses a file with nothing in it but the types is no judge of the kernel."""
    empty = os.path.join(folder, f"empty.{language}")
    Path(empty).write_text("#include <math.h>\n#include <stddef.h>\nCONVT3D_REAL of_arrays;\nCONVT3D_SUM of_sums;\n")
    code, told = _run([compiler, *flags, "-w", "-fsyntax-only", empty], folder, limits)
    if code:
        rule = f"cannot compile a file with the types of {dtype.name} and nothing else ({' '.join(told.split())})"
        remedy = "Choose another --dtype, or name another compiler by CC or CXX"
        raise ArgumentError("judge", "compiler", described(compiler), rule, remedy)


_MISSING = r"fatal error: [<'\"]?((?:{})[\w./]*)"
_LIBRARIES = re.compile(
    _MISSING.format("cu(?:blas|dnn|fft|sparse|solver|rand|tensor)|cutlass|cute/|thrust/|cub/|nccl|cuda/std")
)
_PYTORCH = re.compile(_MISSING.format("torch/|ATen/|c10/|pybind11/"))


def _compile_cuda(path: str, problem: Problem, dtype: DType, folder: str, limits: Limits) -> str:
    """For the CPU; where that fails, what nvcc says of the file."""
    compiler = _needed_compiler("cpp", path)
    library, caller = _library_and_call("cpp", problem, folder)
    source = os.path.join(folder, Path(path).name)
    Path(source).write_text(host_source(source_text(path)), encoding="utf-8")
    if word := device_word(source_text(path)):
        raise rejected(NOT_ALLOWED, f"its source names `{word}`: a kernel has no business there")
    macros = [f"-DCONVT3D_REAL={CUDA_REALS[dtype.name]}", *_macros(dtype)[1:]]
    beside = f"-I{os.path.dirname(path)}"
    for unset in ("-ftrivial-auto-var-init=pattern", "-w"):  # not every compiler fills what nobody has set
        flags = [*macros, beside, unset]
        for command in compilations(compiler, source, caller, library, flags):
            code, told = _run(command, folder, limits)
            if code:
                break
        else:
            return library
    Path(caller).write_text("", encoding="utf-8")
    alone, told_alone = _run(next(compilations(compiler, source, caller, library, flags)), folder, limits)
    if not alone:
        raise rejected(WRONG_SIGNATURE, f"a call with the problem's {len(problem.parameters)} arguments fails: {told}")
    _check_compiler(compiler, "cpp", ["-DCONVT3D_REAL=float", "-DCONVT3D_SUM=float"], dtype, folder, limits)
    if header := _PYTORCH.search(told_alone):
        raise rejected(
            COMPILE_ERROR,
            f"{header[1]} is PyTorch's, and no tensors come here: write `solution`, which gets the device's pointers, "
            f"as `convt3d starter {problem.slug} --lang cuda` has it\n{told_alone}",
        )
    if line := assembly_line(source_text(path)):
        told_alone = f"line {line} has assembly of a GPU; the functions of CUDA C++ can be judged\n{told_alone}"
    notes, taken = _on_gpus(path, dtype, folder, limits)
    if taken:
        said = "; ".join(f"{name}: {what}" for name, what in notes.items())
        raise rejected(NOT_RUN, f"NVRTC accepts it ({said}), but it cannot be run on a CPU: {told_alone}")
    if header := _LIBRARIES.search(told_alone):
        raise rejected(
            COMPILE_ERROR,
            f"{header[1]} is of a library of NVIDIA's, and none is there: the judge runs kernels that are in the file, "
            f"with the headers of docs/judge.md\n{told_alone}",
        )
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        refused = next((what for what in notes.values() if what.startswith("refused: ")), None)
        if refused:
            raise rejected(COMPILE_ERROR, f"NVRTC {refused}\nAs C++ for the CPU: {told_alone}")
        hint = f"Whether a GPU's compiler takes it is not known: {PACKAGES} are not installed"
        raise rejected(COMPILE_ERROR, f"{told_alone}\n{hint}")
    code, theirs = _run([nvcc, "-w", *macros, "-c", path, "-o", os.path.join(folder, "kernel.o")], folder, limits)
    if code:
        raise rejected(COMPILE_ERROR, theirs)
    raise rejected(
        NOT_RUN, f"nvcc accepts it, but it cannot be run on a CPU, so nothing is known of its results: {told_alone}"
    )


def _on_gpus(path: str, dtype: DType, folder: str, limits: Limits) -> tuple[dict[str, str], bool]:
    """What NVIDIA's compiler makes of a CUDA file for each architecture, in words; whether it takes it everywhere."""
    place = library()
    if place is None:
        return {"on a GPU": f"not compiled: {PACKAGES} are not installed"}, False
    macros = [f"-DCONVT3D_REAL={CUDA_REALS[dtype.name]}", *_macros(dtype)[1:]]
    beside = [f"-I{one}" for one in (os.path.dirname(path), *includes())]
    try:
        _, told = _run([sys.executable, script("nvrtc.py"), place, path, *macros, *beside], folder, limits)
    except Rejected as ending:  # the kernel is judged by what it computes
        return {"on a GPU": f"not compiled: {ending.verdict.reason}"}, False
    notes, taken = {}, True
    for line in told.splitlines():
        try:
            said = json.loads(line)
        except ValueError:  # cut off, or a word of the loader's
            continue
        taken = taken and said["taken"]
        notes[f"on {said['architecture']}"] = words(said["kernels"]) if said["taken"] else f"refused: {said['error']}"
    return notes, taken and bool(notes)


def _macros(dtype: DType) -> list[str]:
    """What the starters are written with: the type of the arrays, and the type sums run in."""
    return [f"-DCONVT3D_REAL={REALS[dtype.name]}", f"-DCONVT3D_SUM={REALS[dtype.accumulate]}"]


def _call_text(problem: Problem, language: str) -> str:
    """What follows the file: a call of its solution with the types of the problem. What C would convert in silence is
    refused, in this call only."""
    declared, passed = [], []
    for p in problem.parameters:
        kind = "CONVT3D_REAL *" if p.type == TENSOR else f"{p.type} "
        declared.append(f"{kind}convt3d_{p.name}")
        passed.append(f"convt3d_{p.name}")
    strict = ["-Wfloat-conversion"] + ["-Wincompatible-pointer-types", "-Wimplicit-function-declaration"] * (
        language == "c"
    )
    pragmas = "".join(f'#pragma GCC diagnostic error "{flag}"\n' for flag in strict)
    call = f"void convt3d_call({', '.join(declared)}) {{\n    solution({', '.join(passed)});\n}}\n"
    return f"{pragmas}{call}"


def _run(argv: Sequence[str], folder: str, limits: Limits) -> tuple[int, str]:
    """A compiler's exit code and the beginning of what it printed."""
    try:
        with Sandbox([str(shutil.which(argv[0])), *argv[1:]], limits, may_exec=True, folder=folder) as box:
            code = box.run()
    except TimedOut:
        raise rejected(TIME_OUT, f"the compiler took more than {limits.start_seconds:g} s") from None
    except Ended as ended:
        raise rejected(COMPILE_ERROR, f"the compiler did not end well: {ended.words()}") from None
    if code:
        Path(folder, "room").write_bytes(bytes(2**16))  # a full disk is the judge's trouble, not the kernel's
    return code, box.text[:2000]
