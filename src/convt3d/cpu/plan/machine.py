"""What the CPU offers: instruction set, vector width, registers, caches. Plans depend on no other fact of the host.

`CONVT3D_ISA=avx512|avx2|baseline` forces a lower instruction set than the host has, so that it can be tested anywhere.
`CONVT3D_CHECK_BOUNDS=1` asks for code that checks all its accesses.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ...errors import ArgumentError
from ...recent import undisturbed
from .cores import available_cores, cgroup_quota, get_num_threads
from .host import llvm_host
from .permission import tiles_permitted

ISA_VARIABLE = "CONVT3D_ISA"
CHECK_VARIABLE = "CONVT3D_CHECK_BOUNDS"


@dataclass(frozen=True)
class Isa:
    """One instruction-set level: its vectors and, on x86, the LLVM features that make it up."""

    name: str
    vector_bytes: int
    vector_registers: int
    generic_cpu: str
    features: frozenset[str] = frozenset()


LINE = 64  # bytes of a cache line

_X86_BASELINE = frozenset({"64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"})
_X86_V2 = _X86_BASELINE | {"crc32", "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"}
_X86_V3 = _X86_V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
_X86_V4 = _X86_V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}

# Best first, per architecture.
LEVELS: dict[str, tuple[Isa, ...]] = {
    "x86_64": (
        Isa("avx512", 64, 32, "x86-64-v4", _X86_V4),
        Isa("avx2", 32, 16, "x86-64-v3", _X86_V3),
        Isa("baseline", 16, 16, "x86-64", _X86_BASELINE),
    ),
    "aarch64": (Isa("neon", 16, 32, "generic"),),
    "other": (Isa("baseline", 16, 16, "generic"),),
}
# Vectors of 256 bits on processors whose own are at least as long: for libraries that are exported.
SVE = Isa("sve256", 32, 32, "generic", frozenset({"neon", "sve"}))
ARM = ("neon", SVE.name)
WORDS = ("avx512", "avx2", "baseline", "neon")

# A common small core: only used where neither sysfs nor libc knows the caches.
_USUAL_CACHES = (32 << 10, 512 << 10, 8 << 20)


@dataclass(frozen=True)
class Machine:
    """Facts about the CPU that code is generated for. Equal machines get equal plans, so `threads` is not compared."""

    isa: str
    cpu: str
    features: str
    vector_bytes: int
    vector_registers: int
    l1d: int
    l2: int
    l3: int  # bytes, shared by all cores; 0 when there is none
    cores: int  # of the whole machine, whatever part of it this process may use: bits must not depend on that
    threads: int = field(compare=False)
    check_bounds: bool = False  # of every access of generated code
    tiles: bool = False  # the processor multiplies tiles of bfloat16 numbers (AMX), and the system lets us

    def __hash__(self) -> int:
        return hash(self.features)  # short, since every call looks up its plan

    def lanes(self, item_bytes: int) -> int:
        """Elements of `item_bytes` in one vector register."""
        return self.vector_bytes // item_bytes

    def has(self, feature: str) -> bool:
        """Whether generated code may use an LLVM feature, e.g. "fma", "f16c", "avx512bf16", "fullfp16"."""
        return f"+{feature}" in self.features.split(",")

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether an instruction adds up products of pairs of bfloat16 numbers, in float32."""
        return self.isa == "avx512" and self.has("avx512bf16")

    @property
    def multiplies_tiles(self) -> bool:
        """The same of tiles; code that checks its accesses has none."""
        return self.multiplies_bfloat16 and self.tiles and not self.check_bounds

    def describe(self) -> dict[str, str | int | float | None]:
        """Facts for people and bug reports, as shown by `convt3d info`."""
        import llvmlite
        import numpy

        return {
            "cpu": _brand(),
            "architecture": architecture(),
            "isa": self.isa,
            "isa_forced": os.environ.get(ISA_VARIABLE) or None,
            "llvm_cpu": self.cpu,
            "llvm_features": self.features,
            "vector_bytes": self.vector_bytes,
            "vector_registers": self.vector_registers,
            "l1d_bytes": self.l1d,
            "l2_bytes": self.l2,
            "l3_bytes": self.l3,
            "cores_usable": available_cores(),
            "cores_quota": cgroup_quota(),
            "threads": get_num_threads(),
            "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled") or None,
            "system": platform.platform(),
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "llvmlite": llvmlite.__version__,
        }


def machine() -> Machine:
    """This machine, or the lower one that `CONVT3D_ISA` asks for. Detected once per requested instruction set."""
    return _detect(os.environ.get(ISA_VARIABLE, "").strip(), os.environ.get(CHECK_VARIABLE, "").strip())


