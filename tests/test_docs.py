"""The documents are true: their code runs, they name every file and rewrite, and imports point the way they say."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command import python

import convt3d
from convt3d.spec.linear import RULES
from convt3d.spec.rewrite import REWRITES
from convt3d.spec.shapes import TransposedAxis
from convt3d.spec.windows import axes_as_windows

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "convt3d"
MODULES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (
    *("interpreter", "errors", "units", "recent", "cache"),
    *("spec", "plan", "cpu", "gpu", "front", "torch", "jax", "bench", "judge", "cli"),
)
FOLDERS = ("src", "tests", "docs", "examples", "tools", "benchmarks", ".ci")
SUFFIXES = (
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".cfg",
    ".yml",
    ".yaml",
    ".json",
    ".jsonl",
    ".csv",
    ".css",
    ".js",
    ".svg",
    "",
)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# --- layout -----------------------------------------------------------------------------------------------------------


def test_layout_names_every_file_and_no_other() -> None:
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", text_of("docs/layout.md"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {path.relative_to(PACKAGE).as_posix() for path in MODULES}


def test_layout_is_in_the_order_of_the_data() -> None:
    headings = re.findall(r"^## (\w+):", text_of("docs/layout.md"), re.MULTILINE)
    assert tuple(headings) == LAYERS[5:]


def imported(path: Path) -> Iterator[str]:
    """Names of the modules of convt3d that a file imports, at its top or inside functions, without the `convt3d.`"""
    package = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = ["convt3d", *package][: len(package) + 2 - node.level] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("convt3d.") for name in names if name.startswith("convt3d."))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):  # they stand above all layers
        return
    assert own in LAYERS, f"{own} is not a layer: add it to LAYERS and to docs/layout.md"
    for name in imported(path):
        layer = name.split(".")[0]
        assert layer in LAYERS, f"imports convt3d.{name}"
        assert LAYERS.index(layer) <= LAYERS.index(own), f"{own} may not import convt3d.{name}"


def test_the_import_reader_reads() -> None:
    """It finds relative imports of every depth, or the rule above would hold for nothing."""
    assert "errors.ShapeError" in set(imported(PACKAGE / "spec" / "stage.py"))
    assert "spec.shapes.Box" in set(imported(PACKAGE / "spec" / "stage.py"))
    assert "spec.dtypes.DTYPES" in set(imported(PACKAGE / "cli" / "run.py"))
    assert "front.solutions.problems" in set(imported(PACKAGE / "cli" / "run.py"))
    assert "cpu.code.tile.emit" in set(imported(PACKAGE / "cpu" / "runtime" / "kernels.py"))


# --- mathematics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [rewrite.__name__ for rewrite in (*REWRITES, *RULES, axes_as_windows)])
def test_every_rewrite_has_its_proof(name: str) -> None:
    """A heading with its name, a proof, and a word about NaN and Inf."""
    section = re.search(rf"^### `{name}`\n(.*?)(?=^##)", text_of("docs/math.md"), re.MULTILINE | re.DOTALL)
    assert section, f"docs/math.md has no section {name}"
    assert "*Proof.*" in section[1]
    assert "*NaN, Inf.*" in section[1]


def test_the_worked_example_counts_right() -> None:
    axis = TransposedAxis(size=32, kernel=5, stride=2, padding=2, output_padding=0, dilation=1)
    rows = [axis.tap_range(k, 0, 60) for k in range(5)]
    table = "\n".join(f"| {k} | {low} to {end - 1} | {end - low} |" for k, (low, end) in enumerate(rows))
    document = text_of("docs/math.md")
    assert table in document
    assert f"is {axis.multiplications([(0, 60)])} pairs for each axis" in document


# --- code in documents ------------------------------------------------------------------------------------------------


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


README = blocks(text_of("README.md"), "python")


@pytest.mark.parametrize("code", README, ids=lambda code: code.splitlines()[0])
def test_readme_code_runs(code: str) -> None:
    if "import torch" in code:
        pytest.importorskip("torch")
    python("-c", code, source=PACKAGE.parent)


def test_readme_shows_what_explain_prints() -> None:
    """Line by line and in order; `...` stands for lines left out, such as those that depend on the machine."""
    (shown,) = blocks(text_of("README.md"), "text")
    (code,) = (block for block in README if ".explain(" in block)
    printed = iter(python("-c", code, source=PACKAGE.parent).splitlines())
    for line in shown.splitlines():
        assert line == "..." or line in printed, f"explain no longer prints {line!r} here"


def test_readme_names_every_operator_function() -> None:
    readme = text_of("README.md")
    for name in convt3d.__all__:
        if name.startswith("conv_transpose3d"):
            assert f"| `{name}` |" in readme


EDIT = re.compile(r"^<!-- file: (\S+?)(?:, after: (.*?))? -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_adding_a_stage_works(tmp_path: Path) -> None:
    """Its edits, made on a copy: the tests that read the table of stages pass, and the last block runs."""
    pytest.importorskip("torch")
    copy = tmp_path / "copy"
    for folder in ("src", "tests", "tools", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    document = text_of("docs/adding_a_stage.md")
    edits = EDIT.findall(document)
    assert len(edits) == len(blocks(document, "python")) - 1
    for name, anchor, code in edits:
        path = copy / name
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        at = len(lines)
        if anchor:
            (found,) = (number for number, line in enumerate(lines) if anchor in line)
            at = found + 1
        path.write_text("".join([*lines[:at], code if anchor else f"\n\n{code}", *lines[at:]]), encoding="utf-8")
    isolated = {"CONVT3D_CACHE_DIR": str(tmp_path / "cache")}
    python(copy / "tools" / "stages_page.py", source=copy / "src", **isolated)
    wanted = "Softsign or every_stage or rows_differ or public_names"
    tests = [str(copy / "tests" / name) for name in ("spec/test_reference.py", "test_import.py", "test_backends.py")]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(copy), "-c", str(copy / "pyproject.toml")]
    output = python("-m", "pytest", *options, "-k", wanted, *tests, source=copy / "src", **isolated)
    assert int(re.search(r"(\d+) passed", output)[1]) > 10  # type: ignore[index]
    (trial,) = re.findall(r"^<!-- run -->\n```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    assert "Softsign()" in python("-c", trial, source=copy / "src", **isolated)


# --- words that do not belong here ------------------------------------------------------------------------------------

# Written in pieces, so that this file does not hold them.
UNWANTED = {
    "a path of one machine": r"(?<![\w.])/(" + "|".join(("work", "home", "root", "Users")) + r")/\w",
    "a word of another trade": r"\b" + "hel" + r"per\b",
    "a package host": r"(" + "|".join(("py" + r"pi\.", "arti" + "factory", "index-" + "url", "nex" + "us")) + r")",
}


def project_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    found = [*sorted(ROOT.glob("*")), *inside]
    skipped = {"__pycache__", "LICENSE", ".git"}  # a file, where the checkout is a worktree
    return [
        path
        for path in found
        if path.is_file() and path.suffix in SUFFIXES and not skipped & set(path.parts) and ".egg-info" not in str(path)
    ]


@pytest.mark.parametrize("what", UNWANTED)
def test_no_file_mentions(what: str) -> None:
    found = []
    for path in project_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(UNWANTED[what], line, re.IGNORECASE):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_links_lead_somewhere() -> None:
    for path in (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")):
        check_links(path)
    for path in (ROOT / "docs").glob("*.md"):
        check_links(path)


def check_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (path.parent / target.partition("#")[0]).exists(), f"{path.name} links to {target}"
