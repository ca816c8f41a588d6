"""exp and log of float64 by additions, multiplications and divisions alone: the same bits wherever they are computed.

NumPy's own depend on its release and on the processor, the C library's on its release. `export/c/elementary.c` has the
same sums in the same order, for libraries.
"""

from __future__ import annotations

from math import factorial

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LN2, LN2_REST = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # their sum is log(2)
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
FAR = 800.0  # beyond, exp is 0 or infinity
EXP = [1.0 / factorial(n) for n in range(13, -1, -1)]  # of the powers of r, |r| <= log(2) / 2; the last first
LOG = [1.0 / n for n in range(23, 0, -2)]  # of s^n, |s| <= 0.172


def exp(x: Array) -> Array:
    """2^k * exp(r), x = k * log(2) + r."""
    x = np.minimum(np.maximum(x, -FAR), FAR)
    k = np.rint(x * LOG2_E)
    r = (x - k * LN2) - k * LN2_REST
    found: Array = np.ldexp(_series(EXP, r), np.nan_to_num(k).astype(np.int32))
    return found


def log(x: Array) -> Array:
    """log(m) + k * log(2), x = m * 2^k; log(m) = 2 * artanh(s), s = (m - 1) / (m + 1)."""
    m, k = np.frexp(x)
    small = m < 0.70710678118654752440
    m, k = np.where(small, 2.0 * m, m), (k - small).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    found = k * LN2 + (2.0 * s * _series(LOG, s * s) + k * LN2_REST)
    return np.where((x > 0.0) & (x < np.inf), found, np.where(x == 0.0, -np.inf, np.where(x > 0.0, x, np.nan)))


def _series(factors: list[float], x: Array) -> Array:
    total = np.full_like(x, factors[0])
    for factor in factors[1:]:
        total = total * x + factor
    return total
