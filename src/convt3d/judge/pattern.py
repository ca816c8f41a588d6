"""When a kernel is wrong: a rule about the sizes of a case, found by asking about ever more cases.

A failing case is made small. Then further cases are drawn around those that are known: each time the
one about which the rules that still hold disagree most, and once one rule is left, cases that would refute it. A rule
that a case contradicts is gone; what is said in the end agrees with everything that was seen, or says how far it does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Error
from ..spec.problem_file import Values
from ..spec.problems import Problem
from .near import draw_small
from .shrink import Asked, shrink, size

MOST_CASES = 80  # asked about after a small failing one is found
ENOUGH = 24  # cases that the last rule must survive, some of which it says fail and some pass
CHOICE, FRESH = 20, 2  # cases drawn at first, and before each that is asked about
MANY = 60  # cases drawn to see whether two rules ever differ
NAMED = 3  # rules named when no case told them apart

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Condition:
    """Something about a case, and the parameters that it depends on."""

    words: str
    names: tuple[str, ...]
    holds: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Pattern:
    """`words` say when the kernel fails: where all `conditions` hold and (if `exact`) always there, as far as many
    cases could tell. `smallest` is the smallest case that was seen to."""

    words: str
    smallest: Values
    conditions: tuple[Condition, ...] = ()
    exact: bool = False

    def covers(self, values: Values, output: Sequence[int]) -> bool:
        """Whether the conditions hold in a case with an output of this shape."""
        features = _features(values, output)
        return all(condition.holds(features) for condition in self.conditions)


def find_pattern(
    problem: Problem,
    start: Values,
    fails: Asked,
    rng: np.random.Generator,
    hurry: Callable[[], bool] = lambda: False,
) -> Pattern:
    """`start` is known to fail. `hurry` says when it has been made small for long enough."""
    seen = _Seen(problem)
    seen.add(start, True)
    smallest = shrink(problem, start, lambda values: seen.ask(values, fails), hurry)
    pool = _Pool(seen, smallest, rng)
    survived, settled = [0, 0], False  # of cases the only rule says pass, and fail
    for _ in range(MOST_CASES):
        case, told = pool.take(survived)
        failed = seen.ask(case, fails) if case else None
        if failed is None:
            continue
        survived = [0, 0] if told is None or told != failed else survived
        survived[failed] += told is not None
        if sum(survived) >= ENOUGH and min(survived) >= ENOUGH // 3:
            settled = len(pool.distinct()) == 1
            if settled:
                break
            survived = [0, 0]
        if not seen.passing and len(seen.failing) >= 2 * ENOUGH:
            break
    smallest = min(seen.failing, key=lambda values: size(problem, values))
    return _pattern(seen, pool.distinct(), settled, smallest)


def _features(values: Values, output: Sequence[int]) -> dict[str, Any]:
    return {**values, **dict(zip(("out_depth", "out_height", "out_width"), output[2:], strict=True))}


class _Seen:
    """Cases whose answer is known, and which conditions hold in each."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.conditions = list(_conditions(problem))
        self.cases: dict[tuple[Any, ...], bool | None] = {}
        self.failing: list[Values] = []
        self.passing: list[Values] = []
        self._held: list[Bools] = []
        self._failed: list[bool] = []

    def ask(self, values: Values, fails: Asked) -> bool | None:
        key = tuple(values.values())
        if key not in self.cases:
            self.cases[key] = None
            try:
                self.problem.shapes(values)
            except Error:
                return None
            failed = fails(values)
            if failed is not None:
                self.add(values, failed)
        return self.cases[key]

    def add(self, values: Values, failed: bool) -> None:
        self.cases[tuple(values.values())] = failed
        (self.failing if failed else self.passing).append(dict(values))
        self._held.append(self.held(values, self.problem.shapes(values)["output"]))
        self._failed.append(failed)

    def held(self, values: Values, output: Sequence[int]) -> Bools:
        features = _features(values, output)
        return np.array([condition.holds(features) for condition in self.conditions])

    @property
    def failed(self) -> Bools:
        return np.array(self._failed)

    @property
    def table(self) -> Bools:
        """(cases, conditions)"""
        return np.stack(self._held)

    def needed(self) -> list[int]:
        """Conditions that hold in every failing case and not in every passing one."""
        table, failed = self.table, self.failed
        every = table[failed].all(0) & ~table[~failed].all(0) if (~failed).any() else np.zeros(table.shape[1], bool)
        return list(map(int, np.flatnonzero(every)))

    def rules(self) -> list[tuple[int, ...]]:
        """Conditions, or else pairs of them, that hold in the failing cases and in no other."""
        table, failed = self.table, self.failed
        needed = self.needed()
        single: list[tuple[int, ...]] = [(one,) for one in needed if (table[:, one] == failed).all()]
        if single:
            return single
        return [
            (one, other)
            for at, one in enumerate(needed)
            for other in needed[at + 1 :]
            if ((table[:, one] & table[:, other]) == failed).all()
        ]


