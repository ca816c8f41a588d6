"""What follows from the samples of a row: medians and spreads of times, ratios and shares, taken within each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from .rounds import CALM, middle, spread

OWN, DIRECT = "convt3d", "convt3d-direct"


@dataclass(frozen=True)
class Figure:
    """A median over rounds and the interquartile range around it."""

    value: float
    spread: float


@dataclass(frozen=True)
class Figures:
    """The figures of one contender in one row. `ratio` is its time over ours: above 1 it is slower."""

    name: str
    status: str
    note: str
    seconds: Figure | None
    ratio: Figure | None
    needed_gflops: float | None
    nominal_gflops: float | None
    of_gemm: Figure | None
    of_registers: Figure | None
    of_roofline: Figure | None
    extra_bytes: int | None
    first_seconds: float | None
    first_call: Mapping[str, float]
    error_units: float | None


def row_figures(row: Mapping[str, Any]) -> dict[str, Figures]:
    """Of every contender, ours first."""
    return {name: contender_figures(row, name) for name in row["contenders"]}


def contender_figures(row: Mapping[str, Any], name: str) -> Figures:
    found = row["contenders"][name]
    seconds = found.get("seconds") or []
    rates, flop = row.get("rates", {}), row["needed_flop"]
    own = row["contenders"].get(OWN, {}).get("seconds") or []

    def share(limit: str) -> Figure | None:
        return _over(lambda took, rate: flop / took / rate, seconds, rates.get(limit, []))

    def of_roofline(took: float, gemm: float, copy: float) -> float:
        return float(max(flop / gemm, row["bytes"] / copy) / took)

    return Figures(
        name=name,
        status=found["status"],
        note=found.get("note", ""),
        seconds=_figure(seconds),
        ratio=_over(lambda theirs, ours: theirs / ours, seconds, own),
        needed_gflops=flop / middle(seconds) / 1e9 if seconds else None,
        nominal_gflops=row["nominal_flop"] / middle(seconds) / 1e9 if seconds else None,
        of_gemm=share("gemm"),
        of_registers=share("registers"),
        of_roofline=_over(of_roofline, seconds, rates.get("gemm", []), rates.get("copy", [])),
        extra_bytes=found.get("extra_bytes"),
        first_seconds=found.get("first_seconds"),
        first_call=found.get("first_call") or {},
        error_units=found.get("error_units"),
    )


def _figure(values: Sequence[float]) -> Figure | None:
    return Figure(middle(values), spread(values)) if values else None


def _over(function: Callable[..., float], *series: Sequence[float]) -> Figure | None:
    """The function of each round's values. One that ran once, outside of rounds, meets the median of the others."""
    if not all(series):
        return None
    rounds = min(map(len, series))
    if rounds == 1:
        return Figure(function(*map(middle, series)), 0.0)
    return _figure([function(*values) for values in zip(*series, strict=False)])


def disturbed(row: Mapping[str, Any]) -> float:
    """The share of the processor others took while it was measured, where that is more than nothing to speak of."""
    share = middle(row["foreign"]) if row.get("foreign") else 0.0
    return share if share > CALM else 0.0


def fastest_peer(figures: Mapping[str, Figures]) -> Figures | None:
    """The peer that comes nearest to us, or beats us."""
    timed = [one for name, one in figures.items() if not name.startswith(OWN) and one.ratio]
    return min(timed, key=lambda one: one.ratio.value if one.ratio else 0.0, default=None)


def nearest_ratios(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """In each case that has peers, the fastest peer's time over ours."""
    peers = [fastest_peer(row_figures(row)) for row in rows]
    return [peer.ratio.value for peer in peers if peer and peer.ratio]


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))
