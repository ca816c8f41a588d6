"""The page holds the data and needs nothing else; its drawings are well-formed; a browser shows it without an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest
from helpers.bench_rows import row

from convt3d.bench.charts import _around, _box, _overlap
from convt3d.bench.figure import draw_figure
from convt3d.bench.page import draw_page
from convt3d.bench.record import read_latest
from convt3d.bench.summary import summary

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "first.jsonl"


def some_rows() -> list[dict[str, Any]]:
    """A seed, a layer with a wrong peer and a hostile name, and a curve."""
    times = {"convt3d": [2.1e-3, 2.0e-3, 2.2e-3], "torch": [8.1e-3, 8.0e-3, 8.2e-3], "openvino": [1.9e-3] * 3}
    wrong = {"convt3d": [1e-3] * 3, "onnxruntime": [], "jax": [0.5]}
    curve = [
        row(
            {"convt3d": [n * 1e-4] * 3, "torch": [n * 3e-4] * 3}, suite="scaling", series="volume", at=n, name=f"c, {n}"
        )
        for n in (4, 8, 16)
    ]
    return [row(times, suite="seeds"), row(wrong, name="k3 </script><b>&\"'"), *curve]


def test_it_needs_no_network_and_no_other_file() -> None:
    page = draw_page(some_rows())
    assert re.findall(r"https?://[^\"'\s)]+", page.replace("http://www.w3.org/2000/svg", "")) == []
    assert re.findall(r"(?:src|href)=|@import|url\(", page) == []


def test_its_drawings_are_well_formed() -> None:
    drawings = re.findall(r"<svg.*?</svg>", draw_page(some_rows()), re.DOTALL)
    assert len(drawings) == 5, "two rooflines, bars of two cases, one curve"
    for drawing in drawings:
        assert minidom.parseString(drawing).documentElement.getAttribute("aria-label")


def test_names_are_text_and_never_markup() -> None:
    page = draw_page(some_rows())
    assert "<b>&\"'" not in page.replace('"name":', "")
    assert page.count("</script>") == 2


def test_headlines_come_from_calm_rows_only() -> None:
    """A row that the page calls disturbed counts neither as a win nor as a loss."""
    calm = row({"convt3d": [1e-3] * 3, "torch": [2e-3] * 3}, suite="seeds")
    busy = row({"convt3d": [9e-3] * 3, "torch": [2e-3] * 3}, suite="seeds", foreign=[0.4] * 3)
    assert "<b>1 of 1</b>" in draw_page([calm, busy])
    assert "others took 40% of the processor" in draw_page([calm, busy])
    assert "<b>0 of 1</b>" not in draw_page([busy])


def test_names_in_the_roofline_keep_clear_of_everything() -> None:
    """Many points along the roof: no name touches a point or another name."""
    rates = (1.0, 0.7, 1.4, 0.2, 0.05)
    rows = [
        row({"convt3d": [1e-3 / rate] * 3}, suite="seeds", name=f"case {at}", needed_flop=10**8, bytes=4 * 10**5 << at)
        for at, rate in enumerate(rates * 2)
    ]
    (drawing,) = re.findall(r"<svg[^>]*Roofline.*?</svg>", draw_page(rows), re.DOTALL)
    assert "sgemm" in drawing
    texts = re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)" class="[a-z ]*small"([^>]*)>([^<]*)<', drawing)
    boxes = [
        _box(float(x), float(y), words, (re.findall(r'"(\w+)"', more) or ["start"])[0]) for x, y, more, words in texts
    ]
    marks = [_around(float(x), float(y)) for x, y in re.findall(r"translate\(([\d.]+) ([\d.]+)\)", drawing)]
    assert len(marks) == len(rows)
    assert len(boxes) > 4
    for at, box in enumerate(boxes):
        assert not any(_overlap(box, other) for other in [*boxes[:at], *boxes[at + 1 :], *marks]), texts[at]


def test_a_case_in_which_nobody_was_timed() -> None:
    page = draw_page([row({"convt3d": []})])
    assert "WRONG" in page
    assert "off by 1 where 0.1 is allowed" in page


# --- in a real browser ------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")


def browse(page: Path, *options: str) -> str:
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={page.parent / 'profile'}",
            "--virtual-time-budget=2000",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@needs_browser
def test_a_browser_shows_the_data(tmp_path: Path) -> None:
    """Its script has run without an error and read all rows; marks, figures and reasons are in the document."""
    page = tmp_path / "page.html"
    page.write_text(draw_page(some_rows()), encoding="utf-8")
    shown = browse(page, "--dump-dom")
    head = re.search(r"<html[^>]*>", shown)
    assert head is not None
    assert 'data-cases="5"' in head[0]
    assert "data-errors" not in head[0]
    assert shown.count('class="bar"') == 3 + 2, "one for everybody who was timed in the two cases without a curve"
    assert shown.count('class="mark"') == 5 + 2 * 3, "a point of the roofline for each case, two curves of three points"
    for words in ("2.1 ms", "3.86", "0.90", "WRONG", "onnxruntime", "off by 1 where 0.1 is allowed", "Some CPU"):
        assert words in shown or words in shown.replace("ONNX Runtime", "onnxruntime"), words


@needs_browser
def test_an_error_in_the_script_would_show(tmp_path: Path) -> None:
    """The test above can fail: a page with broken data is caught."""
    page = tmp_path / "page.html"
    page.write_text(draw_page(some_rows()).replace('id="rows">[', 'id="rows">[['), encoding="utf-8")
    head = re.search(r"<html[^>]*>", browse(page, "--dump-dom"))
    assert head is not None
    assert "data-errors" in head[0]
    assert "data-cases" not in head[0]


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    """A script of the test measures the page as it is laid out; only the table scrolls, in its own box."""
    probe = (
        "<script>addEventListener('load', () => { document.documentElement.dataset.wide = "
        "document.documentElement.scrollWidth + ' of ' + innerWidth; });</script>"
    )
    page, frame = tmp_path / "page.html", tmp_path / "frame.html"
    page.write_text(draw_page(some_rows()).replace("</body>", f"{probe}</body>"), encoding="utf-8")
    # Headless windows have a least width; a frame has none.
    frame.write_text(
        f"<iframe id='f' src='page.html' width='{width}' height='800' style='border:0'></iframe>"
        "<script>f.onload = () => setTimeout(() => "
        "document.body.append(f.contentDocument.documentElement.dataset.wide))</script>",
        encoding="utf-8",
    )
    shown = browse(frame, "--dump-dom", "--allow-file-access-from-files", f"--window-size={width + 60},900")
    found = re.search(r"(\d+) of (\d+)", shown)
    assert found is not None, shown
    assert found[2] == str(width)
    assert int(found[1]) <= width


@needs_browser
def test_a_picture_can_be_taken(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(draw_page(some_rows()), encoding="utf-8")
    browse(page, "--window-size=390,1200", f"--screenshot={picture}")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000, "an empty page is smaller"


# --- the figure of the README -----------------------------------------------------------------------------------------


def test_the_figure_has_a_mark_for_every_peer() -> None:
    figure = minidom.parseString(draw_figure(some_rows()))
    marks = [one for one in figure.getElementsByTagName("g") if one.getAttribute("class") == "mark"]
    titled = [one for one in marks if one.getElementsByTagName("title")]
    told = sorted(one.getElementsByTagName("title")[0].firstChild.data for one in titled)
    assert told == ["JAX 500", "OpenVINO 0.90", "PyTorch 3.86"]
    assert len(marks) - len(titled) == 3, "the key names the three"


def test_the_readme_shows_the_committed_results() -> None:
    rows = read_latest([RESULTS])
    assert draw_figure(rows) == (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8")
    assert summary(rows) in (ROOT / "README.md").read_text(encoding="utf-8")
    assert {row["suite"] for row in rows} == {"seeds", "models", "small", "scaling"}
    assert all(row["contenders"]["convt3d"]["status"] in ("ok", "unsupported") for row in rows)