class _Pool:
    """Cases that could be asked about, drawn near those that were; each with the conditions that hold in it."""

    def __init__(self, seen: _Seen, smallest: Values, rng: np.random.Generator) -> None:
        self.seen, self.smallest, self.rng = seen, smallest, rng
        self.cases: list[tuple[Values, Bools]] = []
        self._draw(CHOICE)

    def _draw(self, count: int, names: Sequence[str] = (), far: bool = False) -> None:
        for _ in range(count):
            found = draw_small(self.seen.problem, None if far else self._known(), names, self.rng)
            if found is not None and tuple(found[0].values()) not in self.seen.cases:
                self.cases.append((found[0], self.seen.held(*found)))

    def _known(self) -> Values:
        seen, turn = self.seen, self.rng.random()
        if turn < 0.4:
            return self.smallest
        some = seen.failing if turn < 0.7 or not seen.passing else seen.passing
        return some[int(self.rng.integers(len(some)))]

    def take(self, survived: list[int]) -> tuple[Values | None, bool | None]:
        """The case to ask about, and what the rules say of it if they agree. Without a rule, one that would refute the
        conditions that seem to be needed."""
        rules = self.seen.rules()
        self._draw(FRESH, self._names(rules) if len(rules) > 1 else ())
        self._draw(FRESH, far=True)
        self._draw(1, [list(self.smallest)[sum(survived) % len(self.smallest)]])
        if not self.cases:
            return None, None
        share = self._said(rules or [tuple(_best_needed(self.seen))]).mean(1)
        told = None
        newest = range(len(share) - 1, -1, -1)
        if not rules:
            at = min(newest, key=lambda number: float(share[number]))
        elif (np.minimum(share, 1 - share) > 0).any():
            at = int(np.abs(share - 0.5).argmin())
        else:
            wanted = survived[1] < survived[0]  # the side that fewer cases have tried
            at = next((number for number in newest if bool(share[number]) == wanted), len(share) - 1)
            told = bool(share[at])
        return self.cases.pop(at)[0], told

    def distinct(self) -> list[tuple[int, ...]]:
        """The rules that hold, without those that say the same as an earlier one of every case that was drawn."""
        rules = self.seen.rules()
        if len(rules) < 2:
            return rules
        self._draw(MANY, self._names(rules))
        first = np.unique(self._said(rules), axis=1, return_index=True)[1]
        return [rules[number] for number in sorted(map(int, first))]

    def _names(self, rules: list[tuple[int, ...]]) -> list[str]:
        """The parameters that some of these rules are about."""
        found = {name for rule in rules[:CHOICE] for one in rule for name in self.seen.conditions[one].names}
        return [name for name in self.smallest if name in found]

    def _said(self, rules: list[tuple[int, ...]]) -> Bools:
        """(cases, rules)"""
        held = np.stack([held for _, held in self.cases])
        return np.stack([held[:, list(rule)].all(1) for rule in rules], axis=1)


def _pattern(seen: _Seen, rules: list[tuple[int, ...]], settled: bool, smallest: Values) -> Pattern:
    failed = seen.failed
    total, bad = len(failed), int(failed.sum())
    if bad == total:
        return Pattern(f"every one of {total} cases that were tried is wrong, the smallest among them", smallest)

    def text(rule: Sequence[int]) -> str:
        return " and ".join(seen.conditions[one].words for one in rule)

    if len(rules) == 1:
        words = f"wrong where {text(rules[0])}, and only there: all of {total} cases agree"
        if not settled:
            words = f"perhaps where {text(rules[0])}: {total} cases agree, too few to be sure"
        return Pattern(words, smallest, tuple(seen.conditions[one] for one in rules[0]), exact=settled)
    if rules:
        more = f", or {len(rules) - NAMED} other rules" if len(rules) > NAMED else ""
        told = ", or where ".join(map(text, rules[:NAMED]))
        return Pattern(f"perhaps where {told}{more}: no case of {total} told these apart", smallest)
    chosen = _best_needed(seen)
    if not chosen:
        return Pattern(f"no rule found: {bad} of {total} cases are wrong", smallest)
    inside = int(seen.table[:, chosen].all(1).sum())
    words = f"seen only where {text(chosen)}, though not always there: {bad} of {inside} such cases are wrong"
    words += f", none of {total - inside} others"
    return Pattern(words, smallest, tuple(seen.conditions[one] for one in chosen))


