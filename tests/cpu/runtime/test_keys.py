"""Names of compiled objects."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

from convt3d.cpu.plan.machine import machine
from convt3d.cpu.runtime import keys as module
from convt3d.cpu.runtime.keys import entry_key, source_fingerprint


def test_key_depends_on_everything_that_changes_the_code(monkeypatch):
    here = machine()
    keys = {
        entry_key("plan", here),
        entry_key("other plan", here),
        entry_key("plan", replace(here, cpu="other")),
        entry_key("plan", replace(here, features="-sse")),
    }
    assert entry_key("plan", replace(here, threads=99)) in keys
    monkeypatch.setattr("llvmlite.__version__", "0.0")
    keys.add(entry_key("plan", here))
    monkeypatch.setattr(module, "source_fingerprint", lambda: "edited")
    keys.add(entry_key("plan", here))
    assert len(keys) == 6
    assert len(source_fingerprint()) == 64


def test_an_archive_has_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    """Run from a zip file, sources cannot be listed: the file itself is what the code depends on."""
    source = Path(module.__file__).parents[3]
    found = []
    for text in ("", "# another version"):
        archive = tmp_path / f"convt3d{len(text)}.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            for path in source.rglob("*.py"):
                packed.writestr(path.relative_to(source).as_posix(), path.read_bytes() + text.encode())
        code = "from convt3d.cpu.runtime.keys import source_fingerprint; print(source_fingerprint())"
        environment = {**os.environ, "PYTHONPATH": str(archive)}
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
            )
            found.append(done.stdout)
    assert found[0] == found[1] != found[2] == found[3]
