"""The site has a page for everything: documents, public names, examples and their pictures. `make docs` builds it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from test_help import PUBLIC

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RECIPE = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_document_is_in_the_menu() -> None:
    menu = re.findall(r": ([\w/]+\.md)$", RECIPE, re.MULTILINE)
    assert sorted(menu) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_every_public_name_is_in_the_reference() -> None:
    shown = {
        name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    }
    if importlib.util.find_spec("jax") is None:  # its names are those of functions that need it
        shown = {name for name in shown if not name.startswith("convt3d.jax.")}
    elsewhere = {
        "convt3d.problems": "convt3d.spec.problems.ProblemTable",
        "convt3d.torch.explain": "convt3d.torch.explain.explain",
        "convt3d.torch.swap": "convt3d.torch.swap.swap",
        "convt3d.torch.tiled": "convt3d.torch.tiled.tiled",
    }
    assert shown == {elsewhere.get(name, name) for name in PUBLIC}


def test_the_gallery_has_every_example_and_every_picture() -> None:
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert set(re.findall(r'^--8<-- "examples/(.*)"$', page, re.M)) == {
        p.name for p in (ROOT / "examples").glob("*.py")
    }
    pictures = set(re.findall(r"\]\(gallery/(.*?)\)", page))
    assert pictures == {path.name for path in (DOCS / "gallery").iterdir()}
    drawn = re.findall(r'draw\(\s*"(\w+)"', (ROOT / "tools" / "gallery.py").read_text(encoding="utf-8"))
    assert pictures == {f"{name}.png" for name in drawn}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a kernel](../examples/kernels/a.c)", "a kernel (`examples/kernels/a.c`)"),
        ("[`tests/judge`](../tests/judge)", "`tests/judge`"),
        ("[math.md](math.md)", "[math.md](math.md)"),
    ],
)
def test_links_to_sources_become_paths(text: str, shown: str) -> None:
    spec = importlib.util.spec_from_file_location("site_links", ROOT / "tools" / "site_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.OUTSIDE.sub(module._words, text) == shown


def test_the_code_of_the_first_page_runs() -> None:
    pytest.importorskip("torch")
    for code in re.findall(r"^```python\n(.*?)^```$", (DOCS / "index.md").read_text(encoding="utf-8"), re.M | re.S):
        exec(compile(code, "index.md", "exec"), {})
