"""Which boxes of a result are finished: lines that are appended, each with the checksum of what was written; and
statistics over space, once they are known.

A box counts when its line is whole and the file has the length and the checksum of the line. Whenever a run ends, by
SIGKILL too, the next one finds each box finished or not, never half.
"""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ABSENT = (-1, 0)  # zarr writes no file for a shard that is all fill value


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """No other run writes the same result meanwhile. A lock ends with its process, however that ends; systems without
    such locks, and volumes that have none, go without."""
    path = target.with_name(target.name + ".lock")
    while True:
        file = path.open("wb")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            rule = "is being written by another run"
            raise ArgumentError("volume", "OUT", str(target), rule, "Wait until it ends") from None
        except OSError:  # no locks there
            pass
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()  # of a run that has just ended, and removed it
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


class Journal:
    """A file beside the result."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] | None = None
        self.entries: dict[str, tuple[int, int]] = {}  # file of a box: its length and checksum
        self.statistics: dict[str, npt.NDArray[np.float64]] = {}  # of values, over all of space
        if path.exists():
            self._read()

    def _read(self) -> None:
        header, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
        self.header = _entry(header)
        for entry in filter(None, map(_entry, lines if self.header is not None else ())):
            if "statistics" in entry:
                numbers = np.frombuffer(b64decode(entry["numbers"]), np.float64)
                self.statistics[entry["statistics"]] = numbers.reshape(entry["shape"])
            else:
                self.entries[entry["file"]] = entry["length"], entry["checksum"]

    def mend(self) -> None:
        """Ends a line that was cut short: it does not count, those behind it will."""
        if self.header is not None and not self.path.read_bytes().endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")
                _settle(file)

    def begin(self, header: dict[str, Any]) -> None:
        """A new one."""
        self.header, self.entries, self.statistics = header, {}, {}
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
        self._append({"file": name, "length": length, "checksum": checksum})
        self.entries[name] = length, checksum

    def keep(self, name: str, numbers: npt.NDArray[np.float64]) -> None:
        """Enters statistics, which then are not taken again."""
        text = b64encode(np.ascontiguousarray(numbers, np.float64).tobytes()).decode()
        self._append({"statistics": name, "shape": numbers.shape, "numbers": text})
        self.statistics[name] = numbers

    def _append(self, entry: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(_line(entry))
            _settle(file)

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
