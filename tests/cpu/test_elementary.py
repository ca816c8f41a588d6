"""exp and log by additions and multiplications alone: close to the truth, and right at the ends."""

from __future__ import annotations

import numpy as np
import pytest

from convt3d.cpu.runtime.elementary import exp, log


def test_exp(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-700, 0, 5000), rng.uniform(-1, 1, 1000), [0.0, -0.0]])
    truth = np.exp(x.astype(np.longdouble))
    assert float(np.max(np.abs(exp(x) - truth) / truth)) < 2.0**-52


def test_log(rng: np.random.Generator) -> None:
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 5000)), 1 + rng.uniform(-0.3, 0.5, 1000), [1.0, 5e-324]])
    truth = np.log(x.astype(np.longdouble))
    assert float(np.max(np.abs(log(x) - truth) / np.maximum(np.abs(truth), 2.0**-60))) < 2.0**-50


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_ends() -> None:
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(exp(np.array([-inf, inf, nan, -800.0, 1e300])), [0.0, inf, nan, 0.0, inf])
    np.testing.assert_array_equal(log(np.array([0.0, inf, nan, -1.0])), [-inf, inf, nan, nan])
