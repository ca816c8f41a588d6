"""Clean-up touches nothing outside the folder, whatever was left in it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from convt3d.judge.remove import remove

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")


def test_a_link_is_removed_and_what_it_points_to_is_not(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (outside / "deeper").mkdir(parents=True)
    (outside / "file").write_text("ours")
    (outside / "deeper").chmod(0o500)
    outside.chmod(0o500)
    (folder / "a").mkdir(parents=True)
    for place in (folder, folder / "a"):
        (place / "link").symlink_to(outside)
        (place / "file").symlink_to(outside / "file")
    remove(str(folder))
    assert not folder.exists()
    assert (outside / "file").read_text() == "ours"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (outside, outside / "deeper")] == [0o500, 0o500]
    outside.chmod(0o700)
    (outside / "deeper").chmod(0o700)


def test_a_folder_that_became_a_link(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (outside / "file").write_text("ours")
    folder.symlink_to(outside)
    remove(str(folder))
    assert not folder.is_symlink()
    assert (outside / "file").read_text() == "ours"


def test_folders_of_any_depth_and_mode(tmp_path: Path) -> None:
    folder, here = tmp_path / "folder", os.getcwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        for number in range(1200):  # more than Python's recursion, or open files, may reach
            Path("file").write_text("")
            os.mkdir("d")
            os.chdir("d")
            if number % 3 == 0:
                os.chmod("..", 0o300)
        os.chmod(".", 0)
    finally:
        os.chdir(here)
    for number, mode in enumerate((0, 0o100, 0o400, 0o777)):
        (folder / f"m{number}" / "x").mkdir(parents=True)
        (folder / f"m{number}" / "x" / "file").write_text("")
        (folder / f"m{number}" / "x").chmod(mode)
        (folder / f"m{number}").chmod(mode)
    folder.chmod(0o500)
    remove(str(folder))
    assert not folder.exists()


def test_nothing_to_remove(tmp_path: Path) -> None:
    remove(str(tmp_path / "missing" / "folder"))
    remove(str(tmp_path / "missing"))
