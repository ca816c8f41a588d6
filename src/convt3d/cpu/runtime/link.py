"""Puts an object file into executable memory without LLVM.

A process that finds its kernels on disk then never loads LLVM, which takes longer than all the rest of a first call.
Code for this process is emitted for any distance (LLVM's code model for a JIT), so on x86-64 there are two kinds of
relocation, both of 64 bits, and our code has no variables of its own. All else is left to LLVM's loader: `link`
returns None.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence

from .elf import X86_64, ObjectFile

_ADDRESS, _DISTANCE = 1, 24  # R_X86_64_64 and R_X86_64_PC64: symbol + addend, the latter less the place itself


class Image:
    """Code and constants in memory of their own, readable and executable, never writable again."""

    def __init__(self, memory: mmap.mmap, addresses: dict[str, int]) -> None:
        self._memory = memory
        self.addresses = addresses


def link(object_code: bytes, names: Sequence[str], given: Mapping[str, int]) -> Image | None:
    """The functions `names` of an object file; None where LLVM's loader is needed, RuntimeError where none will do.
    `given` are addresses of names that the code expects and the process does not know by itself."""
    if not sys.platform.startswith("linux") or not ObjectFile.recognises(object_code):
        return None
    file = ObjectFile(object_code)
    relocations = list(file.relocations())
    known = file.architecture == X86_64 and all(one.kind in (_ADDRESS, _DISTANCE) for one in relocations)
    if not known or any(section.in_memory and section.writable for section in file.sections):
        return None
    places, size = _places(file)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = _address(memory)
    defined = {one.name: base + places[one.section] + one.value for one in file.symbols if one.section in places}
    if absent := [name for name in names if name not in defined]:
        raise RuntimeError(f"the object file does not define {', '.join(absent)}")
    outside = in_process((one.symbol.name for one in relocations if not one.symbol.section), given)
    for index, place in places.items():
        section = file.sections[index]
        memory[place : place + section.size] = object_code[section.start : section.start + section.size]
    for one in relocations:
        symbol, place = one.symbol, places[one.target] + one.offset
        value = base + places[symbol.section] + symbol.value if symbol.section else outside[symbol.name]
        value += one.addend - (base + place if one.kind == _DISTANCE else 0)
        struct.pack_into("<Q", memory, place, value % 2**64)
    _seal(base, size)
    return Image(memory, {name: defined[name] for name in names})


def _places(file: ObjectFile) -> tuple[dict[int, int], int]:
    """Offset of each loaded section in memory, and the bytes of all of them."""
    places, end = {}, 0
    for index, section in enumerate(file.sections):
        if section.in_memory:
            end += -end % max(1, section.alignment)
            places[index] = end
            end += section.size
    return places, max(1, end)


def in_process(names: Iterable[str], given: Mapping[str, int]) -> dict[str, int]:
    """Addresses that are `given`, and those of functions of this process, such as the C library's. RuntimeError names
    those it does not have."""
    wanted = set(names)
    found, missing = {name: given[name] for name in wanted & set(given)}, []
    for name in sorted(wanted - set(given)):
        try:
            found[name] = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
        except AttributeError:
            missing.append(name)
    if missing:
        raise RuntimeError(f"the code calls {', '.join(missing)}, which this process does not have")
    return found


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _seal(base: int, size: int) -> None:
    """No longer writable, but executable. x86-64 keeps its instruction cache in step by itself."""
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if mprotect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise RuntimeError(f"the system refuses executable memory (errno {ctypes.get_errno()})")
