"""The rule that is said about a kernel's failures: found among many, and true of cases it was not made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from convt3d.errors import Error
from convt3d.judge.cases import draw
from convt3d.judge.pattern import find_pattern
from convt3d.spec.problems import PROBLEMS

CONV = PROBLEMS["conv-transpose-3d-asym-input-sq-kernel"]
NORM = PROBLEMS["conv-transpose3d-sum-layernorm-avgpool-gelu"]
CASES = {case.name: case.values for case in CONV.cases}
Values = Mapping[str, Any]


def others(problem, start: Values, count: int = 60) -> list[tuple[Values, tuple[int, ...]]]:
    """Legal cases that have nothing to do with the search: drawn, and the failing one with one value changed."""
    rng, found = np.random.default_rng(99), []
    while len(found) < count:
        values = dict(draw(problem, rng)) if len(found) % 2 else dict(start)
        if len(found) % 2 == 0:
            name = list(values)[int(rng.integers(len(values)))]
            values[name] = type(values[name])(rng.integers(0, 8))
        try:
            found.append((values, problem.shapes(values)["output"]))
        except Error:
            continue
    return found


@pytest.mark.parametrize(
    ("start", "fails", "words"),
    [
        ("unequal-everything", lambda v: v["stride_h"] != v["stride_w"], "wrong where stride_h != stride_w, and only"),
        (
            "unequal-everything",
            lambda v: v["stride_h"] != v["stride_w"] and v["height"] > 1,
            "wrong where stride_h != stride_w and height > 1, and only there: all of ",
        ),
        (
            "prime-sizes",
            lambda v: v["out_channels"] % 4 and v["out_channels"] > 4,
            "out_channels is no multiple of 4 and",
        ),
        ("prime-sizes", lambda v: max(v[f"padding_{a}"] for a in "dhw") > 0, "wrong where some padding > 0, and only"),
        ("prime-sizes", lambda v: True, "every one of "),
        (
            "unequal-everything",
            lambda v: v["stride_h"] > 1 and v["kernel_d"] > 1 and v["in_channels"] > 2,
            "though not always there",
        ),
        ("unequal-everything", lambda v: (v["stride_h"] > 1) != (v["kernel_d"] > 3), ""),
        ("unequal-everything", lambda v: v["depth"] * v["height"] % 2 == 0, ""),
        ("unequal-everything", lambda v: v["kernel_w"] < v["stride_w"] or v["groups"] > 1, ""),
    ],
)
def test_what_is_said_is_true_of_other_cases(start: str, fails, words: str) -> None:
    found = find_pattern(CONV, CASES[start], lambda values: bool(fails(values)), np.random.default_rng(0))
    assert words in found.words
    assert fails(found.smallest)
    assert found.exact == ("and only there" in found.words)
    for values, output in others(CONV, CASES[start]) if found.exact else ():
        assert found.covers(values, output) == bool(fails(values)), (found.words, values)


def test_noise_gives_no_rule() -> None:
    """Failures that have nothing to do with sizes."""
    coin = np.random.default_rng(3)
    found = find_pattern(CONV, CASES["prime-sizes"], lambda values: bool(coin.random() < 0.5), np.random.default_rng(0))
    assert found.words.startswith("no rule found: ")


def test_a_rule_that_few_cases_have_tried_is_a_guess() -> None:
    """As when there is no time left."""
    asked = []

    def fails(values: Values) -> bool | None:
        asked.append(values)
        return values["stride_h"] != values["stride_w"] if len(asked) <= 30 else None

    found = find_pattern(CONV, CASES["unequal-everything"], fails, np.random.default_rng(0))
    assert found.words.startswith("perhaps where ")
    assert not found.exact


def test_scalars_are_parameters_too() -> None:
    start = {**NORM.sample, "sum_weight": -0.5}
    found = find_pattern(NORM, start, lambda values: values["sum_weight"] < 0, np.random.default_rng(0))
    assert "wrong where sum_weight < 0, and only there" in found.words


def test_cases_of_which_nothing_can_be_told_are_left_out() -> None:
    asked = []
    found = find_pattern(CONV, CASES["prime-sizes"], lambda values: asked.append(values), np.random.default_rng(0))
    assert asked
    assert found.smallest == CASES["prime-sizes"]
    assert found.words.startswith("every one of 1 case")