def machines() -> list[Machine]:
    """This machine, and the lower ones that `CONVT3D_ISA` may ask for."""
    best = _detect("", "")
    levels = LEVELS[architecture()]
    lower = levels[next(at for at, level in enumerate(levels) if level.name == best.isa) :]
    return [best, *(_detect(level.name, "") for level in lower)]


@cache
def _detect(asked: str, check: str) -> Machine:
    if check not in ("", "0", "1"):
        raise ArgumentError(
            "environment", CHECK_VARIABLE, check, "must be 0 or 1", "Set it to one of them, or unset it"
        )
    with undisturbed:  # LLVM may have to be imported
        host_cpu, host_features = llvm_host()
    best = host_level(architecture(), host_features)
    level = choose_level(architecture(), best, asked)
    cpu, features = target_text(level, best, host_cpu, host_features)
    l1d, l2, l3 = cache_sizes()
    return Machine(
        isa=level.name,
        cpu=cpu,
        features=features,
        vector_bytes=level.vector_bytes,
        vector_registers=level.vector_registers,
        l1d=l1d,
        l2=l2,
        l3=l3,
        cores=os.cpu_count() or 1,
        threads=available_cores(),
        check_bounds=check == "1",
        tiles=level.name == "avx512" and _has_tiles(host_features) and tiles_permitted(),
    )


def _has_tiles(features: dict[str, bool]) -> bool:
    return features.get("amx-tile", False) and features.get("amx-bf16", False)


def architecture() -> str:
    """The host's architecture: "x86_64", "aarch64" or "other"."""
    name = platform.machine().lower()
    known = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
    return known.get(name, "other") if sys.maxsize > 2**32 else "other"


def host_level(arch: str, features: dict[str, bool]) -> Isa:
    """The best level whose features the host has, all of them."""
    present = {name for name, on in features.items() if on}
    levels = LEVELS[arch]
    return next((level for level in levels if level.features <= present), levels[-1])


def choose_level(arch: str, best: Isa, asked: str) -> Isa:
    """The level that `CONVT3D_ISA=asked` means on a host whose best level is `best`."""
    if not asked:
        return best
    if asked not in WORDS:
        known = f"Set it to one of {', '.join(WORDS)}, or unset it"
        raise ArgumentError("environment", ISA_VARIABLE, asked, "is not a known instruction set", known)
    levels = LEVELS[arch]
    usable = levels[levels.index(best) :]
    if asked == "baseline":
        return usable[-1]
    for level in usable:
        if level.name == asked:
            return level
    offered = ", ".join(dict.fromkeys([*(level.name for level in usable), "baseline"]))
    remedy = f"Set it to one of {offered}, or unset it"
    raise ArgumentError("environment", ISA_VARIABLE, asked, "is not an instruction set of this CPU", remedy)


def target_text(level: Isa, best: Isa, host_cpu: str, host_features: dict[str, bool]) -> tuple[str, str]:
    """LLVM's cpu name and features string for `level` on this host."""
    # Some Intel CPUs are tuned to split 64-byte vectors in two, which would halve every register tile.
    tuning = ["-prefer-256-bit"] if best.features else []
    host_only_partly_above = level.name != "avx512" and host_features.get("avx512f", False)
    if level is best and not host_only_partly_above:
        own = [f"{'+' if on else '-'}{name}" for name, on in sorted(host_features.items())]
        return host_cpu, ",".join(own + tuning)
    # Off comes first: a later "+" may not be undone by the "-" of something it implies.
    off = [f"-{name}" for name in sorted(host_features) if name not in level.features]
    on = [f"+{name}" for name in sorted(level.features)]
    return level.generic_cpu, ",".join(off + on + tuning)


def cache_sizes(root: Path = Path("/sys/devices/system/cpu")) -> tuple[int, int, int]:
    """(L1 data, L2, L3) bytes, from sysfs, else from libc, else the usual."""
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found: dict[int, int] = {}
    for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
        if _read(index / "type") in ("Data", "Unified") and _read(index / "level").isdigit():
            found[int(_read(index / "level"))] = _bytes(_read(index / "size"))
    if found.get(1) and found.get(2):
        return found[1], found[2], found.get(3, 0)
    names = ("SC_LEVEL1_DCACHE_SIZE", "SC_LEVEL2_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE")
    l1d, l2, l3 = (_sysconf(name) or usual for name, usual in zip(names, _USUAL_CACHES, strict=True))
    return l1d, l2, l3


def _sysconf(name: str) -> int:
    if sys.platform == "win32":
        return 0
    try:
        return max(0, os.sysconf(name))
    except (ValueError, OSError):  # a name this libc lacks
        return 0


def _bytes(text: str) -> int:
    number, unit = text[:-1], text[-1:].upper()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit)
    if scale is None:
        number, scale = text, 1
    return int(number) * scale if number.isdigit() else 0


def _brand() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _read(path: Path | str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
