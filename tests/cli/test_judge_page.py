"""`check --html`: a page with everything the text says, on which a kernel's words are text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.kernels_python import LAST_COLUMN_WRONG


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text, self.images = "", []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.images += [value for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def test_a_page_of_the_verdict(run, kernel, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert run("check", kernel(LAST_COLUMN_WRONG), "--case", "prime-sizes", "--html", target, "--seed", 2)[0] == 1
    page = page_of(target)
    for piece in ("wrong values", "(0, 0, 0, 0, 10)", "the last of 11 widths", "smallest found", "..........#"):
        assert piece in page.text
    assert [image[:22] for image in page.images] == ["data:image/png;base64,"]
    assert run("check", kernel(), "--case", "sample", "--html", target)[0] == 0
    page = page_of(target)
    assert "passed" in page.text
    assert "the small example of the problem's text" in page.text
    assert run("check", kernel(), "--case", "sample", "--html", tmp_path / "no" / "folder.html")[0] == 2


def test_what_a_kernel_says_is_text_on_the_page(run, kernel, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    evil = "</td><script>alert(1)</script><img src='http://x/'>"
    path = kernel(f'print("{evil}", flush=True)\ndef solution(*a):\n    raise ValueError("{evil}")')
    assert run("check", path, "--case", "sample", "--html", target)[0] == 1
    page = page_of(target)
    assert evil in page.text
    assert "script" not in page.tags
    assert not page.images


def test_the_page_says_which_protections_are_off(run, kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convt3d.judge.sandbox.WITHOUT", ("seccomp",))
    target = tmp_path / "page.html"
    _, out, _ = run("check", kernel(), "--case", "sample", "--html", target)
    assert "protections off" in out
    page = page_of(target)
    assert "protections off" in page.text
    assert "seccomp (refuses " in page.text
