"""What a contender is: it prepares a case once, and then runs it as often as asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..cases import Arrays, Case, Storage


class UnsupportedError(Exception):
    """This contender cannot run the case; the message says why."""


@dataclass(frozen=True)
class Ready:
    """A prepared case. `run` computes once and returns when the result is there; `stored` turns what it returned
    into an array in storage form, (B, C, D, H, W)."""

    run: Callable[[], Any]
    stored: Callable[[Any], Storage]
    allocates: bool = False  # whether every call makes a new result


class Contender(Protocol):
    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        """Everything a user would do once: threads, layout, compilation, memory for the result where it is reused."""


@dataclass(frozen=True)
class Absent:
    """Stands for a contender whose library is not there."""

    why: str

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        raise UnsupportedError(self.why)
