"""Control flow, arithmetic and conversions of the builder, each run on this host."""

from __future__ import annotations

import ctypes
import re

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from helpers.jit import NUMPY_TYPE, Compiled, apply, build, map_over_array, run_on_arrays
from llvmlite import ir as llvm_ir

from convt3d.cpu.ir import builder as ir
from convt3d.cpu.ir import values, vecmath
from convt3d.cpu.ir.values import F16, F32, F64, I16, I64, PTR
from convt3d.cpu.plan.machine import architecture, machine
from convt3d.cpu.runtime.build import context

WIDTHS = (1, 2, 4, 8, 16)
X86 = architecture() == "x86_64"
AVX512 = machine().isa == "avx512"
i64, address = ctypes.c_int64, ctypes.c_void_p


# ---- control flow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 10, 1), (3, 20, 4), (5, 5, 1), (7, 2, 3), (-4, 4, 2)])
def test_loop_visits_the_range(start, stop, step):
    seen = np.zeros(64, np.int64)

    def body(b, seen, low, high):
        with b.loop(low, high, step) as i:
            b.store(i, seen, b.add(i, 10))

    run_on_arrays(body, seen, ints=(start, stop))
    assert [i for i in seen if i] == [i for i in range(start, stop, step) if i]


@pytest.mark.parametrize("n", [0, 1, 7])
def test_loop_carries_values_through_nested_loops_and_branches(n):
    def body(b, n):
        zero = b.i64(0)
        with b.loop_carrying(0, n, 1, [zero, zero]) as (i, outer):
            total, odd = outer.values
            with b.loop_carrying(0, i, 1, [total]) as (j, inner):
                with b.if_else(b.compare("==", b.srem(j, 2), 0)) as (even, otherwise):
                    with even:
                        even.values = [j]
                    with otherwise:
                        otherwise.values = [b.mul(j, 10)]
                inner.next = [b.add(inner.values[0], even.merged[0])]
            outer.next = [inner.result[0], b.add(odd, b.bits("and_", i, 1))]
        b.ret(b.add(b.mul(outer.result[0], 100), outer.result[1]))

    compiled = build([("n", I64)], body, I64)
    total = sum(j if j % 2 == 0 else 10 * j for i in range(n) for j in range(i))
    assert compiled.function("f", i64, returns=i64)(n) == 100 * total + sum(i & 1 for i in range(n))
    assert "alloca" not in compiled.optimised


def test_if_runs_only_when_true():
    out = np.zeros(4, np.int64)

    def body(b, out, n):
        with b.loop(0, 4) as i, b.if_(b.compare("<", i, n)):
            b.store(b.i64(1), out, i)

    run_on_arrays(body, out, ints=(2,))
    assert out.tolist() == [1, 1, 0, 0]


def test_early_return():
    def body(b, n):
        with b.if_(b.compare("<", n, 0)):
            b.ret(-1)
        b.ret(b.mul(n, 2))

    function = build([("n", I64)], body, I64)
    assert [function.function("f", i64, returns=i64)(n) for n in (-5, 5)] == [-1, 10]


def test_misuse_is_reported():
    b = ir.define(llvm_ir.Module(), "f", [("n", I64)])
    with pytest.raises(ValueError, match=r"carried\.next"), b.loop_carrying(0, b.args["n"], 1, [b.i64(0)]):
        pass
    with pytest.raises(ValueError, match="both arms"), b.if_else(b.compare("<", b.args["n"], 1)):
        pass


