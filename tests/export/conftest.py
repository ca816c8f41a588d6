"""Libraries that several tests call: each is exported once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.c_library import Loaded

from convt3d.export.forms import Subject
from convt3d.export.library import subject_of, write_library
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
    found: dict[tuple[str, ...], Exported] = {}

    def one(text: str, name: str, dtype: str = "float32", target: str | None = None, static: bool = False) -> Exported:
        if compiler_of("c") is None:
            pytest.skip("needs a C compiler")
        key = (text, name, dtype, target or "", str(static))
        if key not in found:
            subject = subject_of(text, name)
            folder = tmp_path_factory.mktemp("export") / name
            made = write_library(subject, DTYPES[dtype], str(folder), target=target, static=static)
            found[key] = Exported(subject, DTYPES[dtype], folder, made.path)
        return found[key]

    return one
