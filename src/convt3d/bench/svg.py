"""Small parts of drawings: escaped text, marks that differ in shape as well as colour, logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from .contenders.kept import SUFFIX

# Colours that people with any colour vision tell apart (Okabe and Ito), each with a shape of its own.
_LOOKS: Mapping[str, tuple[str, str]] = {
    "convt3d": ("#0072b2", "circle"),
    "convt3d-prepared": ("#0072b2", "circle"),
    "torch": ("#d55e00", "square"),
    "torch-channels-last": ("#e69f00", "diamond"),
    "torch-compile": ("#cc79a7", "up"),
    "onnxruntime": ("#009e73", "down"),
    "openvino": ("#56b4e9", "cross"),
    "jax": ("#808080", "plus"),
}
_OTHERS = ("#4b0092", "#994f00", "#1aff1a", "#40b0a6")

SHORT = {"torch-channels-last": "torch ch.last", "torch-compile": "torch.compile", "onnxruntime": "ONNX Runtime"}
SHORT |= {
    "torch-kept": "PyTorch kept",
    "torch-channels-last-kept": "ch.last kept",
    "torch-compile-kept": "compile kept",
}
SHORT |= {"openvino": "OpenVINO", "jax": "JAX", "torch": "PyTorch"}

# Half-size 4, around the origin.
_SHAPES = {
    "circle": '<circle r="4.2"/>',
    "square": '<rect x="-3.7" y="-3.7" width="7.4" height="7.4"/>',
    "diamond": '<path d="M0-5.2 5.2 0 0 5.2-5.2 0Z"/>',
    "up": '<path d="M0-5 4.8 3.8H-4.8Z"/>',
    "down": '<path d="M0 5 4.8-3.8H-4.8Z"/>',
    "cross": '<path d="M-4.4-2.4-2.4-4.4 0-2 2.4-4.4 4.4-2.4 2 0 4.4 2.4 2.4 4.4 0 2-2.4 4.4-4.4 2.4-2 0Z"/>',
    "plus": '<path d="M-1.4-5H1.4V-1.4H5V1.4H1.4V5H-1.4V1.4H-5V-1.4H-1.4Z"/>',
}


def _look(name: str) -> tuple[str, str]:
    """Colour and shape; a peer whose memory is kept looks like itself, but hollow."""
    plain = name.removesuffix(SUFFIX)
    return _LOOKS.get(plain) or (_OTHERS[sum(map(ord, plain)) % len(_OTHERS)], "circle")


def colour(name: str) -> str:
    return _look(name)[0]


def shown(name: str) -> str:
    """A contender's name for people."""
    return SHORT.get(name, name)


def mark(name: str, x: float, y: float, title: str = "") -> str:
    paint, shape = _look(name)
    told = f"<title>{escape(title)}</title>" if title else ""
    hollow = f'fill="none" style="stroke:{paint};stroke-width:1.6"'
    look = hollow if name.endswith(SUFFIX) else f'fill="{paint}"'
    return f'<g class="mark" transform="translate({x:.1f} {y:.1f})" {look}>{told}{_SHAPES[shape]}</g>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    more = f' class="{kind}"' if kind else ""
    turned = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}{turned}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(points: Sequence[tuple[float, float]], kind: str, stroke: str = "") -> str:
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    painted = f' style="stroke:{stroke}"' if stroke else ""
    return f'<polyline class="{kind}" points="{steps}"{painted}/>'


def svg(width: float, height: float, label: str, parts: Sequence[str], style: str = "") -> str:
    """A drawing that scales to the width it is given, and says what it is to those who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(label)}">{style}{"".join(parts)}</svg>'
    )


@dataclass(frozen=True)
class LogScale:
    """Values from low to high onto positions from start to end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Powers of ten; with 2 and 5 between them where there are few."""
        powers = range(floor(log10(self.low)) - 1, ceil(log10(self.high)) + 1)
        wide = [10.0**power for power in powers]
        fine = [step * power for power in wide for step in (1, 2, 5)]
        inside = [[tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001] for ticks in (wide, fine)]
        return inside[0] if len(inside[0]) >= 4 else inside[1]


def scale_around(values: Sequence[float], start: float, end: float, room: float = 1.25) -> LogScale:
    return LogScale(min(values) / room, max(values) * room, start, end)


def number(value: float) -> str:
    """A tick's label."""
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"