@pytest.mark.skipif(not AVX512, reason="16 accumulators of 64 bytes")
def test_accumulators_stay_in_registers():
    """16 vector accumulators over a loop: one load, 16 fma, no spill."""

    def body(b, x, y, n):
        zeros = [values.constant(values.vector(F32, 16), 0.0)] * 16
        with b.loop_carrying(0, n, 1, zeros) as (k, sums):
            weight = b.load(x, b.mul(k, 16), F32, 16)
            sums.next = [b.fma(weight, b.load(y, b.add(b.mul(k, 16), r), F32), s) for r, s in enumerate(sums.values)]
        for r, total in enumerate(sums.result):
            b.store(total, x, 16 * r)

    x, y = np.random.default_rng(0).normal(size=(2, 512)).astype(np.float32)
    expected = y[:80].reshape(5, 16).T.astype(np.float64) @ x[:80].reshape(5, 16)
    compiled = run_on_arrays(body, x, y, ints=(5,))
    np.testing.assert_allclose(x[:256].reshape(16, 16), expected, rtol=1e-4, atol=1e-5)
    assert "(%rsp)" not in compiled.assembly


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_integers_fold_in_python():
    b = ir.define(llvm_ir.Module(), "f", [("n", I64)])
    n = b.args["n"]
    assert b.add(b.mul(3, 4), 5) == 17
    assert b.sdiv(17, 5) == 3
    assert b.srem(17, 5) == 2
    assert b.max(2, 3) == 3
    assert b.add(n, 0) is n
    assert b.mul(1, n) is n
    assert b.sub(n, 0) is n
    assert not b.raw.block.instructions


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("element", [F32, F64])
def test_max_and_min_propagate_nan(element, width):
    numbers = [1.0, -2.0, np.nan, np.inf, -np.inf, 0.5]
    x, y = (a.ravel().astype(NUMPY_TYPE[element]) for a in np.meshgrid(numbers, numbers))
    x, y = np.resize(x, 48), np.resize(y, 48)
    out = np.empty((3, 48), x.dtype)

    def body(b, x, y, out):
        with b.loop(0, 48, width) as i:
            u, v = b.load(x, i, element, width), b.load(y, i, element, width)
            for row, result in enumerate([b.max(u, v), b.min(u, v), b.max(0.0, u)]):
                b.store(result, out, b.add(i, 48 * row))

    run_on_arrays(body, x, y, out)
    for got, expected in zip(out, [np.maximum(x, y), np.minimum(x, y), np.maximum(x, 0)], strict=False):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("baseline", [False, True])
def test_multiply_add_never_calls_a_library(baseline):
    """Without an fma instruction it must be a multiplication and an addition: fmaf of libm is very slow."""
    x = np.linspace(-3, 3, 48, dtype=np.float32).reshape(3, 16)
    out = np.empty(16, np.float32)

    def body(b, x, out):
        b.store(b.multiply_add(*(b.load(x, 16 * row, F32, 16) for row in range(3))), out, 0)

    compiled = run_on_arrays(body, np.ascontiguousarray(x), out, baseline=baseline)
    np.testing.assert_allclose(out, x[0] * x[1] + x[2], rtol=0, atol=1e-6)
    assert "fmaf" not in compiled.assembly
    if AVX512:
        assert ("vfmadd" in compiled.assembly) is not baseline


def test_no_fast_math_and_no_libm_on_any_target():
    module = llvm_ir.Module()
    names = ["exp", "log", "log1p", "erf", "tanh", "sigmoid", "rsqrt", "gelu", "gelu_tanh", "silu", "softplus", "mish"]
    for name in names:
        for element, width in ((F32, 4), (F64, 2), (F32, 1)):
            map_over_array(module, f"{name}_{element}_{width}", element, width, getattr(vecmath, name))
    text = str(module)
    assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b", text)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for triple, cpu, features in [("aarch64-linux-gnu", "generic", "+neon"), ("x86_64-linux-gnu", "haswell", "")]:
        parsed = llvm.parse_assembly(f'target triple = "{triple}"\n' + text, context())
        machine = llvm.Target.from_triple(triple).create_target_machine(cpu, features, opt=3)
        assembly = machine.emit_assembly(parsed)
        assert not re.search(r"\b(callq?|bl)\s", assembly), triple


def test_define_sets_attributes():
    module = llvm_ir.Module()
    b = ir.define(
        module,
        "f",
        [("x", PTR), ("y", PTR)],
        noalias=["x"],
        cpu="znver4",
        features="+avx512f",
        prefer_vector_width=512,
        internal=True,
    )
    b.ret()
    text = str(module)
    llvm.parse_assembly(text, context()).verify()
    assert 'noalias %"x"' in text
    assert 'noalias %"y"' not in text
    assert "nounwind" in text
    assert "internal" in text
    for attribute in ('"target-cpu"="znver4"', '"target-features"="+avx512f"', '"prefer-vector-width"="512"'):
        assert attribute in text


