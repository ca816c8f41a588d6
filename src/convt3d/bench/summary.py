"""Results in a few lines of Markdown, as the README shows them: the operators as a table, the rest as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..units import duration, ratio
from .figures import (
    DIRECT,
    OWN,
    Figures,
    contender_figures,
    disturbed,
    fastest_peer,
    geometric_mean,
    nearest_ratios,
    row_figures,
)
from .rounds import middle
from .suites import SUITES
from .svg import shown
from .table import rate_text, share_text

HEAD = ("case", "time", "needed GFLOP/s", "of sgemm", "of peak", "fastest peer")
TORCH = {"torch": "PyTorch", "torch-kept": "PyTorch, memory kept"}  # columns of their own, where they were timed


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    timed = [row for row in rows if _own(row) and not disturbed(row)]
    seeds = [row for row in timed if row["suite"] == "seeds"]
    torch = [name for name in TORCH if any(row["contenders"].get(name, {}).get("seconds") for row in seeds)]
    head = [*HEAD, *(TORCH[name] for name in torch)]
    lines = [_line(head), _line(["---"] * len(head)), *(_case(row, torch) for row in seeds)]
    told = [_peers(timed), _choice(timed), _first_calls(timed), _small(rows), _forced(timed), _disturbed(rows)]
    return "\n".join([*lines, "", *(sentence for sentence in told if sentence)])


def _own(row: Mapping[str, Any]) -> Figures | None:
    """Ours, where it was timed."""
    own = contender_figures(row, OWN) if OWN in row["contenders"] else None
    return own if own and own.seconds else None


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _case(row: Mapping[str, Any], torch: Sequence[str]) -> str:
    figures = row_figures(row)
    own, peer = figures[OWN], fastest_peer(figures)
    nearest = f"{shown(peer.name)}, {_times(peer)} our time" if peer else "-"
    ratios = [_times(figures.get(name)) for name in torch]
    time = duration(own.seconds.value) if own.seconds else "-"
    shares = [share_text(own.of_gemm), share_text(own.of_registers)]
    return _line([row["name"], time, rate_text(own.needed_gflops), *shares, nearest, *ratios])


def _times(peer: Figures | None) -> str:
    """41x*: the star of what ran once stands behind."""
    if peer is None or peer.ratio is None:
        return "-"
    return f"{ratio(peer.ratio.value)}x{'*' if peer.status == 'slow' else ''}"


def _peers(rows: Sequence[Mapping[str, Any]]) -> str:
    """Suite by suite: overhead decides some cases, arithmetic others."""
    told = []
    for suite in dict.fromkeys(row["suite"] for row in rows):
        nearest = nearest_ratios([row for row in rows if row["suite"] == suite])
        if nearest:
            wins, mean = sum(value > 1 for value in nearest), ratio(geometric_mean(nearest))
            faster = f"faster than every peer in {wins} of {len(nearest)} cases"
            told.append(f"- {SUITES.get(suite, suite)}: {faster}; the fastest peer takes {mean} times our time.")
    return "\n".join(told)


def _choice(rows: Sequence[Mapping[str, Any]]) -> str:
    """The algorithm that the cost model chose beside direct summation, both measured."""
    found = [(one.ratio.value, row["name"]) for row in rows if (one := row_figures(row).get(DIRECT)) and one.ratio]
    if not found:
        return ""
    mean, (worst, name) = ratio(geometric_mean([value for value, _ in found])), min(found)
    words = f"- Without Winograd the {len(found)} cases take {mean} times as long; the worst choice between the two"
    return f"{words} is {name}, where direct summation takes {ratio(worst)} times our time."


def _first_calls(rows: Sequence[Mapping[str, Any]]) -> str:
    calls = [own.first_call for row in rows if (own := _own(row)) and len(own.first_call) == 2]
    if not calls:
        return ""
    empty, warm = (duration(middle([call[cache] for call in calls])) for cache in ("empty", "warm"))
    return f"- What a first call takes beyond a repeated one: {empty} with an empty disk cache, {warm} with a warm one."


def _small(rows: Sequence[Mapping[str, Any]]) -> str:
    """The call with least to compute, which is overhead alone."""
    small = [row for row in rows if row["suite"] == "small"]
    least = min(small, key=lambda row: int(row["needed_flop"]), default=None)
    own = _own(least) if least and not disturbed(least) else None
    return f"- A repeated call on a tiny volume: {duration(own.seconds.value)}." if own and own.seconds else ""


def _forced(rows: Sequence[Mapping[str, Any]]) -> str:
    """Under a forced instruction set, beside a loop of its multiply-adds."""
    found = []
    for row in rows:
        own = _own(row) if row["isa"] else None
        if own and own.of_registers and own.needed_gflops:
            limit = own.needed_gflops / own.of_registers.value
            limits = f"a loop of multiply-adds in registers reaches {limit:.0f}"
            found.append(f"- With {row['isa']} forced, one thread reaches {own.needed_gflops:.0f} GFLOP/s; {limits}.")
    return "\n".join(found)


def _disturbed(rows: Sequence[Mapping[str, Any]]) -> str:
    """Two threads that wait for each other on one free core say nothing about a library."""
    count = sum(disturbed(row) > 0 for row in rows)
    return (
        f"- Left out here and in the figure, because other processes were busy: {count} of {len(rows)} cases."
        if count
        else ""
    )
