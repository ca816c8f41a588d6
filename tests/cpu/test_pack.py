"""A pack that was changed anywhere is refused in our words, or is still the same pack: never anything else."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from convt3d import Error
from convt3d.cache import Entry, ObjectCache
from convt3d.cpu.runtime.pack import MANIFEST, read_pack, sign, write_pack

KEY = b"k" * 32


@pytest.fixture
def pack(tmp_path: Path, rng: np.random.Generator) -> Path:
    payloads = [bytes(rng.integers(97, 105, 300, np.uint8)) for _ in range(3)]
    entries = [
        Entry(hashlib.sha256(each).hexdigest(), tmp_path, 300, 0.0, True, '{"name": "one"}', each) for each in payloads
    ]
    write_pack(tmp_path / "kernels.pack", entries, KEY)
    return tmp_path / "kernels.pack"


def test_every_place_may_be_damaged(pack: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    raw, store, refused = pack.read_bytes(), ObjectCache(tmp_path / "cache"), 0
    for number in range(400):
        content = bytearray(raw[: int(rng.integers(len(raw)))] if number % 10 == 0 else raw)
        for at in rng.integers(0, max(1, len(content)), 2):
            content[at : at + 1] = bytes([int(rng.integers(256))])
        pack.write_bytes(bytes(content))
        for key in (KEY, None):
            try:
                assert read_pack(pack, store, key).taken == []  # of another machine
            except Error:
                refused += 1
    assert refused > 400


@pytest.mark.parametrize("way", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions_are_refused(pack: Path, tmp_path: Path, way: int) -> None:
    manifest = b'{"convt3d pack": 1, "entries": []}'
    with zipfile.ZipFile(pack, "w", way) as archive:
        archive.writestr(MANIFEST, manifest)
        archive.writestr("signature", sign(manifest, KEY))
    with pytest.raises(Error, match="in another way"):
        read_pack(pack, ObjectCache(tmp_path / "cache"), KEY)
