"""CUDA C++ on the CPU: a .cu file as C++ for the headers in `device/`, which play a GPU and name races.

Launches, `extern __shared__` arrays and `__noinline__` are all that is no C++; they are rewritten in place, so that
lines keep their numbers. What a GPU's compiler takes and this does not (tensor cores, assembly) is not run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

# Every load and store of the kernel calls device.cpp, and every index of an array whose size is known is checked.
INSTRUMENTED = ("-fsanitize=thread", "-fsanitize=bounds")
_SHARED = re.compile(r"\bextern\s+__shared__\s+(?:__align__\s*\([^()]*\)\s*)?([^;\[\]{}()]*?)\b(\w+)\s*\[\s*\]\s*;")
_NAME = re.compile(r"[\w:]+\s*$")
_SITE = re.compile(r"\{\+([0-9a-f]+)\}")
_QUOTED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def host_source(text: str) -> str:
    """The file as C++."""
    text = text.replace("__noinline__", "__attribute__((noinline))")
    text = _SHARED.sub(r"\1* \2 = (\1*)convt3d_device::dynamic_shared();", text)
    while (found := _launch(text)) is not None:
        start, end, launch = found
        text = text[:start] + launch + text[end:]
    return f'#include "cuda_runtime.h"\n#line 1\n{text}'


def _launch(text: str) -> tuple[int, int, str] | None:
    """The last launch, `name<<<how>>>(arguments)`: where it begins and ends, and the call it becomes."""
    blank = _QUOTED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)  # nothing in comments and strings counts
    at = blank.rfind("<<<")
    close = blank.find(">>>", at)
    if at < 0 or close < 0:
        return None
    start = _name_start(blank, at)
    opening = blank.find("(", close)
    end = _closing(blank, opening)
    if opening < 0 or end is None or blank[close + 3 : opening].strip():
        return None
    name, how, arguments = text[start:at], text[at + 3 : close], text[opening + 1 : end]
    called = " ".join(name.split())
    launch = f'convt3d_device::Launch({how}).run("{called}", [=]() {{ {name}({arguments}); }})'
    return start, end + 1, launch


def _name_start(text: str, end: int) -> int:
    """Where the name before `end` begins, with its template arguments."""
    stripped = text[:end].rstrip()
    at = len(stripped)
    if stripped.endswith(">"):
        depth = 0
        for at in range(len(stripped) - 1, -1, -1):
            depth += (stripped[at] == ">") - (stripped[at] == "<")
            if depth == 0:
                break
    found = _NAME.search(text[:at])
    return found.start() if found else at


def _closing(text: str, opening: int) -> int | None:
    """The bracket that ends what begins there."""
    depth = 0
    for at in range(max(opening, 0), len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0:
            return at
    return None


def compilations(compiler: str, source: str, caller: str, library: str, macros: list[str]) -> Iterator[list[str]]:
    """The commands that make a library of a rewritten file and the call that follows it, and of the device."""
    device = Path(library).with_name("device")
    device.mkdir(exist_ok=True)
    for file in (resources.files(__package__) / "device").iterdir():  # the package may be an archive
        (device / file.name).write_bytes(file.read_bytes())
    common = [compiler, "-std=gnu++17", "-O2", "-g", "-fPIC", "-w", f"-I{device}"]
    yield [*common, *INSTRUMENTED, *macros, "-include", source, "-c", caller, "-o", f"{library}.kernel.o"]
    yield [*common, "-c", str(device / "device.cpp"), "-o", f"{library}.device.o"]
    yield [compiler, "-shared", f"{library}.kernel.o", f"{library}.device.o", "-o", library, "-lm", "-ldl"]


def with_lines(text: str, library: str) -> str:
    """What the device said, with lines of the source in the place of addresses in the library."""
    finder = shutil.which("addr2line")

    def line(found: re.Match[str]) -> str:
        if finder is None:
            return f"offset {found[1]}"
        told = subprocess.run(
            [finder, "-e", library, "-i", found[1]], capture_output=True, text=True, timeout=20
        ).stdout
        lines = [each.rpartition(":")[2].split()[0] for each in told.splitlines() if "device/" not in each]
        return f"line {lines[0]}" if lines and lines[0].isdigit() else f"offset {found[1]}"

    return _SITE.sub(line, text)
