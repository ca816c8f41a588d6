"""Typed values: arithmetic, conversions and lane shuffles over llvmlite's IRBuilder, without control flow or memory.

Vectors have `width` lanes; width 1 is the plain scalar type, never <1 x float>.  Python numbers are accepted wherever a
value is, and integer arithmetic on two Python ints is done at once in Python, so index expressions stay small.  No
fast-math flag is ever set: NaN, infinities and signed zeros behave as IEEE 754 says, and a multiply and an add are
fused only where `fma` or `multiply_add` is called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR, VOID = ir.PointerType(), ir.VoidType()
Number: TypeAlias = "ir.Value | int | float"

_SIZE_IN_BYTES = {F16: 2, F32: 4, F64: 8}
_INTRINSIC_SUFFIX = {F16: "f16", F32: "f32", F64: "f64", PTR: "p0"}


class Storage(NamedTuple):
    """How a number lies in memory and in which type it is computed with."""

    name: str
    memory: ir.Type
    arithmetic: ir.Type


class Instructions(NamedTuple):
    """What the target has in hardware; LLVM would otherwise call library functions, slow or not even there."""

    fma: bool = True  # x86: feature "fma"
    half: bool = True  # float16 <-> float32; x86: feature "f16c"
    narrowing_store: bool = False  # a vector is narrowed and stored by one instruction, which goes through the caches


ALL_INSTRUCTIONS = Instructions()

FLOAT32 = Storage("float32", F32, F32)
FLOAT64 = Storage("float64", F64, F64)
FLOAT16 = Storage("float16", F16, F32)
BFLOAT16 = Storage("bfloat16", I16, F32)  # the upper half of a float32, handled as bits: llvmlite has no bfloat type


def vector(element: ir.Type, width: int) -> ir.Type:
    return element if width == 1 else ir.VectorType(element, width)


def element_of(type_: ir.Type) -> ir.Type:
    return type_.element if isinstance(type_, ir.VectorType) else type_


def width_of(type_: ir.Type) -> int:
    return type_.count if isinstance(type_, ir.VectorType) else 1


def is_float(type_: ir.Type) -> bool:
    return isinstance(element_of(type_), (ir.HalfType, ir.FloatType, ir.DoubleType))


def size_of(element: ir.Type) -> int:
    return element.width // 8 if isinstance(element, ir.IntType) else _SIZE_IN_BYTES[element]


def constant(type_: ir.Type, value: float | Sequence[int | float]) -> ir.Constant:
    """A scalar, a splat (one number for a vector type) or one number per lane."""
    return ir.Constant(type_, list(value) if isinstance(value, Sequence) else value)


def mangled(type_: ir.Type) -> str:
    """The type as it appears in the name of an overloaded intrinsic: v16f32, i64, p0."""
    element = element_of(type_)
    name = f"i{element.width}" if isinstance(element, ir.IntType) else _INTRINSIC_SUFFIX[element]
    return f"v{type_.count}{name}" if isinstance(type_, ir.VectorType) else name


def declare(module: ir.Module, name: str, arguments: Sequence[ir.Type], returns: ir.Type = VOID) -> ir.Function:
    """The function of that name, declared on first use."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(returns, arguments), name)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's type of bfloat16, which llvmlite lacks: for arguments of intrinsics alone."""

    def _to_string(self) -> str:
        return "bfloat"


_BF16 = _BFloat()


