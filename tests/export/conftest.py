"""Libraries that several tests call: each is exported once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.c_library import Loaded

from convt3d.cpu.plan.machine import architecture, machine
from convt3d.export import library
from convt3d.export.forms import Subject
from convt3d.export.library import subject_of, write_library
from convt3d.export.objects import Level, levels
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


def best(target: str, dtype: DType) -> list[Level]:
    """What this processor takes."""
    found = levels(target, dtype)
    return [level for level in found if not level.more or machine().multiplies_bfloat16][:1]


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    found: dict[tuple[str, ...], Exported] = {}

    def one(
        text: str,
        name: str,
        dtype: str = "float32",
        target: str | None = None,
        static: bool = False,
        every_level: bool = False,
    ) -> Exported:
        """For x86-64 with code for the best instruction set of this processor alone, if not asked for all."""
        if compiler_of("c") is None or not sys.platform.startswith("linux"):
            pytest.skip("needs Linux and a C compiler")
        key = (text, name, dtype, target or "", str(static), str(every_level))
        if key not in found:
            subject = subject_of(text, name)
            folder = tmp_path_factory.mktemp("export") / name
            with pytest.MonkeyPatch.context() as patch:
                if not (target or every_level) and machine().isa == levels(architecture())[0].isa.name:
                    patch.setattr(library, "levels", best)
                made = write_library(subject, DTYPES[dtype], str(folder), target=target, static=static)
            found[key] = Exported(subject, DTYPES[dtype], folder, made.path)
        return found[key]

    return one
