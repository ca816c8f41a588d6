"""Compiled code and other things that take long to find out, kept in memory and on disk for the next process.

Nothing is loaded that somebody else could have written: the directory and each entry must be ours, or the system's own
(root's), and writable by nobody else. A disk problem means "not cached": damaged entries are deleted and rebuilt, a
read-only directory is read, a full disk is skipped.
"""

from __future__ import annotations

import os
import stat
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from .recent import Recent

DIRECTORY_VARIABLE = "CONVT3D_CACHE_DIR"
DISK_LIMIT = 256 << 20
MEMORY_LIMIT = 64 << 20

_FOREIGN = "is owned by or writable for somebody else; run `chmod 700` on it"
_MAGIC = b"CONVT3D2"
_HEADER = struct.Struct(
    "<8sQQ32s"
)  # magic, lengths of what is said about it and of the payload, sha256 of key and both
_ENTRY_SUFFIX = ".obj"
_TEMPORARY_PREFIX = "tmp-"
_ABANDONED_SECONDS = 3600.0
_ROOT = 0
# Without O_NONBLOCK, opening a pipe would wait for a writer.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def default_directory() -> Path | None:
    """Where entries live on disk; None when the user turned that off, or has no home."""
    directory, why_not = _named_directory()
    if directory is None and why_not and os.environ.get(DIRECTORY_VARIABLE):
        _warn(why_not)
    return directory


def directory_state() -> tuple[Path | None, str | None]:
    """Where entries live on disk, and why none can be kept there, if so. Nothing is created to find out."""
    directory, why_not = _named_directory()
    return (None, why_not or "off") if directory is None else (directory, why_not or _obstacle(directory))


def _named_directory() -> tuple[Path | None, str | None]:
    """By the environment; without one, the reason, unless the user turned it off."""
    asked = os.environ.get(DIRECTORY_VARIABLE)
    if asked is not None:
        if asked.strip().lower() in ("", "off"):
            return None, None
        try:
            return Path(asked).expanduser(), None
        except RuntimeError as problem:  # ~somebody who is not known here
            return None, f"{DIRECTORY_VARIABLE}={asked}: {problem}"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "convt3d", None
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    # Of an empty HOME Python makes the root directory; a relative one is wherever the program was started.
    nowhere = not home.is_absolute() or home == Path(home.anchor)
    return (None, "there is no home directory") if nowhere else (home / ".cache" / "convt3d", None)


