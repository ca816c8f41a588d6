"""Quantities for people: bytes, seconds, rates, shares."""

from __future__ import annotations


def amount(size: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} B"


def duration(seconds: float) -> str:
    """Seconds for people: microseconds to minutes."""
    if seconds >= 100:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def ratio(value: float) -> str:
    """Times: two digits after the point where they matter."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
