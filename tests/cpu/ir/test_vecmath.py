"""Errors of every vector function against a more precise reference, over all exponents and special values.

The bounds are what was measured, rounded up: a change of a polynomial that loses accuracy shows here first.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from helpers.jit import Compiled, apply, map_over_array
from llvmlite import ir as llvm_ir

from convt3d.cpu.ir import vecmath
from convt3d.cpu.ir.values import F32, F64

mp = pytest.importorskip("mpmath")  # comes with torch

WIDTHS = (1, 4, 16)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-45,
    1.17549435e-38,
    3.4028235e38,
    -3.4028235e38,
]


def _gelu(x):
    return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))


def _gelu_tanh(x):
    u = math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)
    return x * torch.sigmoid(u)


def _softplus(x, beta=1.0):
    return torch.where(x * beta > 20, x, torch.log1p(torch.exp(x * beta)) / beta)


REFERENCE = {  # in float64
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "erf": torch.special.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "rsqrt": torch.rsqrt,
    "gelu": _gelu,
    "gelu_relative": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * torch.sigmoid(x),
    "softplus": _softplus,
    "mish": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    "hardswish": lambda x: x * torch.clamp(x + 3, 0, 6) / 6,
}

# float32: [(from x, below x, ulp or None, absolute or None)]: the error must be within the sum of both allowances.
EVERYWHERE = (-math.inf, math.inf)
FLOAT32_BOUND = {
    "exp": [(*EVERYWHERE, 1.1, 0)],
    "log": [(*EVERYWHERE, 2, 0)],
    "log1p": [(*EVERYWHERE, 2.5, 0)],
    "erf": [(*EVERYWHERE, 1, 0)],
    "tanh": [(*EVERYWHERE, 3, 0)],
    "sigmoid": [(*EVERYWHERE, 2.5, 0)],
    "rsqrt": [(*EVERYWHERE, 1.5, 0)],
    "softplus": [(*EVERYWHERE, 3, 0)],
    "hardswish": [(*EVERYWHERE, 2.5, 0)],
    # A subnormal factor has few bits: below x = -87 the error is absolute.
    "silu": [(*EVERYWHERE, 3.5, 2.0**-142)],
    "mish": [(*EVERYWHERE, 4.5, 2.0**-142)],
    "gelu": [(-1, math.inf, 5, 0), (-3, -1, 20, 0), (-math.inf, -3, 0, 1e-8)],
    "gelu_relative": [(-1, math.inf, 3.5, 0), (-6, -1, 50, 0), (-math.inf, -6, 0, 1e-11)],
    "gelu_tanh": [(-1, math.inf, 5, 0), (-3, -1, 50, 0), (-math.inf, -3, 0, 3e-8)],
}
FLOAT64_BOUND = {
    "exp": 1,
    "log": 2,
    "log1p": 3,
    "erf": 1.5,
    "tanh": 3,
    "sigmoid": 3,
    "rsqrt": 1.5,
    "gelu": 6,
    "gelu_tanh": 1500,  # exp magnifies the rounding of its argument, up to 700
    "silu": 3.5,
    "softplus": 3,
    "mish": 4.5,
    "hardswish": 3,
}


@functools.cache
def compiled(element: llvm_ir.Type, width: int) -> Compiled:
    module = llvm_ir.Module()
    for name in REFERENCE:
        map_over_array(module, name, element, width, getattr(vecmath, name))
    map_over_array(module, "softplus3", element, width, lambda b, x: vecmath.softplus(b, x, beta=3.0, threshold=9.0))
    return Compiled(module)


@functools.cache
def float32_samples() -> np.ndarray:
    """Every 997th bit pattern, the special values and a dense sample where functions bend."""
    patterns = np.arange(0, 2**32, 997, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([patterns, np.array(SPECIAL, np.float32), np.linspace(-16, 16, 1_000_001, dtype=np.float32)])


@functools.cache
def float32_reference(name: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # some patterns are signalling NaNs
        wide = float32_samples().astype(np.float64)
    return REFERENCE[name](torch.from_numpy(wide)).numpy()


def error_and_ulp(got: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Absolute error and the size of one ulp of the exact result; NaN and infinity must agree."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        finite = np.isfinite(rounded)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        assert same[~finite].all()
        assert np.isfinite(got[finite]).all()
        ulp = np.spacing(np.abs(np.where(finite, rounded, 1))).astype(np.float64)
        return np.where(finite, np.abs(got.astype(exact.dtype) - exact), 0).astype(np.float64), ulp


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REFERENCE)
def test_float32(name, width):
    x = float32_samples()
    error, ulp = error_and_ulp(apply(compiled(F32, width), name, x), float32_reference(name))
    for low, high, ulps, absolute in FLOAT32_BOUND[name]:
        where = (x >= low) & (x < high)
        excess = np.maximum(error[where] - absolute, 0) / ulp[where]
        assert excess.max() <= ulps, x[where][excess.argmax()]


EXACT = {
    "exp": mp.exp,
    "log": mp.log,
    "log1p": mp.log1p,
    "erf": mp.erf,
    "tanh": mp.tanh,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x / (1 + mp.exp(-mp.sqrt(8 / mp.pi) * (x + mp.mpf("0.044715") * x**3))),
    "silu": lambda x: x / (1 + mp.exp(-x)),
    "softplus": lambda x: x if x > 20 else mp.log1p(mp.exp(x)),
    "mish": lambda x: x * mp.tanh(mp.log1p(mp.exp(x))),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
}


@functools.cache
def float64_samples(name: str) -> np.ndarray:
    random = np.random.default_rng(0)
    x = np.concatenate(
        [
            random.normal(size=700) * 4,
            random.uniform(-40, 40, 500),
            random.normal(size=200) * 1e-5,
            random.uniform(-750, 715, 300) if name in ("exp", "sigmoid") else [],
            [5e-324, 2.3e-308, 1e-310, 1e300],
        ]
    )
    return {"log": np.abs, "rsqrt": np.abs, "log1p": lambda v: np.where(v > -1, v, -v)}.get(name, lambda v: v)(x)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", EXACT)
def test_float64(name, width):
    x = float64_samples(name)
    got = apply(compiled(F64, width), name, x)
    error, ulp = float64_errors(name, tuple(got))
    assert (error / ulp).max() <= FLOAT64_BOUND[name]


@functools.cache
def float64_errors(name: str, got: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Absolute errors and ulps, cached because every width gives the same numbers."""
    error, ulp = [], []
    subnormal_allowance = 2.0**-1068 if name.startswith("gelu") else 0.0
    with mp.workdps(60):
        for x, y in zip(float64_samples(name), got, strict=True):
            exact = EXACT[name](mp.mpf(float(x))) if x < 1e200 else mp.mpf(float(y))
            if abs(exact) > 1e308:
                assert abs(y) == math.inf or abs(y) > 1e307
                exact = mp.mpf(0 if abs(y) == math.inf else float(y))
                y = 0.0 if abs(y) == math.inf else y
            error.append(float(max(abs(mp.mpf(float(y)) - exact) - subnormal_allowance, 0)))
            ulp.append(max(float(np.spacing(abs(float(exact)))), 5e-324))
    return np.array(error), np.array(ulp)


