"""Names of compiled objects in the cache: they change with anything that could change the code. And what entries say
of themselves, so that people see what they have, and for which machine it is."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..plan.machine import Machine

_SOURCE_FOLDERS = ("spec", "plan", "cpu")


def entry_key(plan_key: str, machine: Machine) -> str:
    """Name of the entry for one plan on this machine."""
    import hashlib

    import llvmlite

    checked = "checked" if machine.check_bounds else ""
    parts = (plan_key, source_fingerprint(), llvmlite.__version__, machine.cpu, machine.features, checked)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def about_entry(name: str, machine: Machine) -> str:
    """What the entry of a kernel says of itself."""
    import llvmlite

    bound = Bound(machine.isa, machine.cpu, machine.features, llvmlite.__version__, source_fingerprint())
    return json.dumps({"name": name, **bound._asdict()})


class Bound(NamedTuple):
    """What code is for: it is asked for where all of it is the same."""

    isa: str
    cpu: str
    features: str
    llvmlite: str
    sources: str  # fingerprint


@cache
def source_fingerprint() -> str:
    """Digest of the sources that decide what code comes out."""
    import hashlib

    package = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    archive = next((parent for parent in package.parents if parent.is_file()), None)  # run from a zip file
    try:
        found = sorted(path for folder in _SOURCE_FOLDERS for path in (package / folder).rglob("*.py"))
        for path in [archive] if archive else found:
            name = "" if archive else path.relative_to(package).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    except OSError:
        found = []
    if not (archive or found):  # a value of this process alone, so that no other process trusts its entries
        digest.update(os.urandom(32))
    return digest.hexdigest()
