"""What got faster or slower between two results, beyond the noise.

The machine itself may have been faster in one of them. So times are compared in units of the matrix product of the same
round; a change counts where the quartiles of both results lie apart and the medians differ by more than a few percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .record import Row, case_key
from .rounds import middle, quartiles

LEAST_CHANGE = 0.03


@dataclass(frozen=True)
class Change:
    """One contender of one case in both results; times in seconds, `ratio` is new over old in matrix products."""

    suite: str
    name: str
    contender: str
    old: float
    new: float
    ratio: float
    verdict: str  # faster, slower, same, or a status that has changed

    def document(self) -> dict[str, Any]:
        return asdict(self)


def compare_rows(old: Sequence[Row], new: Sequence[Row], contenders: Sequence[str]) -> list[Change]:
    """Changes of the named contenders in the cases both results hold, in the order of the new one."""
    before = {case_key(row): row for row in old}
    found = []
    for row in new:
        other = before.get(case_key(row))
        if other is None:
            continue
        names = [name for name in row["contenders"] if name in contenders and name in other["contenders"]]
        found += [_change(other, row, name) for name in names]
    return found


def _change(old: Row, new: Row, name: str) -> Change:
    statuses = [row["contenders"][name]["status"] for row in (old, new)]
    place = (new["suite"], new["name"], name)
    if not all(row["contenders"][name].get("seconds") for row in (old, new)):
        verdict = "same" if statuses[0] == statuses[1] else f"{statuses[0]} -> {statuses[1]}"
        return Change(*place, 0.0, 0.0, 1.0, verdict)
    costs = [_costs(row, name) for row in (old, new)]
    ratio = middle(costs[1]) / middle(costs[0])
    (low_old, high_old), (low_new, high_new) = map(quartiles, costs)
    verdict = "same"
    if ratio < 1 / (1 + LEAST_CHANGE) and high_new < low_old:
        verdict = "faster"
    if ratio > 1 + LEAST_CHANGE and low_new > high_old:
        verdict = "slower"
    before, after = (middle(row["contenders"][name]["seconds"]) for row in (old, new))
    return Change(*place, before, after, ratio, verdict)


def _costs(row: Mapping[str, Any], name: str) -> list[float]:
    """FLOPs of the matrix product that fit into the time, in each round."""
    seconds, gemm = row["contenders"][name]["seconds"], row["rates"]["gemm"]
    if len(seconds) != len(gemm):  # it ran once, outside of rounds
        return [took * middle(gemm) for took in seconds]
    return [took * rate for took, rate in zip(seconds, gemm, strict=True)]
