"""Rounds: in each of them every limit and every contender has its turn, so a slow moment of the machine meets all.

Figures are taken within a round (a ratio, a share) and their median over rounds counts; the spread is the interquartile
range. Between turns there is a pause, because threads of most libraries spin for a while after their work. A round
during which other processes took much of the processor is played again: two threads that wait for each other suffer
from that out of proportion, and some libraries more than others.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..cpu.plan.cores import available_cores
from .calm import Watch
from .contenders.base import Ready

LEAST_SAMPLE = 2e-3  # seconds: shorter calls are repeated, and their mean counts
MOST_REPEATS = 200
CALM = 0.05  # share of the processor others may take in a round
LEAST_CALM = 3
LONG = 0.5  # seconds: a call beyond this finds its data cold anyway, and is not run once more to warm up


@dataclass(frozen=True)
class Pace:
    """How many rounds a case gets: what fits into `seconds`, within bounds."""

    seconds: float
    least: int
    most: int
    pause: float

    def rounds(self, one_round: float) -> int:
        return max(self.least, min(self.most, int(self.seconds / max(one_round, 1e-9))))


FULL = Pace(seconds=12.0, least=3, most=9, pause=0.1)
QUICK = Pace(seconds=1.5, least=3, most=3, pause=0.05)


@dataclass(frozen=True)
class Played:
    """For each contender seconds of a call, for each limit its rate, and the share others took, in every round."""

    seconds: dict[str, list[float]]
    rates: dict[str, list[float]]
    foreign: list[float]


def play(
    contenders: Mapping[str, Ready],
    limits: Mapping[str, Callable[[], float]],
    estimates: Mapping[str, float],
    pace: Pace,
    before: Callable[[int, int, float], None] = lambda turn, rounds, seconds: None,
) -> Played:
    """`estimates` are seconds of a warm call; `before(turn, rounds, seconds)` hears of every round to come."""
    turns = {name: _repeats(estimates[name]) for name in contenders}
    cost = {name: (1 + (estimates[name] < LONG)) * turns[name] * estimates[name] + pace.pause for name in contenders}
    one_round = sum(cost.values()) + 0.2  # for the limits
    rounds = pace.rounds(one_round)
    played = Played({name: [] for name in contenders}, {name: [] for name in limits}, [])
    order = list(contenders)
    with _no_collection():
        while sum(share <= CALM for share in played.foreign) < rounds and len(played.foreign) < 2 * rounds:
            number = len(played.foreign)
            before(number, rounds, one_round)
            watch, begun = Watch(), time.perf_counter()
            for name, rate in limits.items():
                time.sleep(pace.pause)
                played.rates[name].append(rate())
            for name in turns_of(order, number):
                time.sleep(pace.pause)
                played.seconds[name].append(_sample(contenders[name], turns[name], estimates[name] < LONG))
            taken = watch.foreign_seconds() or 0.0
            played.foreign.append(taken / available_cores() / (time.perf_counter() - begun))
    return played


def turns_of(names: Sequence[str], number: int) -> Sequence[str]:
    """Who comes after whom in a round: every other one goes backwards."""
    return names if number % 2 == 0 else names[::-1]


def timed(ready: Ready) -> tuple[Any, float]:
    """What one call returns, and its seconds."""
    begun = time.perf_counter()
    result = ready.run()
    return result, time.perf_counter() - begun


def calm_rounds(foreign: Sequence[float]) -> list[int]:
    """The rounds that count: the calm ones, or where these are too few, the calmest."""
    calm = [at for at, share in enumerate(foreign) if share <= CALM]
    return (
        calm if len(calm) >= LEAST_CALM else sorted(sorted(range(len(foreign)), key=foreign.__getitem__)[:LEAST_CALM])
    )


def _repeats(estimate: float) -> int:
    return max(1, min(MOST_REPEATS, math.ceil(LEAST_SAMPLE / max(estimate, 1e-9))))


def _sample(ready: Ready, repeats: int, warm: bool) -> float:
    """Mean seconds of `repeats` calls; a warm-up wakes the threads and brings the data back into the caches."""
    with ready.around():
        for _ in range(repeats if warm else 0):
            ready.run()
        begun = time.perf_counter()
        for _ in range(repeats):
            ready.run()
        return (time.perf_counter() - begun) / repeats


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector stays out of the measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper one; both the value itself where there is only one."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def spread(values: Sequence[float]) -> float:
    low, high = quartiles(values)
    return high - low
