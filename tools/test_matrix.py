"""Tests the wheel with every Python found here, and with the lowest and newest versions of what it needs.

    python tools/test_matrix.py                                  # all rows, some tests; writes docs/versions.md
    python tools/test_matrix.py --only 3.10-lowest tests/front   # some rows, other tests; other rows stay as they are
    python tools/test_matrix.py tests                            # all rows, all tests

The wheel is built from the source distribution, and the tests are those of the unpacked source distribution.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "versions.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SHOWN = ("numpy", "llvmlite", "torch", "triton", "ml_dtypes", "hypothesis", "pytest")
# Some of every layer: what it imports, the meaning, planning, code, kernels, both fronts, GPU kernels in Triton's
# interpreter, the wheel away from the sources, and the judge with it.
CHOSEN = (
    "tests/test_import.py",
    "tests/spec/test_reference.py",
    "tests/cpu/plan/test_plan.py",
    "tests/cpu/ir/test_builder.py",
    "tests/cpu/runtime/test_build.py",
    "tests/cpu/runtime/test_packing.py",
    "tests/cpu/runtime/test_nonfinite.py",
    "tests/front/test_solutions.py",
    "tests/torch_front/test_modules.py",
    "tests/torch_front/test_fallback.py",
    "tests/torch_front/test_gpu.py",
    "tests/test_wheel.py",
    "tests/judge/test_installed.py",
)
HEAD = f"""# Versions

What `make test-matrix` found: tests of the source distribution, run with the installed wheel.

- **newest**: the newest release of everything, torch among them, that has a wheel for this Python.
- **lowest**: the lowest bounds of `pyproject.toml`, where that release has a wheel for this Python, else the first that
  has one.
- **lowest-gpu**: the same with the bounds of the `gpu` extra.

Each torch brings a triton of its own, so no row asks for one. The interpreter of triton 3.4 to 3.6, which runs GPU
kernels where there is no GPU, takes one-element arrays for integers, which numpy 2.4 refuses: there the judge of Triton
kernels ends with an error that says so. On a GPU these releases work with any numpy. With an older triton, CUDA tensors
go to stock PyTorch, with a warning that says so.

"some" tests are a few files of every layer: {", ".join(f"`{name.removeprefix('tests/')}`" for name in CHOSEN)}.

| Python | versions | {" | ".join(SHOWN)} | tests | outcome |
|{"---|" * (len(SHOWN) + 4)}
"""


@dataclass(frozen=True)
class Row:
    python: Path
    version: str  # 3.10
    kind: str  # newest, lowest, lowest-gpu

    @property
    def name(self) -> str:
        return f"{self.version}-{self.kind}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("tests", nargs="*", default=CHOSEN, help="files and folders; else some of each layer")
    arguments.add_argument("--only", action="append", help="a row, such as 3.10-lowest; may be repeated")
    arguments.add_argument("--folder", type=Path, help="keep environments and logs there")
    arguments.add_argument("--jobs", default="2", help="tests at once")
    asked = arguments.parse_args()
    rows = [Row(path, version, kind) for version, path in interpreters().items() for kind in kinds(version)]
    if unknown := set(asked.only or ()) - {row.name for row in rows}:
        sys.exit(f"no such rows: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in rows)}")
    rows = [row for row in rows if not asked.only or row.name in asked.only]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wheel, sources = build(folder)
        outcomes = []
        for row in rows:
            print(f"{row.name} ...", flush=True)
            outcomes.append(run_row(row, folder, wheel, sources, asked.tests, asked.jobs))
            print("   ", outcomes[-1], flush=True)
            write(outcomes)
            if not asked.folder:
                shutil.rmtree(folder / row.name)
    sys.exit(any(re.search(r"failed|error|no outcome|not installed", line) for line in outcomes))


def kinds(version: str) -> tuple[str, ...]:
    return ("newest", "lowest", "lowest-gpu") if version == PYTHONS[0] else ("newest",)


def interpreters() -> dict[str, Path]:
    """{"3.10": its path}, of those on PATH and of pyenv."""
    found = {}
    for version in PYTHONS:
        pyenv = sorted(
            Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
        )
        on_path = shutil.which(f"python{version}")
        for path in [*pyenv, *([Path(on_path)] if on_path else [])]:
            if subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
                found[version] = path
                break
    return found


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel, and the unpacked source distribution that it was built from."""
    places = [folder / name for name in ("sources", "dist", "builder")]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    sources, dist, builder = places
    python = environment(Path(sys.executable), builder, ["setuptools>=77"])
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([python, "-c", code, dist], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(sources)
    (tree,) = sources.iterdir()
    subprocess.run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", dist, tree], check=True)
    (wheel,) = dist.glob("*.whl")
    return wheel, tree


def environment(base: Path, place: Path, packages: list[str]) -> Path:
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--upgrade", "pip"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", "--prefer-binary", *packages], check=True)
    return python


