"""Kernel packs: what comes out is what was put in, and nothing is taken that is not signed, sound and of use."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import pytest

from convt3d.cache import ObjectCache
from convt3d.cpu.plan.machine import machine, machines
from convt3d.cpu.runtime import pack
from convt3d.cpu.runtime.keys import about_entry
from convt3d.errors import ArgumentError, PackError

SECRET, OTHER = b"s" * 32, b"o" * 32
KEYS = "a" * 64, "b" * 64


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A pack of two entries."""
    store = ObjectCache(tmp_path / "from")
    for key, payload in zip(KEYS, (b"first code", b"second code"), strict=True):
        store.put(key, payload, about_entry(f"kernel {key[0]}", machine()))
    path = tmp_path / "kernels.pack"
    pack.write_pack(path, store.entries(), SECRET)
    return path


@pytest.fixture
def store(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "to")


def rewrite(path: Path, change: Callable[[dict[str, bytes]], Any], sign: bytes | None = None) -> None:
    """The same archive with other members; signed anew by somebody who has the key, if one is given."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    if sign is not None:
        members["signature"] = pack.sign(members["manifest.json"], sign).encode()
    path.unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def told(members: dict[str, bytes], change: Callable[[Any], Any]) -> None:
    """Changes the manifest."""
    document = json.loads(members["manifest.json"])
    change(document)
    members["manifest.json"] = json.dumps(document).encode()


def test_there_and_back(made: Path, store: ObjectCache) -> None:
    done = pack.read_pack(made, store, SECRET)
    assert (done.signed, done.taken, done.foreign) == (True, ["kernel a", "kernel b"], {})
    fresh = ObjectCache(store.directory)
    assert [fresh.get(key) for key in KEYS] == [b"first code", b"second code"]
    assert {pack.name_of(entry) for entry in fresh.entries()} == {"kernel a", "kernel b"}


def swap_payloads(members: dict[str, bytes]) -> None:
    members[KEYS[0]], members[KEYS[1]] = members[KEYS[1]], members[KEYS[0]]


def other_payload(members: dict[str, bytes]) -> None:
    members[KEYS[0]] = b"f0rst code"


def no_signature(members: dict[str, bytes]) -> None:
    del members["signature"]


def other_manifest(members: dict[str, bytes]) -> None:
    told(members, lambda document: document["entries"].pop())


def no_manifest(members: dict[str, bytes]) -> None:
    del members["manifest.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_signature, "is not signed"),
        (other_manifest, "is not signed with this key, or was changed since"),
        (other_payload, "holds an entry that is not what its manifest says"),
        (swap_payloads, "has a longer bbbbbbbbbbbb|is not what its manifest says|has a longer aaaaaaaaaaaa"),
        (no_manifest, "has no manifest.json"),
    ],
)
def test_changed_packs_are_refused_whole(made: Path, store: ObjectCache, change: Any, words: str) -> None:
    rewrite(made, change)
    with pytest.raises(PackError, match=words):
        pack.read_pack(made, store, SECRET)
    assert not store.entries()


def test_another_key(made: Path, store: ObjectCache) -> None:
    with pytest.raises(PackError, match=r"not signed with this key.* its code will run as you\."):
        pack.read_pack(made, store, OTHER)
    assert not store.entries()


def test_unsigned_if_told(made: Path, store: ObjectCache) -> None:
    """The digests still must be right."""
    rewrite(made, no_signature)
    assert len(pack.read_pack(made, store, None).taken) == 2
    rewrite(made, other_payload)
    with pytest.raises(PackError):
        pack.read_pack(made, store, None)


def absurd(word: str, value: Any) -> Callable[[dict[str, bytes]], None]:
    return lambda members: told(members, lambda document: document["entries"][0].update({word: value}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (absurd("key", "../" * 20 + "etc/passwd"), "no manifest that can be read"),
        (absurd("key", "A" * 64), "no manifest that can be read"),
        (absurd("key", "c" * 64), "has no entry cccccccccccc"),
        (absurd("bytes", -1), "no manifest that can be read"),
        (absurd("bytes", "10"), "no manifest that can be read"),
        (absurd("bytes", 3), "has a longer aaaaaaaaaaaa than it says"),
        (absurd("bytes", 1 << 40), "is larger than a cache may be"),
        (lambda members: told(members, lambda document: document.update({"convt3d pack": 2})), "is of format 2"),
        (lambda members: members.update({"manifest.json": b"[" * 100_000}), "no manifest that can be read"),
        (lambda members: members.update({"manifest.json": b"[]"}), "no manifest that can be read"),
    ],
)
def test_nonsense_is_refused_even_if_signed(made: Path, store: ObjectCache, change: Any, words: str) -> None:
    rewrite(made, change, SECRET)
    with pytest.raises(PackError, match=words):
        pack.read_pack(made, store, SECRET)
    assert not store.entries()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive" * 100])
def test_no_archive(tmp_path: Path, store: ObjectCache, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(PackError, match="cannot be read"):
        pack.read_pack(path, store, SECRET)
    with pytest.raises(ArgumentError, match="does not exist"):
        pack.read_pack(tmp_path / "nowhere", store, SECRET)


@pytest.mark.parametrize(
    ("word", "value", "reason"),
    [
        ("llvmlite", "0.1", f"made with llvmlite 0.1, not {llvmlite.__version__}"),
        ("sources", "0" * 64, "made by other sources of convt3d"),
        ("features", "+avx1024", f"for another CPU ({machine().cpu})"),
        ("cpu", "z80", "for another CPU (z80)"),
    ],
)
def test_entries_of_no_use_are_left_and_told(
    made: Path, store: ObjectCache, word: str, value: str, reason: str
) -> None:
    def change(document: Any) -> None:
        row = document["entries"][0]
        row["about"] = json.dumps({**json.loads(row["about"]), word: value})

    rewrite(made, lambda members: told(members, change), SECRET)
    done = pack.read_pack(made, store, SECRET)
    assert (done.taken, done.foreign) == (["kernel b"], {reason: ["kernel a"]})
    assert [entry.key for entry in store.entries()] == [KEYS[1]]


def test_every_instruction_set_of_this_machine_is_of_use() -> None:
    assert all(pack.no_use(about_entry("kernel", each)) is None for each in machines())
    assert pack.no_use("") is not None
    assert pack.no_use("[]") is not None


def test_a_cache_that_cannot_be_written(made: Path, store: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(store, "_write", refuse)
    with pytest.raises(ArgumentError, match="must take the entries"):
        pack.read_pack(made, store, SECRET)


def test_keys(tmp_path: Path) -> None:
    short, none = tmp_path / "short", tmp_path / "none"
    short.write_bytes(b"s" * 15)
    with pytest.raises(ArgumentError, match=r"15 bytes: must hold at least 16 bytes\. Make one"):
        pack.read_key(str(short))
    with pytest.raises(ArgumentError, match="No such file or directory: must be a file that can be read"):
        pack.read_key(str(none))


def test_a_pack_replaces_no_file(made: Path) -> None:
    with pytest.raises(FileExistsError):
        pack.write_pack(made, [], SECRET)


def test_a_pack_that_could_not_be_written_is_not_there(
    store: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space"):
        pack.write_pack(tmp_path / "some.pack", store.entries(), SECRET)
    assert not (tmp_path / "some.pack").exists()
