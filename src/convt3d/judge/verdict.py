"""The words of a verdict, and what stands beside the word: the case, the reason, and figures for the reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PASSED = "passed"
COMPILE_ERROR = "compile error"
WRONG_SIGNATURE = "wrong signature"
CRASH = "crash"
TIME_OUT = "time-out"
WRONG_SHAPE = "wrong shape"
WRONG_DTYPE = "wrong dtype"
WRONG_VALUES = "wrong values"
OUT_OF_BOUNDS = "out of bounds"
INPUT_MUTATED = "input mutated"
NOT_ALLOWED = "not allowed"
RACE = "race"
BARRIER = "barrier"
NOT_RUN = "compiled, not run"

WORDS = (
    PASSED,
    COMPILE_ERROR,
    WRONG_SIGNATURE,
    CRASH,
    TIME_OUT,
    WRONG_SHAPE,
    WRONG_DTYPE,
    WRONG_VALUES,
    OUT_OF_BOUNDS,
    INPUT_MUTATED,
    NOT_ALLOWED,
    RACE,
    BARRIER,
    NOT_RUN,
)
# Those the kernel's process may say; the others are the judge's to find.
SAYABLE = (COMPILE_ERROR, WRONG_SIGNATURE, CRASH, WRONG_SHAPE, WRONG_DTYPE, OUT_OF_BOUNDS, NOT_ALLOWED, RACE, BARRIER)
QUOTED = "    | "  # stands before each line but the first of a reason


def shown(text: str) -> str:
    """Text that may be a kernel's own, so that no terminal obeys it and no line of it looks like one of a report."""
    lines = text.replace(f"\n{QUOTED}", "\n").split("\n")
    safe = ("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line.replace("\t", " ")) for line in lines)
    return f"\n{QUOTED}".join(safe)


@dataclass(frozen=True, eq=False)
class Verdict:
    """One word, the case it was found on, and why; `figures` are numbers a program may read."""

    word: str
    case: str | None = None
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))

    @property
    def passed(self) -> bool:
        return self.word == PASSED


class Rejected(Exception):
    """Ends a judgement: carries the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.word, verdict.reason)
        self.verdict = verdict


def rejected(word: str, reason: str, case: str | None = None) -> Rejected:
    return Rejected(Verdict(word, case, reason))
