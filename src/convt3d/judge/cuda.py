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
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable

# Every load and store of the kernel calls device.cpp, every index of an array whose size is known is checked, and so is
# every address of a type that needs an alignment.
INSTRUMENTED = ("-fsanitize=thread", "-fsanitize=bounds", "-fsanitize=alignment")
_SHARED = re.compile(
    r"\bextern\s+((?:[\w\s]|(?:__align__|alignas)\s*\([^()]{0,40}\)){0,200}?)\b(\w+)\s*\[\s*\]((?:\s*\[[^\[\];]{0,80}\])*)\s*;"
)
_ALIGNED = re.compile(r"__shared__|(?:__align__|alignas)\s*\([^()]*\)")
_BOUNDS = re.compile(r"__launch_bounds__\s*\(([^()]{1,200})\)[^(;{]{0,200}?\b(\w+)\s*\(")
_CONSTANT = re.compile(
    r"(?:#[ \t]*define[ \t]+(\w+)[ \t]+|\bconst(?:expr)?\s+[\w\s]{1,40}?\b(\w+)\s*=\s*)\(?(\d{1,6})\)?\s*(?:;|\n|,)"
)
_DEVICE = re.compile(r"\b(?:convt3d_device\w*|CONVT3D_UNSEEN|__tsan_\w+|__ubsan_\w+|(?:__)?no_sanitize\w*)")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile\b\s*|__volatile__\s*)?\(")
_NAME = re.compile(r"[\w:]+\s*$")
_SITE = re.compile(r"\{\+([0-9a-f]+)\}")
_QUOTED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_DEVICES: dict[str, bytes] = {}  # compiler -> the device's object file, the same for every kernel
_LONGEST = 4_000  # characters of a launch's arguments
_BODY = "CONVT3D_UNSEEN"  # what a launch is given is the host's: reading it is no access of the kernel's


def device_word(text: str) -> str | None:
    """The first word by which a file reaches for the device that plays the GPU, or keeps it from looking."""
    found = _DEVICE.search(_blank(text))
    return found[0] if found else None


def assembly_line(text: str) -> int | None:
    """The first line with assembly, which is a GPU's."""
    found = _ASSEMBLY.search(_blank(text))
    return text.count("\n", 0, found.start()) + 1 if found else None


def host_source(text: str) -> str:
    """The file as C++."""
    text = text.replace("__noinline__", "__attribute__((noinline))")
    scopes = _Functions(_blank(text))
    text = _SHARED.sub(lambda found: _dynamic(found, scopes), text)
    blank, bounds = _blank(text), _launch_bounds(text)
    pieces, end, at = [], len(text), len(text)
    while (at := blank.rfind("<<<", 0, at)) >= 0:
        if found := _launch(text, blank, at, bounds):
            start, stop, launch = found
            if stop <= end:
                pieces += [text[stop:end], launch]
                end = at = start
    pieces.append(text[:end])
    return "".join(reversed(pieces))


def _blank(text: str) -> str:
    """Without what stands in comments and strings."""
    return _QUOTED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _dynamic(found: re.Match[str], scopes: _Functions) -> str:
    """Dynamic shared memory: a pointer to it, in a function; outside of one, a pointer that each launch sets."""
    if "__shared__" not in found[1]:
        return found[0]
    kind, name, rest = " ".join(_ALIGNED.sub("", found[1]).split()), found[2], found[3]
    pointer, cast = (f"{kind} (*{name}){rest}", f"{kind} (*){rest}") if rest else (f"{kind}* {name}", f"{kind}*")
    lines = "\n" * found[0].count("\n")
    if found.start() in scopes:
        return f"{pointer} = ({cast})convt3d_device::dynamic_shared();{lines}"
    return f"static {pointer}; static const convt3d_device::Dynamic convt3d_set_{name}((void**)&{name});{lines}"


class _Functions:
    """Where the bodies of functions are: what follows a `)`, and is no part of another."""

    def __init__(self, blank: str) -> None:
        self._spans: list[tuple[int, int]] = []
        depth, opened, inside = 0, 0, -1  # braces that are open, where a body began, and how deep
        before = ""
        for at, letter in enumerate(blank):
            if letter == "{":
                if inside < 0 and before == ")":
                    opened, inside = at, depth
                depth += 1
            elif letter == "}":
                depth -= 1
                if depth == inside:
                    self._spans.append((opened, at))
                    inside = -1
            if not letter.isspace():
                before = letter

    def __contains__(self, at: object) -> bool:
        return isinstance(at, int) and any(begin < at < end for begin, end in self._spans)


def _launch_bounds(text: str) -> dict[str, int]:
    """The most threads that a kernel says it takes, by its name, where that is a number or a constant."""
    constants = {macro or name: int(value) for macro, name, value in _CONSTANT.findall(text)}
    found = {}
    for given, name in _BOUNDS.findall(text):
        factors = [factor.strip() for factor in given.partition(",")[0].split("*")]
        if all(factor.isdecimal() or factor in constants for factor in factors):
            found[name] = prod(int(factor) if factor.isdecimal() else constants[factor] for factor in factors)
    return found


def _launch(text: str, blank: str, at: int, bounds: dict[str, int]) -> tuple[int, int, str] | None:
    """The launch `name<<<how>>>(arguments)` with its brackets there: where it begins and ends, and its call in C++."""
    close = blank.find(">>>", at, at + _LONGEST)
    opening = blank.find("(", close)
    if close < 0 or opening < 0 or blank[close + 3 : opening].strip():
        return None
    start, end = _name_start(blank, at), _closing(blank, opening)
    if end is None:
        return None
    name, how, arguments = text[start:at], text[at + 3 : close], text[opening + 1 : end]
    called = " ".join(name.split())
    most = bounds.get(called.partition("<")[0].rpartition("::")[2].strip())
    bounded = f", {most}" if most else ""
    call = f"[&]() {_BODY} {{ {name}({arguments}); }}"
    return start, end + 1, f'convt3d_device::Launch({how}).run("{called}", {call}{bounded})'


def _name_start(text: str, end: int) -> int:
    """Where the name before `end` begins, with its template arguments."""
    at = len(text[max(0, end - _LONGEST) : end].rstrip()) + max(0, end - _LONGEST)
    if text[at - 1 : at] == ">":
        depth, least = 0, max(0, at - _LONGEST)
        while at > least:
            at -= 1
            depth += (text[at] == ">") - (text[at] == "<")
            if depth == 0:
                break
    found = _NAME.search(text[max(0, at - 500) : at])
    return max(0, at - 500) + found.start() if found else at


def _closing(text: str, opening: int) -> int | None:
    """The bracket that ends what begins there."""
    depth = 0
    for at in range(opening, min(len(text), opening + _LONGEST)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0:
            return at
    return None


def compilations(compiler: str, source: str, caller: str, library: str, macros: list[str]) -> Iterator[list[str]]:
    """The commands that make a library of a rewritten file and the call that follows it, and of the device."""
    device = Path(library).with_name("device")
    _unpack(resources.files(__package__) / "device", device)
    # _FORTIFY_SOURCE takes a jump to another fiber's stack for an accident.
    common = [compiler, "-std=gnu++20", "-O2", "-g", "-fPIC", "-w", "-U_FORTIFY_SOURCE", f"-I{device}"]
    given = ["-include", str(device / "cuda_runtime.h"), "-include", source]
    yield [*common, *INSTRUMENTED, *macros, *given, "-c", caller, "-o", f"{library}.kernel.o"]
    played = Path(f"{library}.device.o")
    if compiler in _DEVICES:
        played.write_bytes(_DEVICES[compiler])
    else:
        yield [*common, "-c", str(device / "device.cpp"), "-o", str(played)]
        _DEVICES[compiler] = played.read_bytes()
    yield [compiler, "-shared", f"{library}.kernel.o", f"{library}.device.o", "-o", library, "-lm", "-ldl"]


def _unpack(folder: Traversable, into: Path) -> None:
    """The package may be an archive."""
    into.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.is_dir():
            _unpack(file, into / file.name)
        else:
            (into / file.name).write_bytes(file.read_bytes())


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
