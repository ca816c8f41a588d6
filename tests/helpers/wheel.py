"""The package as people install it: a wheel built from a copy of the sources, and fresh places to put it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("numpy", "llvmlite")


def build_wheel(folder: Path) -> Path:
    """In `folder`, without the network; skips where pip or a setuptools that knows licence expressions is missing."""
    need("pip")
    need("setuptools", 77)
    copy = folder / "sources"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    _pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


def need(name: str, major: int = 0) -> None:
    """Skip unless it is installed. It is not imported: setuptools replaces modules of the standard library."""
    try:
        found = version(name)
    except PackageNotFoundError:
        found = "-1"
    if int(found.partition(".")[0]) < major:
        pytest.skip(f"this needs {name} {major or ''}".strip())


def make_venv(folder: Path, wheel: Path, needs: Sequence[str] = NEEDED) -> Path:
    """A fresh environment with the wheel and, beside it, links to what it needs; its bin folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    commands = folder / "bin"
    _pip("--python", commands / "python", "install", "--no-deps", "--no-compile", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    link(site, needs)
    return commands


def link(site: Path, needs: Sequence[str] = NEEDED) -> None:
    """These packages, with the libraries they bring, as if they were installed in `site`."""
    for name in needs:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        for one in (package, package.with_name(f"{name}.libs")):
            if one.is_dir():
                (site / one.name).symlink_to(one)


def unpack(wheel: Path, folder: Path) -> Path:
    """What `pip install --target` leaves."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def user_site(base: Path) -> Path:
    """Where `pip install --user` puts modules, given PYTHONUSERBASE."""
    return Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(base)}))


def bare_python() -> str:
    """The interpreter this environment was made with."""
    return str(getattr(sys, "_base_executable", sys.executable))


def bare_environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}, **more}


def _pip(*words: str | Path) -> None:
    settings = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "-m", "pip", *map(str, words)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
