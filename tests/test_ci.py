"""The recipe for continuous integration: it can be read, and what it asks make for exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / ".github" / "workflows" / "ci.yml"


def test_its_targets_exist() -> None:
    asked = set(re.findall(r"run: make ([\w-]+)", RECIPE.read_text()))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"lint", "test", "test-matrix"} <= asked
    assert asked <= targets


def test_it_tests_every_python_that_is_promised() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert f"python: {promised}".replace("'", '"') in RECIPE.read_text()


def test_it_runs_on_every_system_that_there_is_code_for() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(RECIPE.read_text())["jobs"]
    systems = {jobs["test"]["runs-on"], *jobs["systems"]["strategy"]["matrix"]["system"]}
    assert {name.split("-")[0] for name in systems} == {"ubuntu", "macos", "windows"}
    assert {name.endswith("-arm") for name in systems if name.startswith("ubuntu")} == {True, False}
    assert jobs["systems"]["continue-on-error"] == "${{ !startsWith(matrix.system, 'ubuntu') }}"  # what has never run
    folders = re.findall(r"pytest (tests/.*)", jobs["systems"]["steps"][-1]["run"])[0].split()
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_it_is_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(RECIPE.read_text())["jobs"]
    assert jobs.keys() == {"lint", "docs", "test", "systems", "lowest", "wheel", "soak"}
    for job in jobs.values():
        assert job["timeout-minutes"] < 360
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        assert all(re.search(r"@v\d+$", step["uses"]) for step in job["steps"] if "uses" in step)
