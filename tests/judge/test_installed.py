"""The judge works however convt3d was installed, and nowhere can a kernel import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import kernels_python
from helpers.wheel import bare_environment, bare_python, link, make_venv, unpack, user_site

CONV = "conv-transpose-3d-asym-input-sq-kernel"

# Right only where the answer cannot be had.
KERNEL = (
    kernels_python.solution(CONV, kernels_python.NUMPY)
    + """
import importlib
honest = solution
def solution(*args):
    for find in (lambda: __import__("convt3d"), lambda: importlib.import_module("convt3d")):
        try:
            find()
        except ImportError:
            continue
        raise ValueError("found the answer")
    honest(*args)
"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
@pytest.mark.parametrize("layout", ["venv", "user", "target", "archive"])
def test_a_python_kernel_is_judged(wheel: Path, tmp_path: Path, layout: str) -> None:
    """A wheel in a fresh environment, in the user's site, in a folder or as an archive on PYTHONPATH."""
    (tmp_path / "mine.py").write_text(KERNEL)
    command, environment = [bare_python(), "-m", "convt3d"], {}
    if layout == "venv":
        command = [str(make_venv(tmp_path / "venv", wheel) / "convt3d")]
    elif layout == "user":
        link(unpack(wheel, user_site(tmp_path / "base")))
        environment["PYTHONUSERBASE"] = str(tmp_path / "base")
    elif layout == "target":
        link(unpack(wheel, tmp_path / "target"))
        environment["PYTHONPATH"] = str(tmp_path / "target")
    else:
        link(tmp_path)
        environment["PYTHONPATH"] = f"{wheel}:{tmp_path}"
    done = subprocess.run(
        [*command, "check", "mine.py", "--case", "sample"],
        env=bare_environment(**environment),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
