"""`convt3d cache`: a container starts warm, a read-only machine works, and packs go from one directory to another."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command import environment

PIPELINE, SHAPE = "ConvTranspose3d(stride=2) -> LayerNorm() -> GELU()", "1x4x3x4x5:4x8x2x2x2"


def command(folder: Path, *words: object, code: int = 0, **more: str) -> str:
    """What a process of its own prints: one that was here before has its kernels in memory."""
    done = subprocess.run(
        [sys.executable, "-m", "convt3d", "cache", *map(str, words)],
        env=environment(CONVT3D_CACHE_DIR=str(folder), COLUMNS="80", **more),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout or done.stderr


def document(folder: Path, *words: object, code: int = 0, **more: str) -> Any:
    return json.loads(command(folder, *words, "--json", code=code, **more))


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caches") / "warm"
    rows = document(folder, "warm", PIPELINE, "--shape", SHAPE, "--readable")["warmed"]
    assert [(row["what"], row["dtype"], row["input"]) for row in rows] == [(PIPELINE, "float32", [1, 4, 3, 4, 5])]
    assert rows[0]["kernels"] >= 5
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    return folder


def test_warming_again_makes_nothing(warmed: Path) -> None:
    assert document(warmed, "warm", PIPELINE, "--shape", SHAPE)["warmed"][0]["kernels"] == 0


PROGRAM = """
import os, sys
sys.modules["llvmlite.binding"] = None  # whoever imports it gets an error
import numpy, warnings
warnings.simplefilter("error")
import convt3d
pipe = convt3d.Pipeline(convt3d.ConvTranspose3d(stride=2), convt3d.LayerNorm(), convt3d.GELU())
rng = numpy.random.default_rng(0)
x, w = (rng.standard_normal(s, numpy.float32) for s in ((3, 4, 5, 6, 7), (4, 8, 2, 2, 2)))
for count in (1, 2):
    with convt3d.num_threads(count):
        y = pipe(x, w)
        pipe.prepare(w)(x, out=numpy.empty(y.shape[:1] + y.shape[2:] + y.shape[1:2], "f4").transpose(0, 4, 1, 2, 3))
