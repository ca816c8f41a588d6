"""What a person sees: tables, emphasis and a progress bar on a terminal; plain aligned text anywhere else."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import textwrap
import threading
import time
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import IO, Any

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32"}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NARROWEST = 12
_WIDEST = 30  # of a column that may wrap before others are left out

DRAW_AFTER = 1.0  # seconds of work before a bar appears
REDRAW_EVERY = 0.1
BAR_WIDTH = 28


class Screen:
    """A text stream and what it can show: boxes on a terminal that has them, colours unless NO_COLOR asks for none."""

    def __init__(self, stream: IO[str]) -> None:
        terminal = _is_terminal(stream)
        self.boxes = terminal and _can_encode(stream, "─│┌━")
        self.colours = terminal and not os.environ.get("NO_COLOR")
        self.width = shutil.get_terminal_size().columns if terminal else None

    def paint(self, text: str, *styles: str) -> str:
        if not self.colours or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def verdict(self, passed: bool) -> str:
        return self.paint("passed", "green") if passed else self.paint("FAILED", "bold", "red")

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: Collection[int] = (),
        spare: Sequence[int] = (),
    ) -> str:
        """Columns in `right` are set to the right. Where the terminal is too narrow, columns in `spare` are left out,
        the first of them first, and the cells of the others wrap."""
        widths = [max(map(_visible, column)) for column in zip(headers, *rows, strict=True)]
        shown = list(range(len(headers)))
        for column in spare:
            if self.width is None or sum(min(widths[at], _WIDEST) for at in shown) <= self._room(len(shown)):
                break
            shown.remove(column)
        kept = [widths[at] for at in shown]
        if self.width is not None:
            _squeeze(kept, self._room(len(shown)))
        head = [self.paint(header, "bold") for header in headers]
        flush = {place for place, at in enumerate(shown) if at in right}
        lines = [_fold([row[at] for at in shown], kept, flush) for row in (head, *rows)]
        text = _boxed(lines, kept) if self.boxes else _plain(lines)
        absent = [header for at, header in enumerate(headers) if at not in shown]
        told = f"A wider terminal, a pipe or --json shows more: {', '.join(absent)}."
        return f"{text}\n{self.wrap(told)}" if absent else text

    def wrap(self, text: str) -> str:
        """A sentence below a table."""
        return text if self.width is None else textwrap.fill(text, self.width)

    def _room(self, columns: int) -> int:
        """Characters for the cells of so many columns."""
        return (self.width or 0) - (3 * columns + 1 if self.boxes else 2 * columns)


def _is_terminal(stream: IO[str]) -> bool:
    return bool(getattr(stream, "isatty", bool)()) and os.environ.get("TERM") != "dumb"


def _can_encode(stream: IO[str], text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _visible(text: str) -> int:
    return len(_ESCAPE.sub("", text))


def _squeeze(widths: list[int], room: int) -> None:
    """Takes from the widest columns until all fit."""
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1


def _fold(cells: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[list[str]]:
    """The lines of one row, every cell padded to its column's width."""
    folded = [
        [cell] if _visible(cell) <= width else textwrap.wrap(cell, width)
        for cell, width in zip(cells, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, folded))):
        line = []
        for column, (parts, width) in enumerate(zip(folded, widths, strict=True)):
            text = parts[number] if number < len(parts) else ""
            space = " " * (width - _visible(text))
            line.append(space + text if column in right else text + space)
        lines.append(line)
    return lines


def _plain(rows: Sequence[list[list[str]]]) -> str:
    return "\n".join("  ".join(line).rstrip() for lines in rows for line in lines)


def _boxed(rows: Sequence[list[list[str]]], widths: Sequence[int]) -> str:
    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    head, *body = ["\n".join(f"│ {' │ '.join(line)} │" for line in lines) for lines in rows]
    return "\n".join([rule("┌", "┬", "┐"), head, rule("├", "┼", "┤"), *body, rule("└", "┴", "┘")])


def to_json(document: Any) -> str:
    """One JSON document; NaN and infinities, which JSON has not, become the texts "nan", "inf", "-inf"."""
    return json.dumps(_jsonable(document), indent=2, allow_nan=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Progress:
    """A bar with the time left, drawn by a thread of its own while the caller computes; gone when the work is done.

    Nothing is drawn unless the stream is a terminal and the work takes over a second. `begin` says which part of the
    whole comes next and how long it should take, so that the bar moves inside a single long call too.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._screen = Screen(stream)
        self._begun = self._part_begun = time.monotonic()
        self._part: tuple[str, float, float, float | None] = ("", 0.0, 0.0, None)
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True) if _is_terminal(stream) else None

    def begin(self, text: str, done: float = 0.0, until: float = 1.0, seconds: float | None = None) -> None:
        """The work goes from the share `done` to `until` in about `seconds`, if that is known."""
        self._part_begun = time.monotonic()
        self._part = (text, done, until, seconds)

    def say(self, text: str) -> None:
        """A line where no bar is drawn, so that a log shows what is being done."""
        if self._thread is None:
            print(text, file=self._stream, flush=True)

    def __enter__(self) -> Progress:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        if self._thread:
            self._thread.join()

    def line(self) -> str:
        """The bar as it stands now."""
        text, done, until, seconds = self._part
        now = time.monotonic()
        within = min((now - self._part_begun) / seconds, 0.99) if seconds else 0.0
        share = done + (until - done) * within
        elapsed = now - self._begun
        left = f"{_clock(elapsed / share * (1 - share))} left" if share > 0.01 else f"{_clock(elapsed)} so far"
        filled = round(share * BAR_WIDTH)
        on, off = ("━", "─") if self._screen.boxes else ("#", "-")
        bar = self._screen.paint(on * filled, "green") + self._screen.paint(off * (BAR_WIDTH - filled), "dim")
        room = max(0, (self._screen.width or 80) - BAR_WIDTH - len(left) - 10)
        return f"{text[:room]} {bar} {share:4.0%} {left}"

    def _draw(self) -> None:
        wait = DRAW_AFTER
        while not self._finished.wait(wait):
            self._stream.write(f"\r{self.line()}\x1b[K")
            self._stream.flush()
            wait = REDRAW_EVERY
        if wait != DRAW_AFTER:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
