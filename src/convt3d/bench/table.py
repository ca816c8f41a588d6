"""Figures as the cells of a table: one line for a case, one column for the ratio to each peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..units import amount, duration, ratio
from .figures import OWN, Figure, Figures, row_figures

HEADERS = (
    "case",
    "time",
    "± spread",
    "needed GFLOP/s",
    "nominal",
    "of sgemm",
    "of peak",
    "of roofline",
    "extra memory",
    "first call, empty / warm cache",
    "error, roundings",
)


def peer_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["contenders"] if name != OWN))


def table_row(row: Mapping[str, Any], peers: Sequence[str]) -> list[str]:
    figures = row_figures(row)
    cells = (words for words, _ in own_cells(figures.get(OWN)))
    return [label(row), *cells, *(ratio_cell(figures.get(name)) for name in peers)]


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is to be said about contenders that were timed, each sentence once."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for name, one in row["contenders"].items():
            if one["status"] == "ok" and one.get("note") and name not in said.setdefault(one["note"], []):
                said[one["note"]].append(name)
    return [f"{', '.join(names)}: {note}" for note, names in said.items()]


def label(row: Mapping[str, Any]) -> str:
    return f"{row['model']}: {row['name']}" if row["model"] else str(row["name"])


def own_cells(own: Figures | None) -> list[tuple[str, float | None]]:
    """What the columns of convt3d say, and the numbers they are sorted by."""
    nothing: list[tuple[str, float | None]] = [("-", None)] * (len(HEADERS) - 1)
    if own is None or own.seconds is None:
        return [(_status(own), None), *nothing[1:]] if own else nothing
    first = " / ".join(duration(own.first_call[cache]) for cache in ("empty", "warm") if cache in own.first_call)
    spread = own.seconds.spread / own.seconds.value
    return [
        (duration(own.seconds.value), own.seconds.value),
        (f"{spread:.0%}", spread),
        (rate_text(own.needed_gflops), own.needed_gflops),
        (rate_text(own.nominal_gflops), own.nominal_gflops),
        *((share_text(share), share.value if share else None) for share in (own.of_gemm, own.of_registers)),
        (share_text(own.of_roofline), own.of_roofline.value if own.of_roofline else None),
        ("-" if own.extra_bytes is None else amount(own.extra_bytes), own.extra_bytes),
        (first or "-", own.first_call.get("empty")),
        ("-" if own.error_units is None else f"{own.error_units:.1f}", own.error_units),
    ]


def ratio_cell(one: Figures | None) -> str:
    """Time over ours; a status where there is none; * after one that ran only once."""
    if one is None or one.ratio is None:
        return _status(one) if one else "-"
    return f"{ratio(one.ratio.value)}{'*' if one.status == 'slow' else ''}"


def _status(one: Figures) -> str:
    return one.status.upper() if one.status in ("wrong", "failed") else one.status


def rate_text(gflops: float | None) -> str:
    return "-" if gflops is None else f"{gflops:.3g}"


def share_text(share: Figure | None) -> str:
    return "-" if share is None else f"{share.value:.2f}"
