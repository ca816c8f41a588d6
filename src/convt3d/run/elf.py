"""Which symbols an object file expects from elsewhere: read from the symbol table of a 64-bit ELF file."""

from __future__ import annotations

import struct

_SYMBOL_TABLE = 2
_UNDEFINED_SECTION = 0


def undefined_symbols(object_code: bytes) -> list[str]:
    """Names used but not defined in `object_code`; nothing for other formats (Mach-O, COFF)."""
    if object_code[:6] != b"\x7fELF\x02\x01":
        return []
    (table_at,) = struct.unpack_from("<Q", object_code, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", object_code, 0x3A)
    # Of each section header: type, file offset, size, link (for a symbol table: the section of its names).
    sections = [struct.unpack_from("<4xI16xQQI", object_code, table_at + i * entry_bytes) for i in range(count)]
    missing: list[str] = []
    for kind, start, size, link in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names_at = sections[link][1]
        for at in range(start + 24, start + size, 24):  # the first symbol is always empty
            name, section = struct.unpack_from("<I2xH", object_code, at)
            if section == _UNDEFINED_SECTION and name:
                begin = names_at + name
                missing.append(object_code[begin : object_code.index(b"\0", begin)].decode())
    return missing