def _best_needed(seen: _Seen) -> list[int]:
    """Few needed conditions that together hold in as few passing cases as any; those that add little are left out."""
    table, failed = seen.table, seen.failed
    passing = table[~failed]
    chosen: list[int] = []
    left = np.ones(len(passing), bool)
    needed = seen.needed()
    while needed and len(chosen) < 2 and left.any():
        best = min(needed, key=lambda one: int((left & passing[:, one]).sum()))
        if int((left & ~passing[:, best]).sum()) < max(4, len(passing) // 4):
            break
        chosen.append(best)
        left &= passing[:, best]
    return chosen


# --- conditions -------------------------------------------------------------------------------------------------------


_SIGNS = {">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne}


def _compared(one: str, sign: str, other: str | float) -> Condition:
    """A size or scalar beside another, or beside a number."""
    holds = _SIGNS[sign]
    if isinstance(other, str):
        return Condition(f"{one} {sign} {other}", (one, other), lambda values: holds(values[one], values[other]))
    return Condition(f"{one} {sign} {other:g}", _of(one), lambda values: holds(values[one], other))


def _some(stem: str, least: int) -> Condition:
    three = tuple(f"{stem}_{axis}" for axis in "dhw")
    return Condition(f"some {stem} > {least}", three, lambda values: any(values[name] > least for name in three))


def _multiple(name: str, block: int, so: bool) -> Condition:
    words = f"{name} is {'a' if so else 'no'} multiple of {block}"
    return Condition(words, _of(name), lambda values: (values[name] % block == 0) == so)


def _conditions(problem: Problem) -> Iterator[Condition]:
    """What may matter about a case; of rules that say the same the earlier one is named."""
    names = set(problem.sample)
    triples = [(s, 1 if s in ("stride", "kernel", "dilation") else 0) for s in _STEMS if f"{s}_d" in names]
    for name in ("batch_size", "groups", "pool_kernel"):
        if name in names:
            yield _compared(name, ">", 1)
    for stem, plain in triples:
        for axis in "dhw":
            yield _compared(f"{stem}_{axis}", ">", plain)
        yield _some(stem, plain)
    for stem, _ in triples:
        for one, other in ("hw", "dw", "dh"):
            yield _compared(f"{stem}_{one}", "!=", f"{stem}_{other}")
            yield _compared(f"{stem}_{one}", "==", f"{stem}_{other}")
    for axis in "dhw":
        yield _compared(f"kernel_{axis}", "<", f"stride_{axis}")
        yield _compared(f"stride_{axis}", "<", f"kernel_{axis}")
    for one, other in (("height", "width"), ("depth", "width"), ("depth", "height"), ("in_channels", "out_channels")):
        yield _compared(one, "!=", other)
    sizes = ("in_channels", "out_channels", "depth", "height", "width", "out_depth", "out_height", "out_width")
    for name in sizes:
        for block in (2, 4, 8, 16):
            yield _multiple(name, block, False)
            yield _multiple(name, block, True)
        for least in (*range(1, 13), 15, 16, 31, 32):
            yield _compared(name, ">", least)
            yield _compared(name, "<", least + 1)
    for stem, plain in triples:
        for axis in "dhw":
            for least in range(plain + 1, 4):
                yield _compared(f"{stem}_{axis}", ">", least)
            yield _compared(f"{stem}_{axis}", "<", plain + 1)
    for name in ("sum_weight", "scaling_factor", "clamp_min", "clamp_max"):
        if name in names:
            yield _compared(name, ">", 0)
            yield _compared(name, "<", 0)
            yield _compared(name, "!=", 1)


def _of(name: str) -> tuple[str, ...]:
    """The parameter by which a size, perhaps one of the output, is changed."""
    return (name.removeprefix("out_") if name in ("out_depth", "out_height", "out_width") else name,)


_STEMS = ("dilation", "output_padding", "padding", "stride", "kernel")
