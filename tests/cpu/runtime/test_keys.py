"""Names of compiled objects."""

from __future__ import annotations

from dataclasses import replace

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
