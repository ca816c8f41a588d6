"""What people install: the source distribution is complete, and the wheel works away from the sources."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.wheel import ROOT, bare_environment, make_venv, need

import convt3d


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, numpy and llvmlite."""
    return make_venv(tmp_path_factory.mktemp("installed") / "venv", wheel)


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def check_metadata(text: str) -> None:
    """What `twine check --strict` asks for, and an index: valid fields, and a description that can be shown."""
    need("packaging", 25)
    from packaging.metadata import Metadata

    found = Metadata.from_email(text.encode(), validate=True)
    assert (found.name, str(found.version)) == ("convt3d", convt3d.__version__)
    assert found.description_content_type == "text/markdown"
    assert found.description
    assert found.description.startswith("# convt3d")


def test_the_source_distribution_is_complete(tmp_path: Path) -> None:
    """All that is under version control: tests with their helpers, documents, examples, results, tools."""
    need("setuptools", 77)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode or not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():  # a file may have been removed and not committed
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "tree" / name)
    tracked = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=tmp_path / "tree", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
        (information,) = (name for name in opened.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", name))
        text = opened.extractfile(information).read().decode()  # type: ignore[union-attr]
    assert tracked - held == set()
    assert not [name for name in held if name.endswith((".pyc", ".whl")) or "/.venv" in name]
    check_metadata(text)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "convt3d").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert held == wanted


def test_the_page_of_an_index(wheel: Path) -> None:
    """It has no sources beside it, so nothing on it links to a file of theirs."""
    head, _, text = metadata(wheel).partition("\n\n")
    assert f"\nVersion: {convt3d.__version__}\n" in head
    assert "\nLicense-Expression: Apache-2.0\n" in head
    assert "\nDescription-Content-Type: text/markdown\n" in head
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith(("http://", "https://", "#"))] == []
    assert "`docs/math.md`" in text
    check_metadata(metadata(wheel))


def test_extras_ask_for_no_triton_beside_that_of_torch(wheel: Path) -> None:
    """Each torch on a public index asks for one release of triton; a second opinion cannot be installed."""
    wanted = re.findall(r"^Requires-Dist: triton(.*?);", metadata(wheel), re.MULTILINE)
    assert wanted == [">=3.4", ">=3.4"]


CALL = """
import sys, numpy, convt3d
assert convt3d.__file__.startswith(sys.prefix), convt3d.__file__
x, w = numpy.ones((1, 2, 3, 3, 3), "f"), numpy.ones((2, 3, 3, 3, 3), "f")
print(convt3d.conv_transpose3d_layernorm_gelu_scaling(x, w, stride=2, padding=1).shape)
print(convt3d.conv_transpose3d(x, w).max())
"""


def test_it_works_away_from_the_sources(commands: Path, tmp_path: Path) -> None:
    environment = bare_environment(CONVT3D_CACHE_DIR=str(tmp_path / "cache"))

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    python = commands / "python"
    assert run(python, "-W", "error", "-c", CALL) == "(1, 3, 5, 5, 5)\n54.0\n"
    assert json.loads(run(python, "-m", "convt3d", "info", "--json"))["versions"]["convt3d"] == convt3d.__version__
    assert len(json.loads(run(commands / "convt3d", "list", "--json"))) == 5
    assert run(commands / "convt3d", "demo", "--quick").count("passed") == 5
    assert run(commands / "convt3d", "explain", "conv-transpose3d-max-max-sum")
