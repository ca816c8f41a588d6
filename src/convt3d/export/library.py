"""Writes a library: kernels by LLVM, the run-time by a C compiler, and what callers need beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..cpu.plan.machine import architecture
from ..errors import ArgumentError, BuildError, described
from ..judge.languages import compiler_of
from ..spec.dtypes import DType
from ..spec.pipeline import Pipeline
from ..spec.problems import PROBLEMS
from ..spec.text import ARROW, read_stages, write_pipeline
from .examples import examples
from .forms import Subject
from .objects import TARGETS, Kernels, blocks_object, levels, team_object, transforms_object
from .texts import RUNTIME, FormSet, header, kernel_name, source

FLAGS = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-pthread",
)
LINKED = "-Wl,-z,nodelete,-z,noexecstack,-z,relro,-z,now"  # never unloaded: its threads wait in its code
_CROSS = {"aarch64": "aarch64-linux-gnu-", "x86_64": "x86_64-linux-gnu-"}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = (  # NAME.h would be read in the place of a header of the system, or libNAME linked in that of its library
    *("c", "cpuid", "ctype", "errno", "fenv", "float", "inttypes", "limits", "locale", "m", "math", "pthread", "sched"),
    *("setjmp", "signal", "stdarg", "stddef", "stdint", "stdio", "stdlib", "string", "time", "unistd", "wchar"),
)


@dataclass(frozen=True)
class Library:
    folder: str
    path: str  # of the library itself


def subject_of(text: str, name: str | None) -> Subject:
    """A problem by its slug, or a pipeline by its text."""
    if ARROW in text or "(" in text:
        pipeline = Pipeline(*read_stages(text))
        return Subject(_checked(name or "pipeline"), pipeline, None)
    problem = PROBLEMS[text]
    return Subject(_checked(name or problem.slug.replace("-", "_")), problem.pipeline(problem.benchmark), problem)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        rule = "must be small letters, digits and underscores: it begins the names of functions"
        raise ArgumentError("export", "--name", name, rule, "Choose a name such as up2")
    if name in _TAKEN:
        raise ArgumentError(
            "export", "--name", name, "is a name of the C library", f"Choose another, such as my_{name}"
        )
    return name


def write_library(
    subject: Subject, dtype: DType, folder: str, *, target: str | None = None, static: bool = False
) -> Library:
    """Everything into a new folder, which is there when all of it is."""
    target = target or architecture()
    tools = _tools(target)
    _new(folder)
    try:
        # Absolute: a name that begins with - or @ would be an option of the compiler.
        return _write(subject, dtype, Path(folder).absolute(), target, static, *tools)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise ArgumentError("export", "--output", folder, _cannot("written", error), "Choose another folder") from None


def _write(
    subject: Subject, dtype: DType, root: Path, target: str, static: bool, compiler: str, archiver: str
) -> Library:
    name = subject.name
    sources = root / "src"
    for inner in ("runtime", "kernels"):
        (sources / inner).mkdir(parents=True)
    for file in RUNTIME:
        text = (resources.files(__package__) / "c" / file).read_text(encoding="utf-8")
        (sources / "runtime" / file).write_text(text, encoding="utf-8")
    own = levels(target, dtype)
    objects: list[str] = []
    sets: list[FormSet] = []

    def put(file: str, code: bytes) -> None:
        path = sources / "kernels" / f"{file}.o"
        path.write_bytes(code)
        objects.append(str(path))

    code = {level: Kernels(level, f"{name}_{level.name}") for level in own}
    for paired in (True, False):
        served = [level for level in own if bool(level.more) == paired]
        if not served:
            continue
        host = served[0].machine
        made = [(part, subject.forms(part, dtype, host), subject.averaged(part, dtype, host)) for part in subject.parts]
        every = [one for _, forms, averaged in made for form in (*forms, *averaged) for one in form.all]
        ways = [way for form in every for each in form.ways for way in (each.direct, *each.others) if way is not None]
        structures = {way.structure.key: way.structure for way in ways}
        before = len(sets[-1].kernels) if sets else 0
        numbers = {key: before + at for at, key in enumerate(structures)}
        sets += [FormSet(part, served, forms, averaged, numbers) for part, forms, averaged in made]
        for level in served:
            for key, structure in structures.items():
                symbol = kernel_name(name, numbers[key], level)
                put(symbol, code[level].object(structure, symbol))
    for level in own:
        of_level = f"{name}_{level.name}"
        put(f"{of_level}_shared", code[level].shared())
        put(of_level, blocks_object(dtype, level, of_level))
        put(f"{of_level}_transforms", transforms_object(dtype, level, of_level))
    put(f"{name}_team", team_object(own[-1], name))
    (root / f"{name}.h").write_text(header(subject, dtype, own), encoding="utf-8")
    (sources / f"{name}.c").write_text(source(subject, dtype, own, sets), encoding="utf-8")
    for file, text in _beside(subject, dtype, target, static).items():
        (root / file).write_text(text, encoding="utf-8")
    for file, text in examples(subject, dtype).items():
        (root / file).write_text(text, encoding="utf-8")
    library = root / f"lib{name}.{'a' if static else 'so'}"
    compiled, unit = sources / f"{name}.o", str(sources / f"{name}.c")
    _run([compiler, *FLAGS, f"-I{root}", "-c", unit, "-o", str(compiled)])
    if static:
        _run([archiver, "rcs", str(library), str(compiled), *objects])
    else:
        options = ["-shared", LINKED, f"-Wl,-soname,{library.name}"]
        _run([compiler, *options, "-o", str(library), str(compiled), *objects, "-lm", "-pthread"])
    return Library(str(root), str(library))


def _new(folder: str) -> None:
    try:
        os.makedirs(folder)
    except FileExistsError:
        rule = "exists, and is not overwritten"
        raise ArgumentError("export", "--output", folder, rule, "Choose another name, or remove it") from None
    except OSError as error:
        raise ArgumentError("export", "--output", folder, _cannot("made", error), "Choose another folder") from None


def _cannot(what: str, error: OSError) -> str:
    return f"cannot be {what} ({error.strerror})"


def _tools(target: str) -> tuple[str, str]:
    """The C compiler and the archiver for a target."""
    if not sys.platform.startswith("linux") or target not in TARGETS:
        rule = f"must be one of {', '.join(TARGETS)}, and libraries are written on Linux only"
        raise ArgumentError("export", "--target", target, rule, "Export it there")
    own = target == architecture()
    prefix = "" if own else _CROSS[target]
    compiler = compiler_of("c") if own else shutil.which(f"{prefix}gcc")
    archiver = shutil.which(f"{prefix}ar")
    if compiler is None or archiver is None:
        rule = f"needs a C compiler for {target}, and there is none"
        remedy = "Install gcc" if own else f"Install gcc-{prefix.rstrip('-')}"
        raise ArgumentError("export", "--target", target, rule, remedy)
    return compiler, archiver


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        told = " ".join(done.stderr.split())[:600]
        remedy = "See whether a disk is full; if none is, this is a defect of convt3d: report it"
        raise BuildError("export", "compiler", described(command[0]), told, remedy)


def _beside(subject: Subject, dtype: DType, target: str, static: bool) -> dict[str, str]:
    """What build systems and people read."""
    name, library = subject.name, f"lib{subject.name}.{'a' if static else 'so'}"
    what = f"the problem {subject.problem.slug}" if subject.problem else f"`{write_pipeline(subject.pipeline)}`"
    kind, private = ("STATIC", "-lm -pthread") if static else ("SHARED", "")
    readme = f"""\
