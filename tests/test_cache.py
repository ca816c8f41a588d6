"""The object cache: nothing foreign or damaged is ever loaded, and no disk trouble is ever an error."""

from __future__ import annotations

import errno
import multiprocessing
import os
import socket
import stat
import threading
import time
import warnings
from pathlib import Path

import pytest

from convt3d.cache import ObjectCache, default_directory, directory_state, memory_only, object_cache

KEY = "a" * 64
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To somebody who is neither us nor root."""
    if os.getuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 54321)


def never() -> bytes:
    raise AssertionError("made again")


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.obj"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_made_once_then_from_memory_then_from_disk(folder):
    first = ObjectCache(folder)
    assert first.fetch(KEY, lambda: b"code") == b"code"
    assert first.fetch(KEY, never) == b"code"
    assert ObjectCache(folder).fetch(KEY, never) == b"code"
    assert not list(folder.glob("tmp-*"))


@posix
def test_directory_and_entries_are_private(folder):
    ObjectCache(folder).put(KEY, b"code")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entries(folder)[0].stat().st_mode) == 0o600


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def damage_header(path: Path) -> None:
    path.write_bytes(b"X" + path.read_bytes()[1:])


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def damage_other_key(path: Path) -> None:
    other = ObjectCache(path.parent)
    other.put("b" * 64, b"other code")
    os.replace(path.parent / ("b" * 64 + ".obj"), path)


def damage_writable(path: Path) -> None:
    path.chmod(0o666)


def damage_link(path: Path) -> None:
    elsewhere = path.with_suffix(".real")
    os.replace(path, elsewhere)
    path.symlink_to(elsewhere)


@posix
@pytest.mark.parametrize("damage", [value for name, value in sorted(globals().items()) if name.startswith("damage_")])
def test_damaged_entry_is_deleted_and_rebuilt_never_loaded(folder, damage):
    ObjectCache(folder).put(KEY, b"old code")
    damage(entries(folder)[0])
    assert ObjectCache(folder).get(KEY) is None
    assert not entries(folder)
    assert ObjectCache(folder).fetch(KEY, lambda: b"new code") == b"new code"
    assert ObjectCache(folder).fetch(KEY, never) == b"new code"


@posix
def test_entry_of_another_owner_is_deleted(folder, monkeypatch):
    ObjectCache(folder).put(KEY, b"code")
    trusting = ObjectCache(folder)
    give_away(entries(folder)[0], monkeypatch)
    assert trusting.get(KEY) is None
    assert not entries(folder)


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_directory_writable_for_others_is_refused_with_one_warning(folder, mode, monkeypatch):
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(folder))
    with pytest.warns(RuntimeWarning, match=r"in memory only: .*cache is owned by or writable for somebody else"):
        refused = object_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert object_cache() is refused
    assert refused.fetch(KEY, lambda: b"code") == b"code"
    assert refused.fetch(KEY, never) == b"code"
    assert not list(folder.iterdir())


@posix
def test_what_belongs_to_root_is_read(folder, monkeypatch):
    """As whoever wrote the programs that run; and nothing of it is changed."""
    monkeypatch.setattr("convt3d.cache._ROOT", os.getuid())
    ObjectCache(folder).put(KEY, b"code", "about it")
    before = entries(folder)[0].stat()
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    store = ObjectCache(folder)
    assert store.fetch(KEY, never) == b"code"
    assert [(entry.key, entry.about, entry.payload, entry.sound) for entry in store.entries()] == [
        (KEY, "about it", b"code", True)
    ]
    assert (entries(folder)[0].stat().st_uid, entries(folder)[0].stat().st_size) == (before.st_uid, before.st_size)
    folder.chmod(0o777)
    assert ObjectCache(folder).directory is None


def test_entries_are_looked_at_and_left(folder):
    """A damaged one is told, and neither loaded nor deleted until somebody asks for its key."""
    store = ObjectCache(folder)
    store.put(KEY, b"code", "first")
    store.put("b" * 64, b"other", "second")
    damage_flip(folder / f"{KEY}.obj")
    found = {entry.key: entry for entry in ObjectCache(folder).entries()}
    assert [found[key].sound for key in (KEY, "b" * 64)] == [False, True]
    assert found[KEY].payload == b""
    assert store.remove(found[KEY])
    assert [entry.about for entry in store.entries()] == ["second"]


@posix
def test_directory_of_another_owner_is_refused(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.delenv("CONVT3D_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    folder = folder.rename(folder.parent / "convt3d")
    give_away(folder, monkeypatch)
    with pytest.warns(RuntimeWarning, match="somebody else"):
        assert object_cache().directory is None


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory nobody can write")
def test_directory_that_cannot_be_created_is_skipped_silently():
    store = ObjectCache(Path("/proc/convt3d"))
    assert store.fetch(KEY, lambda: b"code") == b"code"
    assert store.fetch(KEY, never) == b"code"


@posix
@pytest.mark.skipif(os.name == "posix" and os.getuid() == 0, reason="root may write anywhere")
def test_read_only_directory_still_serves_entries(folder):
    ObjectCache(folder).put(KEY, b"code")
    folder.chmod(0o500)
    store = ObjectCache(folder)
    assert store.fetch(KEY, never) == b"code"
    assert store.fetch("b" * 64, lambda: b"new") == b"new"
    folder.chmod(0o700)


@pytest.mark.parametrize(("call", "code"), [("open", errno.EROFS), ("open", errno.EACCES), ("replace", errno.ENOSPC)])
def test_read_only_or_full_disk_is_skipped_silently(folder, monkeypatch, call, code):
    store = ObjectCache(folder)

    def fail(*_args: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    assert store.fetch(KEY, lambda: b"code") == b"code"
    assert store.fetch(KEY, never) == b"code"
    monkeypatch.undo()
    assert not list(folder.iterdir())


def test_oldest_entries_are_evicted_and_abandoned_temporary_files_removed(folder):
    store = ObjectCache(folder, disk_limit=5000)
    (folder / "tmp-abandoned").write_bytes(b"x")
    os.utime(folder / "tmp-abandoned", (0, 0))
    (folder / "tmp-in-use").write_bytes(b"x")
    now = time.time()
    for number in range(4):
        store.put(f"{number}", bytes(1000))
        os.utime(folder / f"{number}.obj", (now - 100 + number, now - 100 + number))
    assert ObjectCache(folder).get("0") == bytes(1000)  # used: no longer the oldest
    store.put("4", bytes(1000))
    assert [path.stem for path in entries(folder)] == ["0", "2", "3", "4"]
    assert sorted(path.name for path in folder.glob("tmp-*")) == ["tmp-in-use"]


def test_memory_is_bounded():
    store = ObjectCache(None, memory_limit=2500)
    for number in range(4):
        store.put(f"{number}", bytes(1000))
    assert [store.get(f"{number}") is not None for number in range(4)] == [False, False, True, True]


@pytest.mark.parametrize("value", ["", "off", "OFF"])
def test_disk_can_be_turned_off(monkeypatch, value):
    monkeypatch.setenv("CONVT3D_CACHE_DIR", value)
    assert default_directory() is None


def test_where_the_directory_is(monkeypatch, tmp_path):
    monkeypatch.delenv("CONVT3D_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "convt3d"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG rules say: ignore it
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert default_directory() == tmp_path / ".cache" / "convt3d"


def test_threads_asking_for_one_key_make_it_once(folder):
    store = ObjectCache(folder)
    made: list[int] = []
    got: list[bytes] = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.05)
        return b"code"

    threads = [threading.Thread(target=lambda: got.append(store.fetch(KEY, make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert got == [b"code"] * 8


def test_a_failing_build_is_not_remembered(folder):
    store = ObjectCache(folder)
    with pytest.raises(AssertionError):
        store.fetch(KEY, never)
    assert store.fetch(KEY, lambda: b"code") == b"code"


def write_and_read(folder: Path, seed: int, failures: multiprocessing.Queue[str]) -> None:
    for turn in range(60):
        key = str(turn % 5)
        store = ObjectCache(folder, disk_limit=30_000)
        expected = key.encode() * 4000
        if store.fetch(key, lambda expected=expected: expected) != expected:
            failures.put(f"process {seed}, turn {turn}")


def test_concurrent_processes_writing_reading_and_evicting(folder):
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    failures: multiprocessing.Queue[str] = context.Queue()
    processes = [context.Process(target=write_and_read, args=(folder, seed, failures)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0] * 4
    assert failures.empty()
    assert not list(folder.glob("tmp-*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_is_not_stuck_on_a_lock_of_its_parent(monkeypatch, folder):
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(folder))
    store = object_cache()
    store.put(KEY, b"code")
    with store._memory._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if object_cache().fetch(KEY, never) == b"code" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@posix
@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "device", "loop", "huge"])
def test_an_entry_that_is_no_file_is_none(folder, kind, monkeypatch):
    """Opening a pipe would wait for its writer for ever; reading a device might, too."""
    store = ObjectCache(folder)
    path = folder / f"{KEY}.obj"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(folder)  # names of sockets must be short
        with socket.socket(socket.AF_UNIX) as unused:
            unused.bind(path.name)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.touch(mode=0o600)
        os.truncate(path, 1 << 40)
    opened = len(os.listdir("/dev/fd"))
    assert store.get(KEY) is None
    assert store.fetch(KEY, lambda: b"code") == b"code"
    assert store.fetch(KEY, never) == b"code"
    assert len(os.listdir("/dev/fd")) == opened
    assert not [path.name for path in folder.iterdir() if path.name.startswith("tmp-")]
    if kind != "directory":  # which might hold something of somebody's
        assert ObjectCache(folder).fetch(KEY, never) == b"code"


def test_the_home_of_nobody_is_said_and_memory_is_enough(monkeypatch):
    monkeypatch.setenv("CONVT3D_CACHE_DIR", "~nosuchuser/cache")
    with pytest.warns(RuntimeWarning, match=r"in memory only: CONVT3D_CACHE_DIR=~nosuchuser/cache: .*home"):
        assert object_cache().directory is None


@posix
@pytest.mark.parametrize("home", ["", "/", "relative"])
def test_a_home_that_is_none(home, monkeypatch):
    """Of an empty HOME Python makes the root directory, and of a relative one wherever the program runs."""
    monkeypatch.delenv("CONVT3D_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    assert default_directory() is None


def test_a_directory_that_was_asked_for_and_cannot_be_used_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match=r"in memory only: .*file/cache.*, or set CONVT3D_CACHE_DIR to a directory"):
        store = object_cache()
    assert store.fetch(KEY, lambda: b"code") == b"code"
    assert store.fetch(KEY, never) == b"code"


def obstacle(monkeypatch: pytest.MonkeyPatch, directory: Path | str) -> str | None:
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(directory))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return directory_state()[1]


@posix
def test_the_state_of_the_directory_is_told_and_nothing_is_created(monkeypatch, folder, tmp_path):
    assert obstacle(monkeypatch, folder / "deep" / "inside") is None  # it could be created
    assert not folder.exists()
    folder.mkdir(mode=0o700)
    assert obstacle(monkeypatch, folder) is None
    folder.chmod(0o777)
    assert "somebody else" in obstacle(monkeypatch, folder)
    (tmp_path / "file").touch()
    assert obstacle(monkeypatch, tmp_path / "file").endswith("file is not a directory")
    assert "file" in obstacle(monkeypatch, tmp_path / "file" / "cache" / "deep")
    assert "home" in obstacle(monkeypatch, "~nosuchuser/cache")
    assert obstacle(monkeypatch, "off") == "off"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "file"]


@posix
def test_a_place_without_permission_is_told(monkeypatch, folder):
    folder.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert obstacle(monkeypatch, folder).endswith("cache cannot be read")
    assert obstacle(monkeypatch, folder / "deep" / "inside").endswith(f"deep cannot be created in {folder}")


def test_a_look_leaves_nothing_on_disk(monkeypatch, folder):
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(folder))
    with memory_only():
        assert object_cache().fetch(KEY, lambda: b"code") == b"code"
        assert object_cache().fetch(KEY, never) == b"code"
    assert not folder.exists()
    assert object_cache().directory == folder