@pytest.mark.parametrize(
    "name", ["exp", "log", "log1p", "erf", "tanh", "sigmoid", "rsqrt", "gelu", "gelu_tanh", "softplus", "mish"]
)
def test_float64_special_values(name):
    x = np.array(SPECIAL, np.float64)
    error, ulp = error_and_ulp(apply(compiled(F64, 4), name, x), REFERENCE[name](torch.from_numpy(x)).numpy())
    assert (error / ulp).max() <= 4


@pytest.mark.parametrize("element", [F32, F64])
def test_softplus_with_beta_and_threshold(element):
    x = np.linspace(-20, 20, 10_001).astype(np.float32 if element == F32 else np.float64)
    expected = torch.nn.functional.softplus(torch.from_numpy(x.astype(np.float64)), beta=3.0, threshold=9.0).numpy()
    got = apply(compiled(element, 4), "softplus3", x)
    # exp magnifies the rounding of 3 x, which is up to 60: about 60 ulp.
    np.testing.assert_allclose(got, expected, rtol=100 * np.finfo(x.dtype).eps)


def test_widths_agree_bit_for_bit():
    x = float32_samples()[::101]
    for name in REFERENCE:
        results = [apply(compiled(F32, width), name, x).view(np.uint32) for width in WIDTHS]
        is_number = ~np.isnan(results[0].view(np.float32))
        for result in results[1:]:
            assert (result == results[0])[is_number].all(), name