# {name}

{what} for {dtype.name} on Linux, {target}. It needs no Python; `{name}.h` says how it is called.
Files: `{library}`, `{name}.h`, `{name}.pc` (pkg-config), `{name}Config.cmake`, `src/` (all that it is built from).
Callers: `example.c`, `example.cpp`, `example.rs`. Build the first with

    cc example.c -I. {library} -Wl,-rpath,'$ORIGIN' -lm -pthread -o example && ./example

CMake: `find_package({name} REQUIRED)` with `-D{name}_DIR=` this folder, target `{name}::{name}`; or PKG_CONFIG_PATH.
Sizes and batch are given at the call; the instruction set is chosen at the first one (CONVT3D_ISA forces a lower one).
Build it again: `cc {" ".join(FLAGS)} {LINKED} -I. -shared src/{name}.c src/kernels/*.o -o lib{name}.so -lm`.
"""
    return {
        "README.md": readme,
        f"{name}.pc": (
            f"prefix=${{pcfiledir}}\nName: {name}\nDescription: {name}, exported by convt3d\nVersion: 0.1.0\n"
            f"Cflags: -I${{prefix}}\nLibs: -L${{prefix}} -l{name}{' ' + private if private else ''}\n"
        ),
        f"{name}Config.cmake": (
            f"if(TARGET {name}::{name})\n  return()\nendif()\n"
            f"add_library({name}::{name} {kind} IMPORTED)\n"
            f"set_target_properties({name}::{name} PROPERTIES\n"
            f'  IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/{library}"\n'
            f'  INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}"'
            + ('\n  INTERFACE_LINK_LIBRARIES "m;pthread"' if static else "")
            + ")\n"
        ),
    }