class Values:
    """Emits computations on values at the end of the current block of one function."""

    def __init__(self, raw: ir.IRBuilder, instructions: Instructions):
        self.raw = raw
        self.module: ir.Module = raw.module
        self.instructions = instructions

    # ---- arithmetic ---------------------------------------------------------------------------------

    def i64(self, value: Number) -> ir.Value:
        return self.lift(value, I64)

    def lift(self, value: Number, type_: ir.Type) -> ir.Value:
        """Python numbers become constants of the type, scalars of its element type are splat over its lanes."""
        if not isinstance(value, ir.Value):
            return constant(type_, value)
        return self.splat(value, width_of(type_)) if width_of(value.type) < width_of(type_) else value

    def _pair(self, x: Number, y: Number) -> tuple[ir.Value, ir.Value]:
        """Both as values of the same type; two Python ints are i64."""
        types = [value.type for value in (x, y) if isinstance(value, ir.Value)]
        common = max(types, key=width_of, default=I64)
        return self.lift(x, common), self.lift(y, common)

    def _arithmetic(self, name: str, x: Number, y: Number, in_python: Callable[..., Number]) -> Number:
        if not isinstance(x, ir.Value) and not isinstance(y, ir.Value):
            return in_python(x, y)
        x, y = self._pair(x, y)
        return getattr(self.raw, "f" + name if is_float(x.type) else name)(x, y)

    def add(self, x: Number, y: Number) -> Number:
        for term, other in ((x, y), (y, x)):
            if isinstance(term, int) and term == 0:
                return other
        return self._arithmetic("add", x, y, operator.add)

    def sub(self, x: Number, y: Number) -> Number:
        return x if isinstance(y, int) and y == 0 else self._arithmetic("sub", x, y, operator.sub)

    def mul(self, x: Number, y: Number) -> Number:
        for factor, other in ((x, y), (y, x)):
            if isinstance(factor, int) and factor == 1:
                return other
        return self._arithmetic("mul", x, y, operator.mul)

    def div(self, x: Number, y: Number) -> Number:
        """Floating-point quotient."""
        x, y = self._pair(x, y)
        return self.raw.fdiv(x, y)

    def sdiv(self, x: Number, y: Number) -> Number:
        """Integer quotient of a non-negative x and a positive y."""
        return self._arithmetic("sdiv", x, y, operator.floordiv)

    def srem(self, x: Number, y: Number) -> Number:
        """Integer remainder of a non-negative x and a positive y."""
        return self._arithmetic("srem", x, y, operator.mod)

    def neg(self, x: ir.Value) -> ir.Value:
        return self.raw.fneg(x) if is_float(x.type) else self.raw.neg(x)

    def bits(self, operation: str, x: Number, y: Number) -> ir.Value:
        """Bitwise and shift operations on integers: and_, or_, xor, shl, lshr, ashr."""
        return getattr(self.raw, operation)(*self._pair(x, y))

    def compare(self, relation: str, x: Number, y: Number) -> ir.Value:
        """Signed for integers; false for floats when either is NaN, except that "!=" is then true."""
        x, y = self._pair(x, y)
        if not is_float(x.type):
            return self.raw.icmp_signed(relation, x, y)
        return self.raw.fcmp_unordered(relation, x, y) if relation == "!=" else self.raw.fcmp_ordered(relation, x, y)

    def is_nan(self, x: ir.Value) -> ir.Value:
        return self.raw.fcmp_unordered("uno", x, x)

    def all_true(self, first: ir.Value, *more: ir.Value) -> ir.Value:
        for condition in more:
            first = self.raw.and_(first, condition)
        return first

    def one_true(self, first: ir.Value, *more: ir.Value) -> ir.Value:
        for condition in more:
            first = self.raw.or_(first, condition)
        return first

    def select(self, condition: ir.Value, x: Number, y: Number) -> ir.Value:
        return self.raw.select(condition, *self._pair(x, y))

    def max(self, x: Number, y: Number) -> Number:
        return self._extremum(">", "llvm.smax", x, y, max)

    def min(self, x: Number, y: Number) -> Number:
        return self._extremum("<", "llvm.smin", x, y, min)

    def _extremum(
        self, relation: str, integer_intrinsic: str, x: Number, y: Number, in_python: Callable[..., Number]
    ) -> Number:
        """Larger or smaller of two; NaN if either is NaN, as in PyTorch."""
        if not isinstance(x, ir.Value) and not isinstance(y, ir.Value):
            return in_python(x, y)
        if not isinstance(y, ir.Value):
            x, y = y, x
        bound_is_number = not isinstance(x, ir.Value)
        x, y = self._pair(x, y)
        if not is_float(x.type):
            return self.intrinsic(integer_intrinsic, x, y)
        # This select gives y when unordered, which is one x86 instruction (maxps/minps) and all a constant x needs.
        chosen = self.raw.select(self.raw.fcmp_ordered(relation, x, y), x, y)
        return chosen if bound_is_number else self.raw.select(self.is_nan(x), x, chosen)

    def fma(self, x: Number, y: Number, z: Number) -> ir.Value:
        """x * y + z, rounded once; twice if the target has no such instruction."""
        if not self.instructions.fma:
            return self.add(self.mul(x, y), z)
        type_ = max((value.type for value in (x, y, z) if isinstance(value, ir.Value)), key=width_of)
        return self.intrinsic("llvm.fma", *(self.lift(value, type_) for value in (x, y, z)))

    def multiply_add(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x * y + z, fused where the machine has it and in two roundings where it has not."""
        return self.intrinsic("llvm.fmuladd", x, y, z)

    def multiply_add_pairs(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x[0] * y[0] + x[1] * y[1] + z in each lane: x and y hold two bfloat16 numbers as bits, z a float32. Products
        are exact, sums are rounded, and numbers below 2^-126 count as zero. AVX512-BF16 has it."""
        pairs = ir.VectorType(_BF16, 2 * width_of(z.type))
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width_of(z.type)}"
        function = declare(self.module, name, [z.type, pairs, pairs], z.type)
        return self.raw.call(function, [z, self.raw.bitcast(x, pairs), self.raw.bitcast(y, pairs)])

    def pair(self, first: ir.Value, second: ir.Value) -> ir.Value:
        """Lanes for `multiply_add_pairs`, of bfloat16 numbers given as float32: the first in the lower half."""
        lower = self.bits("lshr", self.bitcast(first, I32), 16)
        return self.bitcast(self.bits("or_", lower, self.bitcast(second, I32)), F32)

    def polynomial(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """Horner's rule with fma; coefficients lowest power first."""
        total: Number = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, coefficient)
        return total

    def intrinsic(self, name: str, *arguments: ir.Value) -> ir.Value:
        """An intrinsic overloaded on one type, which all arguments and the result have."""
        type_ = arguments[0].type
        function = declare(self.module, f"{name}.{mangled(type_)}", [type_] * len(arguments), type_)
        return self.raw.call(function, arguments)

    def call(self, function: ir.Function, *arguments: Number) -> ir.Value:
        types = function.function_type.args
        return self.raw.call(function, [self.lift(value, type_) for value, type_ in zip(arguments, types, strict=True)])

    # ---- conversions -------------------------------------------------------------------------------------------

    def bitcast(self, x: ir.Value, element: ir.Type) -> ir.Value:
        """Reinterpret every lane as another type of the same size."""
        return self.raw.bitcast(x, vector(element, width_of(x.type)))

    def cast(self, x: Number, element: ir.Type, signed: bool = True) -> ir.Value:
        """Convert the number in every lane; float to integer truncates and needs an in-range argument."""
        x = x if isinstance(x, ir.Value) else self.i64(x)
        source, target = element_of(x.type), vector(element, width_of(x.type))
        if source == element:
            return x
        if is_float(source) and is_float(element):
            return (self.raw.fpext if size_of(element) > size_of(source) else self.raw.fptrunc)(x, target)
        if is_float(source):
            return (self.raw.fptosi if signed else self.raw.fptoui)(x, target)
        if is_float(element):
            return (self.raw.sitofp if signed else self.raw.uitofp)(x, target)
        if element.width < source.width:
            return self.raw.trunc(x, target)
        return (self.raw.sext if signed else self.raw.zext)(x, target)

    def widen(self, x: ir.Value, storage: Storage) -> ir.Value:
        """From the type in memory to the type of arithmetic; always exact."""
        if storage == FLOAT16 and not self.instructions.half:
            return self._widen_half_bits(self.cast(self.bitcast(x, I16), I32, signed=False))
        if storage != BFLOAT16:
            return self.cast(x, storage.arithmetic)
        return self.bitcast(self.bits("shl", self.cast(x, I32, signed=False), 16), F32)

    def narrow(self, x: ir.Value, storage: Storage) -> ir.Value:
        """From the type of arithmetic to the type in memory, rounded to nearest even; NaN stays NaN."""
        if storage == FLOAT16 and not self.instructions.half:
            return self.bitcast(self.cast(self._narrow_to_half_bits(x), I16), F16)
        if storage != BFLOAT16:
            return self.cast(x, storage.memory)
        pattern = self.bitcast(x, I32)
        kept = self.bits("lshr", pattern, 16)
        tie_to_even = self.add(self.bits("and_", kept, 1), 0x7FFF)
        rounded = self.bits("lshr", self.add(pattern, tie_to_even), 16)
        return self.cast(self.select(self.is_nan(x), self.bits("or_", kept, 0x40), rounded), I16)

    def _widen_half_bits(self, half: ir.Value) -> ir.Value:
        """The float32 of a float16 given as i32."""
        sign = self.bits("shl", self.bits("and_", half, 0x8000), 16)
        magnitude = self.bits("shl", self.bits("and_", half, 0x7FFF), 13)
        rescaled = self.bitcast(self.mul(self.bitcast(magnitude, F32), 2.0**112), I32)  # the exponent bias differs
        is_finite = self.compare("<", magnitude, 0x7C00 << 13)
        pattern = self.select(is_finite, rescaled, self.bits("or_", magnitude, 0x7F800000))
        return self.bitcast(self.bits("or_", pattern, sign), F32)

    def _narrow_to_half_bits(self, x: ir.Value) -> ir.Value:
        """The float16 nearest to a float32, as i32."""
        pattern = self.bitcast(x, I32)
        sign = self.bits("lshr", self.bits("and_", pattern, -0x80000000), 16)
        magnitude = self.bits("and_", pattern, 0x7FFFFFFF)
        tie_to_even = self.add(self.bits("and_", self.bits("lshr", magnitude, 13), 1), 0xFFF)
        normal = self.sub(self.bits("lshr", self.add(magnitude, tie_to_even), 13), (127 - 15) << 10)
        # 0.5 has the spacing 2^-24 of subnormal float16, so adding it rounds there.
        subnormal = self.sub(self.bitcast(self.add(self.bitcast(magnitude, F32), 0.5), I32), 0x3F000000)
        is_subnormal = self.compare("<", magnitude, (127 - 14) << 23)
        finite = self.select(is_subnormal, subnormal, self.min(normal, 0x7C00))
        return self.bits("or_", self.select(self.is_nan(x), 0x7E00, finite), sign)

    # ---- lanes -------------------------------------------------------------------------------------------------

    def splat(self, value: ir.Value, width: int) -> ir.Value:
        if width == 1:
            return value
        if isinstance(value, ir.Constant):
            return ir.Constant(vector(value.type, width), [value] * width)
        undefined = ir.Constant(vector(value.type, width), ir.Undefined)
        return self.shuffle(self.raw.insert_element(undefined, value, I32(0)), undefined, [0] * width)

    def lane(self, x: ir.Value, index: int) -> ir.Value:
        return self.raw.extract_element(x, I32(index)) if width_of(x.type) > 1 else x

    def join(self, lanes: Sequence[ir.Value]) -> ir.Value:
        """A vector from its scalars."""
        if len(lanes) == 1:
            return lanes[0]
        joined: ir.Value = ir.Constant(vector(lanes[0].type, len(lanes)), ir.Undefined)
        for index, value in enumerate(lanes):
            joined = self.raw.insert_element(joined, value, I32(index))
        return joined

    def shuffle(self, x: ir.Value, y: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """Lanes of x, then y, counted through; x and y are vectors of the same type."""
        return self.raw.shuffle_vector(x, y, constant(vector(I32, len(lanes)), list(lanes)))

    def interleave(self, vectors: Sequence[ir.Value]) -> list[ir.Value]:
        """n vectors whose concatenation reads v0[0], v1[0], ..., v0[1], v1[1], ..."""
        count, width = len(vectors), width_of(vectors[0].type)
        if count == 1 or width == 1:
            return list(vectors)
        if count > 2 and count % 2 == 0:  # two levels of halves need fewer shuffles than picking from all at once
            pairs = zip(self.interleave(vectors[0::2]), self.interleave(vectors[1::2]), strict=False)
            return [out for pair in pairs for out in self.interleave(pair)]
        places = [divmod(place, count) for place in range(count * width)]  # (lane, vector)
        return [self._pick(vectors, places[out * width : (out + 1) * width]) for out in range(count)]

    def deinterleave(self, vectors: Sequence[ir.Value]) -> list[ir.Value]:
        """The inverse of interleave."""
        count, width = len(vectors), width_of(vectors[0].type)
        if count == 1 or width == 1:
            return list(vectors)
        if count > 2 and count % 2 == 0:
            halves = [self.deinterleave(vectors[k : k + 2]) for k in range(0, count, 2)]
            even, odd = (self.deinterleave(half) for half in zip(*halves, strict=False))
            return [out for pair in zip(even, odd, strict=False) for out in pair]
        places = [[divmod(lane * count + out, width)[::-1] for lane in range(width)] for out in range(count)]
        return [self._pick(vectors, place) for place in places]

    def _pick(self, vectors: Sequence[ir.Value], places: Sequence[tuple[int, int]]) -> ir.Value:
        """One vector whose lanes come from the given (lane, vector) places: a chain of two-operand shuffles."""
        width = len(places)
        picked = vectors[0]
        taken = [lane if source == 0 else 0 for lane, source in places]
        for current in range(1, len(vectors)):
            lanes = [
                width + lane if source == current else kept for (lane, source), kept in zip(places, taken, strict=False)
            ]
            picked = self.shuffle(picked, vectors[current], lanes)
            taken = list(range(width))
        return picked

    def reduce(self, x: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """Combine all lanes pairwise, halving a power-of-two width each time; the order is fixed."""
        while (width := width_of(x.type)) > 1:
            half = width // 2
            x = (
                combine(self.shuffle(x, x, range(half)), self.shuffle(x, x, range(half, width)))
                if half > 1
                else (combine(self.lane(x, 0), self.lane(x, 1)))
            )
        return x
