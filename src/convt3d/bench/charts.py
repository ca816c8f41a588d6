"""The pictures of the page, each about as wide as a phone: bars of a case, the roofline, curves of how costs grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

from ..units import duration, ratio
from .figures import OWN, Figures, disturbed, row_figures
from .rounds import middle
from .svg import LogScale, colour, line, mark, number, path, scale_around, shown, svg, text
from .table import label

WIDTH = 380

# --- bars: one case, everyone in it -----------------------------------------------------------------------------------

BAR_LEFT, BAR_ROOM, BAR_STEP = 120, 134, 21
CLIPPED = 12.0  # times the fastest: longer bars are cut, and say so


def bars(row: Mapping[str, Any]) -> str:
    """Median times of everyone who was timed, fastest first; a thin line spans the quartiles."""
    timed = [one for one in row_figures(row).values() if one.seconds]
    timed.sort(key=lambda one: one.seconds.value if one.seconds else 0.0)
    if not timed:
        return ""
    longest = min(_seconds(timed[-1]), CLIPPED * _seconds(timed[0]))
    parts = [_bar(one, place, longest) for place, one in enumerate(timed)]
    return svg(WIDTH, BAR_STEP * len(timed) + 4, f"Times of {label(row)}", parts)


def _seconds(one: Figures) -> float:
    return one.seconds.value if one.seconds else 0.0


def _bar(one: Figures, place: int, longest: float) -> str:
    y = 3 + BAR_STEP * place
    length = BAR_ROOM * min(1.0, _seconds(one) / longest)
    own = one.name.startswith(OWN)
    told = f"{duration(_seconds(one))}"
    times = "" if one.name == OWN or not one.ratio else f"{ratio(one.ratio.value)}×"
    parts = [
        text(BAR_LEFT - 6, y + 12, shown(one.name), "own" if own else "", "end"),
        f'<rect class="bar" x="{BAR_LEFT}" y="{y}" width="{length:.1f}" height="15" rx="2" fill="{colour(one.name)}"/>',
    ]
    if _seconds(one) > longest * 1.001:
        cut = BAR_LEFT + BAR_ROOM - 14
        parts.append(f'<path class="cut" d="M{cut} {y - 1}l5 8.5-5 8.5h5l5-8.5-5-8.5z"/>')
    elif one.seconds and one.seconds.spread:
        half = BAR_ROOM * one.seconds.spread / longest / 2
        ends = (max(0.0, length - half), min(BAR_ROOM + 6.0, length + half))
        parts.append(line(BAR_LEFT + ends[0], y + 7.5, BAR_LEFT + ends[1], y + 7.5, "spread"))
    parts.append(text(BAR_LEFT + BAR_ROOM + 72, y + 12, told, "own" if own else "", "end"))
    parts.append(text(WIDTH - 2, y + 12, times, "muted", "end"))
    return "".join(parts)


# --- the roofline -----------------------------------------------------------------------------------------------------

PLOT_LEFT, PLOT_RIGHT, PLOT_TOP, PLOT_BOTTOM = 44, 372, 14, 262


def roofline(rows: Sequence[Mapping[str, Any]]) -> str:
    """convt3d's rate in every case over FLOP per byte, below what the matrix product and the copy allow."""
    points = []
    for row in rows:
        own = row_figures(row).get(OWN)
        if own and own.needed_gflops:
            points.append((row["needed_flop"] / row["bytes"], own.needed_gflops, row))
    if not points:
        return ""
    calm = [row for row in rows if not disturbed(row)] or rows
    gemm, copy, registers = (
        middle([rate for row in calm for rate in row["rates"].get(name, [])]) / 1e9
        for name in ("gemm", "copy", "registers")
    )
    across = scale_around([x for x, _, _ in points] + [gemm / copy], PLOT_LEFT, PLOT_RIGHT, 1.6)
    up = scale_around([y for _, y, _ in points] + [registers], PLOT_BOTTOM, PLOT_TOP, 1.5)
    parts = [*_grid(across, up, "FLOP per byte moved at least", "needed GFLOP/s")]
    knee = gemm / copy
    start = max(across.low, up.low / copy)
    flat, fast = up(gemm), up(registers)
    parts += [
        path([(across(start), up(start * copy)), (across(knee), flat), (across(across.high), flat)], "roof"),
        line(across(knee), fast, across(across.high), fast, "roof2"),
    ]
    places = [(across(x), up(y)) for x, y, _ in points]
    for (x, y), (_, rate, row) in zip(places, points, strict=True):
        parts.append(mark(OWN, x, y, f"{label(row)}: {rate:.3g} GFLOP/s"))
    # Names of the limits: beside the knee, at the right end, or anywhere along their lines.
    along = _between(across.low, across.high, 8)
    slope = [at for at in along if start < at < knee]
    limits = {
        f"registers {registers:.0f}": [
            *((across(knee) - 6, fast + lift, "end") for lift in (4, -6)),
            *((across(at), fast - 5, "middle") for at in reversed(along)),
        ],
        f"sgemm {gemm:.0f} GFLOP/s": [
            (across(knee) - 6, flat - 5, "end"),
            (across(knee) - 34, flat + 14, "end"),
            *((across(at), flat + 13, "middle") for at in reversed(along) if at > knee),
        ],
        f"copy {copy:.0f} GB/s": [(across(at) + 8, up(at * copy) + 12, "start") for at in slope]
        + [(across(at) - 8, up(at * copy) - 4, "end") for at in slope],
    }
    roof = [(at, min(at * copy, gemm)) for at in _between(start, across.high)]
    roof += [(at, registers) for at in _between(knee, across.high)]
    lines = [_around(across(at), up(rate), 1.5) for at, rate in roof]
    marks = [_around(x, y) for x, y in places]
    taken: list[Box] = []
    for told, candidates in limits.items():
        found = _free_place(told, candidates, [*taken, *marks, *lines])
        if found:
            x, y, anchor = found
            taken.append(_box(x, y, told, anchor))
            parts.append(text(x, y, told, "muted small", anchor))
    parts += _labels(places, points, [*taken, *lines])
    return svg(WIDTH, 300, "Roofline: needed GFLOP/s over FLOP per byte", parts)


