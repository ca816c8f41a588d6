"""Draws the figures of a run of engine.py as one SVG:  python benchmarks/figure.py RESULT.json FIGURE.svg"""

from __future__ import annotations

import json
import sys
from typing import Any

ROW, LEFT, WIDTH = 26, 240, 420
STYLE = (
    "<style>text{font:13px sans-serif;fill:#24292f}.own{fill:#2a78d6}.peer{fill:#b7bfc9}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.peer{fill:#57606a}}</style>"
)


def draw(cases: list[dict[str, Any]]) -> str:
    """For each case the speed of convt3d over that of the fastest PyTorch layout, which is the grey bar of length 1."""
    ratios = [(case["case"], ratio(case)) for case in cases if len(case["milliseconds"]) > 1]
    longest = max(value for _, value in ratios)
    lines = [f'<text x="{LEFT}" y="18">speed over the faster of PyTorch\'s two layouts (grey: PyTorch = 1)</text>']
    for number, (name, value) in enumerate(ratios):
        y = 30 + ROW * number
        own, peer = (WIDTH * length / longest for length in (value, 1.0))
        lines.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{name.replace(">", "&gt;")}</text>')
        lines.append(f'<rect class="own" x="{LEFT}" y="{y}" width="{own:.1f}" height="12"/>')
        lines.append(f'<rect class="peer" x="{LEFT}" y="{y + 13}" width="{peer:.1f}" height="5"/>')
        lines.append(f'<text x="{LEFT + own + 6:.1f}" y="{y + 12}">{value:.2f}x</text>')
    size = f'width="{LEFT + WIDTH + 70}" height="{44 + ROW * len(ratios)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{STYLE}{"".join(lines)}</svg>\n'


def ratio(case: dict[str, Any]) -> float:
    times = dict(case["milliseconds"])
    own = times.pop("convt3d")
    return float(min(times.values()) / own)


if __name__ == "__main__":
    with open(sys.argv[1]) as source, open(sys.argv[2], "w") as target:
        target.write(draw(json.load(source)["cases"]))
