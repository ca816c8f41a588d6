"""`convt3d bench`: measures convt3d and its peers, draws results (`report`), says what changed (`compare`)."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..bench.compare import Change, compare_rows
from ..bench.contenders import BRINGS_THEM, MODULES, TRAINED, find_contender
from ..bench.figure import draw_figure
from ..bench.figures import OWN, fastest_peer, row_figures
from ..bench.measure import measure_case
from ..bench.page import draw_page
from ..bench.record import Row, append_row, calmed, provenance, read_latest, read_rows
from ..bench.suites import choose_cases
from ..bench.summary import summary
from ..bench.svg import shown
from ..bench.table import HEADERS, notes, peer_names, ratio_cell, table_row
from ..errors import ArgumentError, ArgumentTypeError, described
from ..spec.dtypes import DTYPES
from ..units import counted, duration
from .bench_networks import SUITE as NETWORKS
from .bench_networks import bench_networks
from .judge_bench import bench_file
from .report import CHECK_FAILED, OK, complain, emit, emit_json, tell
from .terminal import Progress, Screen

RESULTS, PAGE = "bench.jsonl", "bench.html"
# What a narrow terminal does without, first of all.
SPARE = ("error, roundings", "first call, empty / warm cache", "nominal", "extra memory", "± spread", "of roofline")
NOT_QUICK = ("torch-compile", "torch-compile-kept", "jax")  # they compile, or run, for seconds
CASE_SECONDS = 60.0  # a case with all peers, about
QUICK_SECONDS = 42.0  # --quick begins no further case after this


def bench(args: argparse.Namespace) -> int:
    first, *rest = args.words or [""]
    if not first:
        return run(args)
    commands = {"report": report, "compare": compare}
    if first in commands:
        return commands[first](args, [Path(word) for word in rest])
    if rest:
        rule = f"must be {' or '.join(commands)}, or the one file of your kernel"
        raise ArgumentError("bench", "first word", first, rule, "Leave it out to measure the suites")
    args.file = first
    return bench_file(args)


# --- measuring --------------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    if NETWORKS in args.suite:
        return bench_networks(args)
    cases = choose_cases(args.suite, DTYPES[args.dtype or "float32"], args.threads, args.filter, args.quick)
    names = list(dict.fromkeys([OWN, *args.peer])) if args.peer else [n for n in MODULES if not _left_out(n, args)]
    path, begun = Path(args.output or RESULTS), time.monotonic()
    rows: list[Row] = []
    with Progress(sys.stderr) as progress:
        about = "under a minute" if args.quick else f"about {duration(len(cases) * CASE_SECONDS)}"
        progress.say(f"{counted(len(cases), 'case')}, {about}; rows are appended to {path}")
        progress.begin("importing the peers")
        contenders = {name: find_contender(name) for name in names}
        origin = provenance()
        earlier = read_rows(path) if path.exists() else []
        try:
            for number, case in enumerate(cases):
                if args.quick and rows and time.monotonic() - begun > QUICK_SECONDS:
                    tell(
                        f"stopped after {duration(time.monotonic() - begun)}, on a busy machine or a slow one; left "
                        f"out: {'; '.join(case.name for case in cases[number:])}"
                    )
                    break
                progress.say(f"case {number + 1} of {len(cases)}: {case.name}")
                share = _Share(progress, number, len(cases))
                taking_part = {name: one for name, one in contenders.items() if name in TRAINED or not case.training}
                found = measure_case(case, taking_part, args.quick, earlier=[*earlier, *rows], before=share.begin)
                rows.append({**origin, **found})
                append_row(path, rows[-1])
        except KeyboardInterrupt:
            complain(f"interrupted; {len(rows)} of {len(cases)} cases are kept in {path}")
            _show(args, rows, path)
            raise
    _show(args, rows, path)
    own = [row["contenders"][name] for row in rows for name in row["contenders"] if name.startswith(OWN)]
    return CHECK_FAILED if any(one["status"] in ("wrong", "failed") for one in own) else OK


def _left_out(name: str, args: argparse.Namespace) -> bool:
    return bool(args.quick and name in NOT_QUICK)


class _Share:
    """One case's share of the progress bar: it fills as the parts of the case begin."""

    def __init__(self, progress: Progress, number: int, count: int) -> None:
        self._progress, self._done, self._until = progress, number / count, (number + 1) / count

    def begin(self, text: str, seconds: float) -> None:
        done = self._done
        self._done = done + (self._until - done) * 0.1
        self._progress.begin(text, done, self._done, seconds)


