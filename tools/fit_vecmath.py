"""Regenerate the polynomial coefficients of vecmath.py; every coefficient there is printed by this script.

float32 sets: discrete minimax fit (Lawson's re-weighted least squares) in which the coefficients are rounded to float32
one after the other, lowest power first, each time refitting the rest, so that rounding costs almost no accuracy.
float64 sets: near-minimax Chebyshev interpolation in 50-digit arithmetic, then one rounding; their degree has slack.
All sets are listed lowest power first.  Run: python tools/fit_vecmath.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath as mp
import numpy as np

mp.mp.dps = 50
GRID_POINTS = 800
LAWSON_STEPS = 60
HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.002")  # margin: the reduced argument may leave the nominal range by a rounding

Function = Callable[[mp.mpf], mp.mpf]


def lawson(basis: np.ndarray, target: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Coefficients which (nearly) minimise max |weight * (basis @ c - target)|, and that maximum."""
    emphasis = np.full(len(target), 1 / len(target))
    best_error, best = np.inf, np.zeros(basis.shape[1])
    for _ in range(LAWSON_STEPS):
        scale = np.sqrt(emphasis) * weight
        coefficients = np.linalg.lstsq(basis * scale[:, None], target * scale, rcond=None)[0]
        error = np.abs((basis @ coefficients - target) * weight)
        if error.max() < best_error:
            best_error, best = error.max(), coefficients
        emphasis = emphasis * error + 1e-30
        emphasis /= emphasis.sum()
    return best, best_error


def fit_float32(
    f: Function, weight: Function, low, high, degree: int, fixed: Sequence[float] = (), zero: float | None = None
):
    """Polynomial in x on [low, high] whose first coefficients may be given; error = max |weight * (p - f)|.

    With `zero` > high the polynomial is also made to have fallen just below zero there.
    """
    angles = np.pi * (np.arange(GRID_POINTS) + 0.5) / GRID_POINTS
    x = float(low + high) / 2 - float(high - low) / 2 * np.cos(angles)
    target = np.array([float(f(mp.mpf(v))) for v in x])
    weights = np.array([float(weight(mp.mpf(v))) for v in x])
    if zero is not None:
        x, target, weights = np.append(x, zero), np.append(target, -2e-3), np.append(weights, 1e-4)
    reach = np.abs(x).max()
    basis = (x[:, None] / reach) ** np.arange(degree + 1)  # columns of comparable size: better conditioned
    rounded = [float(np.float32(c)) for c in fixed]
    while len(rounded) <= degree:
        done = len(rounded)
        known = basis[:, :done] @ np.array([c * reach**k for k, c in enumerate(rounded)]) if done else 0.0
        rest, _ = lawson(basis[:, done:], target - known, weights)
        rounded.append(float(np.float32(rest[0] / reach**done)))
    value = sum(c * x**k for k, c in enumerate(rounded))
    if zero is not None and value[-1] >= 0:
        raise ArithmeticError("the polynomial does not reach zero")
    return [np.float32(c) for c in rounded], np.abs(weights * (value - target)).max()


def fit_float64(f: Function, low, high, degree: int):
    """Chebyshev interpolant of f; the error is absolute."""
    coefficients, error = mp.chebyfit(f, [low, high], degree + 1, error=True)
    return [np.float64(float(c)) for c in reversed(coefficients)], float(error)


def show(name: str, fitted) -> None:
    coefficients, error = fitted
    print(f"# fit error {error:.1e}")
    print(f"{name} = (")
    for start in range(0, len(coefficients), 4):
        print("    " + " ".join(f"{c!s}," for c in coefficients[start : start + 4]))
    print(")")


def exp_rest(r):
    """(e^r - 1 - r) / r^2."""
    return sum(r**k / mp.factorial(k + 2) for k in range(40))


def atanh_rest(y):
    """(2 atanh(s) - 2 s) / s^3 with s^2 = y."""
    return 2 * sum(y**k / (2 * k + 3) for k in range(60))


