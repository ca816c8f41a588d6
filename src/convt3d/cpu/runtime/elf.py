"""Object files of 64-bit little-endian ELF, as LLVM writes them: sections, symbols and relocations."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_SYMBOL_TABLE, _RELOCATIONS_WITH_ADDEND = 2, 4
_WRITABLE, _IN_MEMORY = 1, 2  # flags of a section; what is in memory belongs to the loaded code
X86_64 = 62


class Section(NamedTuple):
    kind: int
    flags: int
    start: int  # in the file
    size: int
    link: int  # symbol table of relocations, names of a symbol table
    target: int  # of relocations: the section they change
    alignment: int

    @property
    def in_memory(self) -> bool:
        return bool(self.flags & _IN_MEMORY)

    @property
    def writable(self) -> bool:
        return bool(self.flags & _WRITABLE)


class Symbol(NamedTuple):
    name: str
    section: int  # 0: expected from elsewhere
    value: int  # offset in its section


class Relocation(NamedTuple):
    target: int  # section that is changed
    offset: int  # in it
    kind: int
    symbol: Symbol
    addend: int


class ObjectFile:
    def __init__(self, data: bytes) -> None:
        self.data = data
        (table_at,) = struct.unpack_from("<Q", data, 0x28)
        entry_bytes, count = struct.unpack_from("<HH", data, 0x3A)
        (self.architecture,) = struct.unpack_from("<H", data, 0x12)
        rows = (struct.unpack_from("<4xIQ8xQQIIQ", data, table_at + i * entry_bytes) for i in range(count))
        self.sections = [Section(*row) for row in rows]
        tables = [i for i, section in enumerate(self.sections) if section.kind == _SYMBOL_TABLE]
        self.symbols = list(self._symbols(self.sections[tables[0]])) if tables else []

    @staticmethod
    def recognises(data: bytes) -> bool:
        return data[:6] == b"\x7fELF\x02\x01"

    def _symbols(self, table: Section) -> Iterator[Symbol]:
        names = self.sections[table.link]
        for at in range(table.start, table.start + table.size, 24):
            name, section, value = struct.unpack_from("<I2xHQ", self.data, at)
            begin = names.start + name
            yield Symbol(self.data[begin : self.data.index(b"\0", begin)].decode(), section, value)

    def relocations(self) -> Iterator[Relocation]:
        """Those of sections that are loaded."""
        for section in self.sections:
            if section.kind != _RELOCATIONS_WITH_ADDEND or not self.sections[section.target].in_memory:
                continue
            for at in range(section.start, section.start + section.size, 24):
                offset, kind, symbol, addend = struct.unpack_from("<QIIq", self.data, at)
                yield Relocation(section.target, offset, kind, self.symbols[symbol], addend)


def undefined_symbols(object_code: bytes) -> list[str]:
    """Names used but not defined in `object_code`; nothing for other formats (Mach-O, COFF)."""
    if not ObjectFile.recognises(object_code):
        return []
    return [symbol.name for symbol in ObjectFile(object_code).symbols if symbol.name and not symbol.section]