def _grid(across: LogScale, up: LogScale, x_name: str, y_name: str) -> list[str]:
    parts = []
    for tick in across.ticks():
        parts += [line(across(tick), PLOT_TOP, across(tick), PLOT_BOTTOM)]
        parts += [text(across(tick), PLOT_BOTTOM + 15, number(tick), "muted", "middle")]
    for tick in up.ticks():
        parts += [line(PLOT_LEFT, up(tick), PLOT_RIGHT, up(tick))]
        parts += [text(PLOT_LEFT - 5, up(tick) + 4, number(tick), "muted", "end")]
    parts.append(text((PLOT_LEFT + PLOT_RIGHT) / 2, PLOT_BOTTOM + 32, x_name, "", "middle"))
    turned = f'transform="rotate(-90 10 {(PLOT_TOP + PLOT_BOTTOM) / 2:.0f})"'
    parts.append(text(10, (PLOT_TOP + PLOT_BOTTOM) / 2, y_name, "", "middle").replace("<text", f"<text {turned}"))
    return parts


Box: TypeAlias = tuple[float, float, float, float]
Place: TypeAlias = tuple[float, float, str]  # of a text: x, baseline, anchor


def _free_place(words: str, candidates: Sequence[Place], others: Sequence[Box]) -> Place | None:
    """The first of these that lies inside the plot and touches nothing else."""
    for place in candidates:
        left, top, right, bottom = box = _box(place[0], place[1], words, place[2])
        inside = left > PLOT_LEFT and right < PLOT_RIGHT and top > 0 and bottom < PLOT_BOTTOM
        if inside and not any(_overlap(box, other) for other in others):
            return place
    return None


def _around(x: float, y: float, half: float = 5) -> Box:
    return x - half, y - half, x + half, y + half


def _between(low: float, high: float, steps: int = 100) -> list[float]:
    """Points of a logarithmic axis, close enough to each other that no name fits between them."""
    return [low * (high / low) ** (step / steps) for step in range(steps + 1)]


def _labels(
    places: Sequence[tuple[float, float]],
    points: Sequence[tuple[float, float, Any]],
    named: Sequence[Box],
) -> list[str]:
    """Names beside the points where there is room, the lowest points first; the table has all of them."""
    marks = [_around(x, y) for x, y in places]
    taken, parts = list(named), []
    for at in sorted(range(len(points)), key=lambda at: points[at][1]):
        (x, y), row = places[at], points[at][2]
        words = f"{row['series']} {row['at']}" if row["series"] else str(row["name"]).split(", ")[0]
        candidates = ((x + 8, y + 4, "start"), (x - 8, y + 4, "end"), (x, y + 17, "middle"))
        found = _free_place(words, candidates, [*taken, *marks[:at], *marks[at + 1 :]])
        if found:
            taken.append(_box(found[0], found[1], words, found[2]))
            parts.append(text(found[0], found[1], words, "small", found[2]))
    return parts


