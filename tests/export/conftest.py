"""Libraries that several tests call: each is exported once, whichever process of the tests asks first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from helpers.c_levels import own_level
from helpers.c_library import Loaded

from convt3d.cpu.plan.machine import machine
from convt3d.export.forms import Subject
from convt3d.export.library import subject_of, write_library
from convt3d.export.objects import levels
from convt3d.judge.languages import compiler_of
from convt3d.spec.dtypes import DTYPES, DType


@dataclass(frozen=True)
class Exported:
    subject: Subject
    dtype: DType
    folder: Path
    path: str

    def load(self) -> Loaded:
        return Loaded(self.path, self.subject, self.dtype)


Export = Callable[..., Exported]


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """`every`: all instruction sets of the target, as the command has it."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "libraries"
    root.mkdir(exist_ok=True)

    def one(
        text: str,
        name: str,
        dtype: str = "float32",
        target: str | None = None,
        static: bool = False,
        every: bool = False,
    ) -> Exported:
        if compiler_of("c") is None or not sys.platform.startswith("linux"):
            pytest.skip("needs Linux and a C compiler")
        subject = subject_of(text, name)
        asked = text, name, dtype, target, static, every, machine().isa
        key = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]
        folder, path = root / key / name, root / key / "path"
        folder.parent.mkdir(exist_ok=True)
        with open(root / f"{key}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                chosen = levels if every or target else own_level
                with mock.patch("convt3d.export.library.levels", chosen):
                    made = write_library(subject, DTYPES[dtype], str(folder), target=target, static=static)
                path.write_text(made.path)
        return Exported(subject, DTYPES[dtype], folder, path.read_text())

    return one