print(y.shape, os.access(os.environ["CONVT3D_CACHE_DIR"], os.W_OK), "llvmlite.ir" in sys.modules)
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_container_starts_warm(warmed: Path, tmp_path: Path) -> None:
    """No home that could be written, a read-only cache, and LLVM is not there. Volume and batch are others than those
    that were warmed. Root, whom no mode stops, gives up the right to pass over them."""
    before = {path.name: path.stat().st_mtime_ns for path in warmed.iterdir()}
    home, humble = tmp_path / "home", []
    home.mkdir(mode=0o555)
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write anywhere, and there is no setpriv")
        humble = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"]
    warmed.chmod(0o555)
    try:
        done = subprocess.run(
            [*humble, sys.executable, "-c", PROGRAM],
            env=environment(CONVT3D_CACHE_DIR=str(warmed), HOME=str(home), PYTHONDONTWRITEBYTECODE="1"),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    finally:
        warmed.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(3, 8, 10, 12, 14) False False\n"
    assert before.keys() == {path.name for path in warmed.iterdir()}


def test_list_and_verify(warmed: Path) -> None:
    listed = document(warmed, "list")["entries"]
    assert any(row["name"].startswith("ct3d_f32_conv") for row in listed)
    assert {"team", "compare", "facts of the CPU"} <= {row["name"] for row in listed}
    assert {row["state"] for row in listed} == {"ok"}
    text = command(warmed, "list")
    assert f"{len(listed)} files, " in text
    assert document(warmed, "verify") | {"entries": []} == {
        "directory": str(warmed), "action": "verify", "ok": len(listed), "damaged": 0, "other": 0, "entries": []
    }  # fmt: skip


def test_pack_to_another_directory(warmed: Path, tmp_path: Path) -> None:
    key, file, there = tmp_path / "key", tmp_path / "kernels.pack", tmp_path / "there"
    key.write_bytes(os.urandom(32))
    count = document(warmed, "export", file, "--key", key)["entries"]
    assert "exists already" in command(warmed, "export", file, "--key", key, code=2)
    assert "a signature is checked" in command(there, "import", file, code=2)
    assert "not both" in command(there, "import", file, "--key", key, "--unsigned", code=2)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(os.urandom(32))
    assert "not signed with this key" in command(there, "import", file, "--key", wrong, code=2)
    assert document(there, "list")["entries"] == []
    done = document(there, "import", file, "--key", key)
    assert (done["signed"], len(done["taken"]), done["left"]) == (True, count, {})
    assert document(there, "warm", PIPELINE, "--shape", SHAPE)["warmed"][0]["kernels"] == 0
    team = next(row for row in document(there, "list")["entries"] if row["name"] == "team")
    (there / f"{team['key']}.obj").write_bytes(b"damaged")
    verified = document(there, "verify", code=1)
    assert (verified["ok"], verified["damaged"]) == (count - 1, 1)
    assert document(there, "clear", "--stale")["removed"] == 1
    assert document(there, "clear")["removed"] == count - 1
    assert not list(there.glob("*.obj"))


def test_problems_types_and_instruction_sets(tmp_path: Path) -> None:
    words = "max-max-sum", "--size", "sample", "--dtype", "bfloat16", "--dtype", "float64", "--isa", "baseline"
    rows = document(tmp_path / "cache", "warm", *words)["warmed"]
    assert [(row["what"], row["dtype"], row["isa"]) for row in rows] == [
        ("max-max-sum", "bfloat16", "baseline"),
        ("max-max-sum", "float64", "baseline"),
    ]
    assert all(row["kernels"] > 1 for row in rows)
    assert {row["isa"] for row in document(tmp_path / "cache", "list")["entries"]} == {"", "baseline"}


def test_several_convolutions(tmp_path: Path) -> None:
    """Each is a segment with kernels of its own; what was warmed serves them one by one, too."""
    both = "Conv3d(padding=1) -> ReLU() -> ConvTranspose3d(stride=2)"
    shape = "1x3x4x5x6:8x3x3x3x3:8x2x2x2x2"
    (row,) = document(tmp_path / "cache", "warm", both, "--shape", shape)["warmed"]
    assert row["weights"] == [[8, 3, 3, 3, 3], [8, 2, 2, 2, 2]]
    assert row["kernels"] > 4
    first = document(tmp_path / "cache", "warm", "Conv3d(padding=1) -> ReLU()", "--shape", "1x3x4x5x6:8x3x3x3x3")
    assert first["warmed"][0]["kernels"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("warm",), "warm takes problems or pipelines"),
        (("list", "more"), "list takes none"),
        (("export",), "export takes one file"),
        (("export", "file"), "a pack is signed"),
        (("warm", PIPELINE), "a pipeline needs the shapes of input and weight"),
        (("warm", PIPELINE, "--shape", "1x2x3"), "must be INPUT:WEIGHT with five sizes each"),
        (("warm", PIPELINE, "--shape", "1x3x3x4x5:4x8x2x2x2"), "weight"),
        (("warm", "Conv3d() -> Conv3d()", "--shape", "1x3x3x4x5:4x8x2x2x2"), "must be INPUT and 2 WEIGHTs"),
        (("warm", "max-max-sun"), "The nearest is"),
        (("warm", "ReLU() -> GELUU()"), "Did you mean GELU"),
    ],
)
def test_errors(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "cache"))
    code, out, error = run("cache", *words)
    assert (code, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1


def test_a_full_disk_is_told(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a container would start cold, and nobody know."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("convt3d.cache.ObjectCache._write", full)
    code, out, _ = run("cache", "warm", "Conv3d() -> Softplus(1.25)", "--shape", "1x3x4x5x6:5x3x1x1x1")
    assert code == 1
    assert f"could not be written to {tmp_path / 'cache'}: is the disk full?" in out


def test_no_directory(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVT3D_CACHE_DIR", "off")
    code, _, error = run("cache", "list")
    assert code == 2
    assert "cache directory = none: there is none: it is off" in error


def test_eighty_columns(warmed: Path, terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import redirect_stdout

    from convt3d.cli import main as cli
    from convt3d.cli.terminal import _visible

    monkeypatch.setenv("CONVT3D_CACHE_DIR", str(warmed))
    for words in (["list"], ["verify"], ["warm", PIPELINE, "--shape", SHAPE]):
        with redirect_stdout(terminal):
            assert cli.main(["cache", *words]) == 0
    lines = [line for line in terminal.getvalue().splitlines() if line.startswith(("│", "┌", "├", "└"))]
    assert lines
    assert max(map(_visible, lines)) <= 80