def _box(x: float, y: float, words: str, anchor: str) -> Box:
    """About the place a small text takes."""
    wide = 6.2 * len(words)
    left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
    return left, y - 10, left + wide, y + 3


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# --- how the cost grows -----------------------------------------------------------------------------------------------


def curves(rows: Sequence[Mapping[str, Any]]) -> str:
    """Time over the size that grows, one line for each contender, named at its end."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in sorted((row for row in rows if not disturbed(row)), key=lambda row: row["at"]):
        for name, one in row_figures(row).items():
            if one.seconds:
                lines.setdefault(name, []).append((row["at"], 1e3 * one.seconds.value))
    if not lines:
        return ""
    room = 92  # for the names
    every = [point for points in lines.values() for point in points]
    across = scale_around([x for x, _ in every], PLOT_LEFT, PLOT_RIGHT - room, 1.15)
    up = scale_around([y for _, y in every], PLOT_BOTTOM, PLOT_TOP, 1.3)
    series = rows[0]["series"]
    names = {"volume": "edge of the input volume", "channels": "channels, in and out", "threads": "threads"}
    parts = _curve_grid(across, up, sorted({x for x, _ in every}), names.get(series, series))
    ends = _spread_out([(name, up(points[-1][1])) for name, points in lines.items()])
    for name, points in lines.items():
        drawn = [(across(x), up(y)) for x, y in points]
        parts.append(path(drawn, "curve own-curve" if name == OWN else "curve", colour(name)))
        parts += [
            mark(name, x, y, f"{shown(name)}: {number(p[0])}, {p[1]:.3g} ms")
            for (x, y), p in zip(drawn, points, strict=True)
        ]
        parts.append(line(drawn[-1][0] + 6, drawn[-1][1], PLOT_RIGHT - room + 14, ends[name], "leader"))
        parts.append(text(PLOT_RIGHT - room + 17, ends[name] + 4, shown(name), "own" if name == OWN else ""))
    return svg(WIDTH, 300, f"Time along {series}", parts)


def _curve_grid(across: LogScale, up: LogScale, values: Sequence[float], x_name: str) -> list[str]:
    parts = []
    for value in values:
        parts += [line(across(value), PLOT_TOP, across(value), PLOT_BOTTOM)]
        parts += [text(across(value), PLOT_BOTTOM + 15, number(value), "muted", "middle")]
    for tick in up.ticks():
        parts += [line(PLOT_LEFT, up(tick), across.end, up(tick))]
        parts += [text(PLOT_LEFT - 5, up(tick) + 4, number(tick), "muted", "end")]
    parts.append(text((PLOT_LEFT + across.end) / 2, PLOT_BOTTOM + 32, x_name, "", "middle"))
    middle_ = (PLOT_TOP + PLOT_BOTTOM) / 2
    turned = f'transform="rotate(-90 10 {middle_:.0f})"'
    parts.append(text(10, middle_, "milliseconds", "", "middle").replace("<text", f"<text {turned}"))
    return parts


def _spread_out(ends: Sequence[tuple[str, float]], gap: float = 15) -> dict[str, float]:
    """Heights of labels, moved apart where they would overlap, inside the plot."""
    order = sorted(ends, key=lambda end: end[1])
    heights: list[float] = []
    for _, height in order:
        heights.append(max(height, heights[-1] + gap) if heights else max(height, PLOT_TOP))
    excess = heights[-1] - PLOT_BOTTOM
    if excess > 0:
        for at in reversed(range(len(heights))):
            limit = PLOT_BOTTOM if at == len(heights) - 1 else heights[at + 1] - gap
            heights[at] = min(heights[at], limit)
    return {name: height for (name, _), height in zip(order, heights, strict=True)}


def title(row: Mapping[str, Any]) -> str:
    """The head of a case's card, in HTML."""
    shape = "×".join(map(str, row["x"]))
    facts = f"{shape}, {row['dtype']}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}"
    return f"<h3>{escape(label(row))}</h3><p class='muted'>{escape(facts)}</p>"
