"""LLVM's name for this CPU, and its features.

Loading LLVM takes longer than all else that a first call does when its kernel is found on disk. So the answer is kept
there as well, under what the system says of the CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...cache import object_cache
from ...errors import BuildError, described

# Lines of /proc/cpuinfo that do not change from core to core or with the time of day; x86, then AArch64.
_IDENTITY = frozenset(
    [
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "microcode",
        "flags",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "Features",
    ]
)
_FEATURES = ("flags", "Features")
FACTS = "facts of the CPU"  # what the entry says of itself


def llvm_host() -> tuple[str, dict[str, bool]]:
    """As LLVM says, or has said to an earlier process on the same CPU."""
    identity = cpu_identity()
    if identity is None:
        return _ask_llvm()
    import hashlib

    import llvmlite

    key = hashlib.sha256(f"host\0{llvmlite.__version__}\0{identity}".encode()).hexdigest()
    about = json.dumps({"name": FACTS, "llvmlite": llvmlite.__version__, "identity": identity})
    name, features = json.loads(object_cache().fetch(key, lambda: json.dumps(_ask_llvm()).encode(), about))
    return name, features


def load_llvm() -> Any:
    """llvmlite's binding, or an error that says why there is none."""
    try:
        import llvmlite.binding
    except (OSError, ImportError, MemoryError) as problem:  # also where a limit of memory is too low for it
        rule, remedy = (
            f"LLVM cannot be loaded: {problem}",
            "Raise the limit of memory (ulimit -v), or reinstall llvmlite",
        )
        raise BuildError("build", "llvmlite", described(type(problem).__name__), rule, remedy) from None
    return llvmlite.binding


def _ask_llvm() -> tuple[str, dict[str, bool]]:
    llvm = load_llvm()
    return llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features())


def cpu_identity(path: Path = Path("/proc/cpuinfo")) -> str | None:
    """What the system says of the first core, or None where it does not name its features."""
    lines, named = [], False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key = line.partition(":")[0].strip()
                if not key:  # a blank line ends the first core
                    break
                if key in _IDENTITY:
                    lines.append(line.strip())
                    named = named or key in _FEATURES
    except OSError:
        return None
    return "\n".join(lines) if named else None
