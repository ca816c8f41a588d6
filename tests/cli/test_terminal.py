"""What people see: tables fit the terminal, pipes get plain text, the bar appears late and leaves nothing behind."""

from __future__ import annotations

import io
import json
import time

import pytest
from helpers.command import Terminal

from convt3d.cli import terminal
from convt3d.cli.terminal import Progress, Screen, to_json
from convt3d.units import amount, counted, duration, operations

pytestmark = pytest.mark.usefixtures("terminal")
ROWS = [["first", "1"], ["the second", "20"]]


def test_a_pipe_gets_aligned_text() -> None:
    text = Screen(io.StringIO()).table(["name", "count"], ROWS, right={1})
    assert text.splitlines() == ["name        count", "first           1", "the second     20"]


def test_a_terminal_gets_a_box_and_bold_heads() -> None:
    lines = Screen(Terminal()).table(["name", "count"], ROWS, right={1}).splitlines()
    assert lines[0] == "┌────────────┬───────┐"
    assert lines[1] == "│ \x1b[1mname\x1b[0m       │ \x1b[1mcount\x1b[0m │"
    assert lines[3] == "│ first      │     1 │"
    assert lines[-1] == "└────────────┴───────┘"


def test_no_color_keeps_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = Screen(Terminal()).table(["name", "count"], ROWS)
    assert "\x1b" not in text
    assert "│" in text


def test_a_dumb_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = Screen(Terminal()).table(["name", "count"], ROWS)
    assert text.isascii()
    assert "\x1b" not in text


def test_a_terminal_without_box_characters_gets_none() -> None:
    stream = Terminal()
    stream.encoding = "latin-1"  # type: ignore[assignment]
    assert "│" not in Screen(stream).table(["name", "count"], ROWS)


def test_wide_tables_are_folded_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = "one two three four five six seven eight nine ten"
    lines = Screen(Terminal()).table(["a", "b"], [[words, "y" * 15]]).splitlines()
    assert all(terminal._visible(line) == 40 for line in lines)
    assert "".join("".join(lines[3:-1]).split()).count("y") == 15
    assert all(word in "".join(lines) for word in words.split())


def test_verdicts_have_colours_only_on_a_terminal() -> None:
    assert Screen(io.StringIO()).verdict(True) == "passed"
    assert Screen(Terminal()).verdict(True) == "\x1b[32mpassed\x1b[0m"
    assert Screen(Terminal()).verdict(False) == "\x1b[1;31mFAILED\x1b[0m"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (32768, "32 KiB"), (1 << 20, "1 MiB"), (5 << 29, "2.5 GiB"), (1 << 41, "2 TiB")],
)
def test_amounts(size: int, text: str) -> None:
    assert amount(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3e-9, "3 ns"), (2.5e-6, "2.5 µs"), (0.0123, "12.3 ms"), (7.0, "7 s"), (130.0, "2 min 10 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 FLOP"), (6144, "6.144 kFLOP"), (1_301_000_000, "1.301 GFLOP"), (4.403e11, "440.3 GFLOP")]
)
def test_operations(count: float, text: str) -> None:
    assert operations(count) == text
    assert operations(count, "FLOP/s") == f"{text}/s"


def test_one_is_not_many() -> None:
    assert [counted(number, "voxel") for number in (0, 1, 2)] == ["0 voxels", "1 voxel", "2 voxels"]


def test_columns_that_can_be_spared_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    headers, rows = ["case", "time", "a", "b"], [["k3 s2 64->32", "12 ms", "x" * 20, "y" * 20]]
    monkeypatch.setenv("COLUMNS", "60")
    lines = Screen(Terminal()).table(headers, rows, spare=[3, 2]).splitlines()
    assert "y" * 20 not in "".join(lines)
    assert "x" * 20 in "".join(lines)
    assert lines[-1] == "A wider terminal, a pipe or --json shows more: b."
    monkeypatch.setenv("COLUMNS", "100")
    assert "y" * 20 in Screen(Terminal()).table(headers, rows, spare=[3, 2])
    assert "y" * 20 in Screen(io.StringIO()).table(headers, rows, spare=[3, 2]), "a pipe has all the room"


def test_json_says_what_it_cannot_write_as_text() -> None:
    document = {"a": (float("inf"), float("nan"), -float("inf"), 1.5), "b": None, "ä": True}
    assert json.loads(to_json(document)) == {"a": ["inf", "nan", "-inf", 1.5], "b": None, "ä": True}


def _wait_for(stream: io.StringIO, text: str) -> None:
    limit = time.monotonic() + 600
    while text not in stream.getvalue() and time.monotonic() < limit:
        time.sleep(0.005)
    assert text in stream.getvalue()


def test_the_bar_moves_through_one_long_call_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "DRAW_AFTER", 0.02)
    monkeypatch.setattr(terminal, "REDRAW_EVERY", 0.01)
    stream = Terminal()
    with Progress(stream) as progress:
        progress.begin("working", 0.5, 1.0, seconds=0.1)
        _wait_for(stream, "━")
        _wait_for(stream, "100%")  # 99.5 % at most, as long as it is not over
        assert "left" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_without_an_estimate_the_bar_says_the_time_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(Terminal())
    progress.begin("working")
    assert progress.line().endswith("  0% 0:00 so far")


def test_the_bar_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    progress = Progress(Terminal())
    progress.begin("a long description of the work at hand, longer than the terminal", 0.5)
    assert terminal._visible(progress.line()) < 60


def test_short_work_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "DRAW_AFTER", 3600.0)
    stream = Terminal()
    with Progress(stream) as progress:
        progress.begin("working")
    assert stream.getvalue() == ""


def test_a_pipe_never_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "DRAW_AFTER", 0.0)
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.begin("working")
        time.sleep(0.02)
    assert stream.getvalue() == ""