def run_row(row: Row, folder: Path, wheel: Path, sources: Path, tests: Sequence[str], jobs: str) -> str:
    """One line of the table."""
    place = folder / row.name
    try:
        python = environment(row.python, place, ["setuptools>=77"])
        environment(row.python, place, wanted(row, python, wheel))
        environment(row.python, place, ["--no-deps", "--force-reinstall", str(wheel)])  # an older one may be there
    except subprocess.CalledProcessError as problem:
        return line(row, ["-"] * len(SHOWN), tests, f"not installed: {problem}")
    code = "import convt3d, sys; sys.exit(not convt3d.__file__.startswith(sys.prefix))"
    subprocess.run([python, "-c", code], cwd=sources, check=True)
    with open(folder / f"{row.name}.log", "w+") as log:
        command = [python, "-m", "pytest", "-q", "-n", jobs, "-p", "no:cacheprovider", *tests]
        subprocess.run(command, cwd=sources, stdout=log, stderr=log, check=False)
        log.seek(0)
        last = log.read().strip().rpartition("\n")[2]
    counts = re.findall(r"(\d+) (failed|passed|skipped|error)", last)
    outcome = ", ".join(f"{count} {word}" for count, word in sorted(counts, key=lambda pair: pair[1] == "passed"))
    return line(row, installed(python), tests, outcome or f"no outcome: {last}")


def line(row: Row, versions: list[str], tests: Sequence[str], outcome: str) -> str:
    said = "some" if tests == CHOSEN else "all" if tests == ["tests"] else " ".join(tests)
    return f"| {row.version} | {row.kind} | {' | '.join(versions)} | {said} | {outcome} |"


def wanted(row: Row, python: Path, wheel: Path) -> list[str]:
    """What pip is asked for. Without triton: torch brings its own."""
    bounds: dict[str, str] = {}
    for extra in ("", "test", "gpu" if row.kind == "lowest-gpu" else "torch"):
        bounds |= requirements(wheel, extra)
    bounds.pop("triton", None)
    if row.kind == "newest":
        return [str(wheel), *(f"{name}>={bound}" for name, bound in bounds.items())]
    for name in ("onnx", "onnxscript"):  # what they bring does not say that it needs a newer ml_dtypes
        bounds.pop(name, None)
    return [str(wheel), *(f"{name}=={lowest(python, name, bound)}" for name, bound in bounds.items())]


def requirements(wheel: Path, extra: str) -> dict[str, str]:
    """{name: lowest version} of the wheel's requirements, for one extra or for none."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    found = {}
    for package, bound, marker in re.findall(r"^Requires-Dist: ([\w-]+)(?:>=|==)([\d.]+)(.*)$", text, re.MULTILINE):
        if f'extra == "{extra}"' in marker if extra else "extra ==" not in marker:
            found[package] = bound
    return found


def lowest(python: Path, name: str, bound: str) -> str:
    """The lowest release from `bound` on that has a wheel for this Python."""
    command = [python, "-m", "pip", "index", "versions", name, "--only-binary", ":all:"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = re.search(r"Available versions: (.*)", text)
    return min((one for one in versions[1].split(", ") if order(one) >= order(bound)), key=order) if versions else bound


def order(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
    return (*numbers, *[0] * (4 - len(numbers)))


def installed(python: Path) -> list[str]:
    code = (
        "import sys; from importlib.metadata import version, PackageNotFoundError\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(version(name))\n"
        "    except PackageNotFoundError: print('-')"
    )
    return subprocess.run([python, "-c", code, *SHOWN], capture_output=True, text=True, check=True).stdout.split()


def write(outcomes: list[str]) -> None:
    """The page, with the rows it had, except where these are newer."""
    old = re.findall(r"^\| \d.*$", PAGE.read_text(), re.MULTILINE) if PAGE.exists() else []
    rows = {tuple(one.split(" | ")[:2]): one for one in [*old, *outcomes]}
    PAGE.write_text(HEAD + "\n".join(rows[key] for key in sorted(rows, key=lambda key: (order(key[0]), key[1]))) + "\n")


if __name__ == "__main__":
    main()
