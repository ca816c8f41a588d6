"""What a contender is: it prepares a case once, and then runs it as often as asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from ..cases import Arrays, Case


class UnsupportedError(Exception):
    """This contender cannot run the case; the message says why."""

    status = "unsupported"


class NotInstalledError(UnsupportedError):
    """Its library is not there."""

    status = "not installed"


@dataclass(frozen=True)
class Ready:
    """A prepared case. `run` computes once and returns when the result is there; `stored` turns what it returned
    into an array in storage form, (B, C, D, H, W), or in training into a list of arrays; `around` holds what must be so
    while it runs, untimed."""

    run: Callable[[], Any]
    stored: Callable[[Any], Any]
    allocates: bool = False  # whether every call makes a new result
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    note: str = ""  # what the figures of this contender should say


class Contender(Protocol):
    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        """Everything a user would do once: threads, layout, compilation, memory for the result where it is reused."""


@dataclass(frozen=True)
class Absent:
    """Stands for a contender whose library is not there."""

    why: str

    def prepare(self, case: Case, arrays: Arrays) -> Ready:
        raise NotInstalledError(self.why)
