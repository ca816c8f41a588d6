"""Elementary functions and activations on vectors, as plain LLVM arithmetic: no libm, any width, any instruction set.

Every function takes a builder and a float32 or float64 value of any width, and gives the same bits at every width.
Infinities, NaN and subnormal numbers are handled.  The coefficients come from tools/fit_vecmath.py.  Largest errors, in
units of the last place over the whole range unless said otherwise (asserted by test_vecmath.py; fma needed):

              float32                                                                              float64
  exp         1.1                                                                                  1
  log, log1p  2, 2.5                                                                               2, 3
  erf         1                                                                                    1.5
  tanh        3                                                                                    3
  sigmoid     2.5                                                                                  3
  rsqrt       1.5                                                                                  1.5
  softplus    3 (beta = 1)                                                                         3
  silu, mish  3.5, 4.5 (plus 2^-142 where e^x is subnormal)                                        3.5, 4.5
  hardswish   2.5                                                                                  3
  gelu        5 for x >= -1, 20 for x >= -3, below that 1e-8 absolute; about 7e-8 at most for x < 0     6 + 2^-1068
  gelu_relative  3.5 for x >= -1, 50 for x >= -6 (6e-6 relative), below that 1e-11 absolute        as gelu
  gelu_tanh   5 for x >= -1, 50 for x >= -3, below that 3e-8 absolute                              1500 (2 |u|)

PyTorch's own float32 GELU errs by up to 1e-6 absolute there.  At minus infinity GELU is NaN, as in PyTorch.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from llvmlite import ir

from .values import F32, F64, I32, I64, Values, element_of

# Polynomials, lowest power first, as printed by tools/fit_vecmath.py.
_TAIL_POLE = 4.0  # of the variable 1 - 8 / (a + 4) in which _TAIL_F64 is a polynomial
# fit error 3.2e-09
_EXP_F32 = (
    0.49999994,
    0.16666521,
    0.04166829,
    0.008368704,
    0.0013818939,
)
# fit error 3.0e-09
_EXP2_F32 = (
    1.0,
    0.6931472,
    0.24022648,
    0.055503596,
    0.009618499,
    0.0013390969,
    0.00015329264,
)
# fit error 2.3e-10
_ATANH_F32 = (
    0.66666675,
    0.3999895,
    0.28615212,
    0.21443886,
    0.24245256,
)
# fit error 1.4e-09
_ERF_F32 = (
    0.12837917,
    -0.37612626,
    0.11283579,
    -0.026853347,
    0.005187162,
    -0.0007997853,
    7.806904e-05,
)
# fit error 5.3e-10
_ERFC_SLOPE_F32 = (
    -1.6283658,
    -0.9160513,
    -0.15371765,
    0.03466132,
    -0.005431187,
    0.0005082922,
    -2.0389372e-05,
)
# fit error 3.7e-08
_PHI_SLOPE_F32 = (
    -1.1511078,
    -0.45918587,
    -0.052553028,
    0.0071148667,
    -0.0001375987,
    -0.0002137267,
    5.7499874e-05,
    -7.753711e-06,
    5.6314167e-07,
    -1.745619e-08,
)
# fit error 6.0e-08
_PHI_ROOT_F32 = (
    1.0,
    -0.19947132,
    -0.059679575,
    0.005448344,
    0.004701186,
    -0.00027706174,
    -0.00019162154,
    -8.959708e-06,
    1.747123e-05,
    -3.4472018e-06,
    2.89102e-07,
    -9.373363e-09,
)
# fit error 8.6e-08
_TANH_PHI_ROOT_F32 = (
    1.0,
    -0.19947222,
    -0.05966339,
    0.005506506,
    0.0051490315,
    -0.0009835094,
    0.0005497611,
    -0.00059538643,
    0.00029136662,
    -7.699605e-05,
    1.1623133e-05,
    -9.475136e-07,
    3.2454356e-08,
)
# fit error 1.4e-18
_EXP_F64 = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326025,
    0.001388888888888367,
    0.00019841269875205077,
    2.4801587325822283e-05,
    2.75572549134867e-06,
    2.7557273295539724e-07,
    2.5105419192016337e-08,
    2.091483135138041e-09,
)
# fit error 2.4e-18
_ATANH_F64 = (
    0.6666666666666666,
    0.39999999999999525,
    0.285714285716001,
    0.2222222219823677,
    0.18181819897962714,
    0.1538454396486055,
    0.13335178631449257,
    0.11734279061303197,
    0.10845178394880015,
    0.07492143795550767,
    0.1563057780092285,
)
# fit error 1.3e-19
_ERF_F64 = (
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
)
# fit error 1.9e-17
_TAIL_F64 = (
    0.7552851304157515,
    -0.6078966419718917,
    0.38713740074221886,
    -0.18652185795969417,
    0.06039657489069947,
    -0.007540188965593059,
    -0.0034796923622425332,
    0.0016308184418903596,
    0.00013334425401904912,
    -0.0002310948183193762,
    -1.9078665316613576e-06,
    3.5144181157760973e-05,
    7.150055959216099e-07,
    -5.918892731763236e-06,
    -6.25132104047868e-07,
    1.0198048518135172e-06,
    2.6368248576407624e-07,
    -1.5426320536771075e-07,
    -7.63808205349045e-08,
    1.457859334703646e-08,
    1.392402399350171e-08,
    7.26954547902669e-11,
    -9.653425420228504e-10,
)


@dataclass(frozen=True)
class _Format:
    """What the algorithms need to know of a floating-point format."""

    float_type: ir.Type
    int_type: ir.Type
    fraction_bits: int
    bias: int
    smallest_normal: float
    ln2_high: float  # short enough that its product with any exponent is exact
    ln2_low: float
    exp_range: tuple[float, float]  # beyond it exp is 0 or infinite
    tanh_end: float  # beyond it tanh rounds to 1
    exp_rest: tuple[float, ...]  # (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2
    atanh_rest: tuple[float, ...]  # (2 atanh(s) - 2 s) / s^3 as polynomial in s^2, |s| <= 1/3
    erf_rest: tuple[float, ...]  # erf(x) / x - 1 as polynomial in x^2, |x| <= 1

    @property
    def rounder(self) -> float:
        """Adding it to |x| < 2^(fraction_bits - 2) leaves round(x) in the low bits of the sum."""
        return 1.5 * 2.0**self.fraction_bits

    def pattern(self, value: float) -> int:
        """The bits of a number of this format."""
        codes = ("<d", "<q") if self.float_type == F64 else ("<f", "<i")
        bits: int = struct.unpack(codes[1], struct.pack(codes[0], value))[0]
        return bits


_F32 = _Format(
    F32,
    I32,
    23,
    127,
    2.0**-126,
    0.693145751953125,
    1.428606765330187e-06,
    (-104.0, 89.0),
    10.0,
    _EXP_F32,
    _ATANH_F32,
    _ERF_F32,
)
_F64 = _Format(
    F64,
    I64,
    52,
    1023,
    2.0**-1022,
    0.6931471805592082,
    7.371002565167799e-13,
    (-746.0, 710.0),
    20.0,
    _EXP_F64,
    _ATANH_F64,
    _ERF_F64,
)


def _format(x: ir.Value) -> _Format:
    return {F32: _F32, F64: _F64}[element_of(x.type)]


# ---- exponential ---------------------------------------------------------------------------------------------------


def _split_by_ln2(b: Values, x: ir.Value, bias: int) -> tuple[ir.Value, ir.Value]:
    """x = n ln 2 + r with |r| <= ln(2) / 2: (integer whose low bits are n + bias, r)."""
    form = _format(x)
    shifted = b.fma(x, math.log2(math.e), form.rounder + bias)
    n = b.sub(shifted, form.rounder + bias)
    r = b.fma(n, -form.ln2_low, b.fma(n, -form.ln2_high, x))
    return b.bitcast(shifted, form.int_type), r


def _expm1_reduced(b: Values, r: ir.Value) -> ir.Value:
    """e^r - 1 for |r| <= ln(2) / 2."""
    return b.fma(b.mul(r, r), b.polynomial(r, _format(r).exp_rest), r)


def _power_of_two(b: Values, biased: ir.Value, form: _Format) -> ir.Value:
    """2^(n - bias) from an integer with n in its low bits, 0 < n < 2 bias + 1; n = 0 gives zero."""
    return b.bitcast(b.bits("shl", biased, form.fraction_bits), form.float_type)


def exp(b: Values, x: ir.Value) -> ir.Value:
    form = _format(x)
    low, high = form.exp_range
    pattern, r = _split_by_ln2(b, b.min(b.max(x, low), high), 0)
    n = b.sub(pattern, form.pattern(form.rounder))
    half = b.bits("ashr", n, 1)
    other_half = b.sub(n, half)
    # Two exact powers, so that only the last product can leave the normal range and is rounded once.
    scaled = b.mul(b.add(_expm1_reduced(b, r), 1.0), _power_of_two(b, b.add(half, form.bias), form))
    return b.mul(scaled, _power_of_two(b, b.add(other_half, form.bias), form))


def _exp_small(b: Values, x: ir.Value) -> ir.Value:
    """exp for x <= 40, cheaper: the power of two is first taken 2^lift too large, which keeps it normal."""
    form = _format(x)
    lift = form.bias // 2 + 1
    pattern, r = _split_by_ln2(b, b.max(x, form.exp_range[0]), form.bias + lift)
    lifted = b.mul(b.add(_expm1_reduced(b, r), 1.0), _power_of_two(b, pattern, form))
    return b.mul(lifted, 2.0**-lift)


def _exp_minus_square(b: Values, x: ir.Value, factor: float) -> ir.Value:
    """exp(-factor x^2) for float64 and a power of two as factor; x^2 enters unrounded."""
    form = _format(x)
    lift = form.bias // 2 + 1
    minus = b.mul(x, -factor)
    shifted = b.fma(b.mul(minus, x), math.log2(math.e), form.rounder + form.bias + lift)
    n = b.sub(shifted, form.rounder + form.bias + lift)
    r = b.fma(n, -form.ln2_low, b.fma(minus, x, b.mul(n, -form.ln2_high)))
    power = _power_of_two(b, b.bitcast(shifted, form.int_type), form)
    return b.mul(b.mul(b.add(_expm1_reduced(b, r), 1.0), power), 2.0**-lift)


def _exp2_of_product(b: Values, x: ir.Value, y: ir.Value, factor: float) -> ir.Value:
    """factor 2^(x y) for x y <= 0, float32 and a power of two as factor; x y enters unrounded; zero below 2^-126."""
    bias = _F32.bias + int(math.log2(factor))
    shifted = b.max(b.fma(x, y, _F32.rounder + bias), _F32.rounder)
    n = b.sub(shifted, _F32.rounder + bias)
    fraction = b.max(b.fma(x, y, b.neg(n)), -1.0)  # the bound matters only where the power of two is zero
    return b.mul(_power_of_two(b, b.bitcast(shifted, I32), _F32), b.polynomial(fraction, _EXP2_F32))


# ---- logarithm -----------------------------------------------------------------------------------------------------


def _log_ratio(b: Values, s: ir.Value) -> ir.Value:
    """log((1 + s) / (1 - s)) for |s| <= 1/3."""
    square = b.mul(s, s)
    return b.fma(b.mul(s, square), b.polynomial(square, _format(s).atanh_rest), b.add(s, s))


def log(b: Values, x: ir.Value) -> ir.Value:
    form = _format(x)
    is_subnormal = b.compare("<", x, form.smallest_normal)
    normal = b.select(is_subnormal, b.mul(x, 2.0**form.fraction_bits), x)
    # Exponent e and mantissa m with x = m 2^e and sqrt(1/2) <= m < sqrt(2).
    pattern = b.bitcast(normal, form.int_type)
    exponent = b.bits("ashr", b.sub(pattern, form.pattern(math.sqrt(0.5))), form.fraction_bits)
    mantissa = b.bitcast(b.sub(pattern, b.bits("shl", exponent, form.fraction_bits)), form.float_type)
    e = b.cast(exponent, form.float_type)
    e = b.select(is_subnormal, b.sub(e, float(form.fraction_bits)), e)
    excess = b.sub(mantissa, 1.0)
    log_mantissa = _log_ratio(b, b.div(excess, b.add(excess, 2.0)))
    result = b.fma(e, form.ln2_high, b.fma(e, form.ln2_low, log_mantissa))
    result = b.select(b.compare("<", x, math.inf), result, x)  # infinity and NaN are their own logarithm
    result = b.select(b.compare("==", x, 0.0), -math.inf, result)
    return b.select(b.compare("<", x, 0.0), math.nan, result)


def log1p(b: Values, x: ir.Value) -> ir.Value:
    """log(1 + x), accurate for small x."""
    u = b.add(x, 1.0)
    rounding = b.sub(x, b.sub(u, 1.0))  # what the sum lost
    log_u = log(b, u)
    corrected = b.add(log_u, b.div(rounding, u))
    is_finite = b.compare("<", b.intrinsic("llvm.fabs", log_u), math.inf)
    return b.select(is_finite, corrected, log_u)


def _log1p_unit(b: Values, x: ir.Value) -> ir.Value:
    """log(1 + x) for 0 <= x <= 1."""
    return _log_ratio(b, b.div(x, b.add(x, 2.0)))


# ---- error function ------------------------------------------------------------------------------------------------


def erf(b: Values, x: ir.Value) -> ir.Value:
    a = b.intrinsic("llvm.fabs", x)
    if element_of(x.type) == F32:
        complement = _exp2_of_product(b, a, b.polynomial(a, _ERFC_SLOPE_F32), 1.0)
    else:
        inside = b.min(a, 6.0)  # erf(6) rounds to 1
        tail = b.mul(_exp_minus_square(b, inside, 1.0), _scaled_normal_tail(b, b.mul(inside, math.sqrt(2.0))))
        complement = b.add(tail, tail)
    large = b.intrinsic("llvm.copysign", b.sub(1.0, complement), x)
    small = b.fma(x, b.polynomial(b.mul(x, x), _format(x).erf_rest), x)
    return b.select(b.compare("<", a, 1.0), small, large)


def _scaled_normal_tail(b: Values, a: ir.Value) -> ir.Value:
    """e^(a^2/2) Phi(-a) for 0 <= a <= 39, float64."""
    inverse = b.div(1.0, b.add(a, _TAIL_POLE))
    return b.mul(inverse, b.polynomial(b.fma(inverse, -2 * _TAIL_POLE, 1.0), _TAIL_F64))


# ---- hyperbolic tangent, logistic function, root -------------------------------------------------------------------


def tanh(b: Values, x: ir.Value) -> ir.Value:
    """-E / (2 + E) with E = e^(-2|x|) - 1, which has full relative accuracy at both ends."""
    form = _format(x)
    a = b.min(b.intrinsic("llvm.fabs", x), form.tanh_end)
    pattern, r = _split_by_ln2(b, b.mul(a, -2.0), form.bias)
    power = _power_of_two(b, pattern, form)
    e = b.fma(power, _expm1_reduced(b, r), b.sub(power, 1.0))
    return b.intrinsic("llvm.copysign", b.div(e, b.add(e, 2.0)), x)


def sigmoid(b: Values, x: ir.Value) -> ir.Value:
    """1 / (1 + e^-x), with the exponential always of a negative argument: no overflow, full accuracy at both ends."""
    t = _exp_small(b, b.neg(b.intrinsic("llvm.fabs", x)))
    return b.div(b.select(b.compare("<", x, 0.0), t, 1.0), b.add(t, 1.0))


def rsqrt(b: Values, x: ir.Value) -> ir.Value:
    return b.div(1.0, b.intrinsic("llvm.sqrt", x))


# ---- activations ---------------------------------------------------------------------------------------------------


def _gate_by_tail_root(b: Values, x: ir.Value, root: tuple[float, ...], end: float) -> ir.Value:
    """x Phi(x) as max(x, 0) - |x|/2 q^4, float32, with the polynomial q(|x|) = (2 Phi(-|x|))^(1/4) which ends in zero.

    A fourth root is far easier to approximate than the tail itself: no exponential, no division.
    """
    a = b.min(b.intrinsic("llvm.fabs", x), end)
    q = b.max(b.polynomial(a, root), 0.0)
    square = b.mul(q, q)
    a = b.max(b.neg(x), a)  # unlimited below zero: minus infinity times a zero tail is NaN, as in PyTorch
    return b.fma(b.mul(a, -0.5), b.mul(square, square), b.max(x, 0.0))


def gelu(b: Values, x: ir.Value) -> ir.Value:
    """x Phi(x), Phi the normal distribution function: the erf form of GELU."""
    if element_of(x.type) == F32:
        return _gate_by_tail_root(b, x, _PHI_ROOT_F32, 7.0)
    return gelu_relative(b, x)


def gelu_relative(b: Values, x: ir.Value) -> ir.Value:
    """GELU which keeps its relative accuracy far below zero: max(x, 0) - |x| Phi(-|x|), the tail never a difference."""
    a = b.min(b.intrinsic("llvm.fabs", x), 39.0)  # the tail is zero from there on
    if element_of(x.type) == F32:
        tail = _exp2_of_product(b, a, b.polynomial(a, _PHI_SLOPE_F32), 0.5)
    else:
        tail = b.mul(_exp_minus_square(b, a, 0.5), _scaled_normal_tail(b, a))
    a = b.max(b.neg(x), a)  # as in _gate_by_tail_root
    return b.fma(b.neg(a), tail, b.max(x, 0.0))


def gelu_tanh(b: Values, x: ir.Value) -> ir.Value:
    """The tanh form of GELU, 0.5 x (1 + tanh(u / 2)) = x sigmoid(u) with u = sqrt(8/pi) (x + 0.044715 x^3)."""
    if element_of(x.type) == F32:
        return _gate_by_tail_root(b, x, _TANH_PHI_ROOT_F32, 6.5)
    scale = math.sqrt(8 / math.pi)
    u = b.mul(x, b.fma(b.mul(x, x), 0.044715 * scale, scale))
    return b.mul(x, sigmoid(b, u))


def silu(b: Values, x: ir.Value) -> ir.Value:
    return b.mul(x, sigmoid(b, x))


def softplus(b: Values, x: ir.Value, beta: float = 1.0, threshold: float = 20.0) -> ir.Value:
    """log(1 + e^(beta x)) / beta, and x itself where beta x > threshold, as PyTorch defines it."""
    z = b.mul(x, beta) if beta != 1.0 else x
    t = _exp_small(b, b.neg(b.intrinsic("llvm.fabs", z)))
    smooth = b.add(b.max(z, 0.0), _log1p_unit(b, t))
    smooth = b.div(smooth, beta) if beta != 1.0 else smooth
    return b.select(b.compare(">", z, threshold), x, smooth)


def mish(b: Values, x: ir.Value) -> ir.Value:
    """x tanh(log(1 + e^x)) = x w / (w + 2) with w = e^x (e^x + 2)."""
    t = _exp_small(b, b.min(x, 2 * _format(x).tanh_end))
    w = b.mul(t, b.add(t, 2.0))
    return b.mul(x, b.div(w, b.add(w, 2.0)))


def hardswish(b: Values, x: ir.Value) -> ir.Value:
    return b.mul(x, b.mul(b.min(b.max(b.add(x, 3.0), 0.0), 6.0), 1 / 6))
