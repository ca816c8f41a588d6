"""The suites are sound: unique names, shapes that fit, the cases others refer to; and cases survive JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.bench_rows import small_case

from convt3d.bench.cases import Case, read_case
from convt3d.bench.suites import SUITES, choose_cases, read_suite
from convt3d.cpu.plan.cores import available_cores
from convt3d.errors import ArgumentError
from convt3d.spec.dtypes import DTYPES
from convt3d.spec.problems import PROBLEMS

CASES = [case for suite in SUITES for case in read_suite(suite)]
F32 = DTYPES["float32"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.suite}: {case.name}")
def test_every_case_fits(case: Case) -> None:
    """Its shapes can be planned, it survives JSON, and a tiny one of the same kind exists."""
    assert case.plan.trace.output[0] == case.x[0]
    assert read_case(json.loads(json.dumps(case.document()))) == case
    tiny = case.tiny()
    assert tiny.x[1] == case.x[1]
    assert np.prod(tiny.x) <= np.prod(case.x)
    assert tiny.plan.trace.output[0] == 1


def test_names_are_unique_and_some_cases_are_quick() -> None:
    names = [(case.suite, case.name) for case in CASES]
    assert len(names) == len(set(names))
    assert {case.suite for case in CASES if case.quick} == {"seeds", "models", "conv3d", "small", "half", "training"}


def test_the_operators_are_there_in_full_and_at_an_eighth() -> None:
    seeds = read_suite("seeds")
    full = {(case.x, case.w): case for case in seeds}
    for problem in PROBLEMS.values():
        shapes = problem.shapes(problem.benchmark)
        batch, *rest = shapes["input"]
        case = full[shapes["input"], shapes["kernel"]]
        assert case.pipeline == problem.pipeline(problem.benchmark)
        assert ((batch // 8, *rest), case.w) in full


def test_curves_have_points_and_threads_fit_the_machine() -> None:
    scaling = read_suite("scaling")
    for series in ("volume", "channels", "batch"):
        assert len([case for case in scaling if case.series == series]) >= 5
    threads = [case.threads for case in scaling if case.series == "threads"]
    assert threads == sorted(threads)
    assert max(threads) <= available_cores()
    assert all(case.threads == available_cores() for case in scaling if case.series == "volume")


def test_16_bit_cases_have_a_float32_one_beside_them() -> None:
    """Whatever type is asked for."""
    half = read_suite("half", DTYPES["float64"])
    assert {case.dtype.name for case in half} == {"float32", "bfloat16", "float16"}
    layers = {case.dtype.name: set[object]() for case in half}
    for case in half:
        layers[case.dtype.name].add((case.pipeline, case.x, case.w))
    assert layers["float32"] == layers["bfloat16"]


def test_choosing() -> None:
    chosen = choose_cases(["models"], DTYPES["float64"], 1, ["SAM-Med3D", "320->320"], quick=False)
    assert {case.model for case in chosen} == {"SAM-Med3D", "nnU-Net"}
    assert {(case.threads, case.dtype.name) for case in chosen} == {(1, "float64")}
    assert all(case.quick for case in choose_cases([], F32, None, [], quick=True))
    with pytest.raises(ArgumentError, match="choose no case"):
        choose_cases([], F32, None, ["no such layer"], quick=False)
    with pytest.raises(ArgumentError, match="must be one of seeds"):
        choose_cases(["nonsense"], F32, None, [], quick=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_do_not_saturate(dtype: str) -> None:
    """The convolution's result has the spread of a standard normal, whatever the sizes; the same arrays every time."""
    case = small_case(
        pipeline="ConvTranspose3d(stride=2, padding=1, output_padding=1)",
        x=(2, 32, 5, 6, 7),
        w=(32, 8, 3, 3, 3),
        dtype=DTYPES[dtype],
    )
    arrays = case.draw()
    assert arrays.x.dtype == case.dtype.storage
    np.testing.assert_array_equal(arrays.x, case.draw().x)
    from convt3d.spec.reference import evaluate

    wide = [case.dtype.widen(array) for array in (arrays.x, *arrays.operands)]
    assert 0.5 < evaluate(case.pipeline, wide[0], wide[1:]).std() < 2.0
    pooled = replace(
        case,
        pipeline=small_case(pipeline="AvgPool3d(2) -> ConvTranspose3d(stride=2, padding=1, output_padding=1)").pipeline,
    )
    wide = [case.dtype.widen(array) for array in (pooled.draw().x, *pooled.draw().operands)]
    assert 0.5 < evaluate(pooled.pipeline, wide[0], wide[1:]).std() < 2.0
