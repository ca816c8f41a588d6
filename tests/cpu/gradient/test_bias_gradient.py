"""Gradients of biases: exact sums, whatever the layout, type, instruction set and number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu.steps.test_program import ARM, arm
from helpers.draws import relaid
from helpers.guard import Fence, fenced_like

from convt3d.cpu.gradient.bias import bias_gradient
from convt3d.cpu.gradient.bias_code import emit_bias
from convt3d.cpu.plan.cores import num_threads
from convt3d.cpu.plan.machine import machine
from convt3d.cpu.runtime.build import compile_ir
from convt3d.cpu.runtime.elf import undefined_symbols
from convt3d.spec import gradient as meaning
from convt3d.spec.dtypes import DTYPES

ISAS = ["avx512", "avx2", "baseline"] if machine().isa == "avx512" else [machine().isa]
SHAPES = [(1, 1, 1, 1, 1), (2, 3, 4, 5, 6), (3, 35, 2, 3, 17), (2, 16, 3, 1, 33), (1, 5, 1, 7, 1)]


def found(grad: Any, dtype: str) -> Any:
    kind = DTYPES[dtype]
    out = np.empty(grad.shape[1], kind.storage)
    out[...] = kind.narrow(np.array(np.nan))
    bias_gradient(grad, kind, out)
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("checked", ["0", "1"])
def test_drawn_layouts(isa: str, dtype: str, checked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum in float64, rounded once: the very number, but for ties that float64 rounds."""
    monkeypatch.setenv("CONVT3D_ISA", isa)
    monkeypatch.setenv("CONVT3D_CHECK_BOUNDS", checked)
    kind, rng = DTYPES[dtype], np.random.default_rng(0)
    for number in range(12):
        fences: list[Fence] = []
        stored = kind.narrow(rng.standard_normal(SHAPES[number % len(SHAPES)]))
        grad = fenced_like(relaid(rng, stored), bool(number % 2), fences)
        truth = meaning.bias_gradient(kind.widen(stored))
        error = np.abs(kind.widen(found(grad, dtype)) - truth)
        assert (error <= kind.eps / 2 * np.abs(truth) + 2.0**-40).all()
        for fence in fences:
            fence.free()


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_any_length_are_as_good(dtype: str, last: bool) -> None:
    """Equal numbers, which round the same way every time; and large ones that cancel."""
    grad = np.full((2, 3, 64, 64, 64), 0.1, dtype)
    grad[0, 1] = np.array([1e8, 0.1]).astype(dtype)[np.indices((64, 64, 64)).sum(axis=0) % 2]
    grad[1, 1] = -grad[0, 1]
    if last:
        grad = np.ascontiguousarray(grad.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    one, nothing, same = found(grad, dtype).astype(np.longdouble)
    exact = 2 * 64**3 * np.longdouble(grad[0, 0, 0, 0, 0])
    assert one == same
    assert abs(one - exact) <= np.finfo(dtype).eps / 2 * exact
    assert abs(nothing) <= 2.0**-52 * np.abs(grad[:, 1]).sum(dtype=np.float64)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_and_infinity(dtype: str, last: bool) -> None:
    grad = np.ones((2, 6, 3, 4, 5), dtype)
    grad[0, 1, 1, 2, 3] = np.nan
    grad[1, 2, 0, 0, 0] = np.inf
    grad[1, 3, 2, 3, 4] = -np.inf
    grad[:, 4, 0, 0, 0] = np.inf, -np.inf
    if last:
        grad = np.ascontiguousarray(grad.transpose(0, 2, 3, 4, 1)).transpose(0, 4, 1, 2, 3)
    np.testing.assert_array_equal(found(grad, dtype), [120, np.nan, np.inf, -np.inf, np.nan, 120])


def test_any_number_of_threads_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    first, last = rng.standard_normal((2, 9, 33, 40, 31)), rng.standard_normal((2, 33, 40, 31, 9))
    for grad in (first, last.transpose(0, 4, 1, 2, 3)):
        bits = set()
        for count in (1, 2, 3, 5):
            with num_threads(count):
                bits.add(found(grad, "float64").tobytes())
        assert len(bits) == 1


def test_nothing_to_sum_is_zero() -> None:
    for shape in ((0, 3, 2, 2, 2), (2, 3, 0, 2, 2)):
        assert found(np.empty(shape, np.float32), "float32").tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_code_for_arm(dtype: str) -> None:
    build = compile_ir(str(emit_bias("bias", dtype, arm()).module), ARM)
    assert build.object_code[18:20] == b"\xb7\x00"  # ELF machine number of AArch64
    assert not undefined_symbols(build.object_code)
