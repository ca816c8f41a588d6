"""Quantities for people: bytes, seconds, operations, ratios and counts."""

from __future__ import annotations


def amount(size: int) -> str:
    """Bytes for people."""
    for unit, scale in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
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


def operations(count: float, unit: str = "FLOP") -> str:
    """FLOP, or FLOP/s, for people: four digits and a prefix."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.4g} {prefix}{unit}"
    return f"{count:.4g} {unit}"


def counted(number: int, noun: str) -> str:
    """1 voxel, 2 voxels."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ratio(value: float) -> str:
    """Times: two digits after the point where they matter."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
