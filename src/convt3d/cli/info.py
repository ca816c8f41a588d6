"""`convt3d info`: the machine, the versions and the directories a bug report should name."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import Any

from ..bench.record import version
from ..cache import directory_state, memory_only
from ..cpu.plan.machine import machine
from ..units import amount
from .report import OK, emit, emit_json
from .terminal import Screen

PACKAGES = ("convt3d", "numpy", "llvmlite", "torch")


def info(args: argparse.Namespace) -> int:
    document = describe()
    if args.json:
        emit_json(document)
        return OK
    rows = [
        ["CPU", f"{document['cpu']} ({document['architecture']})"],
        ["instruction set", document["isa"] + (" (CONVT3D_ISA)" if document["isa_forced"] else "")],
        ["vectors", f"{8 * document['vector_bytes']} bits, {document['vector_registers']} registers"],
        ["caches", ", ".join(f"{name} {_cache(document, name)}" for name in ("l1d", "l2", "l3"))],
        ["threads", str(document["threads"])],
        ["huge pages", document["huge_pages"] or "unknown"],
        ["system", document["system"]],
        ["Python", document["python"]],
        *([name, version or "not installed"] for name, version in document["versions"].items()),
        ["kernel cache", _kernel_cache(document)],
    ]
    emit(Screen(sys.stdout).table(["", "this machine"], rows))
    return OK


def describe() -> dict[str, Any]:
    """Nothing is created to find this out."""
    directory, why_not = directory_state()
    with memory_only():
        facts = machine().describe()
    return {
        **facts,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "cache_directory": str(directory) if directory else None,
        "cache_usable": why_not is None,
        "cache_obstacle": why_not,
    }


def _kernel_cache(document: dict[str, Any]) -> str:
    directory, why_not = document["cache_directory"], document["cache_obstacle"]
    if why_not:
        return why_not if why_not == "off" else f"in memory only: {why_not}"
    if not os.path.exists(directory):
        return f"{directory} (the first kernel creates it)"
    return str(directory) if os.access(directory, os.W_OK) else f"{directory} (read only)"


def _cache(document: dict[str, Any], name: str) -> str:
    return amount(document[f"{name}_bytes"]) if document[f"{name}_bytes"] else "none"
