"""Which boxes of a result are finished: lines that are appended, each with the checksum of what was written.

A box counts when its line is whole and the file has the length and the checksum of the line. Whenever a run ends, by
SIGKILL too, the next one finds each box finished or not, never half.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

ABSENT = (-1, 0)  # zarr writes no file for a shard that is all fill value


class Journal:
    """A file beside the result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] | None = None
        self.entries: dict[str, tuple[int, int]] = {}  # file of a box: its length and checksum
        if path.exists():
            self._read()

    def _read(self) -> None:
        end = 0
        with self.path.open("rb") as file:
            for line in file:
                entry = _entry(line)
                if entry is None:
                    break
                end += len(line)
                if self.header is None:
                    self.header = entry
                else:
                    self.entries[entry["file"]] = entry["length"], entry["checksum"]
        if self.header is not None and end < self.path.stat().st_size:  # a line that was cut short
            os.truncate(self.path, end)

    def begin(self, header: dict[str, Any]) -> None:
        """A new one."""
        self.header, self.entries = header, {}
        temporary = self.path.with_name(self.path.name + ".new")
        with temporary.open("wb") as file:
            file.write(_line(header))
            _settle(file)
        os.replace(temporary, self.path)

    def add(self, root: Path, name: str) -> None:
        """Enters a file that has been written; first its bytes, then the line are put on the disk."""
        length, checksum = ABSENT
        if (root / name).exists():
            with (root / name).open("rb") as file:
                os.fsync(file.fileno())
            length, checksum = checksum_of(root / name)
        with self.path.open("ab") as file:
            file.write(_line({"file": name, "length": length, "checksum": checksum}))
            _settle(file)
        self.entries[name] = length, checksum

    def holds(self, root: Path, name: str) -> bool:
        """Whether a file is entered, and is what it was then."""
        known = self.entries.get(name)
        path = root / name
        if known == ABSENT:
            return not path.exists()
        if known is None or not path.is_file() or path.stat().st_size != known[0]:
            return False
        return checksum_of(path) == known

    def end(self) -> None:
        self.path.unlink(missing_ok=True)


def checksum_of(path: Path) -> tuple[int, int]:
    """Length and CRC-32 of a file."""
    length = checksum = 0
    with path.open("rb") as file:
        while part := file.read(1 << 22):
            length, checksum = length + len(part), zlib.crc32(part, checksum)
    return length, checksum


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def _entry(line: bytes) -> dict[str, Any] | None:
    """What a line says; None where it is not whole."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != f"{zlib.crc32(text):08x}".encode():
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