def test_call_of_another_function():
    module = llvm_ir.Module()
    square = ir.define(module, "square", [("x", I64)], I64, internal=True)
    square.ret(square.mul(square.args["x"], square.args["x"]))
    b = ir.define(module, "f", [("x", I64)], I64)
    b.ret(b.add(b.call(square.function, b.args["x"]), b.call(square.function, 3)))
    assert Compiled(module).function("f", i64, returns=i64)(5) == 34


# ---- conversions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("baseline", [False, True])
def test_half_precision_storage(width, baseline):
    """Against numpy and ml_dtypes, with the hardware's conversions and without (x86-64 of 2003)."""
    random = np.random.default_rng(1)
    patterns = random.integers(0, 2**32, 40_000, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(8000, dtype=np.uint32) << 16) | 0x8000
    x = np.concatenate([patterns, ties, ties + 1, ties - 1]).view(np.float32)
    x = np.concatenate(
        [
            x,
            np.array([np.inf, -np.inf, np.nan, 0, -0.0, 65519.9, 65520, 3.4e38] * 2, np.float32),
            np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32),
        ]
    )
    for storage, numpy_type in ((values.BFLOAT16, ml_dtypes.bfloat16), (values.FLOAT16, np.float16)):
        out, back = np.empty(len(x), numpy_type), np.empty(len(x), np.float32)

        def body(b, x, out, back, n, storage=storage):
            with b.loop(0, n, width) as i:
                narrow = b.narrow(b.load(x, i, F32, width), storage)
                b.store(narrow, out, i)
                b.store(b.widen(narrow, storage), back, i)

        run_on_arrays(body, x, out, back, ints=(len(x),), baseline=baseline)
        with np.errstate(all="ignore"):
            expected = x.astype(numpy_type)
        is_number = ~np.isnan(x)
        assert (out.view(np.uint16) == expected.view(np.uint16))[is_number].all()
        assert np.isnan(out[~is_number].astype(np.float32)).all()
        assert np.isnan(back[~is_number]).all()
        np.testing.assert_array_equal(back[is_number], expected.astype(np.float32)[is_number])


def test_casts():
    out = np.zeros(4, np.float64)

    def body(b, out, n):
        b.store(b.cast(n, F64), out, 0)
        b.store(b.cast(b.cast(b.cast(n, F32), I64), F64), out, 1)
        b.store(b.cast(b.cast(b.cast(n, I16), I64), F64), out, 2)
        b.store(b.cast(b.cast(b.cast(n, F32), F16), F64), out, 3)

    run_on_arrays(body, out, ints=(-70_000,))
    assert out.tolist() == [-70_000, -70_000, float(np.int64(-70_000).astype(np.int16)), -np.inf]


@pytest.mark.skipif(not AVX512, reason="compares with AVX-512")
@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v2", "haswell"])
def test_lower_instruction_sets(cpu):
    """LLVM splits <16 x float> for narrower machines; only without fma instructions do the last bits change."""
    x = np.linspace(-8, 8, 4096, dtype=np.float32)
    has_fma = cpu == "haswell"
    modules = llvm_ir.Module(), llvm_ir.Module()
    map_over_array(modules[0], "gelu", F32, 16, vecmath.gelu)
    instructions = values.Instructions(fma=has_fma, half=has_fma)
    map_over_array(modules[1], "gelu", F32, 16, vecmath.gelu, instructions=instructions)
    native, lower = Compiled(modules[0]), Compiled(modules[1], cpu, "")
    assert "zmm" in native.assembly
    assert "zmm" not in lower.assembly
    assert "fmaf" not in lower.assembly
    np.testing.assert_allclose(apply(lower, "gelu", x), apply(native, "gelu", x), rtol=0, atol=0 if has_fma else 3e-7)
