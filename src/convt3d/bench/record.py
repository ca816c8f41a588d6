"""Results: a file of JSON lines that only grows. Every row says machine, commit and versions; one row is one case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from ..cpu.plan.machine import machine
from ..errors import ArgumentError, described
from .contenders import PACKAGES
from .rounds import calm_rounds

Row: TypeAlias = dict[str, Any]

SCHEMA = 1
_MACHINE = ("cpu", "architecture", "isa", "l1d_bytes", "l2_bytes", "l3_bytes", "cores_usable", "system", "python")


def provenance() -> Row:
    """What every row of a run begins with."""
    facts = machine().describe()
    return {
        "schema": SCHEMA,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": {name: facts[name] for name in _MACHINE},
        "versions": {name: version(name) for name in PACKAGES},
    }


def version(package: str) -> str | None:
    """As installed, without importing it; convt3d itself may run from its sources."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return sys.modules["convt3d"].__version__ if package == "convt3d" else None


def commit() -> str | None:
    """Of the sources that run, with a + where they are changed; None where they are not in a repository."""
    folder = Path(__file__).parent
    try:
        told = [
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=10).stdout
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--", ".."))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return told[0].strip() + ("+" if told[1].strip() else "")


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """One line, on disk when this returns: what was measured survives whatever comes next."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, oldest first; a last line that was cut off while it was written is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ArgumentError("bench", "results", str(path), f"cannot be read: {error.strerror}", "Check it") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or row["schema"] != SCHEMA:
                raise ValueError
        except (ValueError, KeyError):
            if number == len(lines):
                break
            received = described(f"line {number} of {path.name}")
            rule = f"is not a row of schema {SCHEMA}"
            raise ArgumentError("bench", "results", received, rule, "Give a file `convt3d bench` has written") from None
        rows.append(row)
    return rows


def case_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Rows with equal keys measured the same thing."""
    return row["suite"], row["name"], row["dtype"], row["threads"], row["isa"], row["machine"]["cpu"]


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of every case, in the order in which cases first appear; a quick one never replaces a full one."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        known = found.get(case_key(row))
        if known is None or known["quick"] or not row["quick"]:
            found[case_key(row)] = row
    return list(found.values())


def calmed(row: Row) -> Row:
    """The row with the rounds that count; what ran once, outside of rounds, stays."""
    foreign = row.get("foreign") or []
    chosen = calm_rounds(foreign)

    def pick(values: list[float]) -> list[float]:
        return [values[at] for at in chosen] if len(values) == len(foreign) else values

    contenders = {
        name: {**one, "seconds": pick(one["seconds"])} if one.get("seconds") and one["status"] == "ok" else one
        for name, one in row["contenders"].items()
    }
    rates = {name: pick(values) for name, values in row.get("rates", {}).items()}
    return {**row, "foreign": pick(foreign), "rates": rates, "contenders": contenders}


def read_latest(paths: Sequence[Path]) -> list[Row]:
    """Of every case the last row, with the rounds that count."""
    rows = [calmed(row) for row in latest(row for path in paths for row in read_rows(path))]
    if not rows:
        received = described(", ".join(path.name for path in paths) or "no file")
        raise ArgumentError("bench", "results", received, "holds no row", "Run `convt3d bench` first")
    return rows
