"""Takes away a folder that somebody else filled: links are never followed, and any depth of folders is the same work.

Everything is named by a descriptor of the folder it lies in, never by a path. A folder that is found is emptied, the
folders in it are moved up to the first one, and it is removed: three descriptors are open at a time, nothing recurs.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

NO_LINK = os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def remove(folder: str) -> None:
    """Also what was made unreadable on purpose; what cannot be removed stays."""
    parent, name = os.path.split(os.path.abspath(folder))
    with suppress(OSError):
        outside = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                _empty(name, outside)
            _remove_entry(name, outside)
        finally:
            os.close(outside)


def _empty(name: str, outside: int) -> None:
    top = _open(name, outside)
    try:
        folders = _sweep(top)
        while folders:
            inner = folders.pop()
            with suppress(OSError):
                within = _open(inner, top)
                try:
                    folders += _move_up(within, top)
                finally:
                    os.close(within)
                _remove_entry(inner, top)
    finally:
        os.close(top)


def _move_up(within: int, top: int) -> list[str]:
    """Leaves nothing in `within`; the names its folders have in `top`."""
    moved = []
    for deeper in _sweep(within):
        with suppress(OSError):
            _unlock(deeper, within)
            fresh = secrets.token_hex(16)
            os.rename(deeper, fresh, src_dir_fd=within, dst_dir_fd=top)
            moved.append(fresh)
    return moved


def _sweep(folder: int) -> list[str]:
    """Removes all that is no folder; the names of those that are."""
    found = []
    for name in os.listdir(folder):
        with suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                found.append(name)
            else:
                os.unlink(name, dir_fd=folder)
    return found


def _open(name: str, within: int) -> int:
    _unlock(name, within)
    return os.open(name, os.O_RDONLY | NO_LINK, dir_fd=within)


def _unlock(name: str, within: int) -> None:
    """Its owner may do everything in this folder. The mode is changed through a descriptor of the very folder, which
    needs no right to it; what is a link is not opened."""
    this = os.open(name, os.O_PATH | NO_LINK, dir_fd=within)
    try:
        if os.fstat(this).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{this}", 0o700)
    finally:
        os.close(this)


def _remove_entry(name: str, within: int) -> None:
    """An empty folder, or a link that took its place."""
    if stat.S_ISLNK(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=within)
    else:
        os.rmdir(name, dir_fd=within)