def _obstacle(directory: Path) -> str | None:
    """Why nothing can be kept in a directory, which need not exist yet."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        parent = directory.parent
        if parent == directory:
            return f"{directory} does not exist"
        if not parent.exists():
            return _obstacle(parent)
        able = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        return None if able else f"{directory} cannot be created in {parent}"
    except (OSError, ValueError) as problem:
        return f"{directory}: {getattr(problem, 'strerror', None) or problem}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{directory} is not a directory"
    if not _trusted(status):
        return f"{directory} {_FOREIGN}"
    return None if os.access(directory, os.R_OK | os.X_OK) else f"{directory} cannot be read"


class Entry(NamedTuple):
    """A file of the cache as it is; `sound` unless it is damaged or somebody else could have written it."""

    key: str
    path: Path
    size: int  # of the file
    used: float  # when, in seconds since 1970
    sound: bool
    about: str = ""
    payload: bytes = b""


class ObjectCache:
    """Objects by key: memory first, then disk. Safe between threads and between processes."""

    def __init__(self, directory: Path | None, disk_limit: int = DISK_LIMIT, memory_limit: int = MEMORY_LIMIT) -> None:
        self.why_not = None if directory is None else _prepare(directory)
        self.directory = None if self.why_not else directory
        self.unkept = 0  # objects that the disk did not take
        self._disk_limit = disk_limit
        self._memory: Recent[bytes] = Recent(memory_limit)

    def fetch(self, key: str, make: Callable[[], bytes], about: str = "") -> bytes:
        """The object of `key`; made, and kept, if it is nowhere. Threads asking for the same key make it once. `about`
        is what `entries` says of it."""

        def find() -> tuple[bytes, int]:
            payload = self._read(key)
            if payload is None:
                payload = make()
                self._store(key, payload, about)
            return payload, len(payload)

        return self._memory.once(key, find)

    def get(self, key: str) -> bytes | None:
        """The object of `key`, or None."""
        payload = self._memory.get(key)
        if payload is None:
            payload = self._read(key)
            if payload is not None:
                self._memory.put(key, payload, len(payload))
        return payload

    def put(self, key: str, payload: bytes, about: str = "") -> bool:
        """Keep an object in memory and, if the disk allows it, on disk; whether it does."""
        self._memory.put(key, payload, len(payload))
        return self._store(key, payload, about)

    def _store(self, key: str, payload: bytes, about: str) -> bool:
        if self.directory is not None:
            try:
                self._write(self.directory, key, payload, about)
                self._evict(self.directory)
                return True
            except OSError:  # read-only, full, or removed meanwhile: memory is enough
                self.unkept += 1
        return False

    def entries(self) -> list[Entry]:
        """All that is on disk, oldest first. Nothing is deleted, and nothing counts as used."""
        found = []
        for path in self.directory.glob(f"*{_ENTRY_SUFFIX}") if self.directory else ():
            try:
                status = path.lstat()
            except OSError:  # another process was faster
                continue
            key = path.name.removesuffix(_ENTRY_SUFFIX)
            content = _unwrap(key, self._content(path) or b"")
            found.append(Entry(key, path, status.st_size, status.st_mtime, content is not None, *(content or ())))
        return sorted(found, key=lambda entry: (entry.used, entry.key))

    def remove(self, entry: Entry) -> bool:
        """Forget one entry; whether it is gone."""
        self._memory.clear()
        _delete(entry.path)
        return not os.path.lexists(entry.path)

    def clear(self) -> None:
        """Forget everything, in memory and on disk."""
        self._memory.clear()
        if self.directory is not None:
            for path in self.directory.glob(f"*{_ENTRY_SUFFIX}"):
                _delete(path)

    def _read(self, key: str) -> bytes | None:
        if self.directory is None:
            return None
        path = self.directory / (key + _ENTRY_SUFFIX)
        content = self._content(path)
        if content is None:
            return None
        found = _unwrap(key, content)
        if found is None:
            _delete(path)
            return None
        with suppress(OSError):
            os.utime(path)  # eviction takes the oldest: mark it as used
        return found[1]

    def _content(self, path: Path) -> bytes | None:
        """Of a file, nothing where it may not be used; None where there is none."""
        try:
            # The open file is checked, not the name: the name could point elsewhere a moment later.
            descriptor = os.open(path, _READ_FLAGS)
            try:
                status = os.fstat(descriptor)
                usable = stat.S_ISREG(status.st_mode) and _trusted(status) and status.st_size <= self._disk_limit
                return _read_all(descriptor) if usable else b""
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except OSError:  # a symbolic link, a directory, an unreadable file or disk
            return b""

    def _write(self, directory: Path, key: str, payload: bytes, about: str) -> None:
        temporary = directory / f"{_TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
        try:
            with open(os.open(temporary, _WRITE_FLAGS, 0o600), "wb") as file:
                file.write(_wrap(key, about, payload))
            # Readers see the old entry or the whole new one. A crash of the system may tear it: the digest finds out.
            os.replace(temporary, directory / (key + _ENTRY_SUFFIX))
        except BaseException:
            _delete(temporary)
            raise

    def _evict(self, directory: Path) -> None:
        entries: list[tuple[float, int, Path]] = []
        with os.scandir(directory) as listing:
            for item in listing:
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:  # another process was faster
                    continue
                path = Path(item.path)
                if item.name.endswith(_ENTRY_SUFFIX):
                    entries.append((status.st_mtime, status.st_size, path))
                elif item.name.startswith(_TEMPORARY_PREFIX) and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    _delete(path)
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._disk_limit:
                break
            _delete(path)
            total -= size


def object_cache() -> ObjectCache:
    """The process's cache for the directory that the environment names now."""
    directory = default_directory() if _on_disk.get() else None
    return _caches.once(directory, lambda: (_opened(directory), 1))


def _opened(directory: Path | None) -> ObjectCache:
    """A directory that somebody asked for, or that somebody else could fill, is not given up in silence."""
    cache = ObjectCache(directory)
    if cache.why_not and (os.environ.get(DIRECTORY_VARIABLE) or cache.why_not.endswith(_FOREIGN)):
        _warn(cache.why_not)
    return cache


@contextmanager
def memory_only() -> Iterator[None]:
    """Inside, nothing on disk is read, made or removed."""
    before = _on_disk.set(False)
    try:
        yield
    finally:
        _on_disk.reset(before)


_caches: Recent[ObjectCache] = Recent(64)
_on_disk = ContextVar("convt3d cache on disk", default=True)


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _wrap(key: str, about: str, payload: bytes) -> bytes:
    said = about.encode()
    return _HEADER.pack(_MAGIC, len(said), len(payload), _digest(key, said + payload)) + said + payload


def _unwrap(key: str, content: bytes) -> tuple[str, bytes] | None:
    """What an entry says about itself and its payload; None if it is damaged, truncated or belongs to another key."""
    if len(content) < _HEADER.size:
        return None
    magic, said, length, digest = _HEADER.unpack_from(content)
    rest = content[_HEADER.size :]
    if magic != _MAGIC or said + length != len(rest) or digest != _digest(key, rest):
        return None
    return rest[:said].decode(), rest[said:]


def _digest(key: str, rest: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(key.encode() + b"\0" + rest).digest()


def _prepare(directory: Path) -> str | None:
    """Create the directory for us alone; why it cannot be used or trusted, if so."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except (OSError, ValueError) as problem:
        return _obstacle(directory) or f"{directory}: {problem}"
    return None if _trusted(status) else f"{directory} {_FOREIGN}"


def _warn(why: str) -> None:
    message = (
        f"convt3d keeps compiled kernels in memory only: {why}, or set {DIRECTORY_VARIABLE} to a directory of yours"
    )
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _trusted(status: os.stat_result) -> bool:
    """Whether nobody could have written it but us, and the system, which wrote the programs that run."""
    if not hasattr(os, "getuid"):  # Windows: the profile folder is private by its access list
        return True
    return status.st_uid in (os.getuid(), _ROOT) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
