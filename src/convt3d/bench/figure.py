"""The figure of the README: for every operator, layer and small volume, the time of each peer over ours, on a
logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..units import ratio
from .figures import OWN, disturbed, row_figures
from .suites import SUITES
from .svg import LogScale, line, mark, number, shown, svg, text
from .table import label, peer_names

LEFT, RIGHT, TOP, STEP = 384, 866, 80, 19  # above TOP: two lines of names
DRAWN = ("seeds", "models", "small")
STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}.muted{fill:#59636e}"
    ".grid{stroke:#d1d9e0;stroke-width:1}.one{stroke:#0072b2;stroke-width:2}.loss{fill:#d55e00;opacity:.08}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.muted{fill:#9198a1}.grid{stroke:#3d444d}"
    ".one{stroke:#4aa8e0}.loss{opacity:.2}}</style>"
)


def draw_figure(rows: Sequence[Mapping[str, Any]]) -> str:
    """Marks to the right of the line at 1 are slower than convt3d, marks in the tinted strip are faster."""
    rows = [row for row in rows if not disturbed(row)]
    chosen = [(suite, [row for row in rows if row["suite"] == suite]) for suite in DRAWN]
    groups = [(suite, found) for suite, found in chosen if found]
    ratios = [one for _, found in groups for row in found for one in _ratios(row).values()]
    scale = LogScale(min([0.5, *ratios]) / 1.1, max([10.0, *ratios]) * 1.15, LEFT, RIGHT)
    bottom = TOP + STEP * sum(len(found) + 1 for _, found in groups)
    parts = [f'<rect class="loss" x="{LEFT}" y="{TOP - 8}" width="{scale(1) - LEFT:.1f}" height="{bottom - TOP + 8}"/>']
    parts += _axis(scale, bottom) + _key([name for name in peer_names(rows) if any(_has(row, name) for row in rows)])
    y = TOP
    for suite, found in groups:
        parts.append(text(8, y + 8, SUITES[suite], "head"))
        y += STEP
        for row in found:
            parts.append(text(LEFT - 10, y + 8, _short(label(row)), "", "end"))
            parts.append(line(LEFT, y + 4, RIGHT, y + 4))
            for name, value in _ratios(row).items():
                parts.append(mark(name, scale(value), y + 4, f"{shown(name)} {ratio(value)}"))
            y += STEP
    return svg(RIGHT + 14, bottom + 44, "Time of each peer over the time of convt3d", parts, STYLE) + "\n"


def _ratios(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: one.ratio.value for name, one in row_figures(row).items() if one.ratio and name != OWN}


def _has(row: Mapping[str, Any], name: str) -> bool:
    return bool(row["contenders"].get(name, {}).get("seconds"))


def _axis(scale: LogScale, bottom: float) -> list[str]:
    parts = []
    for tick in scale.ticks():
        parts.append(line(scale(tick), TOP - 8, scale(tick), bottom, "one" if tick == 1 else "grid"))
        parts.append(text(scale(tick), bottom + 16, number(tick), "muted", "middle"))
    parts.append(text((LEFT + RIGHT) / 2, bottom + 36, "time of the peer / time of convt3d", "", "middle"))
    parts.append(text(scale(1) + 6, TOP - 14, "slower than convt3d →", "muted"))
    parts.append(text(scale(1) - 6, TOP - 14, "← faster", "muted", "end"))
    return parts


def _key(names: Sequence[str]) -> list[str]:
    parts, x, y = [], 14.0, 16.0
    for name in names:
        width = 30 + 6.6 * len(shown(name))
        if x + width > RIGHT:
            x, y = 14.0, y + 18
        parts += [mark(name, x, y), text(x + 9, y + 4, shown(name))]
        x += width
    return parts


def _short(words: str, most: int = 52) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"
