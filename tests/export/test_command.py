"""`convt3d export --lang c`: what it writes, what it refuses, and that the judge passes it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from unittest import mock

import pytest
from helpers.c_levels import own_level

from convt3d.cli.main import main


def test_the_judge_passes_a_library(export, capsys: pytest.CaptureFixture[str]) -> None:
    exported = export("layernorm-gelu-scaling", "solved")
    code = main(["check", exported.path, "--problem", "layernorm-gelu-scaling", "--json", "--seed", "1"])
    verdict = json.loads(capsys.readouterr().out)
    assert (code, verdict["verdict"]) == (0, "passed")
    assert verdict["language"] == "library"


def test_it_writes_a_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["export", "ConvTranspose3d(stride=2)", "--lang", "c", "--name", "plain", "--static"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["name"], document["dtype"]) == ("plain", "float32")
    files = {path.name for path in (tmp_path / "plain").iterdir()}
    callers = {"example.c", "example.cpp", "example.rs"}
    assert files == {"libplain.a", "plain.h", "plain.pc", "plainConfig.cmake", "README.md", "src", *callers}
    assert main(words) == 2
    assert "exists, and is not overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ConvTranspose3d()", "--lang", "c", "--name", "My lib"], "--name"),
        (["ConvTranspose3d()", "--lang", "c", "--name", "math"], "is a name of the C library"),
        (["ReLU()", "--lang", "c"], "must hold a ConvTranspose3d or a Conv3d"),
        (["max-max-sum", "--lang", "triton", "--static"], "--static"),
        (["max-max-sum", "--lang", "c", "--finite"], "--finite"),
        (["max-max", "--lang", "c"], "max-max-sum"),
        (["ConvTranspose3d()", "--lang", "c", "-o", "/proc/nothing/here"], "cannot be made"),
    ],
)
def test_what_it_refuses(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *words]) == 2
    assert told in capsys.readouterr().err


def test_names_that_a_compiler_takes_for_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with mock.patch("convt3d.export.library.levels", own_level):
        for name in ("-o a'b", "@ü"):
            assert main(["export", "Conv3d()", "--lang", "c", f"--output={name}"]) == 0
            assert (tmp_path / name / "libpipeline.so").exists()


@pytest.mark.parametrize("method", ["write_text", "write_bytes"])
def test_a_full_disk_is_told_and_nothing_stays(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, method, full)
    assert main(["export", "Conv3d()", "--lang", "c", "-o", str(tmp_path / "made")]) == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "")
    assert main(["export", "ConvTranspose3d()", "--lang", "c", "-o", str(tmp_path / "made")]) == 2
    assert "needs a C compiler" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
