"""A library beside others: its header in every dialect, its names, what it needs, and two of them in one program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from convt3d.export.library import FLAGS
from convt3d.judge.languages import compiler_of

UP, SKIP = "ConvTranspose3d(stride=2, padding=1, bias=True) -> ReLU()", "Conv3d(padding='same') -> Add('x')"
DIALECTS = ["c89", "c99", "c11", "c++98", "c++17"]
OWN = ("run", "workspace", "output_shape", "message", "isa")


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def archive(exported) -> str:  # type: ignore[no-untyped-def]
    """The objects of a shared library as an archive, which `--static` writes."""
    name, folder = exported.subject.name, exported.folder
    path, unit = folder / f"objects_{name}.a", f"objects_{name}.o"
    if not path.exists():
        run(folder, str(compiler_of("c")), *FLAGS, "-I.", "-c", f"src/{name}.c", "-o", unit)
        kernels = [str(kernel) for kernel in sorted((folder / "src/kernels").iterdir())]
        run(folder, "ar", "rcs", str(path), unit, *kernels)
    return str(path)


@pytest.mark.parametrize("compiler", ["", "clang"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_header_in_every_dialect(export, dialect: str, compiler: str, tmp_path: Path) -> None:
    language = "cpp" if "+" in dialect else "c"
    found = compiler_of(language) if not compiler else shutil.which("clang++" if language == "cpp" else "clang")
    if found is None:
        pytest.skip(f"needs {compiler or language} as a compiler")
    given = "" if language == "cpp" else "void"
    source = tmp_path / f"caller.{language}"
    source.write_text(
        '#include "up.h"\n#include "up.h"\n#include "skip.h"\n'
        f"int main({given}) {{ return up_run(0) + skip_run(0) - UP_ARGUMENT - SKIP_ARGUMENT; }}\n"
    )
    folders = [f"-I{export(text, name).folder}" for text, name in ((UP, "up"), (SKIP, "skip"))]
    run(tmp_path, found, f"-std={dialect}", "-Wall", "-Wextra", "-pedantic", "-Werror", *folders, "-c", str(source))


def test_two_archives_in_one_program(export, tmp_path: Path) -> None:
    up, skip = export(UP, "up"), export(SKIP, "skip")
    source = tmp_path / "both.c"
    source.write_text(
        '#include "up.h"\n#include "skip.h"\n#include <string.h>\nint main(void) {\n'
        "    struct up_args a;\n    struct skip_args b;\n    memset(&a, 0, sizeof a);\n    memset(&b, 0, sizeof b);\n"
        "    if (up_run(&a) != UP_ARGUMENT || skip_run(&b) != SKIP_ARGUMENT)\n        return 1;\n"
        "    return strcmp(up_message(), skip_message()) || strcmp(up_isa(), skip_isa());\n}\n"
    )
    folders = [f"-I{one.folder}" for one in (up, skip)]
    linked = [archive(up), archive(skip), "-lm", "-pthread"]
    run(tmp_path, str(compiler_of("c")), *folders, str(source), *linked, "-o", "both")
    run(tmp_path, "./both")
    names = run(tmp_path, "nm", "-g", "--defined-only", archive(up)).split("\n")
    found = {line.split()[-1] for line in names if len(line.split()) == 3}
    assert {f"up_{word}" for word in OWN} < found
    assert all(name.startswith("up_") for name in found)  # or they would meet those of another archive


def test_it_needs_nothing_but_the_c_library(export) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    told = run(export(UP, "up").folder, "readelf", "-dW", "libup.so")
    needed = {line.split("[")[1].split(".so")[0] for line in told.splitlines() if "(NEEDED)" in line}
    assert {"libc", "libm"} <= needed
    assert needed <= {"libc", "libm", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
