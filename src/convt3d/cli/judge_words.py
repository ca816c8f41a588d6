"""A verdict in words: the rows that the text, the page and `bench FILE` have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..judge.verdict import QUOTED
from .choose import compact

SMALLEST = "smallest found"  # of the failing cases that were tried


def reason_of(document: Mapping[str, Any]) -> str:
    """In a table: what a compiler or a program printed in several lines is shown below it, line by line as it was."""
    first, *more = document["reason"].split("\n")
    return f"{first} (all {len(more) + 1} lines are below)" if more else first


def quoted(document: Mapping[str, Any]) -> str:
    """A reason of several lines, none of them folded; empty for one that stands in the table."""
    reason: str = document["reason"]
    return f"{QUOTED}{reason}" if "\n" in reason else ""


def protections_off(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What this system does not refuse to a kernel, if there is any of it."""
    missing = "; ".join(f"{name} (refuses {what})" for name, what in document["unprotected"].items())
    return [("protections off", missing)] if missing else []


def diagnosis(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of wrong values: which, how far off, where and when."""
    figures = document["figures"]
    if "first_bad" not in figures:
        return []
    return [
        ("first bad voxel", str(tuple(figures["first_bad"]))),
        ("expected", f"{figures['expected']:.9g} (tolerance {figures['tolerance']:.3g})"),
        ("got", f"{figures['got']:.9g}"),
        ("worst error", f"{figures['worst_error']:.3g}, {figures['worst']:.3g} times the tolerance"),
        ("place", figures["place"]),
        ("where in this case", "; ".join(figures["where"])),
        ("pattern", figures["pattern"]),
        ("values", compact(document["failing_values"])),
        (SMALLEST, compact(figures["smallest_failing"])),
    ]
