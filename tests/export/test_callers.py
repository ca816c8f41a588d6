"""The callers beside a library compile without a warning, run, and agree with Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.c_library import by_python

from convt3d.export.forms import SMALL, shapes_for
from convt3d.judge.languages import compiler_of

UP = "ConvTranspose3d(stride=2, padding=1, bias=True) -> ReLU()"
STRICT = ["-Wall", "-Wextra", "-Werror", "-I."]
LINKED = ["libup.so", "-Wl,-rpath,$ORIGIN", "-lm", "-pthread"]


def numbers(shape: tuple[int, ...]) -> np.ndarray:  # type: ignore[type-arg]
    at = np.arange(np.prod(shape))
    return ((at * 37 % 11 - 5) / 8).astype(np.float32).reshape(shape)


def expected(exported) -> tuple[int, float]:  # type: ignore[no-untyped-def]
    pipeline = exported.subject.pipeline
    x, operands = shapes_for(pipeline, SMALL)
    out = np.empty(pipeline.trace(x, operands).output, np.float32)
    by_python(pipeline, exported.dtype, numbers(x), [numbers(shape) for shape in operands], out)
    return out.size, float(out.astype(np.float64).sum())


def agrees(exported, folder: Path, command: list[str]) -> None:  # type: ignore[no-untyped-def]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, total = re.match(r"(\d+) numbers, sum (-?[\d.]+), \w+\n", done.stdout).groups()  # type: ignore[union-attr]
    assert int(count) == expected(exported)[0]
    assert float(total) == pytest.approx(expected(exported)[1], abs=1e-5)


def build(folder: Path, command: list[str]) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_c(export) -> None:
    exported = export(UP, "up")
    build(exported.folder, [str(compiler_of("c")), "-std=c11", *STRICT, "example.c", *LINKED, "-o", "example_c"])
    agrees(exported, exported.folder, ["./example_c"])


def test_cpp(export) -> None:
    compiler, exported = compiler_of("cpp"), export(UP, "up")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    build(exported.folder, [compiler, "-std=c++17", *STRICT, "example.cpp", *LINKED, "-o", "example_cpp"])
    agrees(exported, exported.folder, ["./example_cpp"])


def test_rust(export) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("needs rustc")
    exported = export(UP, "up")
    link = ["-L.", "-lup", "-C", "link-arg=-Wl,-rpath,$ORIGIN"]
    build(exported.folder, ["rustc", "-D", "warnings", "example.rs", *link, "-o", "example_rs"])
    agrees(exported, exported.folder, ["./example_rs"])


def test_pkg_config_finds_an_archive(export) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("needs pkg-config")
    exported = export(UP, "up", static=True)
    words = ["pkg-config", "--with-path=.", "--cflags", "--libs", "up"]
    found = subprocess.run(words, cwd=exported.folder, capture_output=True, text=True, check=True).stdout.split()
    build(exported.folder, [str(compiler_of("c")), "example.c", *found, "-o", "example"])
    agrees(exported, exported.folder, ["./example"])


def test_cmake_finds_it(export, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    exported = export(UP, "up")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(caller C)\n"
        f"set(up_DIR {exported.folder})\nfind_package(up REQUIRED CONFIG)\n"
        "find_package(up REQUIRED CONFIG)\n"  # as parts of a large project do
        f"add_executable(caller {exported.folder}/example.c)\ntarget_link_libraries(caller up::up m)\n"
    )
    build(tmp_path, ["cmake", "-S", ".", "-B", "built"])
    build(tmp_path, ["cmake", "--build", "built"])
    agrees(exported, tmp_path, ["built/caller"])


def test_the_readme_says_how_to_build_it_again(export) -> None:
    exported = export(UP, "up")
    (command,) = re.findall(r"Build it again: `(.*)`\.", (exported.folder / "README.md").read_text())
    build(exported.folder, ["sh", "-c", command.replace("-o libup.so", "-o again.so")])
    assert (exported.folder / "again.so").exists()
