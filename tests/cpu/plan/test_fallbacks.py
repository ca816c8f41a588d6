"""A plan holds what takes its place for unusual arrays: explain names it, and it is made when the first such array
comes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import convt3d as ct
from convt3d.cpu.plan.choice import Options
from convt3d.cpu.plan.explain import explain
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.plan.plan import Plan, _make_plan
from convt3d.cpu.runtime.execute import execute_plan
from convt3d.spec.dtypes import DTYPES

CONV = ct.ConvTranspose3d(stride=1, padding=1)
X, KERNEL = (2, 3, 6, 6, 6), (3, 4, 3, 3, 3)
HELD = {"as_asked", "directly", "masked", "one_sample"}


def fresh(pipeline: ct.Pipeline, algorithm: str) -> Plan:
    """Which nobody else has run yet."""
    shapes = pipeline.operand_shapes(X, KERNEL)
    make = _make_plan.__wrapped__
    return make(pipeline, X, shapes, DTYPES["float32"], Options(algorithm), True, machine())


def drawn(plan: Plan) -> list[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    shapes = [X, *(shape for shapes in plan.trace.operands for shape in shapes), plan.trace.output]
    return [rng.random(shape, np.float32) + np.float32(0.5) for shape in shapes]


CASES = {
    "usual arrays": ((CONV,), "winograd", None, 0.0, set(), "weights with NaN"),
    "huge weights": ((CONV,), "winograd", 1, 1e20, {"directly"}, "direct summation"),
    "a huge sample": ((CONV,), "winograd", 0, 1e20, {"one_sample"}, "alone, by direct summation"),
    "NaN in weights": ((CONV,), "direct", 1, np.nan, {"masked"}, "weights with NaN or infinity: direct summation of"),
    "a batch norm that is not finite": ((CONV, ct.BatchNorm()), "direct", 2, np.inf, {"as_asked"}, "as asked, without"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_explain_says_is_what_happens(case: str) -> None:
    stages, algorithm, which, value, held, words = CASES[case]
    plan = fresh(ct.Pipeline(*stages), algorithm)
    assert words in explain(plan)
    assert not HELD & set(vars(plan))  # nothing is planned that nobody needs
    x, *operands, out = drawn(plan)
    if which is not None:
        [x, *operands][which].reshape(-1)[0] = value
    execute_plan(plan, x, tuple(operands), out)
    assert HELD & set(vars(plan)) == held
