"""A failing case is really made small: nothing in it can be made smaller by one, and the number of tries is bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from convt3d.errors import Error
from convt3d.judge import shrink as subject
from convt3d.judge.pattern import find_pattern
from convt3d.judge.shrink import shrink, size
from convt3d.spec.problems import PROBLEMS, Problem

CONV = PROBLEMS["conv-transpose-3d-asym-input-sq-kernel"]
MAXES = PROBLEMS["conv-transpose3d-max-max-sum"]
SOFTMAX = PROBLEMS["conv-transpose3d-avgpool-clamp-softmax-multiply"]
Values = Mapping[str, Any]
Bug = Callable[[Values], bool]


def case(problem: Problem, name: str = "unequal-everything") -> Values:
    return next(case.values for case in problem.cases if case.name == name)


def asked(problem: Problem, bug: Bug) -> tuple[Callable[[Values], bool | None], list[Values]]:
    """`bug` among legal cases, and all that it was asked about."""
    seen: list[Values] = []

    def fails(values: Values) -> bool | None:
        seen.append(dict(values))
        try:
            problem.shapes(values)
        except Error:
            return None
        return bool(bug(values))

    return fails, seen


BUGS: dict[str, tuple[Values, Problem, Bug, dict[str, Any]]] = {
    "a stride of another axis": (
        case(CONV),
        CONV,
        lambda v: v["stride_h"] != v["stride_w"],
        {"stride_h": 2, "stride_w": 1, "kernel_h": 1, "height": 1},
    ),
    "two things at once": (
        {**case(CONV, "prime-sizes"), "in_channels": 64, "kernel_w": 5},
        CONV,
        lambda v: v["kernel_w"] > 2 and v["in_channels"] > 9,
        {"kernel_w": 3, "in_channels": 10, "kernel_h": 1},
    ),
    "channels left over": (
        case(CONV, "prime-sizes"),
        CONV,
        lambda v: v["out_channels"] % 4 == 1 and v["out_channels"] > 4,
        {"out_channels": 5},
    ),
    "groups": (
        {**case(CONV, "two-groups"), "in_channels": 9, "out_channels": 12, "groups": 3},
        CONV,
        lambda v: v["groups"] > 1,
        {"groups": 2, "in_channels": 2, "out_channels": 2},
    ),
    # Windows of 2 and then of 3 need six voxels of the convolution along each axis.
    "behind pools": (
        case(MAXES),
        MAXES,
        lambda v: v["stride_h"] != v["stride_w"],
        {"depth": 6, "kernel_d": 1, "stride_d": 1},
    ),
    "scalars": (
        {**SOFTMAX.sample, "clamp_min": -0.5, "clamp_max": 0.5},
        SOFTMAX,
        lambda v: v["pool_kernel"] > 1,
        {"pool_kernel": 2, "clamp_min": -np.inf, "clamp_max": np.inf},
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_nothing_can_be_made_smaller_by_one(name: str) -> None:
    start, problem, bug, expected = BUGS[name]
    fails, seen = asked(problem, bug)
    assert fails(start)
    found = shrink(problem, start, fails)
    assert fails(found)
    assert len(seen) <= subject.MOST_TRIES + 2
    assert size(problem, found) < size(problem, start)
    for size_name, number in found.items():
        if isinstance(number, int) and number > 1 - size_name.endswith(("padding_d", "padding_h", "padding_w")):
            assert not fails({**found, size_name: number - 1}), size_name
    plain = {"batch_size": 1, "in_channels": 1, "out_channels": 1, "groups": 1}
    wanted = {**{key: value for key, value in plain.items() if key in found}, **expected}
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("tries", [0, 1, 7])
def test_tries_are_bounded(monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    monkeypatch.setattr(subject, "MOST_TRIES", tries)
    fails, seen = asked(CONV, lambda v: True)
    found = shrink(CONV, case(CONV), fails)
    assert len(seen) == tries
    assert (found == case(CONV)) == (tries == 0)


def test_without_time_the_case_stays_as_it_is() -> None:
    fails, seen = asked(CONV, lambda v: True)
    assert shrink(CONV, case(CONV), fails, hurry=lambda: True) == case(CONV)
    assert not seen


def test_the_smallest_of_all_that_failed_is_named() -> None:
    """Also where a case drawn later, to try the pattern, is smaller than the one that steps led to."""
    fails, seen = asked(CONV, lambda v: v["stride_h"] != v["stride_w"] and v["in_channels"] % 5 != 4)
    found = find_pattern(CONV, {**case(CONV), "in_channels": 15}, fails, np.random.default_rng(0))
    failed = [values for values in list(seen) if fails(values)]
    assert size(CONV, found.smallest) == min(size(CONV, values) for values in failed)
