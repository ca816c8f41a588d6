"""The cases are strong: they differ in what they try, and none is passed by an answer without work."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from convt3d.errors import ArgumentError
from convt3d.judge.cases import Suite, build_suite, draw, known_cases, make_trial, weakness
from convt3d.judge.tolerance import Expectation
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problem_file import Case
from convt3d.spec.problems import PROBLEMS

CONV = "conv-transpose-3d-asym-input-sq-kernel"
SOFTMAX = "conv-transpose3d-avgpool-clamp-softmax-multiply"
NORM = "conv-transpose3d-layernorm-gelu-scaling"
F32 = DTYPES["float32"]
slugs = pytest.mark.parametrize("slug", PROBLEMS)


@cache
def suite_of(slug: str) -> Suite:
    return build_suite(PROBLEMS[slug], F32, np.random.default_rng(0))


@slugs
def test_a_suite_tries_what_kernels_forget(slug: str) -> None:
    suite = suite_of(slug)
    every = [trial.values for trial in suite.trials]
    assert any(len({v["stride_d"], v["stride_h"], v["stride_w"]}) > 1 for v in every)
    assert any(v["kernel_d"] < v["stride_d"] or v["kernel_w"] < v["stride_w"] for v in every)
    assert any(1 in (v["depth"], v["height"], v["width"]) for v in every)
    assert any(v["out_channels"] % 2 and v["in_channels"] % 2 for v in every)
    if "groups" in every[0]:
        assert any(v["groups"] > 1 for v in every)
        assert any(v["dilation_d"] > 1 for v in every)
    first, second, third = suite.trials[:3]
    assert first.values == second.values == third.values
    assert not np.array_equal(first.arrays["input"], second.arrays["input"])
    assert all((trial.arrays["input"] < 0).any() for trial in suite.trials if trial.arrays["input"].size > 16)


@slugs
def test_no_trial_is_passed_without_work(slug: str) -> None:
    suite = build_suite(PROBLEMS[slug], F32, np.random.default_rng(3))
    for trial in suite.trials:
        exact = trial.expected.values
        with np.errstate(invalid="ignore"):
            constants = [0.0, exact.mean(), exact.min(), exact.max()]
        assert not any(trial.expected.accepts(np.full_like(exact, constant)) for constant in constants)


@pytest.mark.parametrize(
    ("slug", "name", "answer"),
    [
        (SOFTMAX, "equal-bounds", "a constant for each channel"),
        (NORM, "one-channel", "zeros"),
        (NORM, "scaling-zero", "zeros"),
        (NORM, "scaling-nan", "a constant"),
    ],
)
def test_weak_cases_are_left_out(slug: str, name: str, answer: str) -> None:
    assert suite_of(slug).left_out[name] == f"{answer} would pass"


def test_the_bias_alone_is_no_answer() -> None:
    """Input so small that only the bias is left."""
    problem = PROBLEMS["conv-transpose3d-max-max-sum"]
    case = Case("tiny", "", {**problem.sample, "batch_size": 2})
    trial = make_trial(problem, case, F32, np.random.default_rng(0))
    assert weakness(trial) is None
    from convt3d.judge.cases import trial_of

    arrays = {**trial.arrays, "input": trial.arrays["input"] * np.float32(1e-30)}
    assert weakness(trial_of(problem, case, F32, arrays, np.random.default_rng(0))) is not None


@slugs
def test_drawn_cases_differ_with_the_seed_and_repeat_with_it(slug: str) -> None:
    def drawn(seed: int) -> list[dict]:
        cases = known_cases(PROBLEMS[slug], np.random.default_rng(seed))
        return [dict(case.values) for name, case in cases.items() if name.startswith("drawn")]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@slugs
def test_draws_are_legal_and_have_unequal_strides(slug: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        values = draw(PROBLEMS[slug], rng)
        assert PROBLEMS[slug].shapes(values)["output"]
        assert len({values[f"stride_{axis}"] for axis in "dhw"}) > 1


def test_an_unknown_case_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"--case = 'nothing': names no case of the problem\. Use one of sample, "):
        build_suite(PROBLEMS[CONV], F32, np.random.default_rng(0), ["nothing"])


# --- tolerance --------------------------------------------------------------------------------------------------------


def expectation_of(slug: str, dtype: str, name: str = "unequal-everything") -> tuple[Expectation, object]:
    problem = PROBLEMS[slug]
    case = next(case for case in problem.cases if case.name == name)
    trial = make_trial(problem, case, DTYPES[dtype], np.random.default_rng(0))
    return trial.expected, trial


@slugs
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounded_meaning_is_accepted(slug: str, dtype: str) -> None:
    expected, _ = expectation_of(slug, dtype)
    kind = DTYPES[dtype]
    assert expected.accepts(kind.widen(kind.narrow(expected.values)))


@slugs
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_voxel_is_not(slug: str, dtype: str) -> None:
    expected, _ = expectation_of(slug, dtype)
    for wrong in (np.nan, np.inf, 0.0):
        values = expected.values.copy()
        values.flat[np.abs(values).argmax()] = wrong
        assert not expected.accepts(values)


@slugs
def test_the_tolerance_is_a_small_share_of_the_output(slug: str) -> None:
    """In float32: far less than the 2^-9 of bfloat16."""
    expected, _ = expectation_of(slug, "float32")
    assert np.median(expected.tolerance) < 2e-4 * np.abs(expected.values).max()


def test_a_stored_infinity_is_asked_for() -> None:
    """float16 cannot hold 1e6: infinity is the right answer, and 65504 is not."""
    kind = DTYPES["float16"]
    expected = Expectation(np.array([1e6, 1.0]), np.array([1.0, 1e-3]), kind)
    assert expected.accepts(np.array([np.inf, 1.0]))
    assert not expected.accepts(np.array([65504.0, 1.0]))
    assert not expected.accepts(np.array([-np.inf, 1.0]))
