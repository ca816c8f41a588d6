"""`import convt3d` brings in nothing but numpy and a little of the standard library."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import convt3d

SOURCE = Path(convt3d.__file__).parent
OPTIONAL = (
    "torch",
    "triton",
    "jax",
    "dask",
    "distributed",
    "zarr",
    "ml_dtypes",
    "rich",
    "tqdm",
    "onnx",
    "onnxruntime",
    "openvino",
)


def run(code: str) -> str:
    """Output of a fresh interpreter that sees the same convt3d."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_optional_libraries_stay_out() -> None:
    """Nor does a call on numpy arrays bring them in."""
    code = f"""
import sys, numpy, convt3d
def brought():
    return sorted(m for m in {OPTIONAL!r} if m in sys.modules)
first = brought()
convt3d.conv_transpose3d(numpy.ones((1, 1, 2, 2, 2)), numpy.ones((1, 1, 2, 2, 2)))
print(first, brought())
"""
    assert run(code).strip() == "[] []"


def test_import_brings_in_little() -> None:
    """Beside numpy, no more than a few dozen modules of the standard library, none of them large."""
    code = """
import sys, numpy
before = set(sys.modules)
import convt3d
brought = {name for name in set(sys.modules) - before if name.partition(".")[0] not in ("convt3d", "numpy")}
large = {"asyncio", "email", "http", "multiprocessing", "sqlite3", "ssl", "unittest", "urllib.request", "xml"}
print(sorted(name.partition(".")[0] for name in brought if name.partition(".")[0] not in sys.stdlib_module_names))
print(sorted(large & brought), len(brought) < 100)
"""
    assert run(code) == "[]\n[] True\n"


def test_import_leaves_no_trace() -> None:
    """No thread, no open file, no warnings filter, no environment variable."""
    code = """
import os, threading, warnings, numpy
def state():
    files = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    return len(warnings.filters), threading.active_count(), len(files), sorted(os.environ)
before = state()
import convt3d
print(state() == before)
"""
    assert run(code).strip() == "True"


@pytest.mark.parametrize("name", convt3d.__all__)
def test_public_names_exist(name: str) -> None:
    assert getattr(convt3d, name) is not None


def test_public_names_are_complete() -> None:
    """Sorted, no name twice; every public stage and error is exported; `import *` works."""
    assert len(convt3d.__all__) == len(set(convt3d.__all__))
    from convt3d import errors
    from convt3d.spec import stages

    def public(module: Any, base: type) -> set[str]:
        classes = {n: c for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, base)}
        return {n for n, c in classes.items() if c.__module__ == module.__name__ and not n.startswith("_")}

    wanted = public(errors, errors.Error) | (set(stages.__all__) - {"Binary", "Convolution"})
    assert wanted - set(convt3d.__all__) == set()
    assert run("from convt3d import *; print(Pipeline(ConvTranspose3d()))").strip() == "Pipeline(ConvTranspose3d())"


def test_typed() -> None:
    assert (SOURCE / "py.typed").is_file()
    project = SOURCE.parents[1] / "pyproject.toml"
    if project.is_file():  # in the source tree the package data must name it, or an installed copy lacks it
        assert '"py.typed"' in project.read_text()


def test_version() -> None:
    try:
        installed = version("convt3d")
    except PackageNotFoundError:
        pytest.skip("convt3d is not installed")
    assert convt3d.__version__ == installed


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
run(interpreters.create(), '''
try:
    import convt3d
except ImportError as problem:
    print(problem)
''')
"""


def test_a_subinterpreter_is_refused() -> None:
    """Threads of ours would outlive it, and numpy is not made for it; the process's own interpreter is as before."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", SUBINTERPRETER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    if "No module named" in done.stderr:
        pytest.skip("this Python has no module for subinterpreters")
    assert "must be the main interpreter" in done.stdout, done.stderr
