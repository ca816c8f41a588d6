"""A kernel pack: entries of the cache in one file, with a manifest that names each of them, signed with a user's key.

The file is a zip archive of `manifest.json`, `signature` and one member for each entry. The manifest has the SHA-256 of
every payload and what it is for; the signature is HMAC-SHA-256 of the manifest. Its key is a secret that both sides
share: it shows that a pack was made by somebody who has it and was not changed since, and nothing more. Members are
read by the names of the manifest, and no file is ever written but entries of the cache.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ...cache import DISK_LIMIT, Entry, ObjectCache
from ...errors import ArgumentError, PackError, described
from ..plan.host import FACTS, cpu_identity
from ..plan.machine import machines
from .keys import source_fingerprint

FORMAT = 1
LEAST_KEY = 16  # bytes
MANIFEST, SIGNATURE = "manifest.json", "signature"
_MOST_MANIFEST = 64 << 20
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass
class Imported:
    """What became of a pack."""

    signed: bool  # and rightly so
    taken: list[str] = field(default_factory=list)  # names of kernels
    foreign: dict[str, list[str]] = field(default_factory=dict)  # why entries are of no use here -> their names


def name_of(entry: Entry) -> str:
    """What people call it."""
    return str(_about(entry.about).get("name", "")) if entry.sound else "damaged"


def isa_of(entry: Entry) -> str:
    return str(_about(entry.about).get("isa", "")) if entry.sound else ""


def no_use(about: str) -> str | None:
    """Why no process with these sources on this machine asks for an entry; None if one may."""
    import llvmlite

    said = _about(about)
    if said.get("llvmlite") != llvmlite.__version__:
        return f"made with llvmlite {said.get('llvmlite')}, not {llvmlite.__version__}"
    if said.get("name") == FACTS:
        return None if said.get("identity") == cpu_identity() else "facts of another CPU"
    if said.get("sources") != source_fingerprint():
        return "made by other sources of convt3d"
    own = {(each.cpu, each.features) for each in machines()}
    return None if (said.get("cpu"), said.get("features")) in own else f"for another CPU ({said.get('cpu')})"


def write_pack(path: Path, entries: Sequence[Entry], key: bytes) -> None:
    """Writes sound entries to a new file."""
    import hashlib

    rows = [
        {
            "key": each.key,
            "bytes": len(each.payload),
            "sha256": hashlib.sha256(each.payload).hexdigest(),
            "about": each.about,
        }
        for each in entries
    ]
    manifest = json.dumps({"convt3d pack": FORMAT, "entries": rows}, indent=1).encode()
    with open(path, "xb") as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(MANIFEST, manifest)
                archive.writestr(SIGNATURE, sign(manifest, key))
                for each in entries:
                    archive.writestr(each.key, each.payload)
            file.flush()
        except BaseException:
            path.unlink()
            raise


def sign(manifest: bytes, key: bytes) -> str:
    import hashlib
    import hmac

    return hmac.new(key, manifest, hashlib.sha256).hexdigest()


def read_pack(path: Path, store: ObjectCache, key: bytes | None) -> Imported:
    """Puts the entries that are of use here into `store`. Without a key the signature is not asked for; with one, a
    pack that is not signed with it is refused as a whole, and so is one of which anything is damaged."""
    import hashlib
    import zlib

    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _member(path, archive, MANIFEST, _MOST_MANIFEST)
            if key is not None:
                _check_signature(path, archive, manifest, key)
            rows = _rows(path, manifest)
            payloads = [_member(path, archive, row["key"], row["bytes"]) for row in rows]
    except FileNotFoundError:
        raise ArgumentError("cache import", "FILE", str(path), "does not exist", "Name a pack") from None
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error) as problem:
        raise _damaged(path, f"cannot be read ({problem})") from None
    for row, payload in zip(rows, payloads, strict=True):
        if hashlib.sha256(payload).hexdigest() != row["sha256"]:
            raise _damaged(path, f"holds an entry that is not what its manifest says: {row['key'][:12]}")
    done = Imported(signed=key is not None)
    for row, payload in zip(rows, payloads, strict=True):
        name, reason = str(_about(row["about"]).get("name")), no_use(row["about"])
        if reason is not None:
            done.foreign.setdefault(reason, []).append(name)
        elif store.put(row["key"], payload, row["about"]):
            done.taken.append(name)
        else:
            rule, remedy = "must take the entries", "Set CONVT3D_CACHE_DIR to a directory of yours that can be written"
            raise ArgumentError("cache import", "cache directory", str(store.directory), rule, remedy)
    return done


def _check_signature(path: Path, archive: zipfile.ZipFile, manifest: bytes, key: bytes) -> None:
    import hmac

    if SIGNATURE not in archive.namelist():
        raise _refused(path, "is not signed")
    if not hmac.compare_digest(_member(path, archive, SIGNATURE, 1024), sign(manifest, key).encode()):
        raise _refused(path, "is not signed with this key, or was changed since")


def _rows(path: Path, manifest: bytes) -> list[dict[str, Any]]:
    """The entries of a manifest, all of whose words are of their kind."""
    try:
        document = json.loads(manifest)
        rows: list[dict[str, Any]] = document["entries"]
        found = document["convt3d pack"]
        kinds = {"key": str, "bytes": int, "sha256": str, "about": str}
        sound = all(isinstance(row[word], kind) for row in rows for word, kind in kinds.items())
        sound = sound and all(_KEY.fullmatch(row["key"]) and row["bytes"] >= 0 for row in rows)
    except (ValueError, KeyError, TypeError, RecursionError):
        sound, rows, found = False, [], FORMAT
    if found != FORMAT:
        raise _damaged(path, f"is of format {found}, and this convt3d reads {FORMAT}")
    if not sound:
        raise _damaged(path, "has no manifest that can be read")
    if sum(row["bytes"] for row in rows) > DISK_LIMIT:
        raise _damaged(path, f"is larger than a cache may be ({DISK_LIMIT >> 20} MB)")
    return rows


def _member(path: Path, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """The bytes of a member, however large it says it is."""
    try:
        if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _damaged(path, f"holds {name[:12]} compressed in another way than ours")
        with archive.open(name) as file:
            content = file.read(most + 1)
    except KeyError:
        raise _damaged(path, f"has no {name if name == MANIFEST else 'entry ' + name[:12]}") from None
    if len(content) > most:
        raise _damaged(path, f"has a longer {name[:12]} than it says")
    return content


@cache
def _about(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def read_key(path: str) -> bytes:
    """A key from a file: any bytes, and enough of them."""
    try:
        key = Path(path).read_bytes()
    except OSError as problem:
        received = described(f"{path}: {problem.strerror}")
        raise ArgumentError("cache", "--key", received, "must be a file that can be read", _MAKE) from None
    if len(key) < LEAST_KEY:
        received = described(f"{path}, {len(key)} bytes")
        raise ArgumentError("cache", "--key", received, f"must hold at least {LEAST_KEY} bytes", _MAKE)
    return key


_MAKE = "Make one, for example: openssl rand -out key 32"


def _damaged(path: Path, rule: str) -> PackError:
    return PackError("cache import", "FILE", str(path), rule, "Export it again")


def _refused(path: Path, rule: str) -> PackError:
    remedy = "Ask who made it; --unsigned takes it all the same, and its code will run as you"
    return PackError("cache import", "FILE", str(path), rule, remedy)