def _show(args: argparse.Namespace, rows: Sequence[Row], path: Path) -> None:
    if args.json:
        emit_json(rows)
    elif rows:
        emit(f"{_table(Screen(sys.stdout), [calmed(row) for row in rows])}\nappended to {path}")


def _table(screen: Screen, rows: Sequence[Row]) -> str:
    """A line for each case; where there is no room for the ratios to all peers, the fastest one's is left."""
    absent = [name for name in peer_names(rows) if all(_status(row, name) == "not installed" for row in rows)]
    peers = [name for name in peer_names(rows) if name not in absent]
    headers = [*HEADERS, "fastest peer", *peers]
    cells = []
    for row in rows:
        (*own,), nearest = table_row(row, ()), fastest_peer(row_figures(row))
        told = f"{ratio_cell(nearest)} {shown(nearest.name)}" if nearest else "-"
        cells.append([*own, told, *table_row(row, peers)[len(own) :]])
    first = len(HEADERS) + 1
    spare = [*range(first, len(headers)), *(HEADERS.index(name) for name in SPARE)]
    lines = [screen.table(headers, cells, set(range(1, len(headers))), spare)]
    lines += ["peers: their time over ours, above 1 is slower than convt3d"]
    lines += [f"not installed: {', '.join(absent)}; {BRINGS_THEM}"] if absent else []
    lines += notes(rows)
    return "\n".join([lines[0], *map(screen.wrap, lines[1:])])


def _status(row: Row, name: str) -> str:
    return str(row["contenders"].get(name, {}).get("status", "not installed"))


# --- results that exist -----------------------------------------------------------------------------------------------


def report(args: argparse.Namespace, paths: Sequence[Path]) -> int:
    rows = read_latest(paths or [Path(RESULTS)])
    written = {Path(args.output or PAGE): draw_page(rows)}
    if args.figure:
        written[Path(args.figure)] = draw_figure(rows)
    for path, text in written.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            rule = f"cannot be written: {error.strerror}"
            raise ArgumentError("bench report", "--output", str(path), rule, "Choose another place") from None
    names = [str(path) for path in written]
    if args.json:
        emit_json({"cases": len(rows), "written": names})
    else:
        emit(f"{summary(rows)}\n\n{len(rows)} cases: {', '.join(names)}")
    return OK


def compare(args: argparse.Namespace, paths: Sequence[Path]) -> int:
    if len(paths) != 2:
        received = described(f"{len(paths)} files")
        raise ArgumentTypeError(
            "bench compare", "files", received, "must be two: the old and the new result", "Name both"
        )
    old, new = (read_latest([path]) for path in paths)
    changes = compare_rows(old, new, args.peer or [OWN])
    if args.json:
        emit_json([change.document() for change in changes])
    else:
        emit(_changes_text(Screen(sys.stdout), changes))
    return OK


def _changes_text(screen: Screen, changes: Sequence[Change]) -> str:
    if not changes:
        return "no case is in both results"
    colours: dict[str, Any] = {"faster": "green", "slower": "red"}
    rows = [
        [
            f"{one.suite}: {one.name}",
            one.contender,
            duration(one.old) if one.old else "-",
            duration(one.new) if one.new else "-",
            f"{one.ratio:.2f}" if one.old else "-",
            screen.paint(one.verdict, colours[one.verdict]) if one.verdict in colours else one.verdict,
        ]
        for one in changes
    ]
    table = screen.table(["case", "contender", "old", "new", "new / old*", "verdict"], rows, right={2, 3, 4})
    counts = {verdict: sum(one.verdict == verdict for one in changes) for verdict in ("faster", "slower", "same")}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{table}\n{told}; * in units of the matrix product measured beside it"