def erf_ratio(y):
    """erf(x) / x with x^2 = y."""
    return mp.erf(mp.sqrt(y)) / mp.sqrt(y) if y > mp.mpf("1e-24") else 2 / mp.sqrt(mp.pi)


def normal_tail(a):
    """Phi(-a), the upper tail of the normal distribution."""
    return mp.erfc(a / mp.sqrt(2)) / 2


def tanh_gelu_tail(a):
    """What replaces Phi(-a) in the tanh form of GELU: sigmoid(-2 sqrt(2/pi) (a + 0.044715 a^3))."""
    return 1 / (1 + mp.exp(2 * mp.sqrt(2 / mp.pi) * (a + mp.mpf("0.044715") * a**3)))


TAIL_POLE = 4


def scaled_tail(t):
    """(a + 4) e^(a^2/2) Phi(-a) with t = 1 - 8 / (a + 4), smooth over the whole half line a >= 0."""
    a = 2 * TAIL_POLE / (1 - t) - TAIL_POLE
    return (a + TAIL_POLE) * mp.exp(a * a / 2) * normal_tail(a)


def log2_slope(tail: Function) -> Function:
    """log2(tail(a) / tail(0)) / a."""
    return lambda a: mp.log(tail(a) / tail(mp.mpf(0)), 2) / a


def relative_per_bit(tail: Function) -> Function:
    """Weight: relative error of the tail, allowed to grow with its exponent as rounding makes it grow anyway."""
    return lambda a: a * mp.log(2) / (1 - mp.log(tail(a), 2))


def tail_root(tail: Function) -> Function:
    """(2 tail)^(1/4): 1 at a = 0."""
    return lambda a: (2 * tail(a)) ** 0.25


def relative_above(tail: Function, floor: float) -> Function:
    """Weight for tail_root: relative error of its fourth power where that is above the floor, absolute below."""
    return lambda a: 4 * (2 * tail(a)) ** 0.75 / max(2 * tail(a), floor)


def main() -> None:
    exp_coefficients, exp_error = fit_float32(mp.exp, lambda r: mp.exp(-r), -HALF_LN2, HALF_LN2, 6, [1, 1])
    show("_EXP_F32", (exp_coefficients[2:], exp_error))
    show("_EXP2_F32", fit_float32(lambda r: mp.mpf(2) ** r, lambda r: mp.mpf(2) ** -r, -0.5, 0.5, 6, [1]))
    show("_ATANH_F32", fit_float32(atanh_rest, lambda y: y, 0, mp.mpf(1) / 9, 4))
    show("_ERF_F32", fit_float32(lambda y: erf_ratio(y) - 1, lambda y: 1 / erf_ratio(y), 0, 1, 6))
    show("_ERFC_SLOPE_F32", fit_float32(log2_slope(mp.erfc), lambda a: a * mp.erfc(a), 1, 4, 6))
    show("_PHI_SLOPE_F32", fit_float32(log2_slope(normal_tail), relative_per_bit(normal_tail), 0, 6, 9))
    show("_PHI_ROOT_F32", fit_float32(tail_root(normal_tail), relative_above(normal_tail, 1e-3), 0, 5, 11, [1], 7.0))
    show(
        "_TANH_PHI_ROOT_F32",
        fit_float32(tail_root(tanh_gelu_tail), relative_above(tanh_gelu_tail, 0.02), 0, 4.5, 12, [1], 6.5),
    )
    show("_EXP_F64", fit_float64(exp_rest, -HALF_LN2, HALF_LN2, 10))
    show("_ATANH_F64", fit_float64(atanh_rest, 0, mp.mpf(1) / 9, 10))
    show("_ERF_F64", fit_float64(lambda y: erf_ratio(y) - 1, 0, 1, 12))
    show("_TAIL_F64", fit_float64(scaled_tail, -1, 1 - mp.mpf(2 * TAIL_POLE) / (39 + TAIL_POLE), 22))


if __name__ == "__main__":
    main()
