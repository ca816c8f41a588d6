"""The same case again: with other numbers of threads, on the other side of its fences, after other cases.

Results of an honest parallel kernel may differ in their last bits. What is right in one run and wrong in the next, or
wrong by ever other amounts, is a race, or memory that was never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..cpu.plan.cores import get_num_threads
from ..front.verify import Storage
from .arena import SIDES
from .cases import Trial, work

AGAIN_SECONDS = 3.0  # for further runs, of a case that failed or of all that passed
RACES = 16  # further runs of the cases with most work: what is over in a moment leaves threads no time to meet
REPEATS = 6  # further runs of a case that failed


@dataclass(frozen=True)
class Turn:
    """One run to come: the trial by its number, the side of its fences, the threads."""

    number: int
    side: str
    threads: int


@dataclass(frozen=True, eq=False)
class Run:
    """One run that was: its result, if there was one, and whether that was right."""

    threads: int
    right: bool
    output: Storage | None = None


def thread_counts() -> tuple[int, ...]:
    """The usual number, more than there are cores, and one."""
    usual = get_num_threads()
    return tuple(dict.fromkeys((usual, 2 * usual + 1, 1)))


def first_turns(trials: Sequence[Trial]) -> Iterator[Turn]:
    usual = thread_counts()[0]
    for number in range(len(trials)):
        yield Turn(number, SIDES[number % 2], usual)


def further_turns(trials: Sequence[Trial]) -> Iterator[Turn]:
    """All cases with each other number of threads, backwards first; then those with most work with several threads."""
    usual, *others = thread_counts()
    numbers = list(range(len(trials)))
    for turn, threads in enumerate(others):
        for number in numbers if turn % 2 else reversed(numbers):
            yield Turn(number, SIDES[(number + 1 + turn) % 2], threads)
    largest = sorted(numbers, key=lambda number: work(trials[number].problem, trials[number].values))[-2:]
    several = [count for count in (usual, *others) if count > 1]
    for race in range(RACES):
        yield Turn(largest[race % len(largest)], SIDES[0], several[race // 2 % len(several)])


def repeats(threads: int) -> Iterator[int]:
    """Threads of the further runs of a case that failed with so many: as before, and every other number in between."""
    others = sorted(count for count in thread_counts() if count != threads)
    for turn in range(REPEATS):
        yield threads if turn % 2 == 0 or not others else others[turn // 2 % len(others)]


def difference(trial: Trial, runs: Sequence[Run]) -> str | None:
    """In what way the runs of one trial differ, in words; None if they agree."""
    by_threads: dict[int, list[Run]] = {}
    for run in runs:
        by_threads.setdefault(run.threads, []).append(run)
    told = ", ".join(
        f"{sum(run.right for run in some)} of {len(some)} with {count} thread{'s' * (count > 1)}"
        for count, some in sorted(by_threads.items())
    )
    if any(len({run.right for run in some}) > 1 for some in by_threads.values()):
        return f"it differs from run to run: right in {told}"
    if any(_far_apart(trial, some) for some in by_threads.values()):
        return f"it differs from run to run: right in {told}, and wrong by ever other amounts"
    if len({run.right for run in runs}) > 1:
        return f"it depends on the number of threads: right in {told}"
    return None


def _far_apart(trial: Trial, runs: Sequence[Run]) -> bool:
    """Whether two results are further from each other than two right ones may be."""
    wide = [trial.dtype.widen(run.output) for run in runs if run.output is not None]
    with np.errstate(all="ignore"):
        return any(
            bool((~((np.abs(a - b) <= 2 * trial.expected.tolerance) | (a == b) | (np.isnan(a) & np.isnan(b)))).any())
            for a, b in pairwise(wide)
        )
